"""What plans lead along, as prompts show it: reasoning paths with scores, and the entities that they end at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from kgqa_core.graph.csr import Ints, sorted_distinct
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.label_paths import to_relations
from kgqa_core.graph.paths import reach
from kgqa_core.instructions.render import Names, ScoredPath, render_reasoning_path
from kgqa_core.types import LabelPath, ReasoningPath, RelationPath, Step


@dataclass(frozen=True, slots=True)
class Evidence:
    """The reasoning paths of one question's plans."""

    paths: tuple[ScoredPath, ...]  # distinct texts
    steps: tuple[ReasoningPath, ...]  # parallel to paths
    ends: tuple[int, ...]  # entity ids, distinct, in the order of the paths
    num_left_out: int  # plans that have more paths than are listed


def gather_evidence(
    graph: KnowledgeGraph,
    topics: Sequence[int],
    plans: Sequence[tuple[LabelPath, float]],
    *,
    max_paths: int,
    names: Names | None = None,
    reenter_topic: bool = False,
    signed: bool = True,
) -> Evidence:
    """Return the paths of all plans in turns, one of each plan, so that a cap starves none of them.

    A path's score is its plan's weight shared out over the plan's paths, so that those of a question sum to 1 (EPERM
    Fig. 4, with all entities on the way scored alike).

    Args:
        graph: the graph.
        topics: entity ids.
        plans: distinct relation paths by label, with weights; those that the graph cannot follow give nothing.
        max_paths: listed at most.
        names: what entities are called; None: as the graph says (a graph of rows has no names: ``RowNames``).
        reenter_topic: may a step arrive at a topic?
        signed: see ``render_reasoning_path``.
    """
    known = [(relations, weight) for path, weight in plans if (relations := to_relations(graph, path))]
    walks = [reasoning_paths(graph, topics, relations, reenter_topic=reenter_topic) for relations, _ in known]
    listed: dict[str, tuple[ReasoningPath, int]] = {}
    counts = [0] * len(walks)
    cut = 0
    for turn in zip_longest(*walks):
        for plan, path in enumerate(turn):
            if path is not None and len(listed) < max_paths:
                text = render_reasoning_path(names or graph, path, signed=signed)
                counts[plan] += text not in listed
                listed.setdefault(text, (path, plan))
        if len(listed) >= max_paths:
            cut = sum(next(walk, None) is not None for walk in walks)
            break
    total = sum(weight for count, (_, weight) in zip(counts, known, strict=True) if count) or 1.0
    shares = [weight / total / max(count, 1) for count, (_, weight) in zip(counts, known, strict=True)]
    ends = dict.fromkeys(end_of(path) for path, _ in listed.values())
    return Evidence(
        tuple(ScoredPath(text, shares[plan]) for text, (_, plan) in listed.items()),
        tuple(path for path, _ in listed.values()),
        tuple(ends),
        cut,
    )


def end_of(path: ReasoningPath) -> int:
    """Return the entity that a path, of one step at least, ends at."""
    return path[-1].head if path[-1].reverse else path[-1].tail


def layers_of(
    graph: KnowledgeGraph, topics: Sequence[int], path: RelationPath, *, reenter_topic: bool = False
) -> list[Ints]:
    """Return the entities, ascending, after 0..len(path) steps from all topics together."""
    start: Ints = sorted_distinct(np.asarray(topics, dtype=np.int64))
    layers = [start]
    for relation in path:
        reached = reach(graph, layers[-1], relation)
        for topic in () if reenter_topic else start:  # few: cheaper than numpy's isin
            reached = reached[reached != topic]
        layers.append(reached)
    return layers


def reasoning_paths(
    graph: KnowledgeGraph, topics: Sequence[int], path: RelationPath, *, reenter_topic: bool = False
) -> Iterator[ReasoningPath]:
    """Yield the paths along ``path``: first one to every end, ends ascending, then what other ways there are."""
    layers = layers_of(graph, topics, path, reenter_topic=reenter_topic)
    before = [frozenset(layer.tolist()) for layer in layers[:-1]]
    walks = [_walk_back(graph, before, path, len(path), end) for end in layers[-1].tolist()]
    while walks:
        going_on = []
        for walk in walks:
            found = next(walk, None)
            if found is not None:
                yield found
                going_on.append(walk)
        walks = going_on


def _walk_back(
    graph: KnowledgeGraph, layers: Sequence[frozenset[int]], path: RelationPath, place: int, here: int
) -> Iterator[ReasoningPath]:
    """Yield the ways to ``here`` after ``place`` steps; predecessors in order of id."""
    if place == 0:
        yield ()
        return
    relation = path[place - 1]
    reverse = relation >= graph.num_relations
    forward = relation - graph.num_relations if reverse else relation
    back = forward if reverse else forward + graph.num_relations
    layer = layers[place - 1]
    for previous in graph.neighbors(here, back).tolist():
        if previous not in layer:
            continue
        head, tail = (here, previous) if reverse else (previous, here)
        for before in _walk_back(graph, layers, path, place - 1, previous):
            yield (*before, Step(head, forward, tail, reverse=reverse))
