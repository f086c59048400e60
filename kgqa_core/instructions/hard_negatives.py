"""Hard negatives: plans that exist around a question's topics, are like a right one, and reach no gold."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from kgqa_core.graph.follow import follow_path
from kgqa_core.graph.kg import KnowledgeGraph, golds_of
from kgqa_core.instructions.plan import PathConstraint, PathConstraints
from kgqa_core.types import Question, RelationPath

MAX_TRIED = 200  # plans around one question's topics that are looked at


def wrong_plans(
    graph: KnowledgeGraph,
    space: PathConstraints,
    question: Question,
    right: Sequence[RelationPath],
    chance: random.Random,
    *,
    off_by_one: bool = False,
) -> Iterator[RelationPath]:
    """Yield plans that lead from the topics to entities, none of them a gold: the most like ``right[0]`` first.

    Those of its length that share most of its beginning come first, then others; of equals ``chance`` decides. With
    ``off_by_one`` about every other plan stops a step short of it, or goes on from it, as long as there are such: what
    a planner proposes beside the right plan is mostly of this kind.
    """
    golds = golds_of(question, reenter_topic=True)
    around = space.around(question.topics)
    tried = _tried(around, right[0], space.max_hops, chance)
    if off_by_one:
        near = [right[0][:-1]] if len(right[0]) > 1 else []
        if len(right[0]) < space.max_hops:
            near += [(*right[0], relation) for relation in around.next_relations(right[0])[0].tolist()]
        chance.shuffle(near)
        tried = _mixed(near, tried, chance)
    for path in tried:
        reached = follow_path(graph, question.topics, path, reenter_topic=space.reenter_topic)
        if path not in right and len(reached) and golds.isdisjoint(reached.tolist()):
            yield path


def _mixed(some: list[RelationPath], others: list[RelationPath], chance: random.Random) -> list[RelationPath]:
    """Return all of both in their orders, each next one from either by chance."""
    left, right, found = some[::-1], others[::-1], list[RelationPath]()
    while left and right:
        found.append((left if chance.random() < 0.5 else right).pop())
    return list(dict.fromkeys([*found, *reversed(left), *reversed(right)]))


def _tried(around: PathConstraint, gold: RelationPath, max_hops: int, chance: random.Random) -> list[RelationPath]:
    """Return plans that exist, in the order in which they are tried: the most like ``gold`` first."""
    found: dict[RelationPath, None] = {}

    def extend(begin: RelationPath, length: int) -> None:
        """Add plans of ``length`` steps that begin with ``begin``, in an order drawn."""
        if len(found) >= MAX_TRIED:
            return
        here, further = around.next_relations(begin)
        options = (here if len(begin) + 1 == length else further).tolist()
        chance.shuffle(options)
        for relation in options:
            if len(begin) + 1 == length:
                found.setdefault((*begin, int(relation)))
            else:
                extend((*begin, int(relation)), length)

    for shared in range(len(gold) - 1, -1, -1):
        extend(gold[:shared], len(gold))
    for length in (*range(len(gold) - 1, 0, -1), *range(len(gold) + 1, max_hops + 1)):
        extend(gold[: length - 1], length)
        extend((), length)
    return list(found)
