"""Training against a plain reading of the papers (plain_reading.py): CPU seconds per 3-hop epoch."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from benchmarks.measure import cpu_seconds, write_section
from benchmarks.plain_reading import EdgeList, PlainExplorer, make_pairs, pair_loss
from benchmarks.workload import WHOLE, Workload, open_workload
from kgqa_core.explorer.explore import ExploreOptions, explore
from kgqa_core.run.open import encode_all
from kgqa_core.types import Question

WIDTH, BATCH, LEARNING_RATE, WEIGHT_DECAY = 256, 20, 1e-4, 1e-3  # EtD §4.1, B.4
Pair = tuple[Question, int]


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    batches: int  # of the plain reading, after one that is not counted
    ours: int | None  # questions of ours; None: a whole epoch
    checked: int  # pairs whose candidates are compared


FULL = Size(batches=10, ours=None, checked=40)
SMALL = Size(batches=2, ours=256, checked=5)


def run(home: Path, size: Size = FULL) -> None:
    """Measure both at our K and at the paper's, and write the ratio."""
    workload = open_workload(home)
    questions = workload.questions("train")
    pairs = [(question, answer) for question in questions for answer in question.answers]
    sample = random.Random(0).sample(pairs, BATCH * (size.batches + 1))
    texts = sorted({question.text for question, _ in sample})
    vectors = dict(zip(texts, torch.tensor(encode_all(workload.pipeline, texts)), strict=True))
    check_candidates(workload, sample[: size.checked], vectors)
    num_batches = math.ceil(len(pairs) / BATCH)
    rows = [
        "| K | plain reading, CPU s per batch, mean (sd) | per epoch (95 %) | ours, full walk, CPU s per epoch | "
        "ratio | ours as configured | ratio | ours with d = 256, full walk | ratio to one row per question |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for budget in (workload.config.explorer.edge_budget, 100):  # 100: EtD Table 8
        seconds = measure_plain(workload, sample, vectors, budget)
        rows.append(row_of(workload, questions, budget, seconds, num_batches, size.ours))
    note = (
        f"MetaQA 3-hop, {len(questions):,} training questions, {len(pairs):,} (question, answer) pairs: "
        f"{num_batches:,} batches of {BATCH} per epoch of the plain reading, of which {size.batches} drawn at random "
        f"were run and scaled up. Plain reading: d = {WIDTH}, GRU between steps, a float vector per edge, unmasked "
        "text, topics may be re-entered, the K strongest edges of each head. Ours: the run's own settings (d = "
        f"{workload.config.explorer.width}, state classes, one row per question, whole groups), "
        f"{'a whole epoch' if size.ours is None else f'scaled up from {size.ours} questions'}. Both from random "
        "weights, on one thread. Full walk: every edge that K leaves, in all of the epoch; as configured: the mean "
        f"over the {workload.config.explorer.epochs} epochs of the run, with its attention threshold. Unpruned, both "
        f"reach the same candidates ({size.checked} pairs compared). Last column: what would be left of the first "
        "ratio had the plain reading one row per question (no epoch of it was run). Expected: a ratio of 100 or more."
    )
    write_section("Plain reading of the papers", "\n".join([*rows, "", note]), "python -m benchmarks plain")


def measure_plain(
    workload: Workload, sample: Sequence[Pair], vectors: dict[str, torch.Tensor], edge_budget: int
) -> list[float]:
    """Return the CPU seconds of each batch of the sample but the first."""
    torch.manual_seed(0)
    relation_vectors = workload.texts.relations
    model = PlainExplorer(relation_vectors.shape[1], width=WIDTH, steps=workload.config.explorer.steps)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    edges = EdgeList.of(workload.graph)

    def step(pairs: Sequence[Pair]) -> None:
        batch = make_pairs(pairs, vectors)
        found = model(edges, batch, relation_vectors, edge_budget)
        loss = pair_loss(*found, batch, edges.num_entities)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    starts = range(0, len(sample), BATCH)
    return [cpu_seconds(lambda start=start: step(sample[start : start + BATCH])) for start in starts][1:]


def row_of(
    workload: Workload,
    questions: Sequence[Question],
    edge_budget: int,
    seconds: Sequence[float],
    num_batches: int,
    ours: int | None,
) -> str:
    """Return the table row of one K."""
    mean, spread = statistics.mean(seconds), statistics.stdev(seconds)
    epoch, margin = num_batches * mean, num_batches * half_width(seconds)
    used = questions if ours is None else random.Random(0).sample(list(questions), ours)
    scale = len(questions) / len(used)
    section, options = workload.config.explorer, workload.options(edge_budget)
    narrow, wide = (
        scale * workload.train(used, options, model=workload.explorer(width=width)) for width in (section.width, WIDTH)
    )
    pruned = scale * workload.train_with(used, options, section, workload.explorer()) / section.epochs
    by_question = math.ceil(len(questions) / BATCH) * mean
    return (
        f"| {edge_budget} | {mean:.2f} ({spread:.2f}) | {epoch:,.0f} (± {margin:,.0f}) | {narrow:,.1f} | "
        f"**{epoch / narrow:,.0f}** | {pruned:,.1f} | {epoch / pruned:,.0f} | {wide:,.1f} | "
        f"{by_question / narrow:,.0f} |"
    )


def half_width(seconds: Sequence[float]) -> float:
    """Return half the width of the 95 % interval of a mean, by Student's t: there are few."""
    quantile = float(stats.t.ppf(0.975, len(seconds) - 1))
    return quantile * statistics.stdev(seconds) / math.sqrt(len(seconds))


def check_candidates(workload: Workload, pairs: Sequence[Pair], vectors: dict[str, torch.Tensor]) -> None:
    """Raise unless both reach the same candidates of each pair's question where nothing is pruned."""
    relation_vectors = workload.texts.relations
    model = PlainExplorer(relation_vectors.shape[1], width=8, steps=workload.config.explorer.steps)
    narrow = workload.explorer(width=8)
    edges = EdgeList.of(workload.graph)
    options = ExploreOptions(edge_budget=WHOLE, reenter_topic=True)
    for pair in pairs:
        with torch.no_grad():
            _, plain, _ = model(edges, make_pairs([pair], vectors), relation_vectors, WHOLE)
            found = explore(
                narrow,
                workload.graph,
                workload.arrays([pair[0]]).batch(np.arange(1)),
                texts=workload.texts,
                options=options,
            )
        if sorted(plain.tolist()) != sorted(found.entity.tolist()):
            raise AssertionError(f"{pair[0].id}: the plain reading reaches {len(plain)}, ours {len(found.entity)}")
