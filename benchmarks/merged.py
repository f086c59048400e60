"""State classes against the same path with a state per node (``ExploreOptions.merge``): CPU time, same batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.measure import write_section
from benchmarks.workload import WHOLE, Workload, cpu_seconds, interleaved, median, open_workload, ratio_of
from kgqa_core.explorer.explore import ExploreOptions, explore
from kgqa_core.explorer.model import Explorer
from kgqa_core.types import Question


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    questions: int  # of both paths
    repeats: int
    batch_size: int  # of both paths; unmerged and unpruned, a question takes about 100 MB
    alone: int  # questions of the merged path alone
    batch_sizes: Sequence[int]  # of the merged path alone


FULL = Size(questions=256, repeats=5, batch_size=32, alone=2048, batch_sizes=(8, 16, 32, 64, 128, 256))
SMALL = Size(questions=32, repeats=2, batch_size=16, alone=128, batch_sizes=(16, 64))


def run(home: Path, size: Size = FULL) -> None:
    """Measure training and inference on MetaQA 3-hop with and without pruning, and write the ratios."""
    workload = open_workload(home, settings=["explorer.width=64"])
    budget = workload.config.explorer.edge_budget
    # From a little trained weights: at random ones half of the hidden units are off everywhere.
    model = workload.explorer()
    workload.train(workload.questions("train", 4 * size.questions, seed=1), workload.options(), model=model)
    rows = [
        "| edges walked | what | unmerged, ms per question | merged | unmerged / merged (range over rounds) | asked |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for label, edge_budget in (("whole groups, no pruning", WHOLE), (f"K = {budget}", budget)):
        rows += compare(workload, model, label, edge_budget, size)
    alone = ["| merged path alone, batch of | training, questions per CPU s | inference |", "|---|---:|---:|"]
    for batch_size in size.batch_sizes:
        found = measure_alone(workload, model, batch_size, size)
        alone.append(f"| {batch_size} | {found[0]:,.0f} | {found[1]:,.0f} |")
    note = (
        f"MetaQA 3-hop, d = 64, {size.questions} random questions in the same batches of {size.batch_size} for both "
        f"paths, medians of {size.repeats} interleaved rounds in one process on one thread. Training: forward, "
        "backward and step. Inference: exploration and scores, no gradients, no ranking. The second table: no pruning "
        "either."
    )
    write_section("State classes", "\n".join([*rows, "", note, "", *alone]), "python -m benchmarks merged")


def compare(workload: Workload, model: Explorer, label: str, edge_budget: int, size: Size) -> list[str]:
    """Return the two rows of one edge budget."""
    merged = workload.options(edge_budget)
    unmerged = workload.options(edge_budget, merge=False)
    questions = workload.questions("train", size.questions)
    calls = {
        "unmerged train": lambda: train(workload, model, questions, unmerged, size.batch_size),
        "merged train": lambda: train(workload, model, questions, merged, size.batch_size),
        "unmerged infer": lambda: infer(workload, model, questions, unmerged, size.batch_size),
        "merged infer": lambda: infer(workload, model, questions, merged, size.batch_size),
    }
    found = interleaved(calls, size.repeats)
    rows = []
    for what, key, asked in (("training", "train", ">= 15"), ("inference", "infer", ">= 12")):
        slow, fast = found[f"unmerged {key}"], found[f"merged {key}"]
        each = " | ".join(f"{1000 * median(seconds) / len(questions):.2f}" for seconds in (slow, fast))
        rows.append(f"| {label} | {what} | {each} | {ratio_of(slow, fast)} | {asked if edge_budget == WHOLE else ''} |")
    return rows


def measure_alone(workload: Workload, model: Explorer, batch_size: int, size: Size) -> tuple[float, float]:
    """Return questions per CPU second of the merged path without pruning, in training and in inference."""
    questions = workload.questions("train", size.alone)
    options = workload.options(WHOLE)
    calls = {
        "train": lambda: train(workload, model, questions, options, batch_size),
        "infer": lambda: infer(workload, model, questions, options, batch_size),
    }
    found = interleaved(calls, 2)
    return len(questions) / median(found["train"]), len(questions) / median(found["infer"])


def train(
    workload: Workload, model: Explorer, questions: Sequence[Question], options: ExploreOptions, batch_size: int
) -> float:
    """Train one epoch from the weights as they are, put them back, and return the CPU seconds of the epoch."""
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    seconds = workload.train(questions, options, model=model, batch_size=batch_size)
    model.load_state_dict(weights)
    return seconds


def infer(
    workload: Workload, model: Explorer, questions: Sequence[Question], options: ExploreOptions, batch_size: int
) -> float:
    """Explore all questions without gradients and return the CPU seconds."""
    arrays, texts = workload.arrays(questions), workload.texts

    def explore_all() -> None:
        with torch.no_grad():
            for _, batch in arrays.in_order(batch_size):
                found = explore(
                    model,
                    workload.graph,
                    batch,
                    question_vectors=texts.questions,
                    relation_vectors=texts.relations,
                    options=options,
                )
                found.log_probability(len(batch))

    return cpu_seconds(explore_all)
