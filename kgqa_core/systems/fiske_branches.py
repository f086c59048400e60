"""Branches of FiSKE's exploration: which clues each has mapped, where it stands, and the paths that it came along."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest

import numpy as np

from kgqa_core.graph.csr import Ints, shared_sorted, sorted_distinct
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.instructions.evidence import enter_from, paths_through
from kgqa_core.types import ReasoningPath, RelationPath


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """One state of clues on one relation path, with all entities that it stands for.

    Unmerged, every layer but the last of a complete branch holds a single entity.
    """

    start: int  # place of the clue that names the starting entities
    mapped: frozenset[int]  # places of all clues that have a mapping, ``start`` among them
    path: RelationPath  # from the starting entities on
    layers: tuple[Ints, ...]  # entities, ascending, after 0..len(path) steps

    @property
    def starts(self) -> Ints:
        """Return the starting entities."""
        return self.layers[0]

    @property
    def frontier(self) -> Ints:
        """Return the entities where it stands."""
        return self.layers[-1]

    def step(self, mapped: Iterable[int], relation: int, reached: Ints) -> Branch:
        """Return the branch after one more step, with these clues mapped on the way."""
        return Branch(self.start, self.mapped.union(mapped), (*self.path, relation), (*self.layers, reached))

    def before(self) -> Branch:
        """Return the branch one step earlier, with the same clues mapped."""
        return replace(self, path=self.path[:-1], layers=self.layers[:-1])


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Evidence with all clues mapped: a complete branch, or two that meet."""

    branches: tuple[Branch, ...]

    @property
    def length(self) -> int:
        """Return the steps of the longest path."""
        return max(len(branch.path) for branch in self.branches)


def meet(one: Branch, other: Branch) -> Found | None:
    """Return two branches up to where they both stand; None where they stand at no common entity."""
    shared = shared_sorted(one.frontier, other.frontier)
    if not len(shared):
        return None
    return Found(tuple(replace(branch, layers=(*branch.layers[:-1], shared)) for branch in (one, other)))


def merge_branches(branches: Iterable[Branch]) -> list[Branch]:
    """Return one branch for those of equal state: the same clues mapped, the same relation path from the same name."""
    groups: dict[tuple[int, frozenset[int], RelationPath], list[Branch]] = {}
    for branch in branches:
        groups.setdefault((branch.start, branch.mapped, branch.path), []).append(branch)
    return [
        group[0] if len(group) == 1 else replace(group[0], layers=_unite([branch.layers for branch in group]))
        for group in groups.values()
    ]


def split_branches(branches: Iterable[Branch], most: int) -> list[Branch]:
    """Return a branch for each entity where one stands, for the first ``most`` of each; equal ones once."""
    found: dict[tuple[int, frozenset[int], RelationPath, tuple[int, ...]], Branch] = {}
    for branch in branches:
        before = tuple(int(layer[0]) for layer in branch.layers[:-1])
        for entity in branch.frontier[:most].tolist():
            own = replace(branch, layers=(*branch.layers[:-1], np.array([entity])))
            found.setdefault((branch.start, branch.mapped, branch.path, (*before, entity)), own)
    return list(found.values())


def list_paths(graph: KnowledgeGraph, branches: Sequence[Branch], *, max_triples: int) -> list[ReasoningPath]:
    """Return the reasoning paths of some branches in turns, as many as have ``max_triples`` distinct triples.

    Of each branch first one path to every end, ends ascending; the first path is always among them.
    """
    walks = [
        paths_through(
            branch.frontier[:max_triples].tolist(),  # each end needs a triple of its own
            branch.path,
            _before(graph, branch),
            num_relations=graph.num_relations,
        )
        for branch in branches
        if branch.path
    ]
    found: dict[ReasoningPath, None] = {}
    triples: set[tuple[int, int, int]] = set()
    for path in chain.from_iterable(zip_longest(*walks)):
        if path is None or path in found:
            continue
        more = triples.union((step.head, step.relation, step.tail) for step in path)
        if found and len(more) > max_triples:
            break
        triples = more
        found[path] = None
    return list(found)


def _before(graph: KnowledgeGraph, branch: Branch) -> Callable[[int, int], Ints]:
    """Return where a step of a branch's path may have come from, for ``paths_through``."""
    return lambda here, place: enter_from(graph, here, branch.path[place], branch.layers[place])


def _unite(layers: Sequence[tuple[Ints, ...]]) -> tuple[Ints, ...]:
    """Return the union of the layers after each number of steps."""
    return tuple(sorted_distinct(np.concatenate(same)) for same in zip(*layers, strict=True))
