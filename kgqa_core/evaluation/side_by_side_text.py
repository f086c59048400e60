"""The comparison of systems as tables of text: one with accuracy, cost and evidence in each row, then the details."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from kgqa_core.evaluation.predictions import STAND_INS, SystemSource
from kgqa_core.evaluation.published import Metric, PublishedFigure, PublishedTable
from kgqa_core.evaluation.report import ReportRow, markdown_table, report_scopes, show_figure
from kgqa_core.evaluation.side_by_side import COSTS, DIRECT, ENDS, Entrant, Merit, SideBySide

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
        "overrules": [{"system": name, **asdict(row)} for name, row in found.overrules],
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
    """Return for each language model with both stand-ins beside it whether it adds anything."""
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
    hops = [scope for scope in report_scopes(rows) if any(scope in row.by_hops for row in rows)]
    answers = list(dict.fromkeys(bucket for row in rows for bucket in row.by_answers))
    groups: list[tuple[str, list[str], Callable[[ReportRow], Mapping[str, Mapping[str, float]]]]] = [
        ("hops", hops, lambda row: row.by_hops),
        ("answers", answers, lambda row: row.by_answers),
    ]
    for by, scopes, figures_of in groups:
        if len(scopes) < 2:
            continue
        header = (by, "system", "n", "Hits@1", "F1", "EM", "calls", "supported")
        cells = [
            (scope, row.system, *_scope_cells(figures_of(row)[scope]))
            for scope in scopes
            for row in rows
            if scope in figures_of(row)
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
        for name, row in found.overrules
    ]
    return TextTable("Explorer and language model, question by question", header, rows)


def _answerers(found: SideBySide) -> TextTable:
    rows = [
        (one.name, _answerer(about), about.model[:SHOWN_MODEL], about.prompts, about.topics, about.pool, _seeds(one))
        for one in found.entrants
        if (about := one.about) is not None
    ]
    header = ("system", "answered by", "model", "prompts", "topics", "pool", "seeds")
    return TextTable(f"Who answered ({', '.join(STAND_INS)}: no language model)", header, rows, len(header))


def _seeds(one: Entrant) -> str:
    return ", ".join(str(run.about.seed) for run in one.runs if run.about is not None and run.about.seed is not None)


def _number(value: float | None, decimals: int, *, sign: bool = False) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:+,.{decimals}f}" if sign else f"{value:,.{decimals}f}"


# ------ The published figure that stands beside a row of ours: of the same system, on the dataset ...


METHODS: Mapping[str, str] = {
    "explorer": r"EtD-w\.o\.-AD",
    "etd": r"EtD-(?!w\.o\.)[^ ]+",
    "dualr": r"DualR-(?!w\.o\.)[^ ]+",
    "rog": r"RoG( \(.*\))?",
    "eperm": r"EPERM",
    "fiske": r"FiSKE( w/.*)?",
    "tog": r"ToG(-| w/|\+).*",
    "direct": r"IO w/.*|ChatGPT|GPT-4|Llama2-13B",
    "cot": r"CoT w/.*|ChatGPT\+CoT",
}
"""What papers call our systems, their ablations apart."""
BESIDE: tuple[Metric, ...] = ("hits1", "hit", "partial_match", "complete_match")
"""Metrics that have a column of their own each; figures of which nobody knows the metric are not shown."""
FREEBASE = {"webqsp": "WebQSP", "cwq": "CWQ"}


def paper_datasets(name: str, hops: Iterable[str]) -> list[str]:
    """Return what papers call the datasets that a run's questions are of; empty where they know none like it.

    Args:
        name: of the run's dataset.
        hops: numbers of hops of its questions, ascending.
    """
    if name.startswith("metaqa"):
        return [f"MetaQA-{count}" for count in hops if count in ("1", "2", "3")]
    if name.startswith("wc2014"):
        return ["WC-m"] if "mixed" in name else [f"WC-{count}" for count in hops if count in ("1", "2")]
    return [paper for part, paper in FREEBASE.items() if part in name.split("-")]


def published_beside(
    tables: Sequence[PublishedTable], datasets: Sequence[str], entrants: Sequence[Entrant]
) -> dict[Metric, dict[str, str]]:
    """Return by metric and row what is published for its system on all of ``datasets``, the best method of it.

    Rows whose language model was a stand-in of ours have none.
    """
    rows = {
        entrant.name: entrant.about.system
        for entrant in entrants
        if entrant.about is not None and entrant.about.system in METHODS and not entrant.is_stand_in
    }
    found: dict[Metric, dict[str, str]] = {}
    for metric in BESIDE if datasets else ():
        figures = [one for table in tables for one in table.figures if one.metric == metric and one.dataset in datasets]
        texts = {name: _best(figures, datasets, METHODS[system]) for name, system in rows.items()}
        if any(texts.values()):
            found[metric] = {name: text for name, text in texts.items() if text}
    return found


def _best(figures: Sequence[PublishedFigure], datasets: Sequence[str], pattern: str) -> str:
    """Return ``98.1 / 99.7 / 99.7 (EtD-ChatGPT)``, or empty text where no method has them all."""
    methods: dict[str, dict[str, PublishedFigure]] = {}
    for one in figures:
        if re.fullmatch(pattern, one.method):
            methods.setdefault(one.method, {}).setdefault(one.dataset, one)
    whole = {method: own for method, own in methods.items() if len(own) == len(datasets)}
    if not whole:
        return ""
    best = max(whole, key=lambda method: fmean(one.value for one in whole[method].values()))
    topics = whole[best][datasets[0]].topics
    values = " / ".join(f"{whole[best][dataset].value:g}" for dataset in datasets)
    return f"{values} ({best}{'' if topics == 'gold' else f', topics: {topics}'})"
