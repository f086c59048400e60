"""What lies ahead of one branch of FiSKE's exploration, and the steps that it can take there (§3.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kgqa_core.graph.csr import Ints
from kgqa_core.instructions.options import Options
from kgqa_core.systems.fiske_branches import Branch
from kgqa_core.systems.fiske_clues import Clues
from kgqa_core.systems.frontier import links_to, relations_around, tails_along
from kgqa_core.systems.walk import Walk

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


def look_ahead(walk: Walk, clues: Clues, branch: Branch, left: frozenset[int], *, only_named: bool) -> Look:
    """Return what lies ahead of a branch that has these clues left; ``only_named``: where names are, nothing else."""
    avoided = _avoided(walk, branch)
    targets = clues.named_by(left)
    targets = targets[~np.isin(targets, avoided)]
    links = links_to(walk.graph, branch.frontier, targets) if len(targets) else {}
    near = np.array(sorted({entity for own in links.values() for entity in own}), dtype=np.int64)
    named = clues.naming(left, near)
    relations = list(links) if links and only_named else relations_around(walk.graph, branch.frontier, avoided)
    left = left.difference(*named.values())
    pairs = _labelled(walk, clues, left, relations)
    return Look(branch, tuple(relations), links, named, pairs, frozenset() if pairs else left)


def moves_of(walk: Walk, look: Look) -> list[Move]:
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
            tails = tails_along(walk.graph, branch.frontier, relation, _avoided(walk, branch))
            moves.append(Move(branch, relation, clues, tails))
    return moves


def last_move(branch: Branch) -> Move:
    """Return the last step of a branch, whose tails have still to be asked about."""
    return Move(branch.before(), branch.path[-1], frozenset(), branch.frontier)


def _avoided(walk: Walk, branch: Branch) -> Ints:
    return branch.starts[:0] if walk.reenter_topic else branch.starts


def _labelled(walk: Walk, clues: Clues, left: frozenset[int], relations: Sequence[int]) -> dict[int, set[int]]:
    """Return the relations, of either direction, that the last clue left is the label of: they are not asked about.

    Where several clues are left the model decides, as a label that fits may belong to a later step.
    """
    if len(left) != 1:
        return {}
    labels = [walk.graph.relation_labels[one % walk.graph.num_relations] for one in relations]
    distinct = list(dict.fromkeys(labels))
    (clue,) = left
    place = Options(distinct).find(clues.texts[clue])
    same = () if place is None else (one for one, own in zip(relations, labels, strict=True) if own == distinct[place])
    return {relation: {clue} for relation in same}
