"""The plain reading of one exploration step: every node is a class of its own, every edge a row of numpy.

The oracle of ``kgqa_core.explorer.explore``, which does the same over state classes with compiled kernels; benchmarks
measure how much the classes save.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from kgqa_core.explorer.batch import Batch, Bool, Int
from kgqa_core.explorer.explore import Attention, ExploreOptions, Inbox, Messages, Nodes, StepTrace, check_size
from kgqa_core.graph.kg import KnowledgeGraph
from tests.explorer.oracle import Edge


def owned_by(ptr: npt.NDArray[np.integer], rows: Int) -> tuple[Int, Int]:
    """List every position that the CSR rows ``rows`` [n] own; row ``i`` owns ``ptr[i]..ptr[i+1]``, and may come twice.

    Returns ``owner`` [m], the index into ``rows`` of each position, ascending, and ``position`` [m].
    """
    start = ptr[rows].astype(np.int64)
    count = ptr[rows + 1] - start
    end = np.cumsum(count)
    owner = np.repeat(np.arange(len(rows)), count)
    position = np.arange(end[-1] if len(end) else 0) + np.repeat(start - (end - count), count)
    return owner, position


def select_groups(owner: Int, size: Int, attention: npt.NDArray[np.floating], budget: int) -> Bool:
    """Keep, per head, whole groups in order of attention while fewer than ``budget`` edges are taken (EtD §3.2, top-K).

    The group that crosses the budget is kept whole, so edges that tie are never cut at random; groups of equal
    attention enter in order of relation id.

    Args [g]: ``owner`` the head of each group, ascending, relations ascending inside; ``size`` its edges as stored: one
    that may not be walked counts too; ``attention`` anything that orders the groups of one head as it does.
    """
    keep = np.ones(len(owner), dtype=bool)
    if not len(owner):
        return keep
    degree = np.bincount(owner, weights=size)
    crowded = np.flatnonzero(degree[owner] > budget)
    if not len(crowded):
        return keep
    order = crowded[np.lexsort((-attention[crowded], owner[crowded]))]
    taken_before = np.cumsum(size[order]) - size[order]
    first_of_head = np.r_[True, owner[order][1:] != owner[order][:-1]]
    at_head_start = np.maximum.accumulate(np.where(first_of_head, taken_before, 0))
    keep[order] = taken_before - at_head_start < budget
    return keep


def list_messages(graph: KnowledgeGraph, nodes: Nodes) -> Messages:
    """Expand every node to its groups; each (node, relation) is a message of its own."""
    owner, group = owned_by(graph.group_ptr, nodes.entity)
    num_nodes, num_classes = len(nodes.entity), len(nodes.class_question)
    return Messages(
        first_group=np.searchsorted(owner, np.arange(num_nodes + 1)),
        group_message=np.arange(len(group)),
        message_class=np.concatenate([nodes.node_class[owner], np.arange(num_classes)]),
        message_relation=np.concatenate([graph.group_relation[group], np.full(num_classes, graph.identity)]),
        visit=np.arange(num_nodes),
    )


def walk_edges(
    graph: KnowledgeGraph, nodes: Nodes, messages: Messages, attention: Attention, batch: Batch, options: ExploreOptions
) -> tuple[Inbox, Nodes]:
    """Walk the edges of the groups that enter under the budget; ``attention`` is of the messages."""
    preference, admitted = attention
    owner, group = owned_by(graph.group_ptr, nodes.entity)
    size = graph.edge_ptr[group + 1] - graph.edge_ptr[group]
    may = np.flatnonzero(admitted[: len(group)])
    entered = may[select_groups(owner[may], size[may], preference[may], options.edge_budget)]
    check_size(int(size[entered].sum()) + len(nodes.entity), batch, options)
    within, position = owned_by(graph.edge_ptr, group[entered])
    message = entered[within]
    key = nodes.question[owner[message]] * graph.num_entities + graph.edge_tail[position]
    blocked = batch.topic_question * graph.num_entities + batch.topic_entity
    walked = np.flatnonzero(options.reenter_topic | ~np.isin(key, blocked))
    stay_key = nodes.question * graph.num_entities + nodes.entity
    reached, target = np.unique(np.concatenate([key[walked], stay_key]), return_inverse=True)
    sent = np.concatenate([message[walked], len(group) + nodes.node_class])
    question, entity = reached // graph.num_entities, reached % graph.num_entities
    after = Nodes(question, entity, np.arange(len(reached)), question)
    was_entered = np.isin(np.arange(len(group)), entered)
    return Inbox(was_entered, len(target), target, sent, np.ones_like(target)), after


def walked_edges(graph: KnowledgeGraph, trace: StepTrace, batch: Batch, options: ExploreOptions) -> list[Edge]:
    """Return (head, relation, tail) of every edge that one step walked, identity edges last."""
    nodes, messages = trace.nodes, trace.messages
    owner, group = owned_by(graph.group_ptr, nodes.entity)
    at, position = owned_by(graph.edge_ptr, group[trace.entered])
    owner, message, tail = (
        owner[trace.entered][at],
        messages.group_message[trace.entered][at],
        graph.edge_tail[position],
    )
    blocked = set(zip(batch.topic_question.tolist(), batch.topic_entity.tolist(), strict=True))
    blocked = set() if options.reenter_topic else blocked
    relation = messages.message_relation[message]
    rows = zip(
        nodes.question[owner].tolist(), nodes.entity[owner].tolist(), relation.tolist(), tail.tolist(), strict=True
    )
    walked = [(head, kind, end) for question, head, kind, end in rows if (question, end) not in blocked]
    return [*walked, *((entity, graph.identity, entity) for entity in nodes.entity.tolist())]


@contextmanager
def plainly() -> Iterator[None]:
    """Explore by the plain reading for a while."""
    with patch.multiple("kgqa_core.explorer.explore", list_messages=list_messages, walk_edges=walk_edges):
        yield
