"""MetaQA on the WikiMovies graph: an explorer per hop and a joint one, three seeds each, beside their controls."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import data_folder, kgqa_json, write_section

RUNS = ("metaqa-1hop", "metaqa-2hop", "metaqa-3hop", "metaqa-joint")
# EtD Table 5, the explorer alone, and Table 2, with ChatGPT: official test split, Llama2 encodings.
PUBLISHED = {"1": ("97.6", "98.1"), "2": ("99.1", "99.7"), "3": ("99.5", "99.7")}

Results = list[dict[str, Any]]  # rows of a run: an explorer of one seed, their mean, or a control


def run(home: Path) -> None:
    """Run the four configurations and write accuracy and training time."""
    data_folder()
    accuracy = [
        "| model | hops | Hits@1 (3 seeds) | mean | F1 mean | EM mean | template control Hits@1 / F1 | "
        "gold-chain ceiling Hits@1 / F1 | EtD explorer alone | EtD-ChatGPT |",
        "|---|---|---|---:|---:|---:|---|---|---:|---:|",
    ]
    cost = ["| run | training, CPU s per seed | edges per question | classes per node |", "|---|---|---:|---:|"]
    for name in RUNS:
        found, _ = kgqa_json(["run", f"conf/{name}.yaml"], home)
        accuracy += accuracy_rows(name, found["results"])
        cost.append(cost_row(name, [Path(stage["folder"]) for stage in found["stages"]]))
    note = (
        "Percent. Hits@1 in expectation over ties; F1 of the answer set. The split is carved from the official dev "
        "split (training: 8-13 % of the official one) and encodings are MiniLM's, so the papers' columns are no like "
        "for like: they are on the official test split, with Llama2-13B encodings."
    )
    write_section("MetaQA", "\n".join([*accuracy, "", note, "", *cost]), "python -m benchmarks metaqa")


def accuracy_rows(name: str, results: Results) -> list[str]:
    """Return one table row per number of hops."""
    numbers = next(row["by_hops"] for row in results if row["role"] == "learned")
    cells = {hops: accuracy_cells(results, lambda row, hops=hops: row["by_hops"][hops]) for hops in numbers}
    return [f"| {name} | {hops} | {own} | {' | '.join(PUBLISHED[hops])} |" for hops, own in cells.items()]


def accuracy_cells(results: Results, figures_of: Callable[[dict[str, Any]], dict[str, float]]) -> str:
    """Return Hits@1 of each seed, the means over them, and Hits@1 and F1 of the controls."""
    roles = ("seed", "learned", "template control", "ceiling")
    seeds, (mean,), *others = ([figures_of(row) for row in results if row["role"] == role] for role in roles)
    each = " / ".join(f"{one['hits1']:.2f}" for one in seeds)
    reached = f"**{mean['hits1']:.2f}** | **{mean['f1']:.2f}** | {mean['em']:.2f}"
    beside = " | ".join(f"{one['hits1']:.2f} / {one['f1']:.2f}" for one, *_ in others)
    return f"{each} | {reached} | {beside}"


def cost_row(name: str, folders: list[Path]) -> str:
    """Return what training cost, as the explorers recorded it when they were trained."""
    records = [
        json.loads((folder / "tracking.json").read_text(encoding="utf-8"))
        for folder in folders
        if folder.parent.name == "explorer"
    ]
    seconds = " / ".join(f"{record['metrics']['train.cpu_seconds']:.0f}" for record in records)
    last = [{key: points[-1][1] for key, points in record["curves"].items()} for record in records]
    edges = sum(one["train.edges_per_question"] for one in last) / len(last)
    share = sum(one["train.classes_per_node"] for one in last) / len(last)
    return f"| {name} | {seconds} | {edges:,.0f} | {share:.3f} |"
