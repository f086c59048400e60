"""Executing plans (RoG Algorithm 1): all plans of all questions in one pass, and the reasoning paths that they yield.

The published way searches breadth-first over triples in a simple graph, one question and plan at a time, and lists
every reasoning path on the way. Here a plan's frontier is a set of entities; plans of a question that begin alike share
its beginning; and reasoning paths are listed afterwards, where somebody wants them, as many as are wanted.

As in ``paths.follow_path`` a plan starts from all topics together, and unless ``reenter_topic`` no step arrives at one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from kgqa_core.errors import InputError
from kgqa_core.graph.csr import expand_ranges, sorted_distinct
from kgqa_core.graph.follow_kernels import I32, I64, Bools, follow_all
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.label_paths import to_relations

NO_LIMIT = 2**62
Plans = Sequence[Sequence[Sequence[str]]]  # per question, per plan: steps by label


@dataclass(frozen=True, slots=True, eq=False)
class Executed:
    """What every plan of every question reached; P plans in the order given."""

    plan_ptr: I64  # [Q+1] plans of question q: plan_ptr[q]..plan_ptr[q+1]
    num_reached: I64  # [P]
    entity_ptr: I64  # [P+1]
    entity: I32  # those kept, ascending inside a plan
    is_known: Bools  # [P] False: the graph lacks a relation of it, or it has no step; then it reached nothing

    def reached(self, question: int, plan: int) -> I32:
        """Return the entities of one plan of one question, ascending."""
        at = self.plan_ptr[question] + plan
        return self.entity[self.entity_ptr[at] : self.entity_ptr[at + 1]]

    @property
    def is_cut(self) -> Bools:
        """[P] Did a plan reach more than ``max_entities``?"""
        cut: Bools = np.diff(self.entity_ptr) < self.num_reached
        return cut


@dataclass(frozen=True, slots=True, eq=False)
class _Encoded:
    """Topics and plans of all questions as arrays; those plans of a question that begin alike are neighbours."""

    topics: tuple[I64, I32]
    plan_ptr: I64
    steps: I32  # [P, L], sorted
    lengths: I64  # [P], sorted
    order: I64  # [P] place in the order given of each sorted plan


def execute_plans(
    graph: KnowledgeGraph,
    topics: Sequence[Sequence[int]],
    plans: Plans,
    *,
    reenter_topic: bool = False,
    directed: bool = True,
    max_entities: int | None = None,
) -> Executed:
    """Return what each question's plans reach from its topics.

    Args:
        graph: also a graph of rows (``Subgraphs.graph``), for topics that are rows.
        topics: entity ids per question.
        plans: plans by label per question; one with a relation that the graph lacks reaches nothing, and is marked.
        reenter_topic: may a step arrive at a topic?
        directed: False: steps are walked in both directions, whatever sign they carry.
        max_entities: kept per plan, those of the smallest ids; None: all. The frontiers on the way are never cut.

    Raises:
        InputError: a topic that is no entity, or unequal numbers of questions.
    """
    encoded = _encode(graph, topics, plans, directed)
    width = encoded.steps.shape[1]
    num = graph.num_entities
    tables = (np.zeros(num // 8 + 1, np.uint8), np.empty((width + 1, num + 1), np.int32))
    rules = (not reenter_topic, 0 if directed else graph.num_relations, max_entities or NO_LIMIT)
    found = follow_all(graph.arrays, encoded.topics, (encoded.plan_ptr, encoded.steps, encoded.lengths), tables, rules)
    return _in_order(encoded, *found)


def step_codes(graph: KnowledgeGraph, plan: Sequence[str], directed: bool) -> tuple[int, ...]:
    """Return the step codes of a plan (see ``follow_kernels``); none where the graph lacks a relation of it."""
    found = to_relations(graph, plan) or ()
    return found if directed else tuple(step % graph.num_relations for step in found)


def topic_arrays(graph: KnowledgeGraph, topics: Sequence[Sequence[int]]) -> tuple[I64, I32]:
    """Return pointer [Q+1] and the distinct topics of each question, ascending.

    Raises:
        InputError: one that is no entity.
    """
    num = graph.num_entities
    ids = np.fromiter(chain.from_iterable(topics), dtype=np.int64)
    wrong = ids[(ids < 0) | (ids >= num)]
    if len(wrong):
        raise InputError(f"topics {wrong[:9].tolist()}: entity ids go from 0 to {num - 1}")
    keys = sorted_distinct(np.repeat(np.arange(len(topics)), [len(one) for one in topics]) * num + ids)
    return np.searchsorted(keys, np.arange(len(topics) + 1) * num), (keys % max(1, num)).astype(np.int32)


def _encode(graph: KnowledgeGraph, topics: Sequence[Sequence[int]], plans: Plans, directed: bool) -> _Encoded:
    if len(topics) != len(plans):
        raise InputError(f"{len(topics)} questions have topics and {len(plans)} have plans: give both for each")
    asked = [tuple(plan) for of_question in plans for plan in of_question]
    codes = {plan: step_codes(graph, plan, directed) for plan in set(asked)}
    lengths = np.array([len(codes[plan]) for plan in asked], dtype=np.int64)
    steps = np.full((len(asked), max(1, lengths.max(initial=0))), -1, dtype=np.int32)
    steps[np.arange(steps.shape[1]) < lengths[:, None]] = [step for plan in asked for step in codes[plan]]
    plan_ptr = np.cumsum([0, *map(len, plans)], dtype=np.int64)
    question = np.repeat(np.arange(len(plans)), np.diff(plan_ptr))
    order = np.lexsort((*steps.T[::-1], question))
    return _Encoded(topic_arrays(graph, topics), plan_ptr, steps[order], lengths[order], order)


def _in_order(encoded: _Encoded, num_reached: I64, kept_ptr: I64, kept: I32) -> Executed:
    """Turn what was found plan by plan, sorted, into the order in which the plans were given."""
    back = np.argsort(encoded.order)
    first, last = kept_ptr[:-1][back], kept_ptr[1:][back]
    entity_ptr = np.concatenate([[0], np.cumsum(last - first)]).astype(np.int64)
    is_known = encoded.lengths[back] > 0
    return Executed(encoded.plan_ptr, num_reached[back], entity_ptr, kept[expand_ranges(first, last)], is_known)
