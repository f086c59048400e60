"""The predictions table at rest, and what it says of who answered."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kgqa_core.errors import InputError
from kgqa_core.evaluation.predictions import (
    ABOUT_KEY,
    Source,
    SystemSource,
    read_predictions,
    read_source,
    write_predictions,
)
from kgqa_core.schemas import PREDICTIONS
from kgqa_core.types import Prediction, Question, ReasoningPath, Step

NAMES = [f"entity {number}" for number in range(13)]
QUESTION = Question("q1", "who?", "who?", topics=(7,), answers=(3, 5), split="dev", hops=2, claim=3, verdict=True)
STEP = Step(head=7, relation=0, tail=11)
PREDICTION = Prediction("q1", (11, 2, 3), (0.5, 0.25, 0.25), (2, 3, 11, 12), ((STEP,), ()), True, verdict=True)


def render(path: ReasoningPath) -> str:
    return " -> ".join(NAMES[step.tail] for step in path)


def test_a_row_names_the_answers_best_first_beside_their_ids(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    write_predictions(path, [QUESTION], [PREDICTION], entity_names=NAMES, render_path=render)
    table = pq.read_table(path)
    assert table.schema.equals(PREDICTIONS)
    row = table.to_pylist()[0]
    assert row["answer_ids"] == [11, 2, 3, 12]  # by rank, the one that is no candidate last
    assert row["prediction"] == ["entity 11", "entity 2", "entity 3", "entity 12"]
    assert row["ground_truth"] == ["entity 3", "entity 5"]
    assert row["paths"] == ["entity 11", ""]


def test_what_the_metrics_need_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    bare = Question("q2", "what?", "what?", topics=(1,), answers=(), split="test")
    write_predictions(path, [bare, QUESTION], [PREDICTION], entity_names=NAMES, render_path=render)
    (batch,) = read_predictions(path)
    empty, full = batch.outcomes
    assert (empty.question_id, empty.hops, empty.golds, list(empty.candidates)) == ("q2", None, frozenset(), [])
    assert (full.golds, full.answers) == (frozenset({3, 5}), frozenset({2, 3, 11, 12}))
    assert (full.claim, full.verdict, full.gold_verdict, full.covered) == (3, True, True, True)
    assert list(full.evident) == [True, False]
    assert batch.ground_truths == [[], ["entity 3", "entity 5"]]


def test_more_rows_than_one_batch_keep_their_order_and_bytes(tmp_path: Path) -> None:
    questions = [Question(str(n), "", "", (1,), (n % 13,), "test") for n in range(4_099)]
    predictions = [Prediction(str(n), (n % 13,), (1.0,), (n % 13,)) for n in range(4_099)]
    first, second = tmp_path / "1.parquet", tmp_path / "2.parquet"
    for path in (first, second):
        write_predictions(path, questions, reversed(predictions), entity_names=NAMES, render_path=render)
    batches = list(read_predictions(first))
    assert [len(batch.outcomes) for batch in batches] == [4_096, 3]
    assert [outcome.question_id for batch in batches for outcome in batch.outcomes] == [q.id for q in questions]
    assert all(outcome.answers == outcome.golds for batch in batches for outcome in batch.outcomes)
    assert first.read_bytes() == second.read_bytes()


def test_a_write_that_fails_leaves_neither_part_nor_table(tmp_path: Path) -> None:
    def fail(path: ReasoningPath) -> str:
        raise RuntimeError("no rendering")

    with pytest.raises(RuntimeError):
        write_predictions(tmp_path / "p.parquet", [QUESTION], [PREDICTION], entity_names=NAMES, render_path=fail)
    assert list(tmp_path.iterdir()) == []


def test_a_table_says_where_it_comes_from_wherever_it_is_copied(tmp_path: Path) -> None:
    source = Source(graph="c0ffee" * 10, system="explorer (seed 7) – übt")
    write_predictions(
        tmp_path / "p.parquet", [QUESTION], [PREDICTION], entity_names=NAMES, render_path=render, source=source
    )
    (tmp_path / "copy.parquet").write_bytes((tmp_path / "p.parquet").read_bytes())
    assert read_source(tmp_path / "copy.parquet") == source
    (batch,) = read_predictions(tmp_path / "copy.parquet")
    assert batch.texts == ["who?"]


def test_a_table_without_a_source_is_readable_and_one_that_is_damaged_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    write_predictions(path, [QUESTION], [PREDICTION], entity_names=NAMES, render_path=render)
    assert read_source(path) is None
    path.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(InputError, match=r"p\.parquet' is not readable as predictions"):
        read_source(path)


FULL = SystemSource("ab", "rog", 7, "oracle", "model übt", "c0de", "linked", "hard", {"num_plans": 3, "plans": None})


@pytest.mark.parametrize("source", [FULL, SystemSource("ab", "explorer")])
def test_what_was_written_is_read(tmp_path: Path, source: SystemSource) -> None:
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata(source.metadata()), tmp_path / "p.parquet")
    assert read_source(tmp_path / "p.parquet") == Source(source.graph, source.name, source)


def test_a_table_that_is_no_systems_has_none(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "p.parquet")
    assert read_source(tmp_path / "p.parquet") is None


@pytest.mark.parametrize("about", [b"{", b"[]", b'{"graph": "ab"}', b"\xff"])
def test_what_is_damaged_is_refused_by_name(tmp_path: Path, about: bytes) -> None:
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata({ABOUT_KEY: about}), tmp_path / "p.parquet")
    with pytest.raises(InputError, match=r"p\.parquet.*evaluate that system again"):
        read_source(tmp_path / "p.parquet")
    (tmp_path / "q.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"q\.parquet.*not readable"):
        read_source(tmp_path / "q.parquet")


def test_names_say_what_is_unusual() -> None:
    assert SystemSource("ab", "rog", 0, "lm").name == "rog (seed 0)"
    assert SystemSource("ab", "explorer").name == "explorer alone"
    assert FULL.row == "rog (oracle, linked topics, hard pool)"
    assert FULL.name == "rog (oracle, linked topics, hard pool, seed 7)"
