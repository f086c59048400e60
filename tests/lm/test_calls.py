"""What is counted, kept and stopped around a model, and what it costs."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgqa_core import schemas
from kgqa_core.config_file import read_yaml, validated
from kgqa_core.config_lm import Price, Prices
from kgqa_core.errors import ConfigError
from kgqa_core.lm.call_store import CallStore, Kept, text_key
from kgqa_core.lm.calls import Meter, Metered
from kgqa_core.lm.constraints import Choices
from kgqa_core.lm.types import GREEDY, Decoding, Generation, Problem, Prompt
from kgqa_core.run.open import PRICES

LOGICAL = ("num_calls", "num_prompt_tokens", "num_tokens", "seconds", "money")  # equal when a run is repeated
PRICE = Price(input=3.0, output=7.0, as_of=date(2025, 1, 1))


@dataclass
class FakeModel:
    """Answers with what it was asked and how; remembers every call, and fails where it is told to."""

    name: str = "fake"
    context: int = 97
    fails: dict[str, Problem] = field(default_factory=dict)  # text of a prompt -> problem
    says: Callable[[str, int], Generation] | None = None  # text of a prompt, number of the text -> another text
    asked: list[tuple[str, Decoding]] = field(default_factory=list)
    scored: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def count_tokens(self, prompts: Sequence[Prompt]) -> list[int]:
        return [len(prompt.text.split()) for prompt in prompts]

    def generate(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> list[list[Generation]]:
        self.asked += [(prompt.text, decoding) for prompt in prompts]
        return [[self._one(prompt, decoding, index) for index in range(decoding.num_returns)] for prompt in prompts]

    def score(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> list[list[float]]:
        self.scored += [(prompt.text, tuple(choice)) for prompt, choice in zip(prompts, options, strict=True)]
        return [
            [-math.inf if prompt.text in self.fails else -float(len(option)) for option in choice]
            for prompt, choice in zip(prompts, options, strict=True)
        ]

    def _one(self, prompt: Prompt, decoding: Decoding, index: int) -> Generation:
        if prompt.text in self.fails:
            return Generation("", problem=self.fails[prompt.text])
        if self.says is not None:
            return self.says(prompt.text, index)
        return Generation(f"{prompt.text}!{decoding.seed}.{index}", log_prob=-0.5, num_tokens=2 + index)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CallStore]:
    with CallStore(tmp_path) as opened:
        yield opened


def around(model: FakeModel, **options: Any) -> Metered:
    return Metered(model, **{"meter": Meter(), **options})


def texts(results: list[list[Generation]]) -> list[list[str]]:
    return [[generation.text for generation in own] for own in results]


def rows(meter: Meter) -> list[dict[str, Any]]:
    table = meter.take()
    assert table.schema.equals(schemas.METER)
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def logical(meter: Meter) -> list[list[object]]:
    names = ("system", "model", "instruction", "question_id", *LOGICAL)
    return [[row[name] for name in names] for row in rows(meter)]


@settings(max_examples=40)
@given(
    rounds=st.lists(
        st.tuples(st.lists(st.integers(0, 4), max_size=6), st.integers(1, 4), st.sampled_from(["sample", "beam"])),
        max_size=5,
    ),
    stops=st.integers(1, 9),
)
def test_whatever_is_asked_a_resumed_run_has_the_table_of_the_first_and_pays_nothing(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[tuple[list[int], int, str]], stops: int
) -> None:
    folder = tmp_path_factory.mktemp("store")

    def run(model: FakeModel, until: int) -> tuple[Meter, list[list[list[str]]]]:
        said = []
        with CallStore(folder) as store:
            metered = around(model, store=store, system="s", max_calls=stops, price=PRICE)
            for numbers, num, method in rounds[:until]:
                prompts = [Prompt(f"question {n}", question_id=f"q{n}", instruction="plan") for n in numbers]
                how = Decoding(method="sample" if method == "sample" else "beam", num_returns=num, seed=5)
                how = how if method == "sample" else replace(how, num_beams=4)
                said.append(texts(metered.generate(prompts, how)))
        return metered.meter, said

    run(FakeModel(), len(rounds) // 2)  # killed halfway
    first, said = run(FakeModel(), len(rounds))
    again = FakeModel()
    second, said_again = run(again, len(rounds))
    assert said == said_again and logical(first) == logical(second)
    assert again.asked == [] and second.usage()["paid_calls"] == 0


def test_equal_calls_of_a_batch_are_asked_once_and_counted_for_each_who_asked() -> None:
    model, meter = FakeModel(), Meter()
    prompts = [Prompt("a b", question_id="q1"), Prompt("c", question_id="q2"), Prompt("a b", question_id="q3")]
    assert texts(around(model, meter=meter).generate(prompts)) == [["a b!0.0"], ["c!0.0"], ["a b!0.0"]]
    assert [text for text, _ in model.asked] == ["a b", "c"]
    counted = [(row["question_id"], row["num_calls"], row["paid_calls"]) for row in rows(meter)]
    assert counted == [("q1", 1, 1), ("q2", 1, 1), ("q3", 1, 0)]


def test_five_samples_after_three_pay_two_and_draw_them_anew(store: CallStore) -> None:
    model = FakeModel()
    metered = around(model, store=store)
    three, five = (Decoding(method="sample", num_returns=num, seed=5) for num in (3, 5))
    first = texts(metered.generate([Prompt("x")], three))[0]
    then = texts(metered.generate([Prompt("x")], five))[0]
    assert then[:3] == first and len(set(then)) == 5
    assert [decoding.num_returns for _, decoding in model.asked] == [3, 2]
    assert metered.meter.usage()["paid_tokens"] == (2 + 3 + 4) + (2 + 3)


@pytest.mark.parametrize("kept", [(1,), (0, 3), (0, 2), (1, 2)])
def test_samples_with_a_gap_are_drawn_again_without_giving_one_text_twice(
    store: CallStore, kept: tuple[int, ...]
) -> None:
    model, four = FakeModel(), Decoding(method="sample", num_returns=4, seed=5)
    (drawn,) = around(model).generate([Prompt("x")], four)
    store.put({text_key("fake", Prompt("x"), four, number): Kept(drawn[number], 1, 0.5) for number in kept})
    metered = around(model, store=store)
    again = texts(metered.generate([Prompt("x")], four))[0]
    assert [again[number] for number in kept] == [drawn[number].text for number in kept]
    assert len(set(again)) == 4
    assert texts(around(model, store=store).generate([Prompt("x")], four)) == [again] and len(model.asked) == 2


def test_what_shapes_a_text_is_another_call(store: CallStore) -> None:
    model, asked = FakeModel(), Decoding(method="sample", seed=5)
    changes = ({}, {"seed": 6}, {"temperature": 0.5}, {"max_new_tokens": 3}, {"stop": ("\n",)})
    others = [
        *((Prompt("x"), replace(asked, **changed)) for changed in changes),
        *((Prompt("y"), asked), (Prompt("x", system="be brief"), asked), (Prompt("x"), GREEDY)),
        (Prompt("x"), replace(GREEDY, seed=3)),  # which has no seed: the call before
    ]
    for prompt, decoding in others:
        around(model, store=store).generate([prompt], decoding)
    assert model.asked == [(prompt.text, decoding) for prompt, decoding in others[:-1]]


def test_failures_are_counted_and_asked_again(store: CallStore) -> None:
    model = FakeModel(fails={"b": "timeout"})
    metered = around(model, store=store)
    assert metered.generate([Prompt("a"), Prompt("b")])[1] == [Generation("", problem="timeout")]
    assert metered.score([Prompt("a"), Prompt("b")], [["yes", "no"], ["yes"]]) == [[-3.0, -2.0], [-math.inf]]
    model.fails.clear()
    assert texts(metered.generate([Prompt("a"), Prompt("b")])) == [["a!0.0"], ["b!0.0"]]
    assert [text for text, _ in model.asked] == ["a", "b", "b"]
    scores = metered.score([Prompt("a"), Prompt("b")], [["no", "maybe", "no"], ["yes"]])
    assert scores == [[-2.0, -5.0, -2.0], [-3.0]]  # options are kept one by one
    assert model.scored == [("a", ("yes", "no")), ("b", ("yes",)), ("a", ("maybe",)), ("b", ("yes",))]
    assert (metered.meter.usage()["num_calls"], metered.meter.usage()["num_failed"]) == (8, 2)


def test_a_question_over_its_budget_of_calls_is_stopped_and_the_others_go_on() -> None:
    model, meter = FakeModel(), Meter()
    metered = around(model, meter=meter, max_calls=2, system="tog")
    prompts = [Prompt(f"{n}", question_id="greedy" if n < 5 else "modest") for n in range(6)]
    results = metered.generate(prompts)
    assert [own[0].problem for own in results] == ["", "", "budget", "budget", "budget", ""]
    assert len(model.asked) == 3
    other_system = around(model, meter=meter, max_calls=2, system="fiske")
    assert other_system.generate(prompts[:1])[0][0].problem == ""
    counted = [(row["system"], row["question_id"], row["num_calls"], row["num_stopped"]) for row in rows(meter)]
    assert counted == [("fiske", "greedy", 1, 0), ("tog", "greedy", 2, 3), ("tog", "modest", 1, 0)]
    assert metered.generate(prompts[:1])[0][0].problem == ""  # the accounts began anew
    assert around(model, max_calls=0).generate([Prompt("of no question")])[0][0].problem == ""


def test_a_score_that_a_budget_forbids_is_minus_infinity() -> None:
    model = FakeModel()
    prompts = [Prompt("a", question_id="q"), Prompt("b", question_id="q")]
    scores = around(model, max_calls=1).score(prompts, [["yes"], ["yes", "no"]])
    assert scores == [[-3.0], [-math.inf, -math.inf]] and model.scored == [("a", ("yes",))]


def test_money_is_null_where_nobody_knows_the_price() -> None:
    meter = Meter()
    around(FakeModel("a"), meter=meter, price=PRICE).generate([Prompt("two words")])
    around(FakeModel("b"), meter=meter).generate([Prompt("two words")])
    assert [row["money"] for row in rows(meter)] == [pytest.approx((3 * 2 + 7 * 2) / 1e6), None]


def test_a_text_that_stops_before_its_mark_is_not_outside() -> None:
    metered = around(FakeModel())
    bound = Choices(["a b!0.0|end", "c"])
    metered.generate([Prompt("a b", constraint=bound)], Decoding(stop=("|end",)))
    assert metered.meter.usage()["num_outside"] == 0
    metered.generate([Prompt("a c", constraint=bound)], Decoding(stop=("|end",)))
    assert metered.meter.usage()["num_outside"] == 1


def test_a_text_that_repeats_itself_to_its_end_is_read_once_and_counted(store: CallStore) -> None:
    loop = "Answer:\n" + "Oto Brandt\n" * 20
    said = {"a": Generation(loop, num_tokens=60, finished=False), "b": Generation(loop, num_tokens=60)}

    for paid in (1, 0):  # the second time from the store
        metered = around(FakeModel(says=lambda text, _: said[text]), store=store)
        assert texts(metered.generate([Prompt("a"), Prompt("b")])) == [["Answer:\nOto Brandt"], [loop]]
        usage = metered.meter.usage()
        assert (usage["num_cut"], usage["num_looping"], usage["num_tokens"]) == (1, 1, 120)
        assert usage["paid_calls"] == 2 * paid


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("<think>\nyes or no? <PATH>a</PATH>\n</think>\n\nno", "no"),
        ("yes or no?</think>no", "no"),  # the template began the thought
        ("<think>yes, it", ""),  # its limit came before an answer
        ("no", "no"),
    ],
)
def test_what_a_reasoning_model_thinks_is_kept_and_is_no_part_of_its_answer(
    store: CallStore, said: str, read: str
) -> None:
    thinking = FakeModel(says=lambda text, _: Generation(said, num_tokens=7, finished=bool(read)))
    prompt = Prompt("a", constraint=Choices(["no"]))
    metered = around(thinking, store=store)
    assert texts(metered.generate([prompt])) == [[read]]
    usage = metered.meter.usage()
    assert (usage["num_outside"], usage["num_cut"], usage["num_looping"]) == (not read, not read, 0)
    assert [one.generation.text for one in store.get([text_key("fake", prompt, GREEDY, 0)]).values()] == [said]


def test_beams_that_a_constraint_has_no_text_for_are_neither_cut_nor_outside() -> None:
    beams = [Generation("no", num_tokens=2), *[Generation("", finished=False)] * 2]
    metered = around(FakeModel(says=lambda _, index: beams[index]))
    metered.generate([Prompt("a", constraint=Choices(["no"]))], Decoding(method="beam", num_beams=3, num_returns=3))
    usage = metered.meter.usage()
    assert (usage["num_tokens"], usage["num_cut"], usage["num_outside"]) == (2, 0, 0)


def test_texts_outside_their_constraint_are_counted_and_another_constraint_is_another_call() -> None:
    model = FakeModel()
    metered = around(model)
    metered.generate([Prompt("a", constraint=Choices(["a!0.0", "b"])), Prompt("a", constraint=Choices(["b"]))])
    assert len(model.asked) == 2 and metered.meter.usage()["num_outside"] == 1


ONE = "{input: 0.5, output: 1.5, as_of: 2025-01-31}"


def read_text(folder: Path, text: str) -> Prices:
    path = folder / "prices.yaml"
    path.write_text(text, encoding="utf-8")
    return validated(Prices, read_yaml(path), path, {})


def test_the_prices_that_come_with_it_are_sound(tmp_path: Path) -> None:
    prices = validated(Prices, read_yaml(PRICES), PRICES, {})
    assert prices.currency == "USD" and all(price.source for price in prices.models.values())
    assert read_text(tmp_path, "currency: USD\nmodels:\n").models == {}
    assert read_text(tmp_path, f"currency: USD\nmodels: {{a: {ONE}}}").models["a"].of(2_000_000, 1_000_000) == 2.5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models: {}", "missing key 'currency'"),
        ("currency: USD\nmodels: {}\nmodel: {}", "did you mean 'models'"),
        ("currency: USD\nmodels: {a: 3}", r"models.a = 3: must be a section; its keys are input, output"),
        ("currency: USD\nmodels: {a: {input: -1, output: 2, as_of: 2025-01-31}}", "input = -1"),
        ("currency: USD\nmodels: {a: {input: .nan, output: 2, as_of: 2025-01-31}}", "input = nan"),
        (f"currency: USD\nmodels:\n  a: {ONE}\n  a: {ONE}", "given twice"),
    ],
)
def test_what_is_wrong_with_prices_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_text(tmp_path, text)
