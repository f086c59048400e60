"""The published figure that stands beside a row of ours: of the same system, on the dataset that ours is made from.

It is there to be looked at, and no test compares with it: other splits, other language models, other prompts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from kgqa_core.evaluation.published import Metric, PublishedFigure, PublishedTable
from kgqa_core.evaluation.side_by_side import Entrant

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
