"""What a run found as tables of text: its explorer beside the controls, and its planners.

A learned model is worth its training only where it beats its *template control* (per masked text, the relation path
that served the training questions best). Where it does not, the report says so in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kgqa_core.evaluation.figures import ANSWERABLE, OVERALL, Figures, ReportRow
from kgqa_core.evaluation.metrics import ANSWER_BUCKETS
from kgqa_core.evaluation.tables import markdown_table, report_scopes, show_figure

COLUMNS = {"n": "n", "hits1": "Hits@1", "f1": "F1", "em": "EM", "coverage": "coverage"}
HEADER = ("hops", "system", *COLUMNS.values(), "remark")
ANSWER_HEADER = ("answers", "system", *COLUMNS.values())
WHERE = {OVERALL: "over all questions", ANSWERABLE: "over the answerable questions"}
NOT_BEATEN = "does not beat its template control"
NO_CONTROL = "has no template control beside it"
PLANNER_HEADER = ("hops", "planner", "n", "hit@1", "hit@3", "as good", "valid", "F1 of first plan")
PLANNER_FIGURES = ("hit@1", "hit@3", "as_good", "valid", "f1")

Scores = Mapping[str, Any]  # what stage plans writes as scores.json: planner, seed, figures by hops


def render_report(rows: Sequence[ReportRow]) -> str:
    """Return the report as Markdown: the table, then a sentence for every figure that does not beat its control.

    After them the table by the number of answers.
    """
    remarks = [f"- {sentence}" for sentence in remark_sentences(rows)]
    lines = [*_report_table(HEADER, report_cells(rows)), *([""] if remarks else []), *remarks]
    if by_answers := answer_cells(rows):
        lines += ["", *_report_table(ANSWER_HEADER, by_answers)]
    return "\n".join(lines) + "\n"


def _report_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return markdown_table(header, rows, [name in COLUMNS.values() for name in header])


def report_cells(rows: Sequence[ReportRow]) -> list[tuple[str, ...]]:
    """Return the table's cells as text under ``HEADER``, by ``report_scopes``; systems in the order given."""
    return [
        (hops, row.system, *figure_cells(figures), "; ".join(remark for remark, _ in _remarks(row, rows, hops)))
        for hops in report_scopes(rows)
        for row in rows
        if (figures := row.figures(hops)) is not None
    ]


def figure_cells(figures: Figures) -> list[str]:
    """Return the cells of ``COLUMNS``, a figure's interval beside it where it has one."""
    return [f"{figures[key]:.0f}" if key == "n" else show_figure(figures, key) for key in COLUMNS]


def remark_sentences(rows: Sequence[ReportRow]) -> list[str]:
    """Return a sentence for every figure of a learned model that does not beat its control."""
    return [told for row in rows for hops in report_scopes(rows) for _, told in _remarks(row, rows, hops)]


def answer_cells(rows: Sequence[ReportRow]) -> list[tuple[str, ...]]:
    """Return the cells, under ``ANSWER_HEADER``, of the table by the number of answers; single seeds are left out.

    Empty where all questions have one number of answers: there is nothing to tell apart.
    """
    shown = [row for row in rows if row.role != "seed"]
    buckets = [bucket for bucket in ANSWER_BUCKETS if any(bucket in row.by_answers for row in shown)]
    return [
        (bucket, row.system, *figure_cells(row.by_answers[bucket]))
        for bucket in (buckets if len(buckets) > 1 else [])
        for row in shown
        if bucket in row.by_answers
    ]


def _remarks(row: ReportRow, rows: Sequence[ReportRow], hops: str) -> list[tuple[str, str]]:
    """Return what has to be said of a learned model that does not beat its best control: (remark, sentence)."""
    own = row.figures(hops)
    if row.role != "learned" or own is None:
        return []
    where = WHERE.get(hops, f"on {hops}-hop questions")
    controls = [found for one in rows if one.role == "template control" and (found := one.figures(hops)) is not None]
    if not controls:
        return [(NO_CONTROL, f"{row.system} {NO_CONTROL} {where}: its figures show nothing of what was learned.")]
    best = {metric: max(figures[metric] for figures in controls) for metric in ("hits1", "f1")}
    failed = [(f"{NOT_BEATEN} in {COLUMNS[metric]}", own[metric], limit) for metric, limit in best.items()]
    return [(told, f"{row.system} {told} {where}: {a:.2f} against {b:.2f}.") for told, a, b in failed if a <= b]


def planner_cells(scores: Sequence[Scores]) -> list[tuple[str, ...]]:
    """Return the cells under ``PLANNER_HEADER``: one row per number of hops and planner, its seeds averaged."""
    by_planner: dict[str, list[Mapping[str, Mapping[str, float]]]] = {}
    for one in scores:
        by_planner.setdefault(one["planner"], []).append(one["figures"])
    cells = []
    for hops in dict.fromkeys(hops for seeds in by_planner.values() for hops in seeds[0]):
        for name, seeds in by_planner.items():
            if hops not in seeds[0]:
                continue
            mean = {figure: sum(one[hops][figure] for one in seeds) / len(seeds) for figure in seeds[0][hops]}
            shown = name if len(seeds) == 1 else f"{name} (mean of {len(seeds)} seeds)"
            figures = (f"{mean[figure]:.2f}" if figure in mean else "" for figure in PLANNER_FIGURES)
            cells.append((hops, shown, f"{mean['n']:.0f}", *figures))
    return cells


def render_planners(scores: Sequence[Scores]) -> str:
    """Return the table as Markdown; empty without scores."""
    if not scores:
        return ""
    figures = [place > 1 for place in range(len(PLANNER_HEADER))]
    return "\n".join(markdown_table(PLANNER_HEADER, planner_cells(scores), figures)) + "\n"
