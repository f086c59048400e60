"""The figures of one system, against a recomputation question by question."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kgqa_core.evaluation import metrics
from kgqa_core.evaluation.compare import compare_pair, lift_figures
from kgqa_core.evaluation.figures import system_figures, system_row
from kgqa_core.evaluation.tables import show_figure
from kgqa_core.systems.types import Status
from kgqa_core.types import Question
from tests.evaluation.made_up import Reply, ask, make_system

SILENCES: tuple[Status, ...] = ("abstained", "unmatched", "unreadable")
ENTITY = st.integers(1, 9)
REPLIES = st.builds(
    Reply,
    answers=st.lists(ENTITY, unique=True, max_size=4),
    supported=st.lists(ENTITY, unique=True, max_size=6),
    unmatched=st.lists(st.just("Nobody"), max_size=1),
    calls=st.integers(0, 3),
    tokens=st.integers(0, 99),
    money=st.sampled_from([0.25, 0.25, 0.25, None]),
    stopped=st.sampled_from([None, None, "calls"]),
    silence=st.sampled_from(SILENCES),
    counts=st.dictionaries(st.sampled_from(["num_paths", "conflicts"]), st.integers(0, 5)),
)
ASKED = st.tuples(st.lists(ENTITY, unique=True, min_size=1, max_size=3), st.integers(1, 4), REPLIES)


def slow_figures(questions: Sequence[Question], replies: Sequence[Reply]) -> dict[str, float]:
    pairs = list(zip(questions, replies, strict=True))
    golds = [{*question.answers} for question in questions]
    answers = [{*reply.answers} for reply in replies]
    right = [bool(reply.answers) and reply.answers[0] in question.answers for question, reply in pairs]
    found = {
        "hits1": 100 * fmean(right),
        "partial": 100 * fmean(bool(a & g) for a, g in zip(answers, golds, strict=True)),
        "complete": 100 * fmean(g <= a for a, g in zip(answers, golds, strict=True)),
        "em": 100 * fmean(g == a for a, g in zip(answers, golds, strict=True)),
        **{
            status: 100 * fmean(not reply.answers and reply.silence == status for reply in replies)
            for status in SILENCES
        },
        "stopped": 100 * fmean(reply.stopped is not None for reply in replies),
        "skipped": 0.0,
        "failed": 0.0,
    }
    spent = {
        "calls": sum(reply.calls for reply in replies),
        "tokens": sum(reply.calls * (reply.tokens + 10) for reply in replies),
        "seconds": sum(reply.calls / 4 for reply in replies),
    }
    if all(reply.money is not None or not reply.calls for reply in replies):
        spent["money"] = sum(reply.calls * (reply.money or 0) for reply in replies)
    for name, total in spent.items():
        found[f"{name}_per_question"] = total / len(replies)
        if any(right):
            found[f"{name}_per_correct"] = total / sum(right)
    claimed = [
        [*(entity in reply.supported for entity in reply.answers), *(False for _ in reply.unmatched)]
        for reply in replies
    ]
    if any(claimed):
        found["supported_answers"] = 100 * fmean(one for own in claimed for one in own)
        found["supported_questions"] = 100 * fmean(all(own) for own in claimed if own)
    for name in ("num_paths", "conflicts"):
        if known := [reply.counts[name] for reply in replies if name in reply.counts]:
            found[f"count.{name}"] = fmean(known)
    return found


@pytest.fixture
def no_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no questions: bounds are not what is tested, and take most of the time."""
    monkeypatch.setattr(metrics, "resampled_means", lambda values, **settings: values.mean(axis=0)[None])


@pytest.mark.usefixtures("no_intervals")
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ASKED, min_size=1, max_size=8))
def test_figures_are_those_of_going_from_question_to_question(
    tmp_path: Path, asked: list[tuple[list[int], int, Reply]]
) -> None:
    questions = [ask(f"q{n}", *sorted(golds), hops=hops) for n, (golds, hops, _) in enumerate(asked)]
    replies = [reply for _, _, reply in asked]
    run = make_system(tmp_path, "rog", questions, replies)
    expected = slow_figures(questions, replies)
    figures = system_figures(run)
    assert {name: figures[name] for name in expected} == pytest.approx(expected)
    unknown = {"money_per_question", "supported_answers", "calls_per_correct", "count.num_paths"} - expected.keys()
    assert not unknown & figures.keys()  # what is not known is left out
    row = system_row("rog", [run])
    for hops in {question.hops for question in questions}:
        some = [n for n, question in enumerate(questions) if question.hops == hops]
        expected = slow_figures([questions[n] for n in some], [replies[n] for n in some])
        assert {name: row.by_hops[str(hops)][name] for name in expected} == pytest.approx(expected)


def test_hit_is_the_published_evaluators_and_not_hits1(tmp_path: Path) -> None:
    """Entity 1 is no gold, but its name is a part of the gold's, and the gold comes second."""
    figures = system_figures(make_system(tmp_path, "rog", [ask("q", 12)], [Reply((1, 12))]))
    assert (figures["hits1"], figures["hit"], figures["partial"], figures["complete"]) == (0, 100, 100, 100)
    figures = system_figures(make_system(tmp_path, "rog", [ask("q", 1)], [Reply((12,))]))
    assert (figures["hits1"], figures["hit"], figures["partial"]) == (0, 100, 0)  # "entity 1" is in "entity 12"


def test_a_claim_matches_only_where_verdict_and_evidence_are_right(tmp_path: Path) -> None:
    questions = [ask(f"q{n}", 3, 4, claim=3, verdict=True) for n in range(3)]
    replies = [Reply((3,), supported=(3,), verdict=True), Reply((3,), verdict=True), Reply((4,), verdict=False)]
    figures = system_figures(make_system(tmp_path, "rog", questions, replies))
    for name in ("partial", "complete", "hit", "em", "hits1"):
        assert figures[name] == pytest.approx(100 / 3)
    bare = [ask("q", claim=3, verdict=True)]  # of which only the claim is known
    assert system_figures(make_system(tmp_path, "rog", bare, replies[:1]))["hit"] == 100


def test_a_question_that_failed_or_was_skipped_stays_in_the_denominator(tmp_path: Path) -> None:
    questions = [ask("q1", 1), ask("q2", 2), ask("q3", 3)]
    replies = [Reply((1,), calls=1), Reply(status="failed", error="Traceback", calls=1), Reply(status="skipped")]
    figures = system_figures(make_system(tmp_path, "rog", questions, replies))
    assert [figures[name] for name in ("hits1", "failed", "skipped")] == [pytest.approx(100 / 3)] * 3
    assert (figures["calls_per_question"], figures["calls_per_correct"]) == (pytest.approx(2 / 3), 2)


def test_the_row_of_several_seeds_is_their_mean_over_what_all_of_them_know(tmp_path: Path) -> None:
    questions = [ask("q1", 1), ask("q2", 2)]
    runs = [
        make_system(tmp_path, "rog", questions, own, seed=seed)
        for seed, own in enumerate([[Reply((1,), calls=1), Reply((2,), calls=3)], [Reply((9,)), Reply((9,))]])
    ]
    row = system_row("rog", runs)
    assert (row.overall["hits1"], row.overall["calls_per_question"]) == (50, 1)
    assert "calls_per_correct" not in row.overall  # the second seed has no correct question
    assert show_figure(row.overall, "partial") == "50.00"


def test_lift_is_the_difference_to_direct_with_what_direct_does_not_know_apart(tmp_path: Path) -> None:
    questions = [ask(f"q{n:02}", 1) for n in range(20)]
    own = make_system(tmp_path, "rog", questions, [Reply((1,) if n < 15 else (2,)) for n in range(20)])
    direct = make_system(tmp_path, "direct", questions, [Reply((1,) if n >= 10 else (2,)) for n in range(20)])
    everything = np.ones(20, dtype=bool)
    found = lift_figures(compare_pair(own, direct, everything), own, direct)
    assert (found["lift.hits1"], found["lift.f1"]) == (25, 25)
    assert found["lift.hits1.low"] <= 25 <= found["lift.hits1.high"]
    assert (found["hits1.known"], found["hits1.unknown"]) == (50, 100)
