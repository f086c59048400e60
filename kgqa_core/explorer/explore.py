"""Exploration of one batch: L steps of expand, attend, keep top-K, propagate; then scores (EtD Algorithm 1).

Shapes: B questions, T distinct masked texts, N nodes (question, entity), C state classes, M distinct (class, relation)
messages, E edges walked, D width, R relations.

Equal nodes share their floats: with ``merge=True`` every float is computed once per state class (classes.py); with
``merge=False`` every node is a class of its own, the plain reading of the equations. The tests hold the two, and a
loop over single edges, to 1e-5 of each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kgqa_core.explorer.batch import Batch
from kgqa_core.explorer.frontier import Int, compact
from kgqa_core.explorer.model import Explorer
from kgqa_core.explorer.scatter import scatter_sum
from kgqa_core.explorer.walk import Edges, Inbox, Nodes, collect_inbox, list_messages, merge_nodes, walk_edges
from kgqa_core.graph.kg import KnowledgeGraph


@dataclass(frozen=True, slots=True)
class ExploreOptions:
    """How to walk."""

    edge_budget: int  # K: edges per head, whole groups (frontier.select_groups)
    reenter_topic: bool = False  # may an edge arrive at a topic of its question?
    merge: bool = True  # share floats between equal nodes
    trace: bool = False  # keep the walked edges, for backtracking
    hash_bits: int = 64  # below 64 only in the test of the collision check


@dataclass(frozen=True, slots=True)
class StepTrace:
    """The edges that one step walked, identity edges included."""

    head: Int  # [E] node index before the step
    target: Int  # [E] node index after the step
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
    entity: Int  # [N] ascending inside a question
    node_class: Int  # [N]
    class_score: Tensor  # [C] logits of Eq. 3
    counts: list[StepCount] = field(default_factory=list)
    traces: list[StepTrace] = field(default_factory=list)

    def log_probability(self, num_questions: int) -> Tensor:
        """Return [N] the log of Eq. 3: a softmax over the candidates of each question."""
        question = _tensor(self.question, self.class_score)
        score = self.class_score[_tensor(self.node_class, self.class_score)]
        peak = torch.full((num_questions,), -torch.inf, device=score.device)
        peak = peak.scatter_reduce(0, question, score.detach(), "amax")
        shifted = score - peak[question]
        return shifted - scatter_sum(shifted.exp(), question, num_questions).log()[question]


def explore(
    model: Explorer,
    graph: KnowledgeGraph,
    batch: Batch,
    *,
    question_vectors: Tensor,
    relation_vectors: Tensor,
    options: ExploreOptions,
) -> Exploration:
    """Explore from the topics of a batch.

    Args:
        model: the explorer.
        graph: the knowledge graph.
        batch: B questions, each with at least one topic.
        question_vectors: [*, encoding_dim] unit-norm table that ``batch.text`` points into.
        relation_vectors: [R, encoding_dim] unit-norm, on the same device.
        options: how to walk.
    """
    texts, text_of_question = compact(batch.text, int(batch.text.max()) + 1)
    h_q, h_r = model.encode(question_vectors[_tensor(texts, question_vectors)], relation_vectors)
    walker = _Walker(model, graph, batch, text_of_question, h_q, h_r, options)
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
    text_of_question: Int  # [B] 0..T-1
    h_q: Tensor  # [T, D]
    h_r: Tensor  # [2R+1, D]
    options: ExploreOptions
    counts: list[StepCount] = field(default_factory=list)
    traces: list[StepTrace] = field(default_factory=list)

    def start(self) -> tuple[Nodes, Tensor]:
        """The topics, each in the state h_q (EtD §3.2)."""
        text = self.text_of_question[self.batch.topic_question]
        if self.options.merge:
            nodes = Nodes(self.batch.topic_question, self.batch.topic_entity, text, np.arange(len(self.h_q)))
            return nodes, self.h_q
        each = np.arange(len(text))
        nodes = Nodes(self.batch.topic_question, self.batch.topic_entity, each, text)
        return nodes, self.h_q[_tensor(text, self.h_q)]

    def step(self, step: int, nodes: Nodes, hidden: Tensor) -> tuple[Nodes, Tensor]:
        """One step of Algorithm 1."""
        messages = list_messages(self.graph, nodes)
        by_head, by_question = self.model.attention_logits(step, hidden, self.h_q, self.h_r)
        sender = _tensor(messages.message_class, hidden)
        relation = _tensor(messages.message_relation, hidden)
        logits = by_head[sender] + by_question[_tensor(nodes.class_text[messages.message_class], hidden), relation]
        logits_np = logits.detach().cpu().numpy()
        edges, reached = walk_edges(
            self.graph,
            nodes,
            messages,
            logits=logits_np,
            edge_budget=self.options.edge_budget,
            blocked=None if self.options.reenter_topic else self._topic_keys(),
        )
        if self.options.trace:
            self.traces.append(
                StepTrace(
                    edges.head,
                    edges.target,
                    messages.message_relation[edges.message],
                    logits_np[edges.message],
                    nodes.entity,
                )
            )
        after, inbox = self._classes(edges, reached, len(messages.message_class))
        # A message is attention * (h_s ⊙ h_r); Eq. 2 sums them over the edges, here over (class, message, count).
        sent = torch.sigmoid(logits)[:, None] * hidden[sender] * self.h_r[relation]
        copies = sent[_tensor(inbox.message, hidden)] * _tensor(inbox.count, hidden)[:, None]
        received = scatter_sum(copies, _tensor(inbox.receiver, hidden), len(after.class_text))
        self.counts.append(StepCount(len(after.entity), len(after.class_text), len(edges.head)))
        return after, self.model.update(step, received)

    def _classes(self, edges: Edges, reached: Int, num_messages: int) -> tuple[Nodes, Inbox]:
        """Name the reached nodes, find their state classes, and list what each class received."""
        question, entity = reached // self.graph.num_entities, reached % self.graph.num_entities
        text = self.text_of_question[question]
        if not self.options.merge:
            each = np.arange(len(reached))
            return Nodes(question, entity, each, text), Inbox(edges.target, edges.message, np.ones_like(edges.target))
        node_class, representative = merge_nodes(edges, len(reached), num_messages, hash_bits=self.options.hash_bits)
        inbox = collect_inbox(edges, node_class, representative, num_messages)
        return Nodes(question, entity, node_class, text[representative]), inbox

    def _topic_keys(self) -> Int:
        return self.batch.topic_question * self.graph.num_entities + self.batch.topic_entity


def _tensor(array: npt.NDArray[np.integer], like: Tensor) -> Tensor:
    return torch.from_numpy(array).to(like.device)
