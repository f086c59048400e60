"""What plans lead along, as prompts show it: reasoning paths with scores, and the entities that they end at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from kgqa_core.graph.csr import Ints, shared_sorted, sorted_distinct
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.paths import reach, to_relations
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

    def before(here: int, place: int) -> Ints:
        return enter_from(graph, here, path[place], layers[place])

    yield from paths_through(layers[-1].tolist(), path, before, num_relations=graph.num_relations)


def enter_from(graph: KnowledgeGraph, here: int, relation: int, layer: Ints) -> Ints:
    """Return the entities of ``layer``, ascending, from which a step of ``relation`` (0..2R-1) leads to ``here``."""
    back = (relation + graph.num_relations) % graph.identity
    return shared_sorted(graph.neighbors(here, back), layer)


def paths_through(
    ends: Iterable[int], path: RelationPath, before: Callable[[int, int], Ints], *, num_relations: int
) -> Iterator[ReasoningPath]:
    """Yield the ways along ``path`` to ``ends``: one to each end in turns, so that a cap starves none.

    Args:
        ends: entities.
        path: relation ids, forward or reverse.
        before: from an entity and the place of a step in ``path`` to where that step may have come from.
        num_relations: R.
    """
    walks = [_walk_back(path, before, len(path), end, num_relations) for end in ends]
    while walks:
        going_on = []
        for walk in walks:
            found = next(walk, None)
            if found is not None:
                yield found
                going_on.append(walk)
        walks = going_on


def _walk_back(
    path: RelationPath, before: Callable[[int, int], Ints], place: int, here: int, num_relations: int
) -> Iterator[ReasoningPath]:
    """Yield the ways to ``here`` after ``place`` steps, in the order of ``before``."""
    if place == 0:
        yield ()
        return
    relation = path[place - 1]
    reverse = relation >= num_relations
    for previous in before(here, place - 1).tolist():
        head, tail = (here, previous) if reverse else (previous, here)
        for way in _walk_back(path, before, place - 1, previous, num_relations):
            yield (*way, Step(head, relation % num_relations, tail, reverse=reverse))
