"""Published figures, to be put beside ours: what was measured, over which questions, with whose topics.

They stand in one file, ``conf/papers/tables.yaml``, with the run configuration of each table or figure, or the reason
why there is none. Hit and Hits@1 are two metrics here whatever a paper calls them: a figure of one never answers for
the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from kgqa_core.errors import InputError, nearest, shorten

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


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """How a table or figure is made here."""

    config: str  # file beside the index
    settings: tuple[str, ...] = ()  # over it, as ``--set`` takes them
    row: str = ""  # which row or column it stands for; empty: the table's main one


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """One table or figure of one paper: runs, or the reason why there are none, and what it prints."""

    paper: str  # key: etd
    item: str  # Table 2, Figure 3
    about: str
    runs: tuple[PublishedRun, ...]
    reason: str  # empty where all of it can be run
    care: str  # what is odd about its figures; empty: nothing
    figures: tuple[PublishedFigure, ...]


def read_published(path: Path) -> tuple[PublishedTable, ...]:
    """Return all tables and figures of the index, in its order.

    Raises:
        InputError: no such file, no YAML, or an entry that does not say what it must; it is named.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise InputError(f"{path} holds no index of published figures: {error}") from error
    if not isinstance(raw, dict) or not all(isinstance(paper, dict) for paper in raw.values()):
        raise InputError(f"{path}: expected papers by key, each with 'denominators', 'topics' and 'items'")
    return tuple(
        _read_table(paper, item, entry, content, f"{path.name}: {paper}, {item}")
        for paper, content in raw.items()
        for item, entry in content.get("items", {}).items()
    )


def figures_of(
    tables: Sequence[PublishedTable], *, dataset: str, metric: Metric, method: str | None = None
) -> list[PublishedFigure]:
    """Return the published figures of one metric on one dataset, of all methods or of one; another metric never."""
    return [
        figure
        for table in tables
        for figure in table.figures
        if figure.dataset == dataset and figure.metric == metric and method in (None, figure.method)
    ]


def _read_table(
    paper: str, item: str, entry: Mapping[str, Any], content: Mapping[str, Any], where: str
) -> PublishedTable:
    _known(entry, ("about", "runs", "reason", "care", "columns", "topics", "rows"), where)
    runs = tuple(_read_run(run, where) for run in entry.get("runs", ()))
    if not runs and not entry.get("reason"):
        raise InputError(f"{where}: give 'runs', or the 'reason' why there are none")
    columns = [_read_column(column, where) for column in entry.get("columns", ())]
    figures = [
        figure
        for method, row in entry.get("rows", {}).items()
        for figure in _read_row(method, row, columns, {**content, **entry}, f"{where}, {method}")
    ]
    texts = (str(entry.get(key, "")) for key in ("about", "reason", "care"))
    about, reason, care = texts
    return PublishedTable(paper, item, about, runs, reason, care, tuple(figures))


def _read_run(run: Mapping[str, Any], where: str) -> PublishedRun:
    _known(run, ("config", "set", "row"), where)
    if not run.get("config"):
        raise InputError(f"{where}: a run without 'config'")
    return PublishedRun(str(run["config"]), tuple(run.get("set", ())), str(run.get("row", "")))


def _read_column(column: str, where: str) -> tuple[str, Metric]:
    dataset, _, metric = column.rpartition(" ")
    return dataset, _metric(metric, where)


def _read_row(
    method: str, row: Any, columns: Sequence[tuple[str, Metric]], common: Mapping[str, Any], where: str
) -> list[PublishedFigure]:
    """Return the figures of one row: a list of values by column, null where none is printed, or a section with them."""
    section = row if isinstance(row, dict) else {"values": row}
    _known(section, ("values", "metric", "topics", "note"), where)
    values, topics = section.get("values"), section.get("topics", common.get("topics"))
    if not isinstance(values, list) or len(values) != len(columns):
        raise InputError(f"{where}: expected {len(columns)} values, one per column, and found {shorten(values)}")
    if topics not in TOPIC_SOURCES:
        raise InputError(f"{where}: topics are {shorten(topics)}, expected one of {', '.join(TOPIC_SOURCES)}")
    denominators, figures = common.get("denominators", {}), []
    for (dataset, metric), value in zip(columns, values, strict=True):
        if dataset not in denominators:
            raise InputError(f"{where}: 'denominators' does not name {dataset!r}; null where the paper does not say")
        if value is not None:
            # a row may say that nobody knows which kind of hit its paper took over
            meant = _metric(section["metric"], where) if "metric" in section and metric in ("hit", "hits1") else metric
            note = str(section.get("note", ""))
            figures.append(PublishedFigure(method, dataset, meant, float(value), denominators[dataset], topics, note))
    return figures


def _metric(given: Any, where: str) -> Metric:
    for metric in METRICS:
        if metric == given:
            return metric
    raise InputError(
        f"{where}: {shorten(given)} is no metric. Nearest: {nearest(str(given), METRICS)}; {', '.join(METRICS)}"
    )


def _known(section: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    for key in section:
        if key not in keys:
            raise InputError(
                f"{where}: unknown key {shorten(key)}. Nearest: {nearest(str(key), keys)}; {', '.join(keys)}"
            )
