"""Results as tables of text: the report of an explorer beside its controls, and systems side by side.

A learned model is worth its training only where it beats its *template control* (per masked text, the relation path
that served the training questions best). Where it does not, the report says so in words. Of systems, one table has
accuracy, cost and evidence in each row; the details follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kgqa_core.evaluation.compare import DIRECT, Entrant, Merit, SideBySide
from kgqa_core.evaluation.figures import ANSWERABLE, COSTS, ENDS, OVERALL, Figures, ReportRow
from kgqa_core.evaluation.metrics import ANSWER_BUCKETS, interval_names
from kgqa_core.evaluation.predictions import CHANCE, SystemSource
from kgqa_core.evaluation.published import Metric

COLUMNS = {"n": "n", "hits1": "Hits@1", "f1": "F1", "em": "EM", "coverage": "coverage"}
HEADER = ("hops", "system", *COLUMNS.values(), "remark")
ANSWER_HEADER = ("answers", "system", *COLUMNS.values())
WHERE = {OVERALL: "over all questions", ANSWERABLE: "over the answerable questions"}
NOT_BEATEN = "does not beat its template control"
NO_CONTROL = "has no template control beside it"

Published = Mapping[Metric, Mapping[str, str]]
"""Figures of papers as text, by metric and name of the row."""
PUBLISHED: Mapping[Metric, str] = {
    "hits1": "published Hits@1",
    "hit": "published Hit",
    "partial_match": "published partial",
    "complete_match": "published complete",
}
MATCHED: tuple[Metric, ...] = ("hit", "partial_match", "complete_match")

UNKNOWN = "–"
BEST, TIED = " *", " ="  # behind a figure
LEGEND = "all shares in percent, [95 % interval]; * the best figure, = within noise of the best"
SHOWN_MODEL = 60  # characters of a model's identity
DECIMALS = {"calls": 2, "tokens": 0, "seconds": 3, "money": 5}
NAMES = {"calls": "calls", "tokens": "tokens", "seconds": "s", "money": "price"}
SMALLEST_P = 0.001


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


@dataclass(frozen=True, slots=True)
class TextTable:
    """One table."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    figures_from: int = 1  # columns from here on are figures

    def markdown(self) -> str:
        """Return the table as Markdown."""
        figures = [place >= self.figures_from for place in range(len(self.header))]
        return "\n".join([f"**{self.title}**", "", *markdown_table(self.header, self.rows, figures)])


def render_side_by_side(found: SideBySide, published: Published | None = None) -> str:
    """Return all tables and sentences as Markdown."""
    tables = [table.markdown() for table in comparison_tables(found, published)]
    sentences = [f"- {sentence}" for sentence in merit_sentences(found)]
    return "\n\n".join([tables[0], *(["\n".join(sentences)] if sentences else []), *tables[1:]]) + "\n"


def side_by_side_document(found: SideBySide, published: Published | None = None) -> dict[str, Any]:
    """Return the comparison as plain data: its figures and tests, and the tables and sentences that show them."""
    return {
        "num_questions": found.num_questions,
        "graph": found.entrants[0].mean.source.graph,
        "tables": [asdict(table) for table in comparison_tables(found, published)],
        "sentences": merit_sentences(found),
        "rows": [_row_document(one) for one in found.entrants],
        "best": {metric: sorted(names) for metric, names in found.best.items()},
        "pairs": [asdict(row) for row in found.pairs],
        "merits": [asdict(merit) for merit in found.merits],
        "united": [asdict(row) for row in found.united],
        "overrules": [{"system": name, **asdict(row)} for name, row in found.lm_vs_explorer],
    }


def _row_document(one: Entrant) -> dict[str, Any]:
    about = [run.about for run in one.runs if run.about is not None]
    return {
        **asdict(one.row),
        "lift": dict(one.lift),
        "about": {**asdict(about[0]), "seed": [source.seed for source in about]} if about else None,
        "predictions": [str(run.run.path) for run in one.runs],
    }


def comparison_tables(found: SideBySide, published: Published | None = None) -> list[TextTable]:
    """Return the tables that have rows; ``published``: see ``published_beside``."""
    tables = [
        _main(found, published or {}),
        _matches(found, published or {}),
        _costs(found),
        *_scoped(found),
        _united(found),
        _overruled(found),
        _answerers(found),
    ]
    return [table for table in tables if table.rows]


def merit_sentences(found: SideBySide) -> list[str]:
    """Return for each language model with both chance players beside it whether it adds anything."""
    return [_sentence(merit) for merit in found.merits]


def _sentence(merit: Merit) -> str:
    against = ", ".join(
        f"{'always first' if player == 'first' else player} {value:.2f} ({_p(merit.p_holm[player])})"
        for player, value in merit.against.items()
    )
    verdict = "the LM adds to chance" if merit.adds else "the LM adds nothing"
    return f"{merit.system}: {verdict}: Hits@1 {merit.hits1:.2f} against {against}."


def _p(p: float) -> str:
    return f"p < {SMALLEST_P}" if p < SMALLEST_P else f"p = {p:.3f}"


def _main(found: SideBySide, published: Published) -> TextTable:
    header = ["system", "answered by", "topics", "Hits@1", "F1", *(NAMES[name] for name in COSTS), "supported", "lift"]
    rows = []
    for one in found.entrants:
        figures = one.row.overall
        row = [one.name, _answerer(one.about), one.about.topics if one.about else UNKNOWN]
        row += [_marked(found, one, metric) for metric in ("hits1", "f1")]
        row += [_number(figures.get(f"{name}_per_question"), DECIMALS[name]) for name in COSTS]
        row += [_number(figures.get("supported_answers"), 1), _number(one.lift.get("lift.hits1"), 2, sign=True)]
        rows.append((*row, *([published["hits1"].get(one.name, "")] if "hits1" in published else [])))
    header += [PUBLISHED["hits1"]] if "hits1" in published else []
    title = f"{found.num_questions} questions, {LEGEND}; cost per question; lift over {DIRECT}"
    return TextTable(title, tuple(header), rows, 3)


def _marked(found: SideBySide, one: Entrant, metric: str) -> str:
    best = found.best[metric]
    mark = "" if one.name not in best else BEST if len(best) == 1 else TIED
    return f"{show_figure(one.row.overall, metric)}{mark}"


def _answerer(about: SystemSource | None) -> str:
    if about is None:
        return UNKNOWN
    return about.answered_by or "no LM"


def _matches(found: SideBySide, published: Published) -> TextTable:
    known_to = (f"Hits@1 where {DIRECT} is right", "wrong")
    shown = [metric for metric in MATCHED if metric in published]
    header = ("system", "EM", "Hit", "partial", "complete", "coverage", "paths", *known_to,
              *(PUBLISHED[metric] for metric in shown))  # fmt: skip
    rows = []
    for one in found.entrants:
        figures = one.row.overall
        known = [_number(one.lift.get(f"hits1.{what}"), 2) for what in ("known", "unknown")]
        matches = [show_figure(figures, metric) for metric in ("hit", "partial", "complete")]
        retrieved = [_number(figures.get(name), 2) for name in ("coverage", "count.num_paths")]
        printed = [published[metric].get(one.name, "") for metric in shown]
        rows.append((one.name, _marked(found, one, "em"), *matches, *retrieved, *known, *printed))
    return TextTable("Matches (Hit is the published evaluator's, not Hits@1) and retrieval", header, rows)


def _costs(found: SideBySide) -> TextTable:
    spent_on = [f"{NAMES[name]} / {what}" for what in ("question", "correct") for name in COSTS]
    header = ("system", *spent_on, *ENDS, "supported questions")
    rows = []
    for one in found.entrants:
        figures = one.row.overall
        spent = [
            _number(figures.get(f"{name}_per_{what}"), DECIMALS[name])
            for what in ("question", "correct")
            for name in COSTS
        ]
        shares = [_number(figures.get(name), 2) for name in (*ENDS, "supported_questions")]
        rows.append((one.name, *spent, *shares))
    return TextTable("Cost, and how questions ended", header, rows)


def _scoped(found: SideBySide) -> Iterator[TextTable]:
    """Yield the tables by hops and by the number of answers, where there is more than one group."""
    rows = [one.row for one in found.entrants]
    by_hops = {row.system: row.by_hops for row in rows}
    by_answers = {row.system: row.by_answers for row in rows}
    hops = [scope for scope in report_scopes(rows) if any(scope in groups for groups in by_hops.values())]
    answers = list(dict.fromkeys(bucket for groups in by_answers.values() for bucket in groups))
    for by, scopes, found_by in (("hops", hops, by_hops), ("answers", answers, by_answers)):
        if len(scopes) < 2:
            continue
        header = (by, "system", "n", "Hits@1", "F1", "EM", "calls", "supported")
        cells = [
            (scope, system, *_scope_cells(groups[scope]))
            for scope in scopes
            for system, groups in found_by.items()
            if scope in groups
        ]
        yield TextTable(f"By the number of {by}", header, cells, 2)


def _scope_cells(figures: Mapping[str, float]) -> tuple[str, ...]:
    return (
        f"{figures['n']:.0f}",
        *(show_figure(figures, metric) for metric in ("hits1", "f1", "em")),
        _number(figures.get("calls_per_question"), 2),
        _number(figures.get("supported_answers"), 1),
    )


def _united(found: SideBySide) -> TextTable:
    rows = [
        (row.system, *(show_figure(row.overall, metric) for metric in ("partial", "complete", "em", "hits1", "f1")))
        for row in found.united
    ]
    return TextTable(
        f"Answers joined by those of {DIRECT}", ("system", "partial", "complete", "EM", "Hits@1", "F1"), rows
    )


def _overruled(found: SideBySide) -> TextTable:
    header = ("system", "N", "questions", "overruled", "silent", "both right", "only explorer", "only LM", "both wrong",
              "p")  # fmt: skip
    rows = [
        (
            name,
            *map(str, (row.num_shown, row.num_questions, row.num_overruled, row.num_abstained)),
            *map(str, (row.both_right, row.only_explorer, row.only_lm, row.both_wrong)),
            _p(row.p).removeprefix("p ").removeprefix("= "),
        )
        for name, row in found.lm_vs_explorer
    ]
    return TextTable("Explorer and language model, question by question", header, rows)


def _answerers(found: SideBySide) -> TextTable:
    rows = [
        (
            one.name,
            _answerer(about),
            about.model[:SHOWN_MODEL],
            about.prompts,
            about.topics,
            about.pool,
            ", ".join(str(run.about.seed) for run in one.runs if run.about is not None and run.about.seed is not None),
        )
        for one in found.entrants
        if (about := one.about) is not None
    ]
    header = ("system", "answered by", "model", "prompts", "topics", "pool", "seeds")
    return TextTable(f"Who answered ({', '.join(CHANCE)}: no language model)", header, rows, len(header))


def _number(value: float | None, decimals: int, *, sign: bool = False) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:+,.{decimals}f}" if sign else f"{value:,.{decimals}f}"
