"""Runs read from their predictions: what keeps two from being compared, seeds averaged, answers joined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.errors import InputError
from kgqa_core.evaluation.metrics import Outcome, decides_claim, score_outcome, score_outcomes
from kgqa_core.evaluation.predictions import Source, open_predictions
from kgqa_core.evaluation.runs import (
    EvaluatedRun,
    is_picked_right,
    mean_run,
    read_system_run,
    require_comparable,
    unite,
    with_direct,
)
from kgqa_core.types import Prediction, Question, Step
from tests.evaluation.made_up import GRAPH, NAMES, Reply, ask, in_full, make_system, write_system

PATH = (Step(head=0, relation=0, tail=1),)
Write = Callable[..., EvaluatedRun]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(
        name: str, questions: list[Question], predictions: list[Prediction], *, graph: str = "a" * 64
    ) -> EvaluatedRun:
        path = tmp_path / f"{name}.parquet"
        source = Source(graph, f"system {name}")
        with open_predictions(path, NAMES, source) as write_rows:
            write_rows(questions, in_full(questions, predictions))
        return read_system_run(path, name)

    return write


QUESTIONS = [ask("q1", 3, 5), ask("q2", 7), ask("q3", 11, 2, 3)]


def test_questions_are_in_the_order_of_their_ids_whatever_the_file(write: Write) -> None:
    found = Prediction("q2", (7,), (1.0,), (7,))
    one, other = write("one", QUESTIONS, [found]), write("other", QUESTIONS[::-1], [found])
    for run in (one, other):
        assert (run.scores.question_ids, run.scores.num_answers) == (("q1", "q2", "q3"), (2, 1, 3))
        assert run.scores.values["hits1"].tolist() == [0, 100, 0]
        assert run.picked_right.tolist() == [False, True, False]
    require_comparable([one, other])


@pytest.mark.parametrize(
    ("scores", "right"),
    [
        ({7: 0.5, 3: 0.5}, True),  # 3 comes first by id, wherever the file has it
        ({2: 0.5, 3: 0.5}, False),
        ({3: 0.5, 7: 0.5}, True),
        ({3: 0.5, 2: 0.4}, True),
        ({7: 0.50002, 3: 0.5}, True),  # a tie within the tolerance
        ({7: 0.6, 3: 0.5}, False),
        ({}, False),
    ],
)
def test_of_tied_candidates_the_smallest_id_is_picked(write: Write, scores: dict[int, float], right: bool) -> None:
    reply = Prediction("q", tuple(scores), tuple(scores.values()), tuple(scores))
    assert write("one", [ask("q", 3)], [reply]).picked_right.tolist() == [right]
    silent = replace(reply, answers=())  # retrieved, and not taken for an answer
    assert write("one", [ask("q", 3)], [silent]).picked_right.tolist() == [False]


def test_runs_that_were_asked_other_questions_are_refused_with_examples(write: Write) -> None:
    more = [ask(f"r{number}", 1) for number in range(5)]
    one, other = write("one", [*QUESTIONS, *more], []), write("other", [*QUESTIONS, ask("s", 1)], [])
    with pytest.raises(InputError) as refused:
        require_comparable([one, one, other])
    message = str(refused.value)
    assert "5 questions only in one, not in other: r0 'what is r0?', r1 'what is r1?', r2 'what is r2?'\n" in message
    assert "1 question only in other, not in one: s 'what is s?'\n" in message
    assert "r3" not in message and "graphs differ" not in message
    assert refused.value.exit_code == 3
    long = [replace(ask(str(number)), text="x" * 10_000) for number in range(9)]
    with pytest.raises(InputError) as flooded:
        require_comparable([write("long", long, []), other])
    assert len(str(flooded.value)) < 1000


def test_other_texts_and_other_answers_under_the_same_ids_are_refused(write: Write) -> None:
    changed = [replace(QUESTIONS[0], text="who?"), replace(QUESTIONS[1], answers=(8,)), QUESTIONS[2]]
    with pytest.raises(InputError) as refused:
        require_comparable([write("one", QUESTIONS, []), write("other", changed, [])])
    assert "1 question with another text in one and other: q1 'what is q1?' / 'who?'\n" in str(refused.value)
    assert "1 question with other answers in one and other: q2\n" in str(refused.value)
    claim = ask("q", 1, claim=1, verdict=True)
    for other in (replace(claim, verdict=False), replace(claim, claim=2)):
        with pytest.raises(InputError, match="1 question with other answers"):
            require_comparable([write("one", [claim], []), write("other", [other], [])])


def test_another_graph_is_refused_with_both_hashes_and_golds_are_then_told_apart_by_name(write: Write) -> None:
    one = write("one", QUESTIONS, [], graph="1" * 64)
    other = write("other", QUESTIONS, [], graph="2" * 64)
    moved = replace(other, asked={id: replace(asked, gold_ids=frozenset({99})) for id, asked in other.asked.items()})
    with pytest.raises(InputError) as refused:
        require_comparable([one, moved])
    message = str(refused.value)
    assert "graphs differ: one has 1111111111111111, other has 2222222222222222 (content hashes)" in message
    assert "question" not in message.replace("the same questions", "")


def test_files_that_are_no_run_say_why(tmp_path: Path, write: Write) -> None:
    write("one", QUESTIONS, [])
    with pytest.raises(InputError, match=r"there is no predictions file .* did you mean 'one\.parquet'"):
        read_system_run(tmp_path / "ones.parquet", "B")
    with open_predictions(tmp_path / "plain.parquet", NAMES) as write_rows:
        write_rows(QUESTIONS, in_full(QUESTIONS, []))
    with pytest.raises(InputError, match="does not say on which graph it was made; evaluate that run again"):
        read_system_run(tmp_path / "plain.parquet", "B")
    (tmp_path / "text.jsonl").write_text('{"prediction": ""}\n')
    with pytest.raises(InputError, match="not readable as predictions"):
        read_system_run(tmp_path / "text.jsonl", "B")
    with pytest.raises(InputError, match="holds no predictions"):
        write("none", [], [])
    with pytest.raises(InputError, match="question 'q1' is there twice"):
        write("twice", [QUESTIONS[0], QUESTIONS[0]], [])


ANSWERED = [ask("q2", 3, 5), ask("q1", 7), ask("q3", 2)]


def test_columns_are_in_the_order_of_question_ids(tmp_path: Path) -> None:
    replies = [
        Reply((3, 4), supported=(3,), calls=2, tokens=100, money=0.5, counts={"num_paths": 6}),
        Reply(status="failed", error="Traceback"),
        Reply((2,), unmatched=("Nobody",), calls=1, tokens=7, money=None, stopped="calls", counts={"conflicts": 1}),
    ]
    run = make_system(tmp_path, "rog", ANSWERED, replies)
    record = run.record
    assert run.name == "rog (seed 0)"
    assert run.scores.question_ids == ("q1", "q2", "q3")
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
    source = Source(GRAPH, "explorer (seed 1)")
    with open_predictions(path, NAMES, source) as write_rows:
        write_rows(ANSWERED, in_full(ANSWERED, found))
    run = read_system_run(path)
    assert (run.name, run.about, run.record) == ("explorer (seed 1)", None, None)
    assert run.hit.tolist() == [100, 0, 0]
    assert read_system_run(path, "mine").name == "mine"


def test_a_table_without_the_columns_of_a_system_is_refused(tmp_path: Path) -> None:
    path = write_system(tmp_path, "rog", ANSWERED, [Reply()] * 3)
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["seconds"]), path)
    with pytest.raises(InputError, match="lacks the columns"):
        read_system_run(path)
    pq.write_table(pa.table({"question_id": ["q"]}), path)
    with pytest.raises(InputError, match="does not say on which graph"):
        read_system_run(path)


def test_the_mean_over_seeds_is_taken_question_by_question(tmp_path: Path) -> None:
    seeds = [[Reply((3, 5)), Reply((7,)), Reply()], [Reply((3, 5)), Reply((8,)), Reply()]]
    runs = [make_system(tmp_path, "rog", ANSWERED, own, seed=seed) for seed, own in enumerate(seeds)]
    mean = mean_run("rog", runs)
    assert mean.name == "rog"
    assert mean.scores.values["hits1"].tolist() == [50, 100, 0]
    assert mean.picked_right.tolist() == [0.5, 1, 0]
    assert mean_run("one", runs[:1]).scores is runs[0].scores


def test_joined_answers_cost_both_and_rest_on_what_the_system_showed(tmp_path: Path) -> None:
    own = make_system(
        tmp_path,
        "rog",
        ANSWERED,
        [Reply((3,), supported=(3,), calls=2), Reply((8,), supported=(8,), calls=2), Reply(calls=2)],
    )
    direct = make_system(
        tmp_path,
        "direct",
        ANSWERED,
        [Reply((5,), calls=1, unmatched=["Nobody"]), Reply((8,), calls=1), Reply((2,), calls=1)],
    )
    both = with_direct(own, direct)
    assert both.name == "rog (seed 0) + direct (seed 0)"
    assert both.picked_right.tolist() == [is_picked_right(one) for one in both.outcomes]
    for metric, column in score_outcomes(both.outcomes).values.items():  # what did not change kept its score
        assert both.scores.values[metric].tolist() == column.tolist()
    assert both.scores.values["em"].tolist() == [0, 100, 100]
    assert both.scores.values["hits1"].tolist() == [0, 100, 100]
    assert both.record is not None
    assert both.record.spent["num_calls"].tolist() == [3, 3, 3]
    assert (both.record.num_supported.tolist(), both.record.num_claimed.tolist()) == ([1, 1, 0], [1, 3, 1])
    assert own.record is not None and own.record.status[2] != "answered"
    assert both.record.status == ("answered",) * 3  # the last by direct


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
    assert decides_claim(both) == decides_claim(own if own.verdict is not None else other)


def test_a_false_claim_that_was_refuted_stays_so_where_the_other_affirms_it() -> None:
    shown = Outcome("q", 1, frozenset({7}), (7,), (1.0,), frozenset({7}), True, (True,), 3, False, False)
    affirmed = Outcome("q", 1, frozenset({7}), (3,), (1.0,), frozenset({3}), False, (False,), 3, True, False)
    assert decides_claim(shown) and decides_claim(unite(shown, affirmed))
