"""State classes against the same path with a state per node : CPU time, same batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.measure import cpu_seconds, write_section
from benchmarks.workload import WHOLE, Workload, interleaved, open_workload, ratio_of
from kgqa_core.explorer.explore import ExploreOptions, Lessons
from kgqa_core.explorer.model import Explorer
from kgqa_core.explorer.predict import explore_all
from kgqa_core.types import Question
from tests.explorer.plain_walk import plainly

ANSWERED_AT_ONCE = 64  # questions per inference batch of both paths


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    trained: int  # questions that both paths train on
    asked: int  # questions that both paths answer
    repeats: int
    alone: int  # questions of the merged path alone
    batch_sizes: Sequence[int]  # of the merged path alone


FULL = Size(trained=128, asked=256, repeats=3, alone=512, batch_sizes=(16, 32, 64, 128))
SMALL = Size(trained=32, asked=64, repeats=2, alone=128, batch_sizes=(16, 64))


def run(home: Path, size: Size = FULL) -> None:
    """Measure training and inference on MetaQA 3-hop with and without pruning, and write the ratios."""
    workload = open_workload(home, settings=["explorer.width=64"])
    budget = workload.config.explorer.edge_budget
    # From a little trained weights: at random ones half of the hidden units are off everywhere.
    model = workload.explorer()
    workload.train(workload.questions("train", 4 * size.trained, seed=1), workload.options(), model=model)
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
        f"MetaQA 3-hop, d = 64, the same batches for both paths, medians of {size.repeats} interleaved rounds in one "
        f"process on one thread. Training: forward, backward and step, {size.trained} random questions in batches of "
        f"{workload.config.explorer.batch_size}. Inference: exploration and scores, no gradients, no ranking, "
        f"{size.asked} random questions in order of their text, in batches of {ANSWERED_AT_ONCE}. "
        "The second table: no pruning either; batches whose step would walk more than three million edges are halved."
    )
    write_section("State classes", "\n".join([*rows, "", note, "", *alone]), "python -m benchmarks merged")


def compare(workload: Workload, model: Explorer, label: str, edge_budget: int, size: Size) -> list[str]:
    """Return the two rows of one edge budget."""
    options = workload.options(edge_budget)
    trained, answered = workload.questions("train", size.trained), workload.questions("train", size.asked, seed=2)
    batch = workload.config.explorer.batch_size
    calls = {
        "unmerged train": lambda: plainly()(train)(workload, model, trained, options, batch),
        "merged train": lambda: train(workload, model, trained, options, batch),
        "unmerged infer": lambda: plainly()(infer)(workload, model, answered, options, ANSWERED_AT_ONCE),
        "merged infer": lambda: infer(workload, model, answered, options, ANSWERED_AT_ONCE),
    }
    found = interleaved(calls, size.repeats)
    rows = []
    for what, key, num, asked in (
        ("training", "train", len(trained), ">= 15"),
        ("inference", "infer", len(answered), ">= 12"),
    ):
        slow, fast = found[f"unmerged {key}"], found[f"merged {key}"]
        each = " | ".join(f"{1000 * median(seconds) / num:.2f}" for seconds in (slow, fast))
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
    asked = Lessons(workload.graph, workload.arrays(questions), workload.texts, options)

    def infer_all() -> None:
        for _, batch, found in explore_all(model, asked, batch_size=batch_size):
            found.log_probability(len(batch))

    return cpu_seconds(infer_all)
