"""The integer side of one exploration step: messages that could be sent, edges walked, nodes and classes reached.

Shapes: N nodes (question, entity), C state classes, M distinct (class, relation) messages, G groups, E edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kgqa_core.explorer.classes import MAX_ATTEMPTS, HashCollision, group_by_hash, hash_messages
from kgqa_core.explorer.frontier import Int, compact, contains, expand_ranges, select_groups
from kgqa_core.graph.kg import KnowledgeGraph


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes between two steps, sorted by question, then entity."""

    question: Int  # [N] 0..B-1
    entity: Int  # [N]
    node_class: Int  # [N]
    class_text: Int  # [C] which of the batch's distinct texts each class belongs to


@dataclass(frozen=True, slots=True)
class Messages:
    """What the nodes could send: the groups they head, and the distinct (class, relation) messages among them.

    The last C messages are the identity messages of the classes, in order.
    """

    group_owner: Int  # [G] node of each group, ascending
    group_id: Int  # [G] the group in the graph's CSR
    group_size: Int  # [G] edges
    group_message: Int  # [G] 0..M-1
    message_class: Int  # [M]
    message_relation: Int  # [M] 0..2R


@dataclass(frozen=True, slots=True)
class Edges:
    """The edges that one step walks; the last N are the identity edges."""

    head: Int  # [E] node index before the step
    target: Int  # [E] node index after the step
    message: Int  # [E] 0..M-1


@dataclass(frozen=True, slots=True)
class Inbox:
    """What each class after the step receives: (class, message, how often)."""

    receiver: Int
    message: Int
    count: Int


def list_messages(graph: KnowledgeGraph, nodes: Nodes) -> Messages:
    """Expand every node to its groups and number the distinct (class, relation) messages."""
    owner, group = expand_ranges(graph.group_ptr, nodes.entity)
    num_classes, num_relations = len(nodes.class_text), graph.identity + 1
    key = nodes.node_class[owner] * num_relations + graph.group_relation[group]
    used, message = compact(key, num_classes * num_relations)
    classes = np.arange(num_classes)
    return Messages(
        group_owner=owner,
        group_id=group,
        group_size=graph.edge_ptr[group + 1] - graph.edge_ptr[group],
        group_message=message,
        message_class=np.concatenate([used // num_relations, classes]),
        message_relation=np.concatenate([used % num_relations, np.full(num_classes, graph.identity)]),
    )


def walk_edges(
    graph: KnowledgeGraph,
    nodes: Nodes,
    messages: Messages,
    *,
    preference: npt.NDArray[np.floating],
    edge_budget: int,
    blocked: Int | None,
) -> tuple[Edges, Int]:
    """Walk the edges of the groups that enter under the budget.

    Args:
        graph: the knowledge graph.
        nodes: where the step starts.
        messages: what the nodes could send.
        preference: [M] orders the messages of one head as their attention does; before the sigmoid, which saturates
            and would make ties.
        edge_budget: K, edges per head.
        blocked: keys ``question * num_entities + entity`` that no edge may arrive at (identity may stay), or None.

    Returns:
        the edges, and [N'] the sorted keys of the nodes reached.
    """
    entered = np.flatnonzero(
        select_groups(messages.group_owner, messages.group_size, preference[messages.group_message], edge_budget)
    )
    within, position = expand_ranges(graph.edge_ptr, messages.group_id[entered])
    group = entered[within]
    head = messages.group_owner[group]
    key = nodes.question[head] * graph.num_entities + graph.edge_tail[position]
    bound = (int(nodes.question[-1]) + 1) * graph.num_entities
    if blocked is not None:
        open_edges = np.flatnonzero(~contains(key, blocked, bound))
        head, group, key = head[open_edges], group[open_edges], key[open_edges]
    stay = np.arange(len(nodes.entity))
    stay_key = nodes.question * graph.num_entities + nodes.entity
    reached, target = compact(np.concatenate([key, stay_key]), bound)
    first_identity = len(messages.message_class) - len(nodes.class_text)
    sent = np.concatenate([messages.group_message[group], first_identity + nodes.node_class])
    return Edges(np.concatenate([head, stay]), target, sent), reached


def merge_nodes(edges: Edges, num_nodes: int, num_messages: int, *, hash_bits: int = 64) -> tuple[Int, Int]:
    """Find the state classes of the nodes after a step: equal multisets of received messages.

    Returns:
        ``node_class`` [N'] and ``representative`` [C'] (a node of each class).

    Raises:
        RuntimeError: if the hash collided with every salt.
    """
    target = torch.from_numpy(edges.target)
    for salt in range(MAX_ATTEMPTS):
        codes = torch.from_numpy(hash_messages(num_messages, salt, hash_bits)[edges.message])
        sums = torch.zeros((num_nodes, 2), dtype=torch.int64).index_add_(0, target, codes).numpy()
        if hash_bits < 64:
            sums[:, 0] &= (1 << hash_bits) - 1
        try:
            return group_by_hash(sums[:, 0], sums[:, 1])
        except HashCollision:
            continue
    raise RuntimeError(f"state classes: the {hash_bits}-bit hash collided with {MAX_ATTEMPTS} salts")


def collect_inbox(edges: Edges, node_class: Int, representative: Int, num_messages: int) -> Inbox:
    """List what one representative of each class received, with multiplicities."""
    is_representative = np.zeros(len(node_class), dtype=bool)
    is_representative[representative] = True
    heard = np.flatnonzero(is_representative[edges.target])
    key = np.sort(node_class[edges.target[heard]] * num_messages + edges.message[heard])
    first = np.flatnonzero(np.r_[True, key[1:] != key[:-1]])
    count = np.diff(np.r_[first, len(key)])
    return Inbox(key[first] // num_messages, key[first] % num_messages, count)
