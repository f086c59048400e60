"""The report: systems beside their controls, and plain words where a model shows nothing."""

from typing import Any

from kgqa_core.evaluation.metrics import score_predictions
from kgqa_core.evaluation.report import HEADER, ReportRow, Role, render_report, report_cells, report_row
from kgqa_core.types import Prediction, Question


def row(system: str, role: Role, hits1: float, f1: float, **by_hops: tuple[float, float]) -> ReportRow:
    def figures(one: float, two: float) -> dict[str, float]:
        return {"n": 7, "hits1": one, "f1": two, "em": 12.345, "coverage": 100.0}

    return ReportRow(system, role, figures(hits1, f1), {key[1:]: figures(*pair) for key, pair in by_hops.items()})


CONTROL = row("template", "template control", 80.0, 70.0, h1=(90.0, 90.0), h2=(70.0, 50.0))


def test_a_model_that_does_not_beat_its_control_is_told_so_in_words() -> None:
    model = row("explorer", "learned", 85.0, 70.0, h1=(90.0, 91.0), h2=(80.0, 49.0))
    report = render_report([model, CONTROL])
    assert (
        "| 1 | explorer | 7 | 90.00 | 91.00 | 12.35 | 100.00 | does not beat its template control in Hits@1 |" in report
    )
    assert "- explorer does not beat its template control in F1 on 2-hop questions: 49.00 against 50.00." in report
    assert "- explorer does not beat its template control in F1 over all questions: 70.00 against 70.00." in report
    assert "in Hits@1 on 2-hop questions" not in report


def test_a_model_above_its_control_gets_no_remark() -> None:
    model = row("explorer", "learned", 80.1, 70.1, h1=(91.0, 91.0), h2=(71.0, 51.0))
    assert "does not beat" not in render_report([model, CONTROL])


def test_the_best_control_counts() -> None:
    model = row("explorer", "learned", 85.0, 75.0)
    other = row("joint template", "template control", 86.0, 60.0)
    assert "in Hits@1 over all questions: 85.00 against 86.00" in render_report([model, CONTROL, other])


def test_a_model_without_control_is_told_so_and_ceilings_are_not_judged() -> None:
    ceiling = row("gold chain", "ceiling", 10.0, 10.0)
    assert "explorer has no template control beside it" in render_report(
        [row("explorer", "learned", 99.0, 99.0), ceiling]
    )
    assert "does not beat" not in render_report([ceiling, CONTROL])


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
