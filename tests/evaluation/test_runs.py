"""Evaluated runs read from their predictions, and what keeps two of them from being compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kgqa_core.errors import InputError
from kgqa_core.evaluation.predictions import Source, write_predictions
from kgqa_core.evaluation.runs import EvaluatedRun, read_system_run, require_comparable
from kgqa_core.types import Prediction, Question, Step

NAMES = [f"entity {number}" for number in range(13)]
PATH = (Step(head=0, relation=0, tail=1),)
Write = Callable[..., EvaluatedRun]


def ask(id: str, *golds: int, **more: Any) -> Question:
    return Question(id, f"what is {id}?", "", (0,), golds, "test", **more)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write predictions and read them back as a run."""

    def write(
        name: str, questions: list[Question], predictions: list[Prediction], *, graph: str = "a" * 64
    ) -> EvaluatedRun:
        path = tmp_path / f"{name}.parquet"
        source = Source(graph, f"system {name}")
        write_predictions(path, questions, predictions, entity_names=NAMES, render_path=str, source=source)
        return read_system_run(path, name).run

    return write


QUESTIONS = [ask("q1", 3, 5), ask("q2", 7), ask("q3", 11, 2, 3)]


def test_questions_are_in_the_order_of_their_ids_whatever_the_file(write: Write) -> None:
    found = Prediction("q2", (7,), (1.0,), (7,))
    one, other = write("one", QUESTIONS, [found]), write("other", QUESTIONS[::-1], [found])
    assert one.scores.question_ids == other.scores.question_ids == ("q1", "q2", "q3")
    assert one.scores.values["hits1"].tolist() == other.scores.values["hits1"].tolist() == [0, 100, 0]
    assert one.picked_right.tolist() == [False, True, False]
    assert one.scores.num_answers == (2, 1, 3)
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


def test_a_claim_is_right_where_verdict_and_evidence_are(write: Write) -> None:
    questions = [ask("shown", 1, claim=1, verdict=True), ask("guessed", 1, claim=1, verdict=True)]
    replies = [
        Prediction("shown", (1,), (1.0,), (1,), (PATH,), verdict=True),
        Prediction("guessed", (1,), (1.0,), (1,), ((),), verdict=True),
    ]
    run = write("one", questions, replies)
    assert dict(zip(run.scores.question_ids, run.picked_right.tolist(), strict=True)) == {
        "guessed": False,
        "shown": True,
    }


def test_runs_that_were_asked_other_questions_are_refused_with_examples(write: Write) -> None:
    more = [ask(f"r{number}", 1) for number in range(5)]
    one, other = write("one", [*QUESTIONS, *more], []), write("other", [*QUESTIONS, ask("s", 1)], [])
    with pytest.raises(InputError) as refused:
        require_comparable([one, other])
    message = str(refused.value)
    assert "5 questions only in one, not in other: r0 'what is r0?', r1 'what is r1?', r2 'what is r2?'\n" in message
    assert "1 question only in other, not in one: s 'what is s?'\n" in message
    assert "r3" not in message and "graphs differ" not in message
    assert refused.value.exit_code == 3


def test_other_texts_and_other_answers_under_the_same_ids_are_refused(write: Write) -> None:
    changed = [replace(QUESTIONS[0], text="who?"), replace(QUESTIONS[1], answers=(8,)), QUESTIONS[2]]
    with pytest.raises(InputError) as refused:
        require_comparable([write("one", QUESTIONS, []), write("other", changed, [])])
    assert "1 question with another text in one and other: q1 'what is q1?' / 'who?'\n" in str(refused.value)
    assert "1 question with other answers in one and other: q2\n" in str(refused.value)


def test_another_verdict_or_claim_is_another_question(write: Write) -> None:
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


def test_every_later_run_is_held_against_the_first(write: Write) -> None:
    runs = [write("one", QUESTIONS, []), write("two", QUESTIONS, []), write("three", QUESTIONS[1:], [])]
    with pytest.raises(InputError, match="1 question only in one, not in three: q1"):
        require_comparable(runs)


def test_long_texts_do_not_flood_the_message(write: Write) -> None:
    long = [replace(ask(str(number)), text="x" * 10_000) for number in range(9)]
    with pytest.raises(InputError) as refused:
        require_comparable([write("one", long, []), write("other", [ask("q", 1)], [])])
    assert len(str(refused.value)) < 1000


def test_files_that_are_no_run_say_why(tmp_path: Path, write: Write) -> None:
    write("one", QUESTIONS, [])
    with pytest.raises(InputError, match=r"B: there is no predictions table .* did you mean 'one\.parquet'"):
        read_system_run(tmp_path / "ones.parquet", "B")
    write_predictions(tmp_path / "plain.parquet", QUESTIONS, [], entity_names=NAMES, render_path=str)
    with pytest.raises(InputError, match="does not say on which graph it was made; evaluate that run again"):
        read_system_run(tmp_path / "plain.parquet", "B")
    (tmp_path / "text.jsonl").write_text('{"prediction": ""}\n')
    with pytest.raises(InputError, match="not readable as predictions"):
        read_system_run(tmp_path / "text.jsonl", "B")
    with pytest.raises(InputError, match="holds no predictions"):
        write("none", [], [])
    with pytest.raises(InputError, match="question 'q1' is there twice"):
        write("twice", [QUESTIONS[0], QUESTIONS[0]], [])
