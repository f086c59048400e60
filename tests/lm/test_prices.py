"""Prices are read strictly, and a model without one is said to have none."""

from pathlib import Path

import pytest

from kgqa_core.errors import ConfigError
from kgqa_core.lm.prices import read_prices

GOOD = "{input: 0.5, output: 1.5, as_of: 2025-01-31}"


def write(folder: Path, text: str) -> Path:
    path = folder / "prices.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_prices_that_come_with_it_are_sound() -> None:
    prices = read_prices(Path(__file__).resolve().parents[2] / "conf" / "prices.yaml")
    assert prices.currency == "USD"
    assert all(price.source for price in prices.models.values())


def test_a_price_is_per_million_tokens(tmp_path: Path) -> None:
    price = read_prices(write(tmp_path, f"currency: USD\nmodels:\n  tiny: {GOOD}\n")).of("tiny")
    assert price is not None
    assert price.of(2_000_000, 1_000_000) == 2.5


def test_an_unknown_model_has_no_price_and_the_nearest_name_is_told(tmp_path: Path) -> None:
    prices = read_prices(write(tmp_path, f"currency: USD\nmodels:\n  llama-2-7b: {GOOD}\n"))
    assert prices.of("llama-2-7b-chat") is None
    assert "nearest name there is llama-2-7b" in prices.why_none("llama-2-7b-chat")


def test_a_file_may_name_no_model(tmp_path: Path) -> None:
    assert read_prices(write(tmp_path, "currency: USD\nmodels:\n")).models == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models: {}", "currency is missing"),
        ("currency: USD\nmodels: []", "models = "),
        ("currency: 3\nmodels: {}", "currency = 3"),
        ("currency: USD\nmodels: {}\nmodel: {}", "did you mean models"),
        ("currency: USD\nmodels: {a: 3}", "a = 3"),
        ("currency: USD\nmodels: {a: {input: 1, output: 2}}", "as_of is missing"),
        ("currency: USD\nmodels: {a: {input: 1, output: 2, as_of: today}}", "as_of = 'today'"),
        ("currency: USD\nmodels: {a: {input: -1, output: 2, as_of: 2025-01-31}}", "input = -1"),
        ("currency: USD\nmodels: {a: {input: true, output: 2, as_of: 2025-01-31}}", "input = True"),
        ("currency: USD\nmodels: {a: {input: .nan, output: 2, as_of: 2025-01-31}}", "input = nan"),
        ("currency: USD\nmodels: {a: {inptu: 1, output: 2, as_of: 2025-01-31}}", "did you mean input"),
        ("currency: USD\nmodels: {a: {input: 1, output: 2, as_of: 2025-01-31, source: 3}}", "source = 3"),
        (f"currency: USD\nmodels:\n  a: {GOOD}\n  a: {GOOD}", "given twice"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_prices(write(tmp_path, text))
