"""What a system answered, at rest: readable as any predictions table, and put together from parts."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.score import score_file
from kgqa_core.config_lm import Price
from kgqa_core.evaluation.predictions import SystemSource, read_predictions, read_source
from kgqa_core.lm.calls import Account, Meter
from kgqa_core.schemas import METER, SYSTEM_CALLS, SYSTEM_PREDICTIONS
from kgqa_core.systems import tables
from kgqa_core.systems.tables import merge_parts, sum_usage, write_answered, write_calls
from kgqa_core.systems.types import Answered, AskedCall, Round, SystemAnswer
from kgqa_core.types import Prediction, Question, Step

NAMES = SimpleNamespace(entity_names=[f"entity {number}" for number in range(13)], relation_names=["leads_to"])
SOURCE = SystemSource("c0ffee", "rog", 1, "oracle", "oracle-1", "5ad", pool="hard", settings={"num_plans": 3})
QUESTION = Question("q1", "who?", "who?", topics=(7,), answers=(3, 5), split="test", hops=2)
PATH = (Step(7, 0, 3),)


def an_answer(question: Question = QUESTION, **changes: Any) -> Answered:
    prediction = Prediction(question.id, (5, 3, 11), (1.0, 0.5, 0.0), (3, 5), ((), PATH), covered=True)
    calls = (
        AskedCall(1, "plan", "p1", "", ("a", "b"), "", 7),
        AskedCall(2, "reason", "p2", "be brief", ("three\n\nfive",), "", 4),
    )
    found = SystemAnswer(prediction, ("Nobody",), {"num_paths": 2.0}, plans=(("directed_by", "^written_by"),))
    fields = {"status": "answered", "calls": calls, "faithful": (True, False), "num_invented": 1, "confidence": 0.25}
    return Answered(question, found, **{**fields, **changes})  # type: ignore[arg-type]


def write(path: Path, answered: list[Answered], usage: pa.Table | None = None) -> list[dict[str, Any]]:
    write_answered(path, Round(answered, usage or METER.empty_table()), NAMES, SOURCE)
    return pq.read_table(path).to_pylist()


def test_a_row_holds_what_was_answered_what_it_rests_on_and_what_the_model_said_last(tmp_path: Path) -> None:
    (row,) = write(tmp_path / "p.parquet", [an_answer()])
    assert pq.read_schema(tmp_path / "p.parquet").equals(SYSTEM_PREDICTIONS)
    assert row["answer_ids"] == [5, 3]  # by rank
    assert row["faithful"] == [False, True]  # parallel to them
    assert (row["status"], row["error"], row["stopped"]) == ("answered", None, None)
    assert (row["topics"], row["topic_source"], row["unmatched"]) == ([7], "gold", ["Nobody"])
    assert dict(row["counts"]) == {"num_paths": 2, "num_invented": 1}
    assert row["plans"] == ["directed_by → ^written_by"]
    assert (row["raw"], row["confidence"]) == ("three\n\nfive", 0.25)
    assert (row["num_calls"], row["seconds"], row["money"]) == (0, 0, 0)  # nothing was metered


def test_it_is_read_and_scored_as_any_predictions_table(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    write(path, [an_answer()])
    ((outcome, *_),) = read_predictions(path)
    assert outcome.answers == {3, 5}
    found = read_source(path)
    assert found is not None
    assert (found.graph, found.system) == ("c0ffee", "rog (oracle, hard pool, seed 1)")
    assert score_file(path)["strict"]["em"] == 100


def test_what_a_question_spent_is_the_sum_over_instructions_and_models(tmp_path: Path) -> None:
    meter = Meter()
    for model, price in (("dear", Price(input=1.0, output=2.0, as_of=date(2026, 1, 1))), ("unknown", None)):
        meter.prices[model] = price
    spent = {"num_calls": 2, "num_prompt_tokens": 300, "num_tokens": 50, "seconds": 0.5}
    for question, models in (("q1", ("dear", "dear")), ("q2", ("dear", "unknown"))):
        for model, instruction in zip(models, ("plan", "reason"), strict=True):
            meter.charge(Account("rog", model, instruction, question), spent)
    meter.charge(Account("rog", "dear", "reason", "q2"), {"num_stopped": 1})
    usage = meter.take()
    totals = sum_usage(usage)
    assert totals["q1"] == {
        "num_calls": 4,
        "num_prompt_tokens": 600,
        "num_tokens": 100,
        "seconds": 1.0,
        "money": pytest.approx((600 + 2 * 100) / 1e6),
        "stopped": None,
    }
    assert totals["q2"]["money"] is None  # of one of its models nobody knows the price
    other = Question("q2", "what?", "what?", (), (1,), "test")
    first, second = write(tmp_path / "p.parquet", [an_answer(), an_answer(other)], usage=usage)
    assert (first["num_calls"], first["num_tokens"], first["stopped"]) == (4, 100, None)
    assert (second["num_calls"], second["money"], second["stopped"]) == (4, None, "calls")


def test_a_question_that_failed_keeps_its_traceback_whatever_it_quotes(tmp_path: Path) -> None:
    nothing = SystemAnswer(Prediction("q1", (), (), ()))
    (row,) = write(
        tmp_path / "p.parquet", [Answered(QUESTION, nothing, "failed", "ValueError: half a character \ud83d")]
    )
    assert row["error"] == "ValueError: half a character ?"
    assert (row["status"], row["raw"], row["faithful"], row["confidence"]) == ("failed", None, [], None)


def test_calls_are_numbered_per_question(tmp_path: Path) -> None:
    other = Question("q2", "what?", "what?", (), (1,), "test")
    write_calls(tmp_path / "c.parquet", [an_answer(), an_answer(other, calls=())])
    table = pq.read_table(tmp_path / "c.parquet")
    assert table.schema.equals(SYSTEM_CALLS)
    rows = table.to_pylist()
    assert [(row["question_id"], row["round"], row["number"]) for row in rows] == [("q1", 1, 1), ("q1", 2, 2)]
    assert (rows[0]["texts"], rows[1]["system_prompt"], rows[1]["num_tokens"]) == (["a", "b"], "be brief", 4)


@pytest.mark.parametrize("sizes", [[3], [0, 9, 0, 2], [4, 4], [1, 1, 3]])
def test_parts_come_together_to_the_same_bytes_however_they_were_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> None:
    monkeypatch.setattr(tables, "ROWS_AT_ONCE", 4)
    everyone = [an_answer(Question(f"q{n}", "?", "?", (), (1,), "test")) for n in range(sum(sizes))]
    whole, parts = tmp_path / "whole.parquet", []
    write(whole, everyone)
    for number, size in enumerate(sizes):
        start = sum(sizes[:number])
        parts.append(tmp_path / f"{number}.parquet")
        write(parts[-1], everyone[start : start + size])
    merge_parts(parts, tmp_path / "merged.parquet")
    merge_parts([whole], tmp_path / "again.parquet")
    merged = pq.ParquetFile(tmp_path / "merged.parquet")
    assert merged.read().equals(pq.read_table(whole))
    assert all(merged.metadata.row_group(n).num_rows == 4 for n in range(merged.num_row_groups - 1))
    assert merged.schema_arrow.metadata == SOURCE.metadata()
    assert (tmp_path / "merged.parquet").read_bytes() == (tmp_path / "again.parquet").read_bytes()


def test_empty_parts_leave_an_empty_table(tmp_path: Path) -> None:
    write_calls(tmp_path / "1.parquet", [])
    merge_parts([tmp_path / "1.parquet"] * 2, tmp_path / "c.parquet")
    assert pq.read_table(tmp_path / "c.parquet").equals(pa.Table.from_pylist([], schema=SYSTEM_CALLS))
