"""The integer side of one exploration step over state classes: ``walk.py``'s functions on compiled kernels.

Two nodes that receive the same multiset of (class, relation) messages have the same state. A node's multiset is named
by the sum of random 64-bit codes of its messages; a second, independent sum checks the first, so a collision is
detected and never silently merges two states.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from kgqa_core.explorer import kernels
from kgqa_core.explorer.walk import Attention, Edges, Inbox, Messages, Nodes, Rules, check_size
from kgqa_core.graph.kg import KnowledgeGraph

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
    """Walk the edges of the groups that enter under the budget, and merge the nodes reached; see ``walk.walk_edges``.

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
