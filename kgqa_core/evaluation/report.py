"""The table of systems side by side, per number of hops, with the controls beside every learned model.

A learned model is worth its training only where it beats its *template control* (per masked text, the relation path
that served the training questions best). Where it does not, the report says so in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kgqa_core.evaluation.intervals import interval_figures, interval_names
from kgqa_core.evaluation.metrics import ANSWER_BUCKETS, Mask, QuestionScores

Role = Literal["learned", "seed", "template control", "ceiling", "other"]
"""``seed``: one of several runs of a learned system, whose mean is the ``learned`` row that is judged."""
OVERALL = "all"
ANSWERABLE = "answerable only"  # questions with an answer in the graph; the others stay in every other figure
COLUMNS = {"n": "n", "hits1": "Hits@1", "f1": "F1", "em": "EM", "coverage": "coverage"}
HEADER = ("hops", "system", *COLUMNS.values(), "remark")
ANSWER_HEADER = ("answers", "system", *COLUMNS.values())
WHERE = {OVERALL: "over all questions", ANSWERABLE: "over the answerable questions"}
NOT_BEATEN = "does not beat its template control"
NO_CONTROL = "has no template control beside it"

Figures = Mapping[str, float]
"""``n``, the mean of every metric in percent, and the bounds of those that have an interval (``hits1.low``)."""


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One system's figures."""

    system: str
    role: Role
    overall: Figures
    by_hops: Mapping[str, Figures] = field(default_factory=dict)
    by_answers: Mapping[str, Figures] = field(default_factory=dict)  # by the number of golds
    answerable: Figures = field(default_factory=dict)  # of ``ANSWERABLE``; empty where all questions are

    def figures(self, hops: str) -> Figures | None:
        """Return the figures of one number of hops, of ``all`` or ``answerable only``; ``None`` without any."""
        if hops == ANSWERABLE:
            return self.answerable or None
        return self.overall if hops == OVERALL else self.by_hops.get(hops)


def report_row(system: str, role: Role, scores: QuestionScores, answerable: Mask | None = None) -> ReportRow:
    """Return the report row of one system's scores; ``answerable`` [B]: which questions are, ``None``: all."""
    return ReportRow(
        system,
        role,
        make_figures(scores),
        {hops: make_figures(scores, chosen) for hops, chosen in scores.hop_groups().items()},
        {bucket: make_figures(scores, chosen) for bucket, chosen in scores.answer_groups().items()},
        {} if answerable is None or answerable.all() else make_figures(scores, answerable),
    )


def make_figures(scores: QuestionScores, chosen: Mask | None = None) -> Figures:
    """Return the means and the bounds of their intervals, over all questions or those ``chosen`` [B]."""
    return {**scores.summary(chosen), **interval_figures(scores.values, chosen)}


def render_report(rows: Sequence[ReportRow]) -> str:
    """Return the report as Markdown: the table, then a sentence for every figure that does not beat its control.

    After them the table by the number of answers.
    """
    lines = _report_table(HEADER, report_cells(rows))
    remarks = list(render_remarks(rows))
    if remarks:
        lines += ["", *(f"- {remark}" for remark in remarks)]
    by_answers = answer_cells(rows)
    if by_answers:
        lines += ["", *_report_table(ANSWER_HEADER, by_answers)]
    return "\n".join(lines) + "\n"


def _report_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return markdown_table(header, rows, [name in COLUMNS.values() for name in header])


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], figures: Sequence[bool]) -> list[str]:
    """Return the lines of a table in Markdown; ``figures``: which columns stand to the right."""
    lines = ["| " + " | ".join(header) + " |", "|" + "".join("---:|" if right else "---|" for right in figures)]
    return lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in rows]


def report_cells(rows: Sequence[ReportRow]) -> list[tuple[str, ...]]:
    """Return the table's cells as text under ``HEADER``, by ``report_scopes``; systems in the order given."""
    cells: list[tuple[str, ...]] = []
    for hops in report_scopes(rows):
        for row in rows:
            figures = row.figures(hops)
            if figures is not None:
                cells.append((hops, row.system, *figure_cells(figures), "; ".join(name_failures(row, rows, hops))))
    return cells


def answer_cells(rows: Sequence[ReportRow]) -> list[tuple[str, ...]]:
    """Return the cells, under ``ANSWER_HEADER``, of the table by the number of answers; single seeds are left out.

    Empty where all questions have one number of answers: there is nothing to tell apart.
    """
    shown = [row for row in rows if row.role != "seed"]
    buckets = [bucket for bucket in ANSWER_BUCKETS if any(bucket in row.by_answers for row in shown)]
    if len(buckets) < 2:
        return []
    return [
        (bucket, row.system, *figure_cells(row.by_answers[bucket]))
        for bucket in buckets
        for row in shown
        if bucket in row.by_answers
    ]


def figure_cells(figures: Figures) -> list[str]:
    """Return the cells of ``COLUMNS``, a figure's interval beside it where it has one."""
    return [f"{figures[key]:.0f}" if key == "n" else show_figure(figures, key) for key in COLUMNS]


def show_figure(figures: Figures, metric: str) -> str:
    """Return a figure and its 95 % interval as text: ``96.65 [95.8, 97.4]``.

    Where all questions went alike there is nothing to draw, and no interval is shown.
    """
    low, high = (figures.get(name) for name in interval_names(metric))
    bounds = "" if low is None or high is None or low == high else f" [{low:.1f}, {high:.1f}]"
    return f"{figures[metric]:.2f}{bounds}"


def report_scopes(rows: Sequence[ReportRow]) -> list[str]:
    """Return the numbers of hops that any row has, ascending, ``unknown``, ``all``, and ``answerable only``."""
    found = {hops for row in rows for hops in row.by_hops}
    scopes = sorted(found, key=lambda hops: (not hops.isdigit(), int(hops) if hops.isdigit() else 0, hops))
    whole = [OVERALL] if len(scopes) != 1 else []
    return [*scopes, *whole, *([ANSWERABLE] if any(row.answerable for row in rows) else [])]


def name_failures(row: ReportRow, rows: Sequence[ReportRow], hops: str) -> list[str]:
    """Return what has to be said of a learned model at ``hops``: metrics on which it does not beat its control."""
    return [f"{NOT_BEATEN} in {COLUMNS[metric]}" for metric, _, _ in _failures(row, rows, hops)] or (
        [NO_CONTROL] if row.role == "learned" and not _controls(rows, hops) else []
    )


def render_remarks(rows: Sequence[ReportRow]) -> Iterator[str]:
    """Yield one sentence per learned model, number of hops and metric that does not beat the template control."""
    for row in rows:
        for hops in report_scopes(rows):
            where = WHERE.get(hops, f"on {hops}-hop questions")
            for metric, own, best in _failures(row, rows, hops):
                yield f"{row.system} {NOT_BEATEN} in {COLUMNS[metric]} {where}: {own:.2f} against {best:.2f}."
            if row.role == "learned" and row.figures(hops) is not None and not _controls(rows, hops):
                yield f"{row.system} {NO_CONTROL} {where}: its figures show nothing of what was learned."


def _controls(rows: Sequence[ReportRow], hops: str) -> list[Figures]:
    figures = [row.figures(hops) for row in rows if row.role == "template control"]
    return [found for found in figures if found is not None]


def _failures(row: ReportRow, rows: Sequence[ReportRow], hops: str) -> list[tuple[str, float, float]]:
    """Return (metric, own figure, best control's figure) where a learned model is not above every control."""
    own, controls = row.figures(hops), _controls(rows, hops)
    if row.role != "learned" or own is None or not controls:
        return []
    best = {metric: max(figures[metric] for figures in controls) for metric in ("hits1", "f1")}
    return [(metric, own[metric], limit) for metric, limit in best.items() if own[metric] <= limit]


def mean_row(system: str, rows: Sequence[ReportRow]) -> ReportRow:
    """Return the mean of several runs of one system (its seeds) as a row of its own.

    Bounds of intervals are averaged too: how far the figure of one run would move with other questions.
    """
    by_hops = _mean_groups([row.by_hops for row in rows])
    by_answers = _mean_groups([row.by_answers for row in rows])
    answerable = _mean([row.answerable for row in rows])
    return ReportRow(system, rows[0].role, _mean([row.overall for row in rows]), by_hops, by_answers, answerable)


def _mean_groups(groups: Sequence[Mapping[str, Figures]]) -> dict[str, Figures]:
    shared = set(groups[0]).intersection(*groups)
    return {name: _mean([group[name] for group in groups]) for name in groups[0] if name in shared}


def _mean(figures: Sequence[Figures]) -> dict[str, float]:
    """Return the mean of the figures that all runs have."""
    shared = set(figures[0]).intersection(*figures)
    return {name: sum(one[name] for one in figures) / len(figures) for name in figures[0] if name in shared}
