"""The report: systems beside their controls, and plain words where a model shows nothing."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flows.summary import (
    ANSWER_HEADER,
    HEADER,
    answer_cells,
    planner_cells,
    render_planners,
    render_report,
    report_cells,
)
from kgqa_core.evaluation.figures import ANSWERABLE, ReportRow, Role, mean_row, report_row
from kgqa_core.evaluation.metrics import score_predictions
from kgqa_core.types import Prediction, Question


def row(system: str, role: Role, hits1: float, f1: float, **by_hops: tuple[float, float]) -> ReportRow:
    def figures(one: float, two: float) -> dict[str, float]:
        return {"n": 7, "hits1": one, "f1": two, "em": 12.345, "coverage": 100.0}

    return ReportRow(system, role, figures(hits1, f1), {key[1:]: figures(*pair) for key, pair in by_hops.items()})


CONTROL = row("template", "template control", 80.0, 70.0, h1=(90.0, 90.0), h2=(70.0, 50.0))


WEAK = row("explorer", "learned", 85.0, 70.0, h1=(90.0, 91.0), h2=(80.0, 49.0))
ABOVE = row("explorer", "learned", 80.1, 70.1, h1=(91.0, 91.0), h2=(71.0, 51.0))
OTHER = row("joint template", "template control", 86.0, 60.0)
CEILING = row("gold chain", "ceiling", 10.0, 10.0)
LINE = "| 1 | explorer | 7 | 90.00 | 91.00 | 12.35 | 100.00 | does not beat its template control in Hits@1 |"


@pytest.mark.parametrize(
    ("rows", "said", "unsaid"),
    [
        ([WEAK, CONTROL], LINE, "in Hits@1 on 2-hop questions"),
        ([WEAK, CONTROL], "in F1 on 2-hop questions: 49.00 against 50.00.", ""),
        ([WEAK, CONTROL], "- explorer does not beat its template control in F1 over all questions: 70.00 against", ""),
        ([ABOVE, CONTROL], "explorer", "does not beat"),
        ([WEAK, CONTROL, OTHER], "in Hits@1 over all questions: 85.00 against 86.00", ""),  # the best control counts
        ([ABOVE, CEILING], "explorer has no template control beside it", ""),
        ([CEILING, CONTROL], "gold chain", "does not beat"),  # ceilings are not judged
    ],
)
def test_a_model_that_does_not_beat_its_control_is_told_so_in_words(
    rows: list[ReportRow], said: str, unsaid: str
) -> None:
    report = render_report(rows)
    assert said in report and not (unsaid and unsaid in report)


def test_rows_go_by_hops_then_all_and_skip_what_a_system_was_not_asked() -> None:
    part: Any = row("two hops only", "other", 1.0, 1.0, h2=(1.0, 1.0), h10=(1.0, 1.0), hunknown=(1.0, 1.0))
    cells = report_cells([CONTROL, part])
    assert [(hops, system) for hops, system, *_ in cells] == [
        ("1", "template"),
        ("2", "template"),
        ("2", "two hops only"),
        ("10", "two hops only"),
        ("unknown", "two hops only"),
        ("all", "template"),
        ("all", "two hops only"),
    ]
    assert {len(line) for line in cells} == {len(HEADER)}


def test_a_row_is_made_of_scores_and_a_bar_in_a_name_does_not_break_the_table() -> None:
    question = Question("q", "", "", (0,), (1,), "test", hops=3)
    scores = score_predictions([question], [Prediction("q", (1,), (1.0,), (1,), covered=True)])
    report = render_report([report_row("a|b", "other", scores)])
    assert report.splitlines()[2:] == [r"| 3 | a\|b | 1 | 100.00 | 100.00 | 100.00 | 100.00 |  |"]


def many(system: str, role: Role, hits: set[int], num: int = 60) -> ReportRow:
    """A system that is right on the questions ``hits``; question n has n % 7 + 1 answers."""
    questions = [Question(str(n), "", "", (0,), tuple(range(1, n % 7 + 2)), "test", hops=1 + n % 2) for n in range(num)]
    hit, miss = ((1, 2), (0.5, 0.5), (1,)), ((), (), ())
    replies = [Prediction(str(n), *(hit if n in hits else miss)) for n in range(num)]
    return report_row(system, role, score_predictions(questions, replies))


def test_figures_have_their_interval_beside_them_and_mean_tie_sizes_too() -> None:
    one = many("explorer", "other", set(range(0, 60, 4)))
    assert one.overall["hits1.low"] < one.overall["hits1"] < one.overall["hits1.high"]
    assert one.by_hops["1"]["f1.low"] < one.by_hops["1"]["f1"] < one.by_hops["1"]["f1.high"]
    assert one.overall["mean_top_tie"] == 0.5
    assert set(one.by_answers) == {"1", "2-4", "5-9"}
    assert all(figures.keys() == one.overall.keys() for figures in one.by_answers.values())
    assert sum(figures["n"] for figures in one.by_answers.values()) == one.overall["n"]
    (hits1,) = {cells[3] for cells in report_cells([one]) if cells[0] == "all"}
    low, high = one.overall["hits1.low"], one.overall["hits1.high"]
    assert hits1 == f"{one.overall['hits1']:.2f} [{low:.1f}, {high:.1f}]"


def test_the_table_by_answers_leaves_out_single_seeds() -> None:
    seeds = [many(f"seed {n}", "seed", set(range(10 * n))) for n in (1, 3)]
    mean, control = mean_row("mean", seeds), many("template", "template control", {1})
    cells = answer_cells([*seeds, replace(mean, role="learned"), control])
    assert [(bucket, system) for bucket, system, *_ in cells] == [
        (bucket, system) for bucket in ("1", "2-4", "5-9") for system in ("mean", "template")
    ]
    assert {len(line) for line in cells} == {len(ANSWER_HEADER)}
    assert "\n| answers | system | n |" in render_report([control])
    assert answer_cells([replace(CONTROL, by_answers={"1": CONTROL.overall})]) == []  # nothing to tell apart


def test_the_mean_of_seeds_has_the_mean_of_every_figure_bounds_included() -> None:
    seeds = [many(f"seed {n}", "seed", set(range(10 * n))) for n in (1, 3)]
    mean = mean_row("mean", seeds)
    for get in (lambda row: row.overall, lambda row: row.by_hops["2"], lambda row: row.by_answers["5-9"]):
        for name, value in get(mean).items():
            assert value == pytest.approx((get(seeds[0])[name] + get(seeds[1])[name]) / 2)


def test_the_answerable_questions_are_one_more_scope_and_the_others_stay_in_all() -> None:
    questions = [Question(f"q{n}", "", "", (0,), (n,), "test", hops=1) for n in range(1, 5)]
    right = [Prediction(question.id, (1,), (1.0,), (1,)) for question in questions]  # of the first alone
    answerable = np.array([True, True, False, False])
    found = report_row("explorer", "learned", score_predictions(questions, right), answerable)
    control = report_row("template", "template control", score_predictions(questions, right), answerable)
    assert [(cells[0], cells[1], cells[2]) for cells in report_cells([found, control])] == [
        ("1", "explorer", "4"),
        ("1", "template", "4"),
        (ANSWERABLE, "explorer", "2"),
        (ANSWERABLE, "template", "2"),
    ]
    assert (found.overall["hits1"], found.answerable["hits1"]) == (25.0, 50.0)
    report = render_report([found, control])
    assert "does not beat its template control in F1 over the answerable questions: 50.00 against 50.00." in report
    mean = mean_row("mean", [found, replace(found, answerable={**found.answerable, "hits1": 100.0})])
    assert mean.answerable["hits1"] == 75.0
    whole = report_row("explorer", "learned", score_predictions(questions, right), np.ones(4, dtype=bool))
    assert whole.figures(ANSWERABLE) is None and ANSWERABLE not in render_report([whole])


def test_the_table_of_planners_shows_the_mean_of_the_seeds() -> None:
    scores = [
        {"planner": "dense", "seed": seed, "figures": {"all": {"n": 2, "hit@1": hit, "hit@3": 100.0, "valid": 100.0}}}
        for seed, hit in ((0, 50.0), (1, 100.0))
    ]
    assert planner_cells(scores) == [("all", "dense (mean of 2 seeds)", "2", "75.00", "100.00", "", "100.00", "")]
    assert render_planners(scores).splitlines()[2].startswith("| all | dense (mean of 2 seeds) | 2 | 75.00 |")
    assert render_planners([]) == ""
