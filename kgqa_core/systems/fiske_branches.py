"""Branches of FiSKE's exploration: which clues each has mapped, where it stands, and what lies ahead of it (§3.4)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest

import numpy as np

from kgqa_core.graph.csr import Ints, shared_sorted, sorted_distinct
from kgqa_core.graph.follow import enter_from, leave, paths_through
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.search_graph import SearchGraph, links_to, relations_around
from kgqa_core.instructions.scores import Options
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


# ------ The clues of one question: what they are called, and which entities bear their names.


@dataclass(frozen=True, slots=True)
class Clues:
    """Clues by their place."""

    texts: tuple[str, ...]
    exact: tuple[Ints, ...]  # entities of exactly that name, per clue
    named: tuple[Ints, ...]  # those, else entities of that name whatever its case

    @property
    def all(self) -> frozenset[int]:
        """Return the places of all clues."""
        return frozenset(range(len(self.texts)))

    def show(self, places: Collection[int]) -> tuple[str, ...]:
        """Return the texts at some places, in order."""
        return tuple(self.texts[place] for place in sorted(places))

    def starts(self, most: int, *, only_proper: bool = False) -> list[Branch]:
        """Return a branch per clue that names entities, and per entity of it; at most ``most`` of them.

        Names count as they are written; only where no clue is a name like that, case does not count. Where there are
        too many, rare names come first: one that many entities bear says little. With ``only_proper`` names without a
        capital or a digit give way to those with one: a graph may well have entities called "film" or "director".
        """
        names = self.exact if any(map(len, self.exact)) else self.named
        places = [place for place in sorted(self.all) if len(names[place])]
        if only_proper:
            places = [place for place in places if _is_proper(self.texts[place])] or places
        places.sort(key=lambda place: len(names[place]))
        pairs = [(place, entity) for place in places for entity in names[place].tolist()][:most]
        return [Branch(place, frozenset([place]), (), (np.array([entity]),)) for place, entity in sorted(pairs)]

    def naming(self, places: Collection[int], entities: Ints) -> Mapping[int, frozenset[int]]:
        """Return which of ``entities`` some clues name, each with those clues."""
        found: dict[int, set[int]] = {}
        for place in sorted(places):
            for entity in self.named[place][np.isin(self.named[place], entities)].tolist():
                found.setdefault(entity, set()).add(place)
        return {entity: frozenset(own) for entity, own in sorted(found.items())}

    def named_by(self, places: Collection[int]) -> Ints:
        """Return the entities, ascending, that any of some clues names."""
        return sorted_distinct(np.concatenate([np.empty(0, dtype=np.int64), *(self.named[one] for one in places)]))


def _is_proper(name: str) -> bool:
    """Say whether a name is more than lower-case letters; scripts without case count."""
    return not name.islower() or any(map(str.isdigit, name))


def look_up(search: SearchGraph, question_id: str, texts: Sequence[str]) -> Clues:
    """Return the clues of one question, with what they name in its graph."""
    exact = tuple(search.entities_named(question_id, text) for text in texts)
    named = tuple(
        found if len(found) else search.entities_named(question_id, text, any_case=True)
        for text, found in zip(texts, exact, strict=True)
    )
    return Clues(tuple(texts), exact, named)


# ------ What lies ahead of one branch of FiSKE's exploration, and the steps that it can take there (§3.4).


Named = Mapping[int, frozenset[int]]  # entity -> places of the clues that it takes


@dataclass(frozen=True, slots=True)
class Look:
    """The surroundings of one branch: what of them is mapped without asking, and what has to be asked."""

    branch: Branch
    relations: tuple[int, ...]
    links: Mapping[int, list[int]]  # relation -> entities named by clues left
    named: Named  # of those entities
    pairs: dict[int, set[int]]  # relation -> clues that it takes: those that are its label, later those that were said
    asked: frozenset[int]  # clues left that are neither a name nor a label


@dataclass(frozen=True, slots=True)
class Move:
    """One step of a branch, before its tails have taken any clue."""

    branch: Branch
    relation: int
    clues: frozenset[int]  # that the relation takes; may be none where it leads to a named entity
    tails: Ints
    named: Named = field(default_factory=dict)  # tails that were mapped without asking

    def reached(self, named: Named) -> list[Branch]:
        """Return a branch for each way to map: a clue of the relation (or none) with the clues of an entity.

        Both may be the same clue (case 1 of the paper) or not (case 2).
        """
        by_clues: dict[frozenset[int], list[int]] = {}
        for entity, clues in named.items():
            by_clues.setdefault(clues, []).append(entity)
        return [
            self.branch.step(clues.union(own), self.relation, np.array(entities))
            for own in ([{clue} for clue in sorted(self.clues)] or [set()])
            for clues, entities in by_clues.items()
        ]

    def all_tails(self) -> list[Branch]:
        """Return the branches after the step with all its tails, where no entity was asked about."""
        if self.named:
            return self.reached(self.named)
        return [self.branch.step([clue], self.relation, self.tails) for clue in sorted(self.clues)]


def look_ahead(search: SearchGraph, clues: Clues, branch: Branch, left: frozenset[int], *, only_named: bool) -> Look:
    """Return what lies ahead of a branch that has these clues left; ``only_named``: where names are, nothing else."""
    avoided = search.avoided(branch.starts)
    targets = clues.named_by(left)
    targets = targets[~np.isin(targets, avoided)]
    links = links_to(search.graph, branch.frontier, targets) if len(targets) else {}
    near = np.array(sorted({entity for own in links.values() for entity in own}), dtype=np.int64)
    named = clues.naming(left, near)
    relations = list(links) if links and only_named else relations_around(search.graph, branch.frontier, avoided)
    left = left.difference(*named.values())
    pairs = _labelled(search, clues, left, relations)
    return Look(branch, tuple(relations), links, named, pairs, frozenset() if pairs else left)


def moves_of(search: SearchGraph, look: Look) -> list[Move]:
    """Return the steps along the relations that took a clue, and those to named entities.

    Of several relations to named entities those that took a clue rule out the others.
    """
    branch, pairs = look.branch, look.pairs
    to_named = {relation for relation in look.links if pairs.get(relation)} or set(look.links)
    moves = []
    for relation in look.relations:
        clues = frozenset(pairs.get(relation, ()))
        if relation in to_named:
            named = {entity: look.named[entity] for entity in look.links[relation]}
            moves.append(Move(branch, relation, clues, np.array(look.links[relation]), named))
        elif clues:
            tails = leave(search.graph, branch.frontier, relation, search.avoided(branch.starts))
            moves.append(Move(branch, relation, clues, tails))
    return moves


def last_move(branch: Branch) -> Move:
    """Return the last step of a branch, whose tails have still to be asked about."""
    return Move(branch.before(), branch.path[-1], frozenset(), branch.frontier)


def _labelled(search: SearchGraph, clues: Clues, left: frozenset[int], relations: Sequence[int]) -> dict[int, set[int]]:
    """Return the relations, of either direction, that the last clue left is the label of: they are not asked about.

    Where several clues are left the model decides, as a label that fits may belong to a later step.
    """
    if len(left) != 1:
        return {}
    labels = [search.graph.relation_labels[one % search.graph.num_relations] for one in relations]
    distinct = list(dict.fromkeys(labels))
    (clue,) = left
    place = Options(distinct).find(clues.texts[clue])
    same = () if place is None else (one for one, own in zip(relations, labels, strict=True) if own == distinct[place])
    return {relation: {clue} for relation in same}
