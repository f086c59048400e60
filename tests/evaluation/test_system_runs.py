"""Runs of systems read from their files, seeds averaged, answers joined with those of ``direct``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.errors import InputError
from kgqa_core.evaluation.metrics import Outcome, decides_claim, score_outcome
from kgqa_core.evaluation.predictions import Source, write_predictions
from kgqa_core.evaluation.runs import judge_run, mean_run, read_system_run, unite, with_direct
from kgqa_core.types import Prediction
from tests.evaluation.made_up import GRAPH, NAMES, Reply, ask, make_system, write_system

QUESTIONS = [ask("q2", 3, 5), ask("q1", 7), ask("q3", 2)]


def test_columns_are_in_the_order_of_question_ids(tmp_path: Path) -> None:
    replies = [
        Reply((3, 4), supported=(3,), calls=2, tokens=100, money=0.5, counts={"num_paths": 6}),
        Reply(status="failed", error="Traceback"),
        Reply((2,), unmatched=("Nobody",), calls=1, tokens=7, money=None, stopped="calls", counts={"conflicts": 1}),
    ]
    run = make_system(tmp_path, "rog", QUESTIONS, replies)
    record = run.record
    assert run.name == "rog (seed 0)"
    assert run.run.scores.question_ids == ("q1", "q2", "q3")
    assert record is not None
    assert record.status == ("failed", "answered", "answered")
    assert record.stopped == (None, None, "calls")
    assert record.spent["num_calls"].tolist() == [0, 2, 1]
    assert record.spent["num_prompt_tokens"].tolist() == [0, 200, 7]
    assert record.spent["money"][:2].tolist() == [0, 1]
    assert np.isnan(record.spent["money"][2])
    assert (record.num_supported.tolist(), record.num_claimed.tolist()) == ([0, 1, 0], [0, 2, 2])
    assert np.array_equal(record.counts["num_paths"], [np.nan, 6, np.nan], equal_nan=True)
    assert run.hit.tolist() == [0, 100, 100]


def test_a_table_that_is_no_systems_is_a_run_without_a_record(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    found = [Prediction("q1", (7,), (1.0,), (7,))]
    write_predictions(
        path, QUESTIONS, found, entity_names=NAMES, render_path=str, source=Source(GRAPH, "explorer (seed 1)")
    )
    run = read_system_run(path)
    assert (run.name, run.about, run.record) == ("explorer (seed 1)", None, None)
    assert run.hit.tolist() == [100, 0, 0]
    assert read_system_run(path, "mine").name == "mine"


def test_a_table_without_the_columns_of_a_system_is_refused(tmp_path: Path) -> None:
    path = write_system(tmp_path, "rog", QUESTIONS, [Reply()] * 3)
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["seconds"]), path)
    with pytest.raises(InputError, match="lacks what a system's predictions say of costs"):
        read_system_run(path)
    pq.write_table(pa.table({"question_id": ["q"]}), path)
    with pytest.raises(InputError, match="does not say on which graph"):
        read_system_run(path)


def test_the_mean_over_seeds_is_taken_question_by_question(tmp_path: Path) -> None:
    seeds = [[Reply((3, 5)), Reply((7,)), Reply()], [Reply((3, 5)), Reply((8,)), Reply()]]
    runs = [make_system(tmp_path, "rog", QUESTIONS, own, seed=seed).run for seed, own in enumerate(seeds)]
    mean = mean_run("rog", runs)
    assert mean.name == "rog"
    assert mean.scores.values["hits1"].tolist() == [50, 100, 0]
    assert mean.picked_right.tolist() == [0.5, 1, 0]
    assert mean_run("one", runs[:1]).scores is runs[0].scores


def test_joined_answers_cost_both_and_rest_on_what_the_system_showed(tmp_path: Path) -> None:
    own = make_system(
        tmp_path,
        "rog",
        QUESTIONS,
        [Reply((3,), supported=(3,), calls=2), Reply((8,), supported=(8,), calls=2), Reply(calls=2)],
    )
    direct = make_system(
        tmp_path, "direct", QUESTIONS, [Reply((5,), calls=1), Reply((8,), calls=1), Reply((2,), calls=1)]
    )
    both = with_direct(own, direct)
    assert both.name == "rog (seed 0) + direct (seed 0)"
    whole = judge_run("", both.run.path, both.run.source, both.run.asked, both.outcomes)
    assert both.run.picked_right.tolist() == whole.picked_right.tolist()
    for metric, column in whole.scores.values.items():  # what did not change kept its score
        assert both.run.scores.values[metric].tolist() == column.tolist()
    assert both.run.scores.values["em"].tolist() == [0, 100, 100]
    assert both.run.scores.values["hits1"].tolist() == [0, 100, 100]
    assert both.record is not None
    assert both.record.spent["num_calls"].tolist() == [3, 3, 3]
    assert (both.record.num_supported.tolist(), both.record.num_claimed.tolist()) == ([1, 1, 0], [1, 2, 1])


@st.composite
def outcomes(draw: st.DrawFn, verdict: bool) -> Outcome:
    answers = draw(st.lists(st.integers(0, 5), unique=True, max_size=4))
    others = draw(st.lists(st.integers(6, 9), unique=True, max_size=2))
    claim = draw(st.integers(0, 5)) if verdict else None
    return Outcome(
        "q",
        1,
        frozenset({0, 1, 2}),
        (*answers, *others),
        tuple(1 / (n + 1) for n in range(len(answers))) + (0.0,) * len(others),
        frozenset(answers),
        covered=draw(st.booleans()),
        evident=tuple(draw(st.booleans()) for _ in answers),
        claim=3 if verdict else None,
        verdict=None if claim is None or not answers else claim in answers,
        gold_verdict=True if verdict else None,
    )


@given(outcomes(verdict=False), outcomes(verdict=False))
def test_joined_answers_are_the_union_and_no_recall_is_lost(own: Outcome, other: Outcome) -> None:
    both = unite(own, other)
    assert both.answers == own.answers | other.answers
    hits1, _, _, _, _, recall, *_ = score_outcome(both)  # a legal ranking: nothing is raised
    assert recall == len(both.answers & both.golds) / len(both.golds)
    assert recall >= max(score_outcome(own)[5], score_outcome(other)[5])
    assert hits1 == score_outcome(own if own.answers else other)[0]


@given(outcomes(verdict=True), outcomes(verdict=True))
def test_a_verdict_that_was_reached_is_not_overruled(own: Outcome, other: Outcome) -> None:
    both = unite(own, other)
    assert both.verdict == (own.verdict if own.verdict is not None else other.verdict)
    if own.verdict is None:
        assert decides_claim(both) == decides_claim(other)
