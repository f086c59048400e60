"""Exploration of a batch: L steps of expand, attend, keep top-K, propagate; then scores and loss (EtD Algorithm 1).

Shapes: B questions, T distinct masked texts, N nodes (question, entity), C state classes, M distinct (class, relation)
messages, E edges walked, D width, R relations.

Rows are taken by ``index_select``, never by ``tensor[index]``: the backward of the latter adds with atomics as soon as
torch has two threads, and the same seed would no longer give the same weights.

Equal nodes share their floats: every float is computed once per state class (walk.py). The tests hold this, the plain
reading with a class per node, and a loop over single edges, to 1e-5 of each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import copysign, inf, log, log1p

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kgqa_core.explorer.batch import Batch, Bool, Int, QuestionArrays, compact, contains
from kgqa_core.explorer.model import Explorer, Texts
from kgqa_core.explorer.scatter import scatter_sum, spread_sum
from kgqa_core.explorer.walk import MERGED, Attention, Edges, Messages, Nodes, Rules, TooManyEdges, WalkStep
from kgqa_core.graph.kg import KnowledgeGraph


@dataclass(frozen=True, slots=True)
class ExploreOptions:
    """How to walk."""

    edge_budget: int  # K: edges per head, whole groups (kernels.enter_groups)
    reenter_topic: bool = False  # may an edge arrive at a topic of its question?
    walk: WalkStep = MERGED  # how one step is taken
    attention_threshold: float = 0.0  # groups of less attention (Eq. 1, 0..1) are not entered; identity always is
    trace: bool = False  # keep the walked edges, for backtracking
    max_edges: int = 3 * 2**20  # of one step of a batch; about 45 bytes each, and 260 where nothing merges
    hash_bits: int = 64  # below 64 only in the test of the collision check


@dataclass(frozen=True, slots=True)
class StepTrace:
    """The edges that one step walked, identity edges included."""

    head: npt.NDArray[np.integer]  # [E] node index before the step
    target: npt.NDArray[np.integer]  # [E] node index after the step
    relation: Int  # [E] 0..2R
    attention: npt.NDArray[np.float32]  # [E] Eq. 1, before the sigmoid
    head_entity: Int  # [N] entity of each node before the step


@dataclass(frozen=True, slots=True)
class StepCount:
    """The size of one step, for the logs."""

    nodes: int
    classes: int
    edges: int


@dataclass(frozen=True, slots=True)
class Exploration:
    """The candidates of a batch and their scores."""

    question: Int  # [N] 0..B-1, ascending
    entity: Int  # [N] each once per question, in no order that means anything
    node_class: Int  # [N]
    class_score: Tensor  # [C] logits of Eq. 3
    counts: list[StepCount] = field(default_factory=list)
    traces: list[StepTrace] = field(default_factory=list)

    def log_probability(self, num_questions: int) -> Tensor:
        """Return [N] the log of Eq. 3: a softmax over the candidates of each question."""
        question = _tensor(self.question, self.class_score)
        score = self.class_score.index_select(0, _tensor(self.node_class, self.class_score))
        peak = score.new_full((num_questions,), -torch.inf).scatter_reduce(0, question, score.detach(), "amax")
        shifted = score - peak[question]
        return shifted - scatter_sum(shifted.exp(), question, num_questions).log().index_select(0, question)


def explore(
    model: Explorer,
    graph: KnowledgeGraph,
    batch: Batch,
    *,
    texts: Texts,
    options: ExploreOptions,
) -> Exploration:
    """Explore from the topics of a batch.

    Args:
        model: the explorer.
        graph: the knowledge graph.
        batch: B questions; one without topics has no candidates.
        texts: encodings that ``batch.text`` points into, on the device of the model.
        options: how to walk.

    Raises:
        TooManyEdges: a step of several questions is larger than ``options.max_edges``; see ``explore_rows``.
    """
    rows, text_of_question = compact(batch.text, len(texts.questions))
    h_q, h_r = model.encode(texts, _tensor(rows, texts.questions))
    rules = _rules(batch, text_of_question, options)
    walker = _Walker(model, graph, batch, h_q, h_r, texts.same_text, options, rules, logit(options.attention_threshold))
    nodes, hidden = walker.start()
    for step in range(model.steps):
        nodes, hidden = walker.step(step, nodes, hidden)
    scores = model.score(hidden, h_q, _tensor(nodes.class_text, hidden))
    return Exploration(nodes.question, nodes.entity, nodes.node_class, scores, walker.counts, walker.traces)


@dataclass(slots=True)
class _Walker:
    """One exploration on its way: the constants of the batch, and what was logged so far."""

    model: Explorer
    graph: KnowledgeGraph
    batch: Batch
    h_q: Tensor  # [T, D]
    h_r: Tensor  # [2R+1, D]
    same_text: Tensor  # [2R+1] the first relation with the text (and direction) of each
    options: ExploreOptions
    rules: Rules
    least_logit: float  # of a group that enters
    counts: list[StepCount] = field(default_factory=list)
    traces: list[StepTrace] = field(default_factory=list)

    def start(self) -> tuple[Nodes, Tensor]:
        """The topics, each in the state h_q (EtD §3.2)."""
        text = self.rules.text_of_question[self.batch.topic_question]
        if self.options.walk.merges:
            nodes = Nodes(self.batch.topic_question, self.batch.topic_entity, text, np.arange(len(self.h_q)))
            return nodes, self.h_q
        each = np.arange(len(text))
        nodes = Nodes(self.batch.topic_question, self.batch.topic_entity, each, text)
        return nodes, self.h_q.index_select(0, _tensor(text, self.h_q))

    def step(self, step: int, nodes: Nodes, hidden: Tensor) -> tuple[Nodes, Tensor]:
        """One step of Algorithm 1."""
        way = self.options.walk
        messages = way.list_messages(self.graph, nodes)
        by_head, by_question = self._attention(step, hidden, nodes, messages)
        logits = by_head + by_question
        # What the head adds is the same for all of its groups. It is left out of their order: a hub's is so large that
        # adding it rounds the differences between relations away.
        preference = by_question.detach().cpu().numpy()
        admitted = ~(logits.detach() < self.least_logit).cpu().numpy()  # NaN enters: divergence shows in the loss
        edges, after, inbox = way.walk_edges(self.graph, nodes, messages, Attention(preference, admitted), self.rules)
        if self.options.trace:
            self._keep_trace(nodes, messages, edges, logits)
        # A message is attention * (h_s ⊙ h_r); Eq. 2 sums them over the edges, here over (class, message, count).
        states = hidden.index_select(0, _tensor(messages.message_class, hidden))
        relations = self.h_r.index_select(0, _tensor(messages.message_relation, hidden))
        sent = torch.sigmoid(logits)[:, None] * states * relations
        received = spread_sum(
            sent,
            _tensor(inbox.message, hidden),
            _tensor(inbox.count, hidden),
            _tensor(inbox.receiver, hidden),
            len(after.class_text),
        )
        self.counts.append(StepCount(len(after.entity), len(after.class_text), len(edges.target)))
        return after, self.model.update(step, received)

    def _keep_trace(self, nodes: Nodes, messages: Messages, edges: Edges, logits: Tensor) -> None:
        relation = messages.message_relation[edges.message]
        attention = logits.detach().cpu().numpy()[edges.message]
        self.traces.append(StepTrace(edges.head, edges.target, relation, attention, nodes.entity))

    def _attention(self, step: int, hidden: Tensor, nodes: Nodes, messages: Messages) -> tuple[Tensor, Tensor]:
        """Eq. 1 before the sigmoid, [M] twice: what the head adds, and what question and relation add."""
        by_head, by_question = self.model.attention_logits(step, hidden, self.h_q, self.h_r)
        # A matrix product may round equal rows differently; relations of equal text must tie, to the last bit.
        by_question = by_question.index_select(1, self.same_text)
        cell = nodes.class_text[messages.message_class] * by_question.shape[1] + messages.message_relation
        return (
            by_head.index_select(0, _tensor(messages.message_class, hidden)),
            by_question.flatten().index_select(0, _tensor(cell, hidden)),
        )


def _rules(batch: Batch, text_of_question: Int, options: ExploreOptions) -> Rules:
    if options.reenter_topic:
        blocked_ptr, blocked_entity = np.zeros(len(batch) + 1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    else:
        blocked_ptr = np.searchsorted(batch.topic_question, np.arange(len(batch) + 1))
        blocked_entity = batch.topic_entity
    return Rules(
        edge_budget=options.edge_budget,
        blocked_ptr=blocked_ptr,
        blocked_entity=blocked_entity,
        text_of_question=text_of_question,
        keep_heads=options.trace,
        max_edges=options.max_edges,
        hash_bits=options.hash_bits,
    )


def logit(share: float) -> float:
    """Return the inverse of the sigmoid; minus infinity for 0, infinity for 1."""
    return log(share) - log1p(-share) if 0 < share < 1 else copysign(inf, share - 0.5)


def _tensor(array: npt.NDArray[np.integer], like: Tensor) -> Tensor:
    return torch.from_numpy(array).to(like.device)


def loss_sum(found: Exploration, batch: Batch, num_entities: int, *, per_answer: bool = False) -> tuple[Tensor, Bool]:
    """Return the cross-entropy summed over the batch's questions, and which of them have a gold among the candidates.

    One target per question, uniform over its golds among the candidates: minus the log of the *summed* probability
    would be content with one gold of many and ruins F1. With ``per_answer`` every (question, gold) pair is a term of
    its own, as the papers write it, divided by the golds per question of the batch so that it stays one loss per
    question on average.

    Args:
        found: the candidates of the batch's B questions.
        batch: the questions.
        num_entities: of the graph.
        per_answer: see above.

    Returns:
        a scalar, and [B] bool.
    """
    gold = np.flatnonzero(gold_mask(found, batch, num_entities))
    golds_of = np.bincount(found.question[gold], minlength=len(batch))
    covered = golds_of > 0
    share = covered.sum() / max(len(gold), 1) if per_answer else 1.0 / golds_of[found.question[gold]]
    log_p = found.log_probability(len(batch)).index_select(0, torch.from_numpy(gold).to(found.class_score.device))
    weight = torch.from_numpy(np.broadcast_to(share, len(gold)).copy()).to(log_p)
    return -(log_p * weight).sum(), covered


def gold_mask(found: Exploration, batch: Batch, num_entities: int) -> Bool:
    """Return [N] which candidates are golds of their question."""
    keys = found.question * num_entities + found.entity
    golds = batch.gold_question * num_entities + batch.gold_entity
    return contains(keys, golds, len(batch) * num_entities)


def explore_rows(
    model: Explorer,
    graph: KnowledgeGraph,
    questions: QuestionArrays,
    rows: Int,
    *,
    texts: Texts,
    options: ExploreOptions,
) -> Iterator[tuple[Int, Batch, Exploration]]:
    """Yield (rows, batch, what was found) of the questions ``rows``: all at once where ``options.max_edges`` allows.

    A single question is never refused: what it needs depends on the edge budget alone.
    """
    parts = [rows]
    while parts:
        part = parts.pop()
        batch = questions.batch(part)
        try:
            found = explore(model, graph, batch, texts=texts, options=options)
        except TooManyEdges:
            half = len(part) // 2
            parts += [part[half:], part[:half]]
            continue
        yield part, batch, found
