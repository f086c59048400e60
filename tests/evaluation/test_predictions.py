"""The predictions table at rest, what it says of who answered, and any predictions file scored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.score import score_file, score_names
from kgqa_core.errors import InputError
from kgqa_core.evaluation.metrics import METRICS, ROG_METRICS, score_predictions
from kgqa_core.evaluation.predictions import (
    ABOUT_KEY,
    Source,
    SystemSource,
    open_predictions,
    read_predictions,
    read_source,
    render_path,
)
from kgqa_core.schemas import PREDICTIONS
from kgqa_core.types import Prediction, Question, Step
from tests.conftest import kgqa
from tests.evaluation.made_up import in_full

NAMES = ["Ann", "Bob", "The Cat", "Ann", *(f"entity {number}" for number in range(4, 13))]  # two share a name
QUESTION = Question("q1", "who?", "who?", topics=(7,), answers=(3, 5), split="dev", hops=2, claim=3, verdict=True)
STEP = Step(head=7, relation=0, tail=11)
PREDICTION = Prediction("q1", (11, 2, 3), (0.5, 0.25, 0.25), (2, 3, 11, 12), ((STEP,), ()), True, verdict=True)


def write(
    path: Path,
    questions: Sequence[Question],
    predictions: Sequence[Prediction] = (),
    source: Source | None = None,
    *,
    size: int = 10_000,
) -> Path:
    """Write predictions, ``size`` rows at a time; questions that have none get an empty one."""
    with open_predictions(path, SimpleNamespace(entity_names=NAMES, relation_names=["leads_to"]), source) as write_rows:
        for start in range(0, len(questions), size):
            asked = questions[start : start + size]
            write_rows(asked, in_full(asked, predictions))
    return path


def ask(id: str, *golds: int, **more: Any) -> Question:
    return Question(id=id, text=f"{id}?", masked="", topics=(4,), answers=golds, split="test", **more)


def test_a_row_names_the_answers_best_first_and_what_the_metrics_need_comes_back(tmp_path: Path) -> None:
    path = write(tmp_path / "p.parquet", [ask("q2"), QUESTION], [PREDICTION])
    table = pq.read_table(path)
    assert table.schema.equals(PREDICTIONS)
    row = table.to_pylist()[1]
    assert row["answer_ids"] == [11, 2, 3, 12]  # by rank, the one that is no candidate last
    assert row["prediction"] == ["entity 11", "The Cat", "Ann", "entity 12"]
    assert (row["ground_truth"], row["paths"]) == (["Ann", "entity 5"], ["(entity 7, leads_to, entity 11)", ""])
    (empty, *_, none), (full, text, _, golds) = read_predictions(path)
    assert (empty.question_id, empty.hops, empty.golds, list(empty.candidates)) == ("q2", None, frozenset(), [])
    assert (full.golds, full.answers) == (frozenset({3, 5}), frozenset({2, 3, 11, 12}))
    assert (full.claim, full.verdict, full.gold_verdict, full.covered) == (3, True, True, True)
    assert list(full.evident) == [True, False]
    assert (text, none, golds) == ("who?", [], ["Ann", "entity 5"])


def test_paths_read_in_walking_order() -> None:
    path = (Step(2, 1, 0, reverse=True), Step(2, 0, 1))
    names = SimpleNamespace(entity_names=["Ann", "1999", "Ash"], relation_names=["release_year", "starred_actors"])
    text = render_path(path, names)
    assert text == "(Ash, starred_actors, Ann) → (Ash, release_year, 1999)"


def test_more_rows_than_one_batch_keep_their_order_and_bytes(tmp_path: Path) -> None:
    questions = [ask(str(n), n % 13) for n in range(4_099)]
    predictions = [Prediction(str(n), (n % 13,), (1.0,), (n % 13,)) for n in range(4_099)]
    first, second = (write(tmp_path / f"{size}.parquet", questions, predictions, size=size) for size in (10_000, 700))
    outcomes = [outcome for outcome, *_ in read_predictions(first)]
    assert [outcome.question_id for outcome in outcomes] == [q.id for q in questions]
    assert all(outcome.answers == outcome.golds for outcome in outcomes)
    assert first.read_bytes() == second.read_bytes()


def test_a_write_that_fails_leaves_neither_part_nor_table(tmp_path: Path) -> None:
    beyond = Prediction("q1", (99,), (1.0,), (99,))
    with pytest.raises(IndexError):
        write(tmp_path / "p.parquet", [QUESTION], [beyond])
    assert list(tmp_path.iterdir()) == []


FULL = SystemSource("ab", "rog", 7, "oracle", "model übt", "c0de", "linked", "hard", {"num_plans": 3, "plans": None})


def test_a_table_says_where_it_comes_from_wherever_it_is_copied(tmp_path: Path) -> None:
    source = Source(graph="c0ffee" * 10, system="explorer (seed 7) – übt")
    path = write(tmp_path / "p.parquet", [QUESTION], source=source)
    (tmp_path / "copy.parquet").write_bytes(path.read_bytes())
    assert read_source(tmp_path / "copy.parquet") == source
    assert read_source(write(tmp_path / "none.parquet", [QUESTION])) is None
    for about in (FULL, SystemSource("ab", "explorer")):
        pq.write_table(pa.table({"a": [1]}).replace_schema_metadata(about.metadata()), path)
        assert read_source(path) == Source("ab", about.name, about)


@pytest.mark.parametrize("about", [b"{", b"[]", b'{"graph": "ab"}', b"\xff"])
def test_what_is_damaged_is_refused_by_name(tmp_path: Path, about: bytes) -> None:
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata({ABOUT_KEY: about}), tmp_path / "p.parquet")
    with pytest.raises(InputError, match=r"p\.parquet.*evaluate that system again"):
        read_source(tmp_path / "p.parquet")


def test_names_say_what_is_unusual() -> None:
    assert SystemSource("ab", "rog", 0, "lm").name == "rog (seed 0)"
    assert SystemSource("ab", "explorer").name == "explorer alone"
    assert FULL.row == "rog (oracle, linked topics, hard pool)"
    assert FULL.name == "rog (oracle, linked topics, hard pool, seed 7)"


# ------ Any predictions file scored.


def write_lines(folder: Path, *rows: Any, name: str = "predictions.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


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


def test_questions_without_a_ground_truth_are_counted_and_where_there_are_no_others_it_is_an_error(
    tmp_path: Path,
) -> None:
    known, unknown = {"prediction": ["Rome"], "ground_truth": ["Rome"]}, {"prediction": ["Oslo"], "ground_truth": []}
    found = score_file(write_lines(tmp_path, known, unknown))
    assert (found["n"], found["no_ground_truth"], found["rog"]["hit"], found["strict"]["em"]) == (2, 1, 50, 50)
    shown = kgqa("score", str(tmp_path / "predictions.jsonl")).stdout
    assert "1 of 2 questions have no ground truth" in shown
    for path in (write_lines(tmp_path, unknown), write(tmp_path / "asked.parquet", [ask("a")])):
        with pytest.raises(InputError, match=r"none of its 1 question has a ground truth.*kgqa evaluate CONF"):
            score_file(path)
    claim = ask("a", claim=1, verdict=True)
    assert score_file(write(tmp_path / "claim.parquet", [claim]))["no_ground_truth"] == 0


def test_strict_figures_have_the_same_interval_in_either_format(tmp_path: Path) -> None:
    right = [number % 3 > 0 for number in range(60)]
    lines = [{"prediction": ["Bob"] if one else [], "ground_truth": ["Bob"]} for one in right]
    by_name = score_file(write_lines(tmp_path, *lines))["strict"]
    predictions = [Prediction(str(number), (1,), (1.0,), (1,)) for number in range(60) if right[number]]
    path = write(tmp_path / "table.out", [ask(str(number), 1) for number in range(60)], predictions)
    by_id = score_file(path)["strict"]  # known by content whatever its name
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
        Prediction("c", (), (), ()),
        Prediction("t", (1,), (1.0,), (1,), ((STEP,),), covered=True, verdict=True),
        Prediction("f", (1,), (1.0,), (1,), ((),), verdict=False),
    ]
    found = score_file(write(tmp_path / "predictions.parquet", questions, predictions))
    summary = score_predictions(questions, predictions).summary()
    assert found["n"] == 5
    assert {name: found["strict"][name] for name in METRICS} == {name: summary[name] for name in METRICS}
    assert found["strict"]["hits1"] == (50 + 100 + 0 + 100 + 0) / 5
    assert found["rog"]["hit"] == 80  # the homonym helps the names, the true/false questions are judged by names


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{broken\n", "line 2: Invalid JSON.*'{broken"),
        ("[1]\n", "line 2: .*object"),
        ({"ground_truth": []}, "line 2: 'prediction': Field required"),
        ({"prediction": None, "ground_truth": []}, "line 2: 'prediction': .* found None"),
        ({"prediction": [1], "ground_truth": []}, "line 2: 'prediction': .* found"),
        ({"prediction": "", "ground_truth": "Rome"}, "line 2: 'ground_truth': .* found 'Rome'"),
        ("x" * 100_000, "line 2: Invalid JSON"),
    ],
)
def test_a_bad_line_is_named_by_number_and_does_not_flood_the_message(tmp_path: Path, line: Any, words: str) -> None:
    path = write_lines(tmp_path, {"prediction": "", "ground_truth": [""]}, line)
    with pytest.raises(InputError, match=words) as caught:
        score_file(path)
    assert len(str(caught.value)) < 1000


def test_a_file_that_cannot_be_scored_says_why(tmp_path: Path) -> None:
    write_lines(tmp_path, "\n \n", name="predictions.jsonl")
    write_lines(tmp_path, name="empty.jsonl")
    write_lines(tmp_path, "id,prediction\n", name="predictions.csv")
    (tmp_path / "latin.jsonl").write_bytes(b'{"prediction": "caf\xe9", "ground_truth": []}\n')
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 and nothing more")
    pq.write_table(pa.table({"question_id": ["a"]}), tmp_path / "foreign.parquet")
    write(tmp_path / "none.parquet", [])
    for name, words in {
        "prediction.jsonl": r"no predictions file .* did you mean 'predictions.jsonl'",
        "predictions.jsonl": "is empty",
        "empty.jsonl": "is empty",
        "predictions.csv": r"Parquet .* \.jsonl",
        "latin.jsonl": "line 1: not UTF-8",
        "": "cannot read",
        "damaged.parquet": r"not readable as predictions, .*--out FILE\.parquet",
        "foreign.parquet": r"lacks the columns .*'question'",
        "none.parquet": "holds no predictions",
    }.items():
        with pytest.raises(InputError, match=words):
            score_file(tmp_path / name)
    with pytest.raises(InputError, match=r"damaged\.parquet' is not readable"):
        read_source(tmp_path / "damaged.parquet")
