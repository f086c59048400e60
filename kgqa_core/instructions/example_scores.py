"""What relations and entities on the way are worth, where the papers give no targets: the share that is gold.

A relation after a path so far is worth the highest precision, num_right / num_reached, of the question's shortest
paths that go on with it, and 0 where none does. An entity on a plan's way is worth the share of golds among what the
rest of the plan reaches from it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from random import Random

import numpy as np

from kgqa_core.graph.csr import Ints, expand_ranges, sorted_distinct
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.label_paths import to_labels, to_relations
from kgqa_core.graph.paths import follow_path, reach
from kgqa_core.instructions.evidence import layers_of
from kgqa_core.instructions.example_settings import PathRow
from kgqa_core.types import LabelPath

MAX_LOOKED_AT = 50  # entities of one layer that are scored, to choose examples from


def offered_relations(
    graph: KnowledgeGraph, topics: Sequence[int], path: LabelPath, *, reenter_topic: bool = False
) -> tuple[str, ...]:
    """Return the steps that go on from where ``path`` leads, in order of relation id; forward before backward."""
    relations = to_relations(graph, path)
    if relations is None:
        return ()
    frontier = follow_path(graph, topics, relations, reenter_topic=reenter_topic)
    groups = expand_ranges(graph.group_ptr[frontier], graph.group_ptr[frontier + 1])
    found = sorted_distinct(graph.group_relation[groups])
    return tuple(to_labels(graph, (int(relation),))[0] for relation in found)


def score_offered(offered: Iterable[str], path: LabelPath, rows: Iterable[PathRow]) -> dict[str, float]:
    """Return what each step that goes on from ``path`` is worth."""
    scores = dict.fromkeys(offered, 0.0)
    for row in rows:
        step = row.path[len(path)] if len(row.path) > len(path) and row.path[: len(path)] == path else None
        if step in scores:
            scores[step] = max(scores[step], row.precision)
    return scores


def score_candidates(
    graph: KnowledgeGraph,
    topics: Sequence[int],
    golds: Collection[int],
    path: LabelPath,
    *,
    place: int,
    draw: Random,
    reenter_topic: bool = False,
) -> list[tuple[int, float]]:
    """Return entities after ``place`` steps of ``path`` with what they are worth, right and wrong ones in turns."""
    relations = to_relations(graph, path)
    if relations is None:
        return []
    barred = () if reenter_topic else topics
    layer = layers_of(graph, topics, relations[:place], reenter_topic=reenter_topic)[-1].tolist()
    golden = [entity for entity in layer if entity in golds] if place == len(relations) else []
    looked_at = dict.fromkeys(draw.sample(layer, min(MAX_LOOKED_AT, len(layer))))
    if golden:
        looked_at |= dict.fromkeys(draw.sample(golden, 1))
    scored = [(entity, _share(graph, entity, relations[place:], golds, barred)) for entity in looked_at]
    right = [pair for pair in scored if pair[1] > 0]
    wrong = [pair for pair in scored if pair[1] == 0]
    turns = [pair for both in zip(right, wrong, strict=False) for pair in both]
    rest = max(right, wrong, key=len)[min(len(right), len(wrong)) :]
    return turns + rest


def _share(
    graph: KnowledgeGraph, entity: int, rest: Sequence[int], golds: Collection[int], barred: Sequence[int]
) -> float:
    frontier: Ints = np.array([entity], dtype=np.int64)
    for relation in rest:
        frontier = reach(graph, frontier, relation)
        frontier = frontier[~np.isin(frontier, barred)]
    return sum(end in golds for end in frontier.tolist()) / max(len(frontier), 1)
