"""How cost grows with questions, steps and the graph: CPU time, bytes and memory, with exponents."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import measure
from benchmarks.child import run_child
from benchmarks.measure import cpu_seconds, write_section
from benchmarks.scaling_build import build_one, make_file
from benchmarks.scaling_graphs import explore_one
from benchmarks.workload import Workload, open_workload


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    questions: Sequence[int]  # of MetaQA 3-hop
    steps: Sequence[int]
    questions_per_steps: int
    triples: Sequence[int]
    per_chain: int  # questions of each of the 50 chains of a synthetic graph


FULL = Size(
    questions=(500, 1000, 2000, 4000),
    steps=(1, 2, 3, 4),
    questions_per_steps=200,
    triples=(100_000, 1_000_000, 10_000_000),
    per_chain=20,
)
SMALL = Size(questions=(32, 64), steps=(1, 2), questions_per_steps=32, triples=(10_000, 30_000), per_chain=4)


@dataclass(frozen=True, slots=True)
class Curve:
    """CPU seconds against one kind of work."""

    label: str  # of x
    x: Sequence[float]
    lines: dict[str, list[float]]  # what was done -> CPU seconds at each x

    def slopes(self) -> dict[str, float]:
        """Return the exponent of each line: the slope of a straight line through its logarithms."""
        return {name: float(np.polyfit(np.log(self.x), np.log(y), 1)[0]) for name, y in self.lines.items()}


def run(home: Path, size: Size = FULL) -> None:
    """Measure the three curves, write their table and draw them."""
    workload = open_workload(home)
    by_questions = measure_questions(workload, size.questions)
    by_steps, steps_rows = measure_steps(workload, size)
    by_graph, graph_rows = measure_graphs(size)
    curves = (by_questions, by_steps, by_graph)
    picture = measure.RESULTS.parent / "images" / "scaling.png"
    draw(curves, picture)
    count_rows = ["| questions | training an epoch, CPU s | inference, CPU s |", "|---:|---:|---:|"]
    for count, train, infer in zip(by_questions.x, *by_questions.lines.values(), strict=True):
        count_rows.append(f"| {count:,.0f} | {train:.2f} | {infer:.2f} |")
    exponents = "; ".join(
        f"against {curve.label}: " + ", ".join(f"{name} {slope:.2f}" for name, slope in curve.slopes().items())
        for curve in curves
    )
    parts = (
        f"![CPU seconds against questions, steps and triples](images/{picture.name})",
        f"Exponents (slope of log CPU s on log x; 1 is linear): {exponents}. One thread each.",
        f"Questions, MetaQA 3-hop, K = {workload.config.explorer.edge_budget}:",
        "\n".join(count_rows),
        f"Steps, {size.questions_per_steps} MetaQA 3-hop questions, the same K:",
        "\n".join(steps_rows),
        "Graphs: synthetic ones with Freebase-like skew and 300 relations (benchmarks/synthetic.py), questions from 50 "
        "random chains of two relations, L = 2, K = 40, d = 64; each stage in a process of its own. RSS counts the "
        "memory-mapped pages of the graph that were read.",
        "\n".join(graph_rows),
    )
    write_section("Scaling", "\n\n".join(parts), "python -m benchmarks scaling")


def measure_questions(workload: Workload, counts: Sequence[int]) -> Curve:
    """Train on, then answer, more and more of the same questions."""
    questions, options = workload.questions("train"), workload.options()
    counts = [count for count in counts if count <= len(questions)]
    workload.train(questions[:64], options)  # compiles, and so does what comes next
    workload.answer(workload.explorer(), questions[:64], options)
    train, infer = [], []
    for count in counts:
        sample = workload.questions("train", count)
        model = workload.explorer()
        train.append(workload.train(sample, options, model=model))
        infer.append(cpu_seconds(lambda model=model, sample=sample: workload.answer(model, sample, options)))
    return Curve("questions", counts, {"training": train, "inference": infer})


def measure_steps(workload: Workload, size: Size) -> tuple[Curve, list[str]]:
    """Train with and answer with 1, 2, ... steps."""
    sample = workload.questions("train", size.questions_per_steps)
    rows = ["| L | training an epoch, CPU s | inference, CPU s |", "|---:|---:|---:|"]
    train, infer = [], []
    for steps in size.steps:
        model = workload.explorer(steps=steps)
        train.append(workload.train(sample, workload.options(), model=model))
        infer.append(cpu_seconds(lambda model=model: workload.answer(model, sample, workload.options())))
        rows.append(f"| {steps} | {train[-1]:.2f} | {infer[-1]:.2f} |")
    return Curve("steps L", size.steps, {"training": train, "inference": infer}), rows


def measure_graphs(size: Size) -> tuple[Curve, list[str]]:
    """Build synthetic graphs and explore them, each stage in a fresh process."""
    rows = [
        "| triples | entities | degree: median / mean / 99 % / most | build, CPU s | graph, MB | build, peak RSS MB | "
        "edges per question | training, ms CPU per question | inference, ms CPU | exploring, peak RSS MB |",
        "|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    found = []
    for count in size.triples:
        with tempfile.TemporaryDirectory() as folder:
            file, graph = Path(folder) / "triples.tsv", Path(folder) / "graph"
            run_child(make_file, path=file, count=count)
            built = run_child(build_one, path=file, folder=graph)
            explored = run_child(explore_one, folder=graph, per_chain=size.per_chain)
        one = built.result | explored.result
        found.append(one)
        degrees = " / ".join(f"{degree:,.0f}" for degree in one["degrees"])
        rows.append(
            f"| {one['triples']:,} | {one['entities']:,} | {degrees} | {one['build']:.1f} | {one['megabytes']:,.0f} | "
            f"{built.peak:,.0f} | {one['edges']:,.0f} | {1000 * one['train']:.2f} | {1000 * one['infer']:.2f} | "
            f"{explored.peak:,.0f} |"
        )
    names = {"build": "building the graph", "train": "training per question", "infer": "inference per question"}
    lines = {shown: [one[name] for one in found] for name, shown in names.items()}
    return Curve("triples", [one["triples"] for one in found], lines), rows


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Draw the curves side by side in double logarithms."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(curves), 3.4), layout="constrained")
    for axes, curve in zip(np.atleast_1d(figure.subplots(1, len(curves))), curves, strict=True):
        for (name, y), slope in zip(curve.lines.items(), curve.slopes().values(), strict=True):
            axes.loglog(curve.x, y, marker="o", label=f"{name}: exponent {slope:.2f}")
        axes.set(xlabel=curve.label, ylabel="CPU s")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
