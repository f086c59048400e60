"""Exploration of a batch: L steps of expand, attend, keep top-K, propagate; then scores and loss (EtD Algorithm 1).

Nodes that received the same messages are in the same state: a *state class*, whose floats are computed once. Compiled
kernels find the classes by a hash over what each node received, and check it. The tests hold this, the plain reading
with a class per node (tests/explorer/plain_walk.py), and a loop over single edges, to 1e-5 of each other.

Shapes: B questions, T distinct texts, N nodes (question, entity), C state classes, M distinct (class, relation)
messages, G groups headed by the nodes, E edges walked, D width, R relations.

Rows are taken by ``index_select``, never by ``tensor[index]``: the backward of the latter adds with atomics as soon as
torch has two threads, and the same seed would no longer give the same weights.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import copysign, inf, log, log1p

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kgqa_core.errors import is_out_of_memory
from kgqa_core.explorer import kernels
from kgqa_core.explorer.batch import Batch, Bool, Int, QuestionArrays, scatter_sum, spread_sum
from kgqa_core.explorer.model import Explorer, Texts
from kgqa_core.graph.csr import Ints, mix_bits
from kgqa_core.graph.kg import KnowledgeGraph

_log = logging.getLogger(__name__)
MAX_ATTEMPTS = 4  # salts tried before a hash that keeps colliding is an error
# A bitmap of at most this many cells per key beats sorting the keys; above it, the memory traffic is not worth it.
BITMAP_CELLS_PER_KEY, SMALL_BITMAP, LARGEST_BITMAP = 64, 1 << 22, 1 << 28


@dataclass(frozen=True, slots=True)
class ExploreOptions:
    """How to walk."""

    edge_budget: int  # K: edges per head, whole groups (kernels.enter_groups)
    reenter_topic: bool = False  # may an edge arrive at a topic of its question?
    attention_threshold: float = 0.0  # groups of less attention (Eq. 1, 0..1) are not entered; identity always is
    trace: bool = False  # keep what was walked, for backtracking
    max_edges: int = 3 * 2**20  # of one step of a batch


@dataclass(frozen=True, slots=True)
class Lessons:
    """Questions on one graph, to learn from, to measure on or to answer."""

    graph: KnowledgeGraph
    questions: QuestionArrays
    texts: Texts
    options: ExploreOptions


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes between two steps, by ascending question."""

    question: Int  # [N] 0..B-1
    entity: Int  # [N]
    node_class: Int  # [N]
    class_question: Int  # [C] a question of each class; all questions of a class have one text


@dataclass(frozen=True, slots=True)
class Messages:
    """What the nodes could send; the last C messages are the identity messages of the classes, in order."""

    first_group: Int  # [N+1] node i heads the groups first_group[i]..first_group[i + 1], by ascending relation
    group_message: Ints  # [G] 0..M-1
    message_class: Int  # [M]
    message_relation: Int  # [M] 0..2R
    visit: Int  # [N] an order of the nodes, by question, in which equal messages come together


Attention = tuple[npt.NDArray[np.floating], Bool]
"""Per message [M]: what orders the groups of one head as Eq. 1 does, before the sigmoid saturates; may it enter?"""


@dataclass(frozen=True, slots=True)
class Inbox:
    """What each class receives by one step."""

    entered: Bool  # [G] which groups were walked, but for their edges that arrive at a topic
    num_edges: int  # that were walked, identity edges included
    receiver: Ints  # [I] class after the step
    received: Ints  # [I] which message it receives
    count: Ints  # [I] and how often


class TooManyEdges(Exception):
    """One step of a batch would walk more edges than fit into memory: explore fewer questions at once."""


def check_size(num_edges: int, batch: Batch, options: ExploreOptions) -> None:
    """Raise TooManyEdges where a step of several questions has more edges than are allowed."""
    if num_edges > options.max_edges and len(batch) > 1:
        raise TooManyEdges(f"{num_edges} edges in one step, {options.max_edges} are allowed")


def list_messages(graph: KnowledgeGraph, nodes: Nodes) -> Messages:
    """Number the distinct (class, relation) messages that the nodes could send."""
    num_codes, num_classes = graph.identity + 1, len(nodes.class_question)
    visit = kernels.order_by_class(nodes.question, nodes.node_class, num_classes)
    first, message, key = kernels.number_messages(
        (graph.group_ptr, graph.group_relation), nodes.entity, nodes.node_class, visit, num_codes
    )
    return Messages(
        first_group=first,
        group_message=message,
        message_class=np.concatenate([key // num_codes, np.arange(num_classes)]),
        message_relation=np.concatenate([key % num_codes, np.full(num_classes, graph.identity)]),
        visit=visit,
    )


def walk_edges(
    graph: KnowledgeGraph, nodes: Nodes, messages: Messages, attention: Attention, batch: Batch, options: ExploreOptions
) -> tuple[Inbox, Nodes]:
    """Walk the edges of the groups that enter under the budget, and merge the nodes reached.

    Raises ``RuntimeError`` if the hash collided with every salt.
    """
    first, message = messages.first_group, messages.group_message
    entered, num_edges = kernels.enter_groups(
        (graph.group_ptr, graph.edge_ptr), nodes.entity, (first, message), attention, options.edge_budget
    )
    check_size(int(num_edges.sum()) + len(nodes.entity), batch, options)
    num_messages = len(messages.message_class)
    for salt in range(MAX_ATTEMPTS):
        (question, entity, node_class), class_question, received, num_walked, collided = kernels.walk_edges(
            (graph.group_ptr, graph.edge_ptr, graph.edge_tail),
            (nodes.question, nodes.entity, nodes.node_class, messages.visit),
            (first, message, entered),
            barred_topics(batch, options),
            message_codes(num_messages, salt),
            kernels.scratch(graph.num_entities),
            (num_edges, num_messages - len(nodes.class_question)),
        )
        if not collided:
            break
    else:
        raise RuntimeError(f"state classes: the 64-bit hash collided with {MAX_ATTEMPTS} salts")
    return Inbox(entered, num_walked, *received), Nodes(question, entity, node_class, class_question)


def barred_topics(batch: Batch, options: ExploreOptions) -> tuple[Int, Int]:
    """Return a pointer [B+1] per question into the entities that no edge of it may arrive at, and these."""
    pointer = np.searchsorted(batch.topic_question, np.arange(len(batch) + 1))
    return pointer * (not options.reenter_topic), batch.topic_entity


def message_codes(num_messages: int, salt: int) -> npt.NDArray[np.int64]:
    """Return [M, 2] random codes of the messages (the finaliser of splitmix64; Steele et al. 2014), by ``salt``."""
    streams = np.array([2 * salt + 1, 2 * salt + 2], dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = np.arange(num_messages, dtype=np.uint64)[:, None] + (streams + np.uint64(0x632BE59BD9B4E019))
    return mix_bits(x).view(np.int64)


@dataclass(frozen=True, slots=True)
class StepTrace:
    """What one step walked: enough to find its edges again."""

    nodes: Nodes  # before the step
    messages: Messages
    entered: Bool  # [G]
    attention: npt.NDArray[np.float32]  # [M] Eq. 1, before the sigmoid


@dataclass(frozen=True, slots=True)
class Exploration:
    """The candidates of a batch and their scores."""

    question: Int  # [N] 0..B-1, ascending
    entity: Int  # [N] each once per question, in no order that means anything
    node_class: Int  # [N]
    class_score: Tensor  # [C] logits of Eq. 3
    counts: Counter[str] = field(default_factory=Counter)  # nodes, classes and edges of all steps
    traces: list[StepTrace] = field(default_factory=list)

    def log_probability(self, num_questions: int) -> Tensor:
        """Return [N] the log of Eq. 3: a softmax over the candidates of each question."""
        question = _tensor(self.question, self.class_score)
        score = self.class_score.index_select(0, _tensor(self.node_class, self.class_score))
        peak = score.new_full((num_questions,), -torch.inf).scatter_reduce(0, question, score.detach(), "amax")
        shifted = score - peak[question]
        return shifted - scatter_sum(shifted.exp(), question, num_questions).log().index_select(0, question)


def explore(
    model: Explorer, graph: KnowledgeGraph, batch: Batch, *, texts: Texts, options: ExploreOptions
) -> Exploration:
    """Explore from the topics of a batch; a question without topics has no candidates.

    ``texts``, which ``batch.text`` points into, are on the device of the model. Raises ``TooManyEdges`` where a step of
    several questions is larger than ``options.max_edges``; see ``explore_rows``.
    """
    rows, of_text, text = np.unique(batch.text, return_index=True, return_inverse=True)
    h_q, h_r = model.encode(texts, _tensor(rows, texts.questions))
    hidden, least = h_q, logit(options.attention_threshold)  # topics start in the state h_q (EtD §3.2)
    nodes = Nodes(batch.topic_question, batch.topic_entity, text[batch.topic_question], of_text)
    counts = Counter[str]()
    traces: list[StepTrace] = []
    for step in range(model.steps):
        messages = list_messages(graph, nodes)
        sender, relation = _tensor(messages.message_class, hidden), _tensor(messages.message_relation, hidden)
        # Eq. 1 before the sigmoid, [M] twice: what the head adds, and what question and relation add. A matrix product
        # may round equal rows differently; relations of equal text must tie, to the last bit.
        by_head, by_question = model.attention_logits(step, hidden, h_q, h_r)
        by_question = by_question.index_select(1, texts.same_text)
        cell = text[nodes.class_question][messages.message_class] * by_question.shape[1] + messages.message_relation
        by_question = by_question.flatten().index_select(0, _tensor(cell, hidden))
        logits = by_head.index_select(0, sender) + by_question
        # What the head adds is the same for all of its groups. It is left out of their order: a hub's is so large that
        # adding it rounds the differences between relations away.
        admitted = ~(logits.detach() < least).cpu().numpy()  # NaN enters: divergence shows in the loss
        attention = (by_question.detach().cpu().numpy(), admitted)
        inbox, after = walk_edges(graph, nodes, messages, attention, batch, options)
        if options.trace:
            traces.append(StepTrace(nodes, messages, inbox.entered, logits.detach().cpu().numpy()))
        # A message is attention * (h_s ⊙ h_r); Eq. 2 sums them over the edges, here over (class, message, count).
        sent = torch.sigmoid(logits)[:, None] * hidden.index_select(0, sender) * h_r.index_select(0, relation)
        taken, times, receiver = (_tensor(one, hidden) for one in (inbox.received, inbox.count, inbox.receiver))
        hidden = model.update(step, spread_sum(sent, taken, times, receiver, len(after.class_question)))
        nodes = after
        counts.update(nodes=len(nodes.entity), classes=len(nodes.class_question), edges=inbox.num_edges)
    scores = model.score(hidden, h_q, _tensor(text[nodes.class_question], hidden))
    return Exploration(nodes.question, nodes.entity, nodes.node_class, scores, counts, traces)


def logit(share: float) -> float:
    """Return the inverse of the sigmoid; minus infinity for 0, infinity for 1."""
    return log(share) - log1p(-share) if 0 < share < 1 else copysign(inf, share - 0.5)


def _tensor(array: Ints, like: Tensor) -> Tensor:
    return torch.from_numpy(array).to(like.device)


def loss_sum(found: Exploration, batch: Batch, num_entities: int, *, per_answer: bool = False) -> tuple[Tensor, Bool]:
    """Return the cross-entropy summed over the batch's questions, and which [B] have a gold among the candidates.

    One target per question, uniform over its golds among the candidates: minus the log of the *summed* probability
    would be content with one gold of many and ruins F1. With ``per_answer`` every (question, gold) pair is a term of
    its own, as the papers write it, divided by the golds per question of the batch: one loss per question on average.
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
    bound = len(batch) * num_entities
    bitmap = bound <= min(LARGEST_BITMAP, max(SMALL_BITMAP, BITMAP_CELLS_PER_KEY * len(keys)))
    if bitmap:
        return np.isin(keys, golds, kind="table")
    golds.sort()  # far fewer than keys, which np.isin would sort too
    places = np.minimum(np.searchsorted(golds, keys), max(len(golds) - 1, 0))
    return golds[places] == keys if len(golds) else np.zeros(len(keys), bool)


def explore_rows(
    model: Explorer, asked: Lessons, rows: Int, *, at_once: int, learn: bool
) -> Iterator[tuple[Int, Batch, Exploration]]:
    """Yield (rows, batch, what was found) of the questions ``rows``, ``at_once`` where ``options.max_edges`` allows it.

    A single question is never refused: what it needs depends on the edge budget alone. Where a machine's memory is full
    a batch is halved, too, but not to ``learn``: gradients need more, see ``Trainer``.
    """
    parts = [rows[start : start + at_once] for start in range(0, len(rows), at_once)][::-1]
    while parts:
        part = parts.pop()
        batch = asked.questions.batch(part)
        try:
            with torch.inference_mode(not learn):  # not around the yield: it would hold for whoever iterates
                found = explore(model, asked.graph, batch, texts=asked.texts, options=asked.options)
            yield part, batch, found
        except (TooManyEdges, RuntimeError, MemoryError) as problem:
            if not isinstance(problem, TooManyEdges):
                if learn or len(part) == 1 or not is_out_of_memory(problem):
                    raise
                _log.warning("out of memory with %d questions at once: going on with half", len(part))
            parts += np.array_split(part, [len(part) // 2])[::-1]
