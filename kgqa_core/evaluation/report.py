"""The table of systems side by side, per number of hops, with the controls beside every learned model.

A learned model is worth its training only where it beats its *template control* (per masked text, the relation path
that served the training questions best). Where it does not, the report says so in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kgqa_core.evaluation.metrics import QuestionScores

Role = Literal["learned", "seed", "template control", "ceiling", "other"]
"""``seed``: one of several runs of a learned system, whose mean is the ``learned`` row that is judged."""
OVERALL = "all"
COLUMNS = {"n": "n", "hits1": "Hits@1", "f1": "F1", "em": "EM", "coverage": "coverage"}
HEADER = ("hops", "system", *COLUMNS.values(), "remark")
NOT_BEATEN = "does not beat its template control"
NO_CONTROL = "has no template control beside it"


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One system's figures."""

    system: str
    role: Role
    overall: Mapping[str, float]  # a summary of ``metrics.QuestionScores``: n, and percent
    by_hops: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def figures(self, hops: str) -> Mapping[str, float] | None:
        """Return the figures of one number of hops, or of ``all``; ``None`` where there are none."""
        return self.overall if hops == OVERALL else self.by_hops.get(hops)


def report_row(system: str, role: Role, scores: QuestionScores) -> ReportRow:
    """Return the report row of one system's scores."""
    return ReportRow(system, role, scores.summary(), scores.by_hops())


def render_report(rows: Sequence[ReportRow]) -> str:
    """Return the report as Markdown: the table, then a sentence for every figure that does not beat its control."""
    lines = ["| " + " | ".join(HEADER) + " |", "|---|---|" + "---:|" * len(COLUMNS) + "---|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in report_cells(rows)]
    remarks = list(render_remarks(rows))
    if remarks:
        lines += ["", *(f"- {remark}" for remark in remarks)]
    return "\n".join(lines) + "\n"


def report_cells(rows: Sequence[ReportRow]) -> list[tuple[str, ...]]:
    """Return the table's cells as text under ``HEADER``: hops ascending, then all; systems in the order given."""
    cells: list[tuple[str, ...]] = []
    for hops in report_scopes(rows):
        for row in rows:
            figures = row.figures(hops)
            if figures is None:
                continue
            shown = [f"{figures[key]:.0f}" if key == "n" else f"{figures[key]:.2f}" for key in COLUMNS]
            cells.append((hops, row.system, *shown, "; ".join(name_failures(row, rows, hops))))
    return cells


def report_scopes(rows: Sequence[ReportRow]) -> list[str]:
    """Return the numbers of hops that any row has, ascending, ``unknown`` after them, then ``all``."""
    found = {hops for row in rows for hops in row.by_hops}
    scopes = sorted(found, key=lambda hops: (not hops.isdigit(), int(hops) if hops.isdigit() else 0, hops))
    return [*scopes, OVERALL] if len(scopes) != 1 else scopes


def name_failures(row: ReportRow, rows: Sequence[ReportRow], hops: str) -> list[str]:
    """Return what has to be said of a learned model at ``hops``: metrics on which it does not beat its control."""
    return [f"{NOT_BEATEN} in {COLUMNS[metric]}" for metric, _, _ in _failures(row, rows, hops)] or (
        [NO_CONTROL] if row.role == "learned" and not _controls(rows, hops) else []
    )


def render_remarks(rows: Sequence[ReportRow]) -> Iterator[str]:
    """Yield one sentence per learned model, number of hops and metric that does not beat the template control."""
    for row in rows:
        for hops in report_scopes(rows):
            where = "over all questions" if hops == OVERALL else f"on {hops}-hop questions"
            for metric, own, best in _failures(row, rows, hops):
                yield f"{row.system} {NOT_BEATEN} in {COLUMNS[metric]} {where}: {own:.2f} against {best:.2f}."
            if row.role == "learned" and row.figures(hops) is not None and not _controls(rows, hops):
                yield f"{row.system} {NO_CONTROL} {where}: its figures show nothing of what was learned."


def _controls(rows: Sequence[ReportRow], hops: str) -> list[Mapping[str, float]]:
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
    """Return the mean of several runs of one system (its seeds) as a row of its own."""
    shared = set(rows[0].by_hops).intersection(*(row.by_hops for row in rows))
    by_hops = {hops: _mean([row.by_hops[hops] for row in rows]) for hops in rows[0].by_hops if hops in shared}
    return ReportRow(system, rows[0].role, _mean([row.overall for row in rows]), by_hops)


def _mean(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: sum(one[name] for one in figures) / len(figures) for name in figures[0]}
