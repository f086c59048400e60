"""The integer side of one exploration step: which messages exist, which edges are walked, which classes are reached.

Nodes that received the same messages are in the same state: a *state class*. Compiled kernels find the classes by a
hash over what each node received, and check it. The plain reading, with every node a class of its own, is the oracle
of the tests (tests/explorer/plain_walk.py).

Shapes: B questions, N nodes (question, entity), C state classes, M messages, G groups, E edges.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kgqa_core.explorer import kernels
from kgqa_core.explorer.batch import Int
from kgqa_core.graph.kg import KnowledgeGraph


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for every step of one exploration."""

    edge_budget: int  # K: edges per head, whole groups (kernels.enter_groups)
    blocked_ptr: Int  # [B+1] question i owns blocked_entity[blocked_ptr[i]:blocked_ptr[i + 1]]
    blocked_entity: Int  # entities that no edge of their question may arrive at; identity may stay on them
    text_of_question: Int  # [B] which of the batch's distinct texts
    keep_heads: bool  # are the edges' heads wanted (for backtracking)?
    max_edges: int  # more edges in one step than this are refused, where there is more than one question
    hash_bits: int = 64  # of state classes; below 64 only in the test of the collision check


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes between two steps, by ascending question."""

    question: Int  # [N] 0..B-1
    entity: Int  # [N]
    node_class: Int  # [N]
    class_text: Int  # [C] which of the batch's distinct texts each class belongs to


@dataclass(frozen=True, slots=True)
class Messages:
    """What the nodes could send; the last C messages are the identity messages of the classes, in order."""

    first_group: Int  # [N+1] node i heads the groups first_group[i]..first_group[i + 1], by ascending relation
    group_message: npt.NDArray[np.integer]  # [G] 0..M-1
    message_class: Int  # [M]
    message_relation: Int  # [M] 0..2R
    visit: Int  # [N] an order of the nodes, by question, in which equal messages come together


@dataclass(frozen=True, slots=True)
class Attention:
    """Eq. 1 as the walk needs it, per message [M], identity messages last."""

    preference: npt.NDArray[np.floating]  # orders the groups of one head as Eq. 1 does, before the sigmoid saturates
    admitted: npt.NDArray[np.bool_]  # is the attention high enough to enter at all?


@dataclass(frozen=True, slots=True)
class Edges:
    """The edges that one step walks, identity edges included."""

    head: npt.NDArray[np.integer]  # [E] node index before the step; empty where not wanted
    target: npt.NDArray[np.integer]  # [E] node index after the step
    message: npt.NDArray[np.integer]  # [E] 0..M-1


@dataclass(frozen=True, slots=True)
class Inbox:
    """What each class after the step receives: (class, message, how often)."""

    receiver: npt.NDArray[np.integer]
    message: npt.NDArray[np.integer]
    count: npt.NDArray[np.integer]


class TooManyEdges(Exception):
    """One step of a batch would walk more edges than fit into memory: explore fewer questions at once."""


def check_size(num_edges: int, rules: Rules) -> None:
    """Raise TooManyEdges where a step of several questions has more edges than ``rules`` allow."""
    if num_edges > rules.max_edges and len(rules.text_of_question) > 1:
        raise TooManyEdges(f"{num_edges} edges in one step, {rules.max_edges} are allowed")


MERGE_BELOW = 0.6  # classes per node above which a step keeps every node apart: there merging saves nothing,
MERGE_ALWAYS = 4096  # but for steps of fewer nodes, where what is merged now saves more in the steps after it
MAX_ATTEMPTS = 4  # salts tried before a hash that keeps colliding is an error


def list_messages(graph: KnowledgeGraph, nodes: Nodes) -> Messages:
    """Number the distinct (class, relation) messages that the nodes could send."""
    num_codes, num_classes = graph.identity + 1, len(nodes.class_text)
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
    graph: KnowledgeGraph, nodes: Nodes, messages: Messages, attention: Attention, rules: Rules
) -> tuple[Edges, Nodes, Inbox]:
    """Walk the edges of the groups that enter under the budget, and merge the nodes reached.

    Args:
        graph: the knowledge graph.
        nodes: where the step starts.
        messages: what the nodes could send.
        attention: of the messages.
        rules: see ``Rules``.

    Raises:
        RuntimeError: if the hash collided with every salt.
    """
    first, message = messages.first_group, messages.group_message
    entered, num_edges = kernels.enter_groups(
        (graph.group_ptr, graph.edge_ptr),
        nodes.entity,
        (first, message),
        (attention.preference, attention.admitted),
        rules.edge_budget,
    )
    check_size(num_edges + len(nodes.entity), rules)
    num_messages = len(messages.message_class)
    for salt in range(MAX_ATTEMPTS):
        question, entity, hashes, head, target, sent = kernels.walk_edges(
            (graph.group_ptr, graph.edge_ptr, graph.edge_tail),
            (nodes.question, nodes.entity, nodes.node_class, messages.visit),
            (first, message, entered),
            (rules.blocked_ptr, rules.blocked_entity),
            message_codes(num_messages, salt),
            _scratch(graph.num_entities),
            (num_edges, num_messages - len(nodes.class_text)),
            rules.keep_heads,
        )
        if rules.hash_bits < 64:
            hashes[:, 0] &= (1 << rules.hash_bits) - 1
        node_class, representative, collided = kernels.number_classes(hashes)
        if not collided:
            break
    else:
        raise RuntimeError(f"state classes: the {rules.hash_bits}-bit hash collided with {MAX_ATTEMPTS} salts")
    edges = Edges(head, target, sent)
    if len(node_class) >= MERGE_ALWAYS and len(representative) > MERGE_BELOW * len(node_class):
        after = Nodes(question, entity, np.arange(len(entity)), rules.text_of_question[question])
        return edges, after, Inbox(target, sent, np.ones_like(target))
    key, count = kernels.collect_inbox(target, sent, len(node_class), representative, num_messages)
    after = Nodes(question, entity, node_class, rules.text_of_question[question[representative]])
    return edges, after, Inbox(key // num_messages, key % num_messages, count)


@dataclass(frozen=True, slots=True)
class WalkStep:
    """A way to take one step; ``MERGED`` is the product's, the tests have a plain one."""

    merges: bool  # do nodes in equal states share their floats?
    list_messages: Callable[[KnowledgeGraph, Nodes], Messages]
    walk_edges: Callable[[KnowledgeGraph, Nodes, Messages, Attention, Rules], tuple[Edges, Nodes, Inbox]]


MERGED = WalkStep(True, list_messages, walk_edges)


_kept = threading.local()


def _scratch(num_entities: int) -> npt.NDArray[np.int32]:
    """Return this thread's table of one number per entity, made once: kernels leave it EMPTY, as they find it."""
    table: npt.NDArray[np.int32] | None = getattr(_kept, "place", None)
    if table is None or len(table) < num_entities:
        table = _kept.place = np.full(num_entities, kernels.EMPTY, np.int32)
    return table


def message_codes(num_messages: int, salt: int) -> npt.NDArray[np.int64]:
    """Return [M, 2] random codes of the messages; ``salt`` changes all of them."""
    ids = np.arange(num_messages, dtype=np.uint64)
    return np.stack([mix(ids, 2 * salt + 1), mix(ids, 2 * salt + 2)], axis=1).view(np.int64)


def mix(values: npt.NDArray[np.uint64], salt: int) -> npt.NDArray[np.uint64]:
    """Return a pseudo-random 64-bit number per value (the finaliser of splitmix64; Steele et al. 2014)."""
    x = values + np.uint64((salt * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & 0xFFFFFFFFFFFFFFFF)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
