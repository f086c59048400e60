"""Systems side by side as tables of text, with what is published for them.

The first table has accuracy, cost and evidence in each row; the details follow. Published figures stand in one file,
``conf/papers/tables.yaml``, which a test checks. Hit and Hits@1 are two metrics here whatever a paper calls them: a
figure of one never answers for the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import yaml

from kgqa_core.evaluation.compare import DIRECT, Entrant, SideBySide
from kgqa_core.evaluation.figures import ANSWERABLE, ENDS, OVERALL, Figures, ReportRow
from kgqa_core.evaluation.metrics import ANSWER_BUCKETS, interval_names
from kgqa_core.evaluation.predictions import CHANCE

Metric = Literal[
    "hit",  # a gold anywhere in the answer (RoG and EPERM print it as Hits@1)
    "hits1",  # the first answer is a gold
    "unknown",  # one of the two: the paper took the figure over from another
    "f1",
    "precision",
    "recall",
    "partial_match",  # any gold among the answers
    "complete_match",  # all golds, extras allowed
    "accuracy",  # of true/false questions
    "calls",  # of the language model, per question
    "seconds",  # per question
    "hours",  # of training
]
TopicSource = Literal["gold", "linked", "none"]
Published = Mapping[Metric, Mapping[str, str]]
"""Figures of papers as text, by metric and name of the row."""
BESIDE: Mapping[Metric, str] = {
    "hits1": "published Hits@1",
    "hit": "published Hit",
    "partial_match": "published partial",
    "complete_match": "published complete",
}
"""Metrics that have a column of their own each; figures of which nobody knows the metric are not shown."""

UNKNOWN = "–"
BEST, TIED = " *", " ="  # behind a figure
LEGEND = "all shares in percent, [95 % interval]; * the best figure, = within noise of the best"
SHOWN_MODEL = 60  # characters of a model's identity
SMALLEST_P = 0.001

Columns = Mapping[str, tuple[str, int | None]]
"""Header -> (figure, decimals; None: two, and its interval)."""
COST = {"calls": ("calls", 2), "tokens": ("tokens", 0), "s": ("seconds", 3), "price": ("money", 5)}
MAIN: Columns = {
    **{name: (f"{cost}_per_question", decimals) for name, (cost, decimals) in COST.items()},
    "supported": ("supported_answers", 1),
}
MATCH_COLUMNS: Columns = {
    "Hit": ("hit", None),
    "partial": ("partial", None),
    "complete": ("complete", None),
    "coverage": ("coverage", 2),
    "paths": ("count.num_paths", 2),
    f"Hits@1 where {DIRECT} is right": ("hits1.known", 2),
    "wrong": ("hits1.unknown", 2),
}
COST_COLUMNS: Columns = {
    **{
        f"{name} / {what}": (f"{cost}_per_{what}", decimals)
        for what in ("question", "correct")
        for name, (cost, decimals) in COST.items()
    },
    **{end: (end, 2) for end in ENDS},
    "supported questions": ("supported_questions", 2),
}
TRUST: Columns = {
    "answered": ("answered", 1),
    "wrong of all": ("wrong", 2),
    "AURC": ("aurc", 2),
    "AURC at best": ("aurc_best", 2),
    "calibration error": ("calibration_error", 2),
}
SCOPED: Columns = {
    "Hits@1": ("hits1", None),
    "F1": ("f1", None),
    "EM": ("em", None),
    "calls": ("calls_per_question", 2),
    "supported": ("supported_answers", 1),
}
UNITED: Columns = {
    "partial": ("partial", None),
    "complete": ("complete", None),
    "EM": ("em", None),
    "Hits@1": ("hits1", None),
    "F1": ("f1", None),
}
OVERRULED = ("system", "N", "questions", "overruled", "silent")
RIGHT = ("both right", "only explorer", "only LM", "both wrong")
ANSWERERS = ("system", "answered by", "model", "prompts", "topics", "pool", "seeds")


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], figures: Sequence[bool]) -> list[str]:
    """Return the lines of a table in Markdown; ``figures``: which columns stand to the right."""
    lines = ["| " + " | ".join(header) + " |", "|" + "".join("---:|" if right else "---|" for right in figures)]
    return lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in rows]


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
        "rows": [
            {
                **asdict(one.row),
                "lift": dict(one.lift),
                "about": asdict(one.about) | {"seed": [run.about.seed for run in one.runs if run.about]}
                if one.about
                else None,
                "predictions": [str(run.path) for run in one.runs],
            }
            for one in found.entrants
        ],
        "best": {metric: sorted(names) for metric, names in found.best.items()},
        "pairs": [asdict(row) for row in found.pairs],
        "merits": [asdict(merit) for merit in found.merits],
        "united": [asdict(row) for row in found.united],
        "overrules": [asdict(row) for row in found.lm_vs_explorer],
    }


def merit_sentences(found: SideBySide) -> list[str]:
    """Return for each language model with both chance players beside it whether it adds anything."""
    sentences = []
    for merit in found.merits:
        against = ", ".join(
            f"{'always first' if player == 'first' else player} {value:.2f} ({_p(merit.p_holm[player])})"
            for player, value in merit.against.items()
        )
        verdict = "the LM adds to chance" if merit.adds else "the LM adds nothing"
        sentences.append(f"{merit.system}: {verdict}: Hits@1 {merit.hits1:.2f} against {against}.")
    return sentences


def comparison_tables(found: SideBySide, published: Published | None = None) -> list[TextTable]:
    """Return the tables that have rows; ``published``: see ``published_beside``."""
    known = published or {}
    first = [metric for metric in BESIDE if metric in known and metric == "hits1"]
    others = [metric for metric in BESIDE if metric in known and metric != "hits1"]
    main, matches, spent, answerers = [], [], [], []
    for one in found.entrants:
        figures, about = {**one.row.overall, **one.lift}, one.about
        answerer = UNKNOWN if about is None else about.players or "no LM"
        lift = f"{one.lift['lift.hits1']:+,.2f}" if one.lift else UNKNOWN
        hits1, f1, em = (_marked(found, one, metric) for metric in ("hits1", "f1", "em"))
        who = (one.name, answerer, about.topics if about else UNKNOWN)
        in_main, in_matches = ([known[metric].get(one.name, "") for metric in some] for some in (first, others))
        main.append((*who, hits1, f1, *_cells(figures, MAIN), lift, *in_main))
        matches.append((one.name, em, *_cells(figures, MATCH_COLUMNS), *in_matches))
        spent.append((one.name, *_cells(figures, COST_COLUMNS)))
        if about is not None:
            seeds = ", ".join(str(run.about.seed) for run in one.runs if run.about and run.about.seed is not None)
            described = (about.model[:SHOWN_MODEL], about.prompts, about.topics, about.pool, seeds)
            answerers.append((one.name, answerer, *described))
    told = [one for one in found.entrants if "aurc" in one.row.overall]
    trusted = [(one.name, *_cells(_trust(one.row.overall), TRUST)) for one in told]
    overruled = [
        (*map(str, astuple(row)[:-1]), _p(row.p).removeprefix("p ").removeprefix("= ")) for row in found.lm_vs_explorer
    ]
    who_header = ("system", "answered by", "topics", "Hits@1", "F1")
    match_header = ("system", "EM", *MATCH_COLUMNS, *(BESIDE[metric] for metric in others))
    united = [(row.system, *_cells(row.overall, UNITED)) for row in found.united]
    asked = "1 question" if found.num_questions == 1 else f"{found.num_questions} questions"
    legend = f"{asked}, {LEGEND}; cost per question; lift over {DIRECT}"
    tables = [
        TextTable(legend, (*who_header, *MAIN, "lift", *(BESIDE[metric] for metric in first)), main, 3),
        TextTable("Matches (Hit is the published evaluator's, not Hits@1) and retrieval", match_header, matches),
        TextTable("Cost, and how questions ended", ("system", *COST_COLUMNS), spent),
        TextTable("Confidence: the risk where the least certain answers are kept back", ("system", *TRUST), trusted),
        *_scoped([one.row for one in found.entrants]),
        TextTable(f"Answers joined by those of {DIRECT}", ("system", *UNITED), united),
        TextTable("Explorer and language model, question by question", (*OVERRULED, *RIGHT, "p"), overruled),
        TextTable(f"Who answered ({', '.join(CHANCE)}: no language model)", ANSWERERS, answerers, len(ANSWERERS)),
    ]
    return [table for table in tables if table.rows]


def _trust(figures: Figures) -> Figures:
    silent = sum(figures.get(end, 0.0) for end in ENDS[:-1])  # all ways to end without an answer
    return {**figures, "answered": 100 - silent, "wrong": 100 - figures["hits1"]}


def _scoped(rows: Sequence[ReportRow]) -> list[TextTable]:
    """Return the tables by hops and by the number of answers, where there is more than one group."""
    tables = []
    for by, order in (("hops", report_scopes(rows)), ("answers", ANSWER_BUCKETS)):
        known = [(scope, row.system, getattr(row, f"by_{by}").get(scope)) for scope in order for row in rows]
        cells = [(scope, name, f"{own['n']:.0f}", *_cells(own, SCOPED)) for scope, name, own in known if own]
        if len({scope for scope, *_ in cells}) > 1:
            tables.append(TextTable(f"By the number of {by}", (by, "system", "n", *SCOPED), cells, 2))
    return tables


def _cells(figures: Figures, columns: Columns) -> list[str]:
    """Return the cells of ``columns``; a figure that is not known is a dash."""
    cells = []
    for name, decimals in columns.values():
        if decimals is None:
            cells.append(show_figure(figures, name))
        else:
            cells.append(f"{figures[name]:,.{decimals}f}" if name in figures else UNKNOWN)
    return cells


def _marked(found: SideBySide, one: Entrant, metric: str) -> str:
    best = found.best[metric]
    mark = "" if one.name not in best else BEST if len(best) == 1 else TIED
    return f"{show_figure(one.row.overall, metric)}{mark}"


def _p(p: float) -> str:
    return f"p < {SMALLEST_P}" if p < SMALLEST_P else f"p = {p:.3f}"


# ------ What is published, and which of it stands beside a row of ours.


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """One figure as it is printed."""

    method: str
    dataset: str
    metric: Metric
    value: float  # percent where the metric is a share
    topics: TopicSource


def read_published(path: Path) -> list[PublishedFigure]:
    """Return the figures of all tables, in the order of the file."""
    figures = []
    for paper in yaml.safe_load(path.read_text(encoding="utf-8")).values():
        for table in paper["items"].values():
            for method, given in table.get("rows", {}).items():
                row: dict[str, Any] = {"values": given} if isinstance(given, list) else given
                topics = row.get("topics") or table.get("topics") or paper["topics"]
                for column, value in zip(table["columns"], row["values"], strict=True):
                    dataset, _, metric = column.rpartition(" ")
                    if metric in ("hit", "hits1"):  # nobody may know which of them a paper took over
                        metric = row.get("metric", metric)
                    if value is not None:
                        figures.append(PublishedFigure(method, dataset, metric, value, topics))
    return figures


METHODS: Mapping[str, str] = {
    "explorer": r"EtD-w\.o\.-AD",
    "etd": r"EtD-(?!w\.o\.)[^ ]+",
    "dualr": r"DualR(-(?!w\.o\.)[^ ]+)?",
    "rog": r"RoG( \(.*\))?",
    "eperm": r"EPERM",
    "fiske": r"FiSKE( w/.*)?",
    "tog": r"ToG(-| w/|\+).*",
    "kaping": r"KAPING",
    "direct": r"IO w/.*|ChatGPT|GPT-4|Llama2-13B",
    "cot": r"CoT w/.*|ChatGPT\+CoT",
}
"""What papers call our systems, their ablations apart."""
FREEBASE = {"webqsp": "WebQSP", "cwq": "CWQ", "webquestions": "WebQuestions"}


def paper_datasets(name: str, hops: Iterable[str]) -> list[str]:
    """Return what papers call the datasets that a run's questions, of so many ``hops``, are of; empty for others."""
    parts, counts = name.split("-"), [count for count in hops if count in ("1", "2", "3")]
    if "metaqa" in parts:
        return [f"MetaQA-{count}" for count in counts]
    if "wc2014" in parts:
        return ["WC-m"] if counts[1:] else [f"WC-{count}" for count in counts]
    return [paper for part, paper in FREEBASE.items() if part in parts]


def published_beside(
    figures: Sequence[PublishedFigure], datasets: Sequence[str], entrants: Sequence[Entrant]
) -> dict[Metric, dict[str, str]]:
    """Return by metric and row what is published for its system on all of ``datasets``, the best method of it.

    Rows whose language model was chance have none.
    """
    rows = {
        entrant.name: entrant.about.system
        for entrant in entrants
        if entrant.about is not None and entrant.about.system in METHODS and entrant.player not in CHANCE
    }
    found: dict[Metric, dict[str, str]] = {}
    for metric in BESIDE if datasets else ():
        own = [one for one in figures if one.metric == metric and one.dataset in datasets]
        texts = {name: _best(own, datasets, METHODS[system]) for name, system in rows.items()}
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
