"""Exploring one synthetic graph in a process of its own."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import cpu_seconds
from benchmarks.synthetic import draw_questions
from kgqa_core.config import ExplorerSection
from kgqa_core.explorer.batch import question_arrays
from kgqa_core.explorer.explore import ExploreOptions, Lessons
from kgqa_core.explorer.model import Explorer, texts_of
from kgqa_core.explorer.predict import predict
from kgqa_core.explorer.train import Trainer, TrainStep
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.text.encoder import HashEncoder

NUM_CHAINS, HOPS = 50, 2
DIM = 256  # of encodings
EDGE_BUDGET = 40
SETTINGS = ExplorerSection(
    steps=3, edge_budget=1, epochs=1, batch_size=32, warmup_steps=20, prune_below=0.0, question_noise=0.0
)
HELD_OUT = 0.25  # share of the questions that is not trained on


def explore_one(folder: str, per_chain: int) -> dict[str, Any]:
    """Train an explorer for one epoch on questions about a graph, then answer others.

    Returns:
        degrees of the graph, edges walked per question in training, and CPU seconds per question of both.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    graph = open_graph(Path(folder))
    questions = draw_questions(graph, num_chains=NUM_CHAINS, per_chain=per_chain, hops=HOPS)
    random.Random(0).shuffle(questions)
    train, held = questions[: -int(HELD_OUT * len(questions))], questions[-int(HELD_OUT * len(questions)) :]
    asked = sorted({question.masked for question in questions})
    text_row = {text: row for row, text in enumerate(asked)}
    texts = texts_of(asked, graph, HashEncoder(DIM).encode)
    model = Explorer(encoding_dim=DIM, width=64, steps=HOPS)
    options, seen = ExploreOptions(edge_budget=EDGE_BUDGET), list[TrainStep]()

    def train_epoch(model: Explorer, count: int | None = None) -> None:
        lessons = Lessons(graph, question_arrays(train[:count], text_row), texts, options)
        seen[:] = Trainer(model, [lessons], SETTINGS, seed=0).steps()

    def infer() -> None:
        predict(model, graph, held, texts=texts, text_row=text_row, options=options, answer_threshold=0.5)

    train_epoch(copy.deepcopy(model), SETTINGS.batch_size)
    infer()  # compiled, and the graph read in
    train_seconds, infer_seconds = cpu_seconds(lambda: train_epoch(model)), cpu_seconds(infer)
    return {
        "degrees": degrees_of(graph),
        "edges": float(np.mean([step.edges_per_question for step in seen])),
        "train": train_seconds / len(train),
        "infer": infer_seconds / len(held),
    }


def degrees_of(graph: KnowledgeGraph) -> tuple[float, float, float, float]:
    """Return median, mean, 99th percentile and largest number of edges of an entity, both directions."""
    degree = np.diff(graph.edge_ptr[graph.group_ptr])
    return float(np.median(degree)), float(degree.mean()), float(np.percentile(degree, 99)), float(degree.max())
