"""Training of the explorer by cross-entropy (EtD Eq. 4)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kgqa_core.errors import KgqaError
from kgqa_core.explorer.batch import Batch, QuestionArrays
from kgqa_core.explorer.explore import Exploration, ExploreOptions, explore
from kgqa_core.explorer.frontier import contains
from kgqa_core.explorer.model import Explorer
from kgqa_core.graph.kg import KnowledgeGraph

GRADIENT_NORM = 1.0  # clipped: a hub that sums thousands of messages can make one batch's gradient huge


@dataclass(frozen=True, slots=True)
class Texts:
    """Unit-norm text encodings on one device."""

    questions: Tensor  # [T, encoding_dim], one row per distinct masked text
    relations: Tensor  # [R, encoding_dim]


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How to optimise (the papers: Adam at 1e-4, weight decay 1e-3, batches of 20, up to 30 epochs)."""

    epochs: int
    batch_size: int
    learning_rate: float
    warmup_steps: int
    seed: int


@dataclass(frozen=True, slots=True)
class TrainStep:
    """What one optimiser step saw; reported to the caller."""

    step: int  # 1..num_steps
    num_steps: int
    epoch: int
    loss: float  # mean over the batch's questions that had a gold among their candidates; 0 where none had
    coverage: float  # percent of the batch's questions with a gold among their candidates
    learning_rate: float
    edges_per_question: float
    classes_per_node: float


def train_explorer(
    model: Explorer,
    graph: KnowledgeGraph,
    questions: QuestionArrays,
    *,
    texts: Texts,
    options: ExploreOptions,
    settings: TrainSettings,
    on_step: Callable[[TrainStep], None] = lambda step: None,
    on_epoch: Callable[[int], None] = lambda epoch: None,
) -> float:
    """Train in place; the same arguments give the same weights on one kind of machine.

    Questions without golds are left out (a false claim teaches no path), and so are those without topics. Adam, linear
    warm-up, linear decay to zero.

    Args:
        model: the explorer, its weights as they are to start from.
        graph: the knowledge graph.
        questions: what to learn from.
        texts: encodings of the masked texts and relations.
        options: how to walk.
        settings: see ``TrainSettings``.
        on_step: called after every step.
        on_epoch: called after every epoch, with its number from 1 on.

    Returns:
        CPU seconds of this process, all threads together, and what the callbacks take with them.

    Raises:
        KgqaError: the gradient is no longer finite; weights trained further would be worthless.
    """
    rows = questions.teaching()
    generator = np.random.default_rng(settings.seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    num_steps = settings.epochs * -(-len(rows) // settings.batch_size)
    started, step = time.process_time(), 0
    model.train()
    for epoch in range(1, settings.epochs + 1):
        order = generator.permutation(rows)
        for start in range(0, len(order), settings.batch_size):
            rate = _learning_rate(settings, step, num_steps)
            batch = questions.batch(order[start : start + settings.batch_size])
            found = explore(
                model, graph, batch, question_vectors=texts.questions, relation_vectors=texts.relations, options=options
            )
            loss, num_covered = batch_loss(found, batch, graph.num_entities)
            if num_covered:
                _descend(model, optimizer, loss, rate)
            step += 1
            nodes, classes = sum(c.nodes for c in found.counts), sum(c.classes for c in found.counts)
            on_step(
                TrainStep(
                    step=step,
                    num_steps=num_steps,
                    epoch=epoch,
                    loss=float(loss.detach()),
                    coverage=100.0 * num_covered / len(batch),
                    learning_rate=rate,
                    edges_per_question=sum(c.edges for c in found.counts) / len(batch),
                    classes_per_node=classes / nodes,
                )
            )
        on_epoch(epoch)
    return time.process_time() - started


def batch_loss(found: Exploration, batch: Batch, num_entities: int) -> tuple[Tensor, int]:
    """Return the mean cross-entropy over the questions with a gold among their candidates, and their number.

    One target per question, uniform over its golds among the candidates: minus the log of the *summed* probability
    would be content with one gold of many and ruins F1.
    """
    gold = np.flatnonzero(gold_mask(found, batch, num_entities))
    golds_of = np.bincount(found.question[gold], minlength=len(batch))
    num_covered = int(np.count_nonzero(golds_of))
    log_p = found.log_probability(len(batch)).index_select(0, torch.from_numpy(gold).to(found.class_score.device))
    weight = torch.from_numpy(1.0 / golds_of[found.question[gold]]).to(log_p)
    return -(log_p * weight).sum() / max(num_covered, 1), num_covered


def gold_mask(found: Exploration, batch: Batch, num_entities: int) -> np.ndarray:
    """Return [N] which candidates are golds of their question."""
    keys = found.question * num_entities + found.entity
    golds = batch.gold_question * num_entities + batch.gold_entity
    return contains(keys, golds, len(batch) * num_entities)


def _descend(model: Explorer, optimizer: torch.optim.Optimizer, loss: Tensor, rate: float) -> None:
    """Take one step down the gradient, its norm clipped."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM)
    if not torch.isfinite(norm):
        raise KgqaError(
            f"training diverged (loss {loss.detach():g}, gradient norm {norm:g}) at a learning rate of {rate:g}: "
            "lower explorer.learning_rate"
        )
    optimizer.step()


def _learning_rate(settings: TrainSettings, step: int, num_steps: int) -> float:
    warm = min(1.0, (step + 1) / max(settings.warmup_steps, 1))
    return settings.learning_rate * warm * (1 - step / num_steps)
