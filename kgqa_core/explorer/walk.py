"""The integer side of one exploration step, plain: every node is a class of its own, every edge a row of numpy.

This is the readable version and the test oracle; ``merged.py`` does the same over state classes with compiled kernels.

Shapes: B questions, N nodes (question, entity), C state classes, M messages, G groups, E edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kgqa_core.explorer.frontier import Int, compact, contains, expand_ranges, select_groups
from kgqa_core.graph.kg import KnowledgeGraph


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for every step of one exploration."""

    edge_budget: int  # K: edges per head, whole groups (frontier.select_groups)
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


def list_messages(graph: KnowledgeGraph, nodes: Nodes) -> Messages:
    """Expand every node to its groups; each (node, relation) is a message of its own."""
    owner, group = expand_ranges(graph.group_ptr, nodes.entity)
    num_nodes = len(nodes.entity)
    each = np.arange(num_nodes)
    return Messages(
        first_group=np.searchsorted(owner, np.arange(num_nodes + 1)),
        group_message=np.arange(len(group)),
        message_class=np.concatenate([owner, each]),
        message_relation=np.concatenate([graph.group_relation[group], np.full(num_nodes, graph.identity)]),
        visit=each,
    )


def walk_edges(
    graph: KnowledgeGraph, nodes: Nodes, messages: Messages, attention: Attention, rules: Rules
) -> tuple[Edges, Nodes, Inbox]:
    """Walk the edges of the groups that enter under the budget.

    Args:
        graph: the knowledge graph.
        nodes: where the step starts.
        messages: what the nodes could send.
        attention: of the messages.
        rules: see ``Rules``.
    """
    owner, group = expand_ranges(graph.group_ptr, nodes.entity)
    size = graph.edge_ptr[group + 1] - graph.edge_ptr[group]
    may = np.flatnonzero(attention.admitted[: len(group)])
    entered = may[select_groups(owner[may], size[may], attention.preference[may], rules.edge_budget)]
    check_size(int(size[entered].sum()) + len(nodes.entity), rules)
    within, position = expand_ranges(graph.edge_ptr, group[entered])
    message = entered[within]
    key = nodes.question[owner[message]] * graph.num_entities + graph.edge_tail[position]
    bound = len(rules.text_of_question) * graph.num_entities
    blocked_question = np.repeat(np.arange(len(rules.text_of_question)), np.diff(rules.blocked_ptr))
    blocked = blocked_question * graph.num_entities + rules.blocked_entity
    walked = np.flatnonzero(~contains(key, blocked, bound))
    stay = np.arange(len(nodes.entity))
    stay_key = nodes.question * graph.num_entities + nodes.entity
    reached, target = compact(np.concatenate([key[walked], stay_key]), bound)
    sent = np.concatenate([message[walked], len(group) + stay])
    question, entity = reached // graph.num_entities, reached % graph.num_entities
    after = Nodes(question, entity, np.arange(len(reached)), rules.text_of_question[question])
    edges = Edges(np.concatenate([owner[message[walked]], stay]), target, sent)
    return edges, after, Inbox(target, sent, np.ones_like(target))
