"""Published figures, and which of them stands beside a row of ours.

They stand in one file, ``conf/papers/tables.yaml``, with the run configuration of each table or figure, or the reason
why there is none. Hit and Hits@1 are two metrics here whatever a paper calls them: a figure of one never answers for
the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from kgqa_core.errors import InputError
from kgqa_core.evaluation.compare import Entrant
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
METRICS: tuple[Metric, ...] = get_args(Metric)
TOPIC_SOURCES: tuple[TopicSource, ...] = get_args(TopicSource)


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """One figure as it is printed."""

    method: str
    dataset: str
    metric: Metric
    value: float  # percent where the metric is a share
    denominator: int | None  # questions; None: the paper does not say
    topics: TopicSource
    note: str = ""  # what to know before it is compared


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PublishedRun(_Entry):
    """How a table or figure is made here."""

    config: str  # file beside the index
    set: tuple[str, ...] = ()  # settings over it, as ``--set`` takes them
    row: str = ""  # which row or column it stands for; empty: the table's main one


class _Row(_Entry):
    """The figures of one method, by column; null where none is printed."""

    values: tuple[float | None, ...]
    metric: Metric | None = None  # of its kinds of hit, where nobody knows which its paper took over
    topics: TopicSource | None = None
    note: str = ""


def _as_row(given: Any) -> Any:
    return {"values": given} if isinstance(given, list) else given


class PublishedTable(_Entry):
    """One table or figure of one paper: runs, or the reason why there are none, and what it prints."""

    paper: str = ""  # key: etd
    item: str = ""  # Table 2, Figure 3
    about: str = ""
    runs: tuple[PublishedRun, ...] = ()
    reason: str = ""  # empty where all of it can be run
    care: str = ""  # what is odd about its figures; empty: nothing
    topics: TopicSource | None = None
    columns: tuple[str, ...] = ()  # "WebQSP hits1": dataset and metric
    rows: dict[str, Annotated[_Row, BeforeValidator(_as_row)]] = {}
    figures: tuple[PublishedFigure, ...] = ()


class _Paper(_Entry):
    """One paper as the index holds it."""

    topics: TopicSource | None = None
    denominators: dict[str, int | None] = {}
    items: dict[str, PublishedTable]


def read_published(path: Path) -> tuple[PublishedTable, ...]:
    """Return all tables and figures of the index, in its order; ``InputError`` names an entry that lacks something."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
        papers = {key: _Paper.model_validate(content) for key, content in dict(raw).items()}
    except (OSError, TypeError, ValueError, yaml.YAMLError) as error:
        fault = error.errors(include_url=False)[0] if isinstance(error, ValidationError) else None
        what = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" if fault else error
        raise InputError(f"{path} is no index of published figures: {what}") from error
    tables = []
    for key, paper in papers.items():
        for name, item in paper.items.items():
            where = f"{path.name}: {key}, {name}"
            if not item.runs and not item.reason:
                raise InputError(f"{where}: give 'runs', or the 'reason' why there are none")
            figures = tuple(_figures(item, paper, where))
            tables.append(item.model_copy(update={"paper": key, "item": name, "figures": figures}))
    return tuple(tables)


def _figures(item: PublishedTable, paper: _Paper, where: str) -> Iterator[PublishedFigure]:
    """Yield the figures that an item prints."""
    columns = []
    for column in item.columns:
        dataset, _, name = column.rpartition(" ")
        metric = next((one for one in METRICS if one == name), None)
        if metric is None:
            raise InputError(f"{where}: {name!r} is no metric; legal: {', '.join(METRICS)}")
        if dataset not in paper.denominators:
            raise InputError(f"{where}: 'denominators' does not name {dataset!r}; null where the paper does not say")
        columns.append((dataset, metric))
    for method, row in item.rows.items():
        topics = row.topics or item.topics or paper.topics
        if topics is None:
            raise InputError(f"{where}: {method}: topics are missing, one of {', '.join(TOPIC_SOURCES)}")
        if len(row.values) != len(columns):
            raise InputError(f"{where}: {method}: expected {len(columns)} values, one per column, not {row.values}")
        for (dataset, metric), value in zip(columns, row.values, strict=True):
            if value is not None:
                meant = row.metric if row.metric and metric in ("hit", "hits1") else metric
                denominator = paper.denominators[dataset]
                yield PublishedFigure(method, dataset, meant, value, denominator, topics, row.note)


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
    """Return what papers call the datasets that a run's questions, of so many ``hops``, are of; empty for others."""
    if name.startswith("metaqa"):
        return [f"MetaQA-{count}" for count in hops if count in ("1", "2", "3")]
    if name.startswith("wc2014"):
        return ["WC-m"] if "mixed" in name else [f"WC-{count}" for count in hops if count in ("1", "2")]
    return [paper for part, paper in FREEBASE.items() if part in name.split("-")]


def published_beside(
    tables: Sequence[PublishedTable], datasets: Sequence[str], entrants: Sequence[Entrant]
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
