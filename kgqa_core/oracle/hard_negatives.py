"""Hard pools: a question's gold plan among wrong ones that exist, so that only the question tells which is right."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kgqa_core.graph.follow import follow_path
from kgqa_core.graph.kg import KnowledgeGraph, golds_of, to_labels, to_relations
from kgqa_core.instructions.path_constraint import PathConstraint, PathConstraints
from kgqa_core.oracle.options import seed_of
from kgqa_core.types import LabelPath, Question, RelationPath

NUM_WRONG = 2
MAX_TRIED = 200  # plans around one question's topics that are looked at


@dataclass(frozen=True, slots=True)
class Pools:
    """The pools of many questions."""

    plans: Mapping[str, tuple[LabelPath, ...]]  # by question id; questions without a gold plan are not in
    num_without_gold: int  # questions that have no gold plan, or none that exists
    num_short: int  # questions with fewer wrong plans than asked for


def hard_pools(
    graph: KnowledgeGraph,
    space: PathConstraints,
    questions: Sequence[Question],
    gold_plans: Mapping[str, Sequence[LabelPath]],
    *,
    seed: int = 0,
) -> Pools:
    """Return the pool of every question that has a gold plan, and count the others; see ``hard_pool``."""
    pools = {one.id: hard_pool(graph, space, one, gold_plans.get(one.id, ()), seed=seed) for one in questions}
    plans = {id: pool for id, pool in pools.items() if pool}
    short = sum(len(pool) < NUM_WRONG + 1 for pool in plans.values())
    return Pools(plans, len(pools) - len(plans), short)


def hard_pool(
    graph: KnowledgeGraph,
    space: PathConstraints,
    question: Question,
    gold_plans: Sequence[LabelPath],
    *,
    seed: int = 0,
) -> tuple[LabelPath, ...]:
    """Return a question's first gold plan and two wrong ones, shuffled; none where it has no gold plan.

    Wrong plans lead from the topics to entities, none of them a gold. Those of the gold plan's length that share most
    of its beginning are taken first, then others; of equals a seed decides that follows from the question's id.

    Args:
        graph: also a graph of rows, for questions of rows.
        space: the plans that exist in it.
        question: with its golds.
        gold_plans: best first.
        seed: of the draw.
    """
    chance = random.Random(seed_of("pool", seed, question.id))
    around = space.around(question.topics)
    known = [path for plan in gold_plans if (path := to_relations(graph, plan))]
    if not known:
        return ()
    gold, golds = known[0], golds_of(question, reenter_topic=True)
    wrong: list[RelationPath] = []
    for path in _candidates(around, gold, space.max_hops, chance):
        reached = follow_path(graph, question.topics, path, reenter_topic=space.reenter_topic)
        if path not in known and len(reached) and golds.isdisjoint(reached.tolist()):
            wrong.append(path)
        if len(wrong) == NUM_WRONG:
            break
    pool = [gold, *wrong]
    chance.shuffle(pool)
    return tuple(to_labels(graph, path) for path in pool)


def _candidates(around: PathConstraint, gold: RelationPath, max_hops: int, chance: random.Random) -> list[RelationPath]:
    """Return plans that exist, in the order in which they are tried: the most like ``gold`` first."""
    found: dict[RelationPath, None] = {}
    for shared in range(len(gold) - 1, -1, -1):
        _extend(around, gold[:shared], len(gold), chance, found)
    for length in (*range(len(gold) - 1, 0, -1), *range(len(gold) + 1, max_hops + 1)):
        _extend(around, gold[: length - 1], length, chance, found)
        _extend(around, (), length, chance, found)
    return list(found)


def _extend(
    around: PathConstraint, begin: RelationPath, length: int, chance: random.Random, found: dict[RelationPath, None]
) -> None:
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
            _extend(around, (*begin, int(relation)), length, chance, found)
