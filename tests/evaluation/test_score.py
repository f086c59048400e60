"""Any predictions file scored: formats, strict and published figures, and what is said of bad files."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kgqa_core.errors import InputError
from kgqa_core.evaluation.metrics import METRICS, ROG_METRICS, score_predictions
from kgqa_core.evaluation.predictions import score_file, score_names, write_predictions
from kgqa_core.types import Prediction, Question, Step

NAMES = ["Ann", "Bob", "The Cat", "Ann", "Eve"]  # two entities share a name
STEP = Step(head=0, relation=0, tail=1)


def write_lines(folder: Path, *rows: Any, name: str = "predictions.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def ask(id: str, *golds: int, **more: Any) -> Question:
    return Question(id=id, text=f"{id}?", masked="", topics=(4,), answers=golds, split="test", **more)


def test_jsonl_is_scored_both_ways(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path,
        {"prediction": "Rome\nrome\nParis", "ground_truth": ["Rome"]},
        {"prediction": ["Tirana"], "ground_truth": ["Iran"], "more": 1},
        "\n",
        {"prediction": "", "ground_truth": ["Rome"]},
    )
    found = score_file(path)
    assert found["n"] == 3
    assert list(found["rog"]) == list(ROG_METRICS)
    assert found["rog"]["hit"] == pytest.approx(200 / 3)  # Iran is in Tirana
    assert found["strict"]["hits1"] == pytest.approx(100 / 3)
    assert found["strict"]["precision"] == pytest.approx(50 / 3)  # the repeated Rome counts once
    assert found["strict"]["em"] == 0


def test_strict_figures_have_the_same_interval_in_either_format(tmp_path: Path) -> None:
    right = [number % 3 > 0 for number in range(60)]
    lines = [{"prediction": ["Ann"] if one else [], "ground_truth": ["Ann"]} for one in right]
    by_name = score_file(write_lines(tmp_path, *lines))["strict"]
    questions = [ask(str(number), 0) for number in range(60)]
    predictions = [Prediction(str(number), (0,), (1.0,), (0,)) for number in range(60) if right[number]]
    path = tmp_path / "predictions.parquet"
    write_predictions(path, questions, predictions, entity_names=NAMES, render_path=str)
    by_id = score_file(path)["strict"]
    for metric in ("hits1", "f1", "em"):
        low, high = by_name[f"{metric}.low"], by_name[f"{metric}.high"]
        assert by_name[metric] == pytest.approx(200 / 3)
        assert low < by_name[metric] < high
        assert (by_id[f"{metric}.low"], by_id[f"{metric}.high"]) == (low, high)


@pytest.mark.parametrize(
    ("prediction", "golds", "expected"),
    [
        ("Rome", ["ROME"], (1, 1, 1, 1, 1)),
        ("\n Rome \n\nParis", ["Rome"], (1, 2 / 3, 1 / 2, 1, 0)),
        (["Paris", "Rome"], ["Rome", "Oslo", "Rome"], (0, 1 / 2, 1 / 2, 1 / 2, 0)),
        ([], ["Rome"], (0, 0, 0, 0, 0)),
        ("none", [], (0, 0, 0, 0, 0)),
        ("", [""], (0, 0, 0, 0, 0)),
    ],
)
def test_strict_figures_by_name(prediction: Any, golds: list[str], expected: tuple[float, ...]) -> None:
    assert score_names(prediction, golds) == pytest.approx(expected)


def test_parquet_gives_the_figures_that_memory_gives(tmp_path: Path) -> None:
    questions = [
        ask("a", 0, hops=1),
        ask("b", 1, 2, hops=2),
        ask("c", 2),
        ask("t", 1, claim=1, verdict=True),
        ask("f", 1, claim=2, verdict=False),
    ]
    predictions = [
        Prediction("a", (0, 3), (0.5, 0.5), (0, 3), ((STEP,),), covered=True),
        Prediction("b", (1, 4, 2), (0.6, 0.3, 0.1), (2, 1), covered=True),
        Prediction("t", (1,), (1.0,), (1,), ((STEP,),), covered=True, verdict=True),
        Prediction("f", (1,), (1.0,), (1,), ((),), verdict=False),
    ]
    path = tmp_path / "predictions.parquet"
    write_predictions(path, questions, predictions, entity_names=NAMES, render_path=str)
    found = score_file(path)
    summary = score_predictions(questions, predictions).summary()
    assert found["n"] == 5
    assert {name: found["strict"][name] for name in METRICS} == {name: summary[name] for name in METRICS}
    assert found["strict"]["hits1"] == (50 + 100 + 0 + 100 + 0) / 5
    assert found["rog"]["hit"] == 80  # the homonym helps the names, the true/false questions are judged by names


def test_parquet_is_known_by_content_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "table.out"
    write_predictions(path, [ask("a", 0)], [], entity_names=NAMES, render_path=str)
    assert score_file(path)["strict"]["hits1"] == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{broken\n", "line 2: Invalid JSON.*'{broken"),
        ("[1]\n", "line 2: .*object"),
        ({"ground_truth": []}, "line 2: 'prediction': Field required"),
        ({"prediction": ""}, "line 2: 'ground_truth': Field required"),
        ({"prediction": None, "ground_truth": []}, "line 2: 'prediction': .* found None"),
        ({"prediction": [1], "ground_truth": []}, r"line 2: 'prediction': .* found \[1\]"),
        ({"prediction": "", "ground_truth": "Rome"}, "line 2: 'ground_truth': .* found 'Rome'"),
    ],
)
def test_a_bad_line_is_named_by_number(tmp_path: Path, line: Any, words: str) -> None:
    path = write_lines(tmp_path, {"prediction": "", "ground_truth": [""]}, line)
    with pytest.raises(InputError, match=words):
        score_file(path)


def test_a_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"prediction": "caf\xe9", "ground_truth": []}\n')
    with pytest.raises(InputError, match="line 1: not UTF-8"):
        score_file(path)


def test_a_long_bad_line_does_not_flood_the_message(tmp_path: Path) -> None:
    path = write_lines(tmp_path, "x" * 100_000)
    with pytest.raises(InputError) as caught:
        score_file(path)
    assert len(str(caught.value)) < 1000


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    write_lines(tmp_path, name="predictions.jsonl")
    with pytest.raises(InputError, match=r"no predictions file .* did you mean 'predictions.jsonl'"):
        score_file(tmp_path / "prediction.jsonl")


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_file_is_an_error(tmp_path: Path, content: str) -> None:
    with pytest.raises(InputError, match="is empty"):
        score_file(write_lines(tmp_path, content))


def test_an_unknown_format_says_what_is_legal(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Parquet .* \.jsonl"):
        score_file(write_lines(tmp_path, "id,prediction\n", name="predictions.csv"))


def test_a_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        score_file(tmp_path)


def test_damaged_foreign_and_empty_parquet_are_errors(tmp_path: Path) -> None:
    damaged, foreign, empty = (tmp_path / f"{name}.parquet" for name in ("damaged", "foreign", "empty"))
    damaged.write_bytes(b"PAR1 and nothing more")
    pq.write_table(pa.table({"question_id": ["a"]}), foreign)
    write_predictions(empty, [], [], entity_names=NAMES, render_path=str)
    with pytest.raises(InputError, match="not readable as predictions"):
        score_file(damaged)
    with pytest.raises(InputError, match=r"lacks the columns .*'question'"):
        score_file(foreign)
    with pytest.raises(InputError, match="holds no predictions"):
        score_file(empty)
