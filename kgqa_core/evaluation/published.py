"""Published figures, and which of them stands beside a row of ours.

They stand in one file, ``conf/papers/tables.yaml``, which a test checks. Hit and Hits@1 are two metrics here whatever a
paper calls them: a figure of one never answers for the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import yaml

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
BESIDE: Mapping[Metric, str] = {
    "hits1": "published Hits@1",
    "hit": "published Hit",
    "partial_match": "published partial",
    "complete_match": "published complete",
}
"""Metrics that have a column of their own each; figures of which nobody knows the metric are not shown."""
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
