"""Find the relation path that serves a group of questions best: the heart of the controls, no learning involved.

Enumerating and following every path is hopeless near hubs (a genre reaches thousands of films, each with ten edges), so
the last step is never walked forwards. It is looked up backwards from the golds instead, which says how many golds each
path reaches (its recall) at a fraction of the price. Recall r bounds F1 by 2r / (1 + r); only paths whose mean bound
can still beat the best mean F1 found are followed, and each is dropped as soon as it cannot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from kgqa_core.graph.csr import Ints, expand_ranges, sorted_distinct
from kgqa_core.graph.follow import follow_path
from kgqa_core.graph.kg import KnowledgeGraph, golds_of
from kgqa_core.types import Question, RelationPath

ROUNDING = 1e-9  # means that differ by less are equal: the sums behind them round


@dataclass(frozen=True, slots=True)
class ScoredPath:
    """One relation path and how well what it reaches agrees with the golds."""

    path: RelationPath
    f1: float  # mean over the questions looked at, 0..1
    num_questions: int  # how many were looked at


@dataclass(frozen=True, slots=True)
class _Frontiers:
    """What every relation path of one length reaches from one question's topics; rows sorted by path, then entity."""

    paths: list[RelationPath]
    owner: Ints  # [rows], place in paths
    entity: Ints  # [rows]


def score_paths(
    graph: KnowledgeGraph,
    questions: Sequence[Question],
    *,
    max_hops: int,
    reenter_topic: bool = False,
    sample: int = 20,
    execute: int = 20,
) -> list[ScoredPath]:
    """Return relation paths of 1..``max_hops`` steps for questions of one kind, by mean F1 against their golds.

    Best first; ties go to the shorter path, then to the smaller relation ids. At most ``sample`` questions, evenly
    spaced in the order given, are looked at, and at most ``execute`` paths per length are followed, those first that
    reach most golds, from fewest entities. Listed are the paths followed on every question looked at, which are only
    those that could be best at their time, so the head of the list matters most. A perfect path ends the search for
    longer ones. Empty where no path reaches a gold. With ``reenter_topic=False`` no step may arrive at a topic.
    """
    cases = [(question, golds_of(question, reenter_topic=reenter_topic)) for question in pick_evenly(questions, sample)]
    cases = [(question, golds) for question, golds in cases if golds]
    frontiers = [_start(question) for question, _ in cases]
    found: list[ScoredPath] = []
    for hop in range(max_hops):
        if hop:
            frontiers = [
                _extend(graph, frontier, () if reenter_topic else question.topics)
                for frontier, (question, _) in zip(frontiers, cases, strict=True)
            ]
        ranked = _rank_by_bound(graph, frontiers, cases)
        found = _sort(found + _follow_best(graph, ranked[:execute], cases, found, reenter_topic=reenter_topic))
        if found and found[0].f1 >= 1 - ROUNDING:
            break
    return found


def pick_evenly(questions: Sequence[Question], count: int) -> list[Question]:
    """Return ``count`` questions evenly spaced over ``questions``, or all of them where there are no more."""
    if len(questions) <= count:
        return list(questions)
    return [questions[place * len(questions) // count] for place in range(count)]


def follow_topics(
    graph: KnowledgeGraph, topics: Sequence[int], path: RelationPath, *, reenter_topic: bool = False
) -> Ints:
    """Return the entities, ascending, that ``path`` reaches from all ``topics`` at once; from any where from none.

    A question with two topics mostly asks for what they share. With ``reenter_topic=False`` no step may arrive at any
    of the topics.
    """
    reached = [follow_path(graph, [topic], path, topics=topics, reenter_topic=reenter_topic) for topic in topics]
    if not reached:
        return np.empty(0, dtype=np.int64)
    shared: Ints = reduce(np.intersect1d, reached)
    return shared if len(shared) else sorted_distinct(np.concatenate(reached))


def score_reached(reached: Ints, golds: frozenset[int]) -> float:
    """Return the F1 of the entities reached against the golds, 0..1."""
    right = int(np.isin(reached, list(golds)).sum())
    return 2 * right / (len(reached) + len(golds))


def _start(question: Question) -> _Frontiers:
    topics = sorted_distinct(np.asarray(question.topics, dtype=np.int64))
    return _Frontiers([()], np.zeros(len(topics), dtype=np.int64), topics)


def _extend(graph: KnowledgeGraph, frontiers: _Frontiers, barred: Sequence[int]) -> _Frontiers:
    """Return the frontiers one step further: every path continued by every relation that its entities have."""
    first, last = graph.group_ptr[frontiers.entity], graph.group_ptr[frontiers.entity + 1]
    groups = expand_ranges(first, last)
    owner = np.repeat(frontiers.owner, last - first) * graph.identity + graph.group_relation[groups]
    first, last = graph.edge_ptr[groups], graph.edge_ptr[groups + 1]
    tails = graph.edge_tail[expand_ranges(first, last)]
    rows: Ints = sorted_distinct(np.repeat(owner, last - first) * graph.num_entities + tails)
    rows = rows[~np.isin(rows % graph.num_entities, barred)]
    reached_by = rows // graph.num_entities
    is_new = np.diff(reached_by, prepend=-1) > 0
    paths = [(*frontiers.paths[key // graph.identity], key % graph.identity) for key in reached_by[is_new].tolist()]
    return _Frontiers(paths, np.cumsum(is_new) - 1, rows % graph.num_entities)


def _rank_by_bound(
    graph: KnowledgeGraph, frontiers: Sequence[_Frontiers], cases: Sequence[tuple[Question, frozenset[int]]]
) -> list[tuple[RelationPath, dict[int, float]]]:
    """Return (path, F1 bound by place of the question), most promising first."""
    bounds: dict[RelationPath, dict[int, float]] = defaultdict(dict)
    sizes: dict[RelationPath, int] = defaultdict(int)
    for place, (frontier, (_, golds)) in enumerate(zip(frontiers, cases, strict=True)):
        num_entities = np.bincount(frontier.owner, minlength=len(frontier.paths)).tolist()
        for owner, relation, num_reached in _count_golds(graph, frontier, golds):
            path = (*frontier.paths[owner], relation)
            bounds[path][place] = 2 * num_reached / (num_reached + len(golds))
            sizes[path] += num_entities[owner]
    return sorted(bounds.items(), key=lambda item: (-round(sum(item[1].values()), 9), sizes[item[0]], item[0]))


def _count_golds(graph: KnowledgeGraph, frontier: _Frontiers, golds: frozenset[int]) -> list[tuple[int, int, int]]:
    """Return (place of the path, last relation, golds reached by it) for every continuation that reaches a gold.

    Edges into the golds are taken from the golds' own side and joined to the frontiers by entity.
    """
    ids = np.array(sorted(golds), dtype=np.int64)
    first, last = graph.group_ptr[ids], graph.group_ptr[ids + 1]
    groups = expand_ranges(first, last)
    gold = np.repeat(np.arange(len(ids)), last - first)
    first, last = graph.edge_ptr[groups], graph.edge_ptr[groups + 1]
    before = graph.edge_tail[expand_ranges(first, last)]
    order = np.argsort(before, kind="stable")
    before = before[order]
    # seen from a gold an edge has the opposite direction of the step that arrives by it
    arriving = (graph.group_relation[groups].astype(np.int64) + graph.num_relations) % graph.identity
    into = np.repeat(arriving * len(ids) + gold, last - first)[order]

    low, high = np.searchsorted(before, frontier.entity), np.searchsorted(before, frontier.entity, side="right")
    width = graph.identity * len(ids)
    hits = sorted_distinct(np.repeat(frontier.owner, high - low) * width + into[expand_ranges(low, high)])
    keys, counts = np.unique(hits // len(ids), return_counts=True)
    return [
        (key // graph.identity, key % graph.identity, num)
        for key, num in zip(keys.tolist(), counts.tolist(), strict=True)
    ]


def _follow_best(
    graph: KnowledgeGraph,
    ranked: Sequence[tuple[RelationPath, dict[int, float]]],
    cases: Sequence[tuple[Question, frozenset[int]]],
    found: Sequence[ScoredPath],
    *,
    reenter_topic: bool,
) -> list[ScoredPath]:
    """Follow paths in order of their bounds; give one up when it can no longer reach the best mean F1."""
    best = max((scored.f1 for scored in found), default=0.0)
    followed: list[ScoredPath] = []
    for path, bounds in ranked:
        left = sum(bounds.values())
        total = 0.0
        for place, bound in bounds.items():
            if (total + left) / len(cases) < best - ROUNDING:
                break
            question, golds = cases[place]
            total += score_reached(follow_topics(graph, question.topics, path, reenter_topic=reenter_topic), golds)
            left -= bound
        else:
            # what one topic reaches may be lost where several topics share something else: then nothing is right
            if total:
                followed.append(ScoredPath(path, total / len(cases), len(cases)))
                best = max(best, followed[-1].f1)
    return followed


def _sort(paths: Sequence[ScoredPath]) -> list[ScoredPath]:
    return sorted(paths, key=lambda scored: (-round(scored.f1, 9), len(scored.path), scored.path))
