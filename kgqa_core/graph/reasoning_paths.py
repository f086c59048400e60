"""The reasoning paths along plans, one plan after the other: where a plan went, edge by edge.

A plan near a hub has millions. They are counted without being listed, and of those listed every entity reached gets its
share: one each first, then a second each, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kgqa_core.graph.follow import I64, Plans, step_codes, topic_arrays
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.walk_kernels import Floats, count_walks, list_walks
from kgqa_core.types import ReasoningPath, Step


@dataclass(frozen=True, slots=True)
class PlanPaths:
    """The reasoning paths of one plan of one question."""

    question: int  # its place
    plan: int  # its place among the question's plans
    paths: tuple[ReasoningPath, ...]  # by the entity reached, then by the entities before it, from the last on
    num_paths: int  # with those that are not listed; exact below 2^53
    num_reached: int  # entities


def iter_paths(
    graph: KnowledgeGraph,
    topics: Sequence[Sequence[int]],
    plans: Plans,
    *,
    reenter_topic: bool = False,
    directed: bool = True,
    max_paths: int = 100,
) -> Iterator[PlanPaths]:
    """Yield the reasoning paths of every plan of every question, in the order given.

    Args:
        graph: also a graph of rows (``Subgraphs.graph``), for topics that are rows; paths are then of rows.
        topics: entity ids per question.
        plans: plans by label per question; one with a relation that the graph lacks has no path.
        reenter_topic: may a step arrive at a topic?
        directed: False: steps are walked in both directions, whatever sign they carry.
        max_paths: listed per plan.

    Raises:
        InputError: a topic that is no entity.
    """
    longest = max((len(plan) for of_question in plans for plan in of_question), default=0)
    ways = np.zeros((longest + 1, graph.num_entities))  # pages never written to take no memory
    sets = np.empty((longest + 1, graph.num_entities), dtype=np.int32)
    topic_ptr, topic = topic_arrays(graph, topics)
    for question, of_question in enumerate(plans):
        start = topic[topic_ptr[question] : topic_ptr[question + 1]]
        for number, plan in enumerate(of_question):
            steps = np.array(step_codes(graph, plan, directed), dtype=np.int64)
            if not len(steps):
                yield PlanPaths(question, number, (), 0, 0)
                continue
            two_ways = 0 if directed else graph.num_relations
            sizes = count_walks(graph.arrays, start, steps, (not reenter_topic, two_ways), ways, sets)
            ends = sets[len(steps), : sizes[-1]]
            counts = ways[len(steps), ends]
            rules = (not directed, graph.num_relations)
            found = list_walks(graph.arrays, steps, rules, ways, ends, share_out(counts, max_paths))
            for at, size in enumerate(sizes):
                ways[at, sets[at, :size]] = 0
            yield PlanPaths(question, number, _as_steps(graph, *found), int(counts.sum()), len(ends))


def share_out(counts: Floats, most: int) -> I64:
    """Return how many of each count to take, ``most`` together: evenly, the first before others."""
    if counts.sum() <= most:
        return counts.astype(np.int64)
    low, high = 0, most  # the largest number that each can be given at least
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.minimum(counts, middle).sum() <= most else (low, middle - 1)
    given = np.minimum(counts, low).astype(np.int64)
    more = np.flatnonzero(counts > low)[: most - int(given.sum())]
    given[more] += 1
    return given


def _as_steps(graph: KnowledgeGraph, entities: np.ndarray, walked: np.ndarray) -> tuple[ReasoningPath, ...]:
    """Return walks, given by their entities [walks, L+1] and relation ids [walks, L], as stored triples."""
    num = graph.num_relations
    return tuple(
        tuple(
            Step(after, relation - num, before, reverse=True) if relation >= num else Step(before, relation, after)
            for before, relation, after in zip(nodes, relations, nodes[1:], strict=False)
        )
        for nodes, relations in zip(entities.tolist(), walked.tolist(), strict=True)
    )
