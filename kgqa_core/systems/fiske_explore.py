"""FiSKE's exploration of one question: relation and entity mapping in turns (§3.4), until a branch is complete.

Two modes. As published, every branch is asked about by itself, and its entities after every relation mapping. Ours
asks together about branches of equal state - the same clues mapped, the same relation path: the union of their
relations, the union of the tails of a mapped relation; and about entities only where no relation takes a clue that is
left. Until then all tails are followed: merged, they cost no call.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kgqa_core.config_systems import FiskeSection
from kgqa_core.graph.csr import Ints
from kgqa_core.instructions.map_entities import MapEntitiesCase, MapEntitiesInstruction
from kgqa_core.instructions.map_relations import MapRelationsCase, MapRelationsInstruction
from kgqa_core.instructions.mappings import Mappings
from kgqa_core.instructions.options import Options
from kgqa_core.instructions.prompts import Prompts
from kgqa_core.instructions.render import ARROW
from kgqa_core.systems.calls import CallsLeft, room_for
from kgqa_core.systems.fiske_branches import Branch, merge_branches, split_branches
from kgqa_core.systems.fiske_clues import Clues
from kgqa_core.systems.frontier import links_to, relations_around, tails_along
from kgqa_core.systems.types import Ask, Reply
from kgqa_core.systems.walk import Walk

Rounds = Generator[Sequence[Ask[Any]], Sequence[Reply[Any]], Any]
Named = Mapping[int, frozenset[int]]  # entity -> places of the clues that name it


@dataclass(frozen=True, slots=True)
class _Look:
    """What lies ahead of one branch before anything is asked."""

    branch: Branch
    relations: tuple[int, ...]
    links: Mapping[int, list[int]]  # relation -> entities named by clues left; where there are any, nothing else counts
    named: Named  # of those entities
    pairs: dict[int, set[int]]  # relation -> clues that are its label
    asked: frozenset[int]  # clues that are neither a name nor a label


@dataclass(frozen=True, slots=True)
class _Move:
    """One mapped relation of a branch."""

    branch: Branch
    relation: int
    clues: frozenset[int]  # that it is mapped to; may be none where it leads to a named entity
    tails: Ints
    named: Named = field(default_factory=dict)  # tails that were mapped without asking


@dataclass(slots=True)
class Exploration:
    """The branches of one question; ``rounds`` explores."""

    walk: Walk
    prompts: Prompts
    settings: FiskeSection
    calls: CallsLeft
    question: str  # as prompts show it
    clues: Clues
    starts: Sequence[Branch]
    has_claim: bool = False  # a true/false question
    complete: list[Branch] = field(default_factory=list)  # with all clues mapped
    ended: list[Branch] = field(default_factory=list)  # that could not go on
    num_rounds: int = 0

    def rounds(self) -> Rounds:
        """Explore round by round; the round of the first complete branch is finished, and is the last."""
        most = self.settings.max_rounds or len(self.clues.texts)
        going = self._settle(self.starts)
        while going and self.num_rounds < most and not (self.complete and self.settings.end_flag):
            self.num_rounds += 1
            moves, stuck = yield from self._map_relations(going)
            if self.settings.entity_mapping == "always":
                going = self._settle((yield from self._map_entities(moves)))
                self.ended += stuck
            else:
                reached = [branch for move in moves for branch in self._walk_on(move)]
                late = yield from self._map_entities([_came_by(branch) for branch in stuck if branch.path])
                self.ended += self._settle(late)  # no relation takes the clues that they have left
                going = self._settle(reached)
        self.ended += going

    def refuting(self) -> list[Branch]:
        """Return the branches that speak against a claim: all they have not found are names that are in the graph."""
        against = [
            branch
            for branch in self.ended
            if self.has_claim and branch.path and all(len(self.clues.named[one]) for one in self._missing(branch))
        ]
        most = max((len(branch.mapped) for branch in against), default=0)
        return [branch for branch in against if len(branch.mapped) == most]

    def _settle(self, branches: Sequence[Branch]) -> list[Branch]:
        """Keep the complete branches; return the others, merged or one by one."""
        stops = self.settings.end_flag or self.settings.state  # else a branch with all clues mapped goes on, too
        merged = merge_branches(branches)
        done = [branch for branch in merged if stops and branch.path and branch.mapped == self.clues.all]
        self.complete += done
        going = [branch for branch in merged if branch.mapped != self.clues.all or not stops]
        return going if self.settings.merge_branches else split_branches(going, self.settings.max_entities)

    def _left(self, branch: Branch) -> frozenset[int]:
        """Return the clues that a branch is asked about."""
        return self._missing(branch) if self.settings.state else self.clues.all

    def _missing(self, branch: Branch) -> frozenset[int]:
        """Return the clues that a branch has no mapping for."""
        return self.clues.all - branch.mapped

    def _avoided(self, branch: Branch) -> Ints:
        return branch.starts[:0] if self.walk.reenter_topic else branch.starts

    def _map_relations(self, branches: Sequence[Branch]) -> Rounds:
        """Ask which clues left each branch's relations stand for.

        Returns the mapped relations as moves, and the branches that have none.
        """
        instruction = MapRelationsInstruction(self.prompts)
        asks: list[Ask[Any]] = []
        asked_for: list[tuple[_Look, tuple[int, ...]]] = []
        looks = [self._look(branch) for branch in branches]
        for look in looks:
            size = self.settings.relation_batch
            for first in range(0, len(look.relations) if look.asked else 0, size):
                batch = look.relations[first : first + size]
                labels = tuple(map(self.walk.step_label, batch))
                where = self._where(look.branch)
                case = MapRelationsCase(self.question, self.clues.show(look.asked), labels, entity=where)
                asks.append(Ask(instruction, case, room_for(len(batch))))
                asked_for.append((look, batch))
        replies = yield self.calls.fit(asks)
        for (look, batch), reply in zip(asked_for, replies, strict=False):
            places = sorted(look.asked)
            for pair in reply.result.pairs if isinstance(reply.result, Mappings) else ():
                if pair.score >= self.settings.min_relation_score:
                    look.pairs.setdefault(batch[pair.option], set()).add(places[pair.clue])
        moves = [move for look in looks for move in self._moves(look)]
        moving = {id(move.branch) for move in moves}
        return moves, [branch for branch in branches if id(branch) not in moving]

    def _look(self, branch: Branch) -> _Look:
        """Return what of a branch's surroundings is mapped without asking, and what has to be asked."""
        graph, left = self.walk.graph, self._left(branch)
        avoided = self._avoided(branch)
        targets = self.clues.named_by(left)
        targets = targets[~np.isin(targets, avoided)]
        links = links_to(graph, branch.frontier, targets) if len(targets) else {}
        near = np.array(sorted({entity for own in links.values() for entity in own}), dtype=np.int64)
        named = self.clues.naming(left, near)
        relations = list(links) or relations_around(graph, branch.frontier, avoided)
        left = left.difference(*named.values())
        pairs = self._labelled(left, relations) if len(left) == 1 else {}
        return _Look(branch, tuple(relations), links, named, pairs, frozenset() if pairs else left)

    def _labelled(self, left: frozenset[int], relations: Sequence[int]) -> dict[int, set[int]]:
        """Return the relations, of either direction, that the last clue left is the label of: they are not asked about.

        Where several clues are left the model decides, as a label that fits may belong to a later step.
        """
        graph = self.walk.graph
        labels = [graph.relation_labels[one % graph.num_relations] for one in relations]
        distinct = list(dict.fromkeys(labels))
        (clue,) = left
        place = Options(distinct).find(self.clues.texts[clue])
        same = (
            [] if place is None else [one for one, own in zip(relations, labels, strict=True) if own == distinct[place]]
        )
        return {relation: {clue} for relation in same}

    def _moves(self, look: _Look) -> list[_Move]:
        """Return the relations that a branch goes on along."""
        branch = look.branch
        mapped = [relation for relation in look.relations if look.pairs.get(relation)]
        if look.links:
            return [
                _Move(
                    branch,
                    relation,
                    frozenset(look.pairs.get(relation, ())),
                    np.array(look.links[relation]),
                    {entity: look.named[entity] for entity in look.links[relation]},
                )
                for relation in mapped or look.relations
            ]
        tails = [tails_along(self.walk.graph, branch.frontier, one, self._avoided(branch)) for one in mapped]
        return [
            _Move(branch, relation, frozenset(look.pairs[relation]), reached)
            for relation, reached in zip(mapped, tails, strict=True)
        ]

    def _map_entities(self, moves: Sequence[_Move]) -> Rounds:
        """Ask which clues left the tails of each move stand for; return the branches that go on."""
        instruction = MapEntitiesInstruction(self.prompts)
        asks: list[Ask[Any]] = []
        asked_for: list[tuple[_Move, Sequence[list[int]]]] = []
        for move in moves:
            if not move.named:
                shown = self._by_name(move.tails)
                clues = self.clues.show(self._left(move.branch))
                where, label = self._where(move.branch), self.walk.step_label(move.relation)
                case = MapEntitiesCase(self.question, clues, tuple(shown), entity=where, relation=label)
                asks.append(Ask(instruction, case, room_for(len(shown))))
                asked_for.append((move, list(shown.values())))
        replies = yield self.calls.fit(asks)
        found = {id(move): move.named for move in moves if move.named}
        for (move, shown_ids), reply in zip(asked_for, replies, strict=False):
            if isinstance(reply.result, Mappings):
                found[id(move)] = self._read(move, shown_ids, reply.result)
        going: list[Branch] = []
        for move in moves:
            named = found.get(id(move))
            reached = [] if named is None else _reached(move, named) or self._without_mapping(move)
            going += reached
            if not reached:
                self.ended.append(move.branch)
        return going

    def _walk_on(self, move: _Move) -> list[Branch]:
        """Return the branches after a step that no entity was asked about."""
        if move.named:
            return _reached(move, move.named)
        return [move.branch.step([clue], move.relation, move.tails) for clue in sorted(move.clues)]

    def _by_name(self, tails: Ints) -> dict[str, list[int]]:
        """Return the first tails by their names: those of one name are one line of a prompt."""
        shown: dict[str, list[int]] = {}
        for entity in tails[: self.settings.max_entities].tolist():
            shown.setdefault(self.walk.names.name_of(entity), []).append(entity)
        return shown

    def _read(self, move: _Move, shown: Sequence[list[int]], said: Mappings) -> Named:
        """Return which clues each entity takes: all that it is mapped to."""
        places = sorted(self._left(move.branch))
        taken: dict[int, set[int]] = {}
        for pair in said.pairs:
            for entity in shown[pair.option] if pair.score > 0 else ():
                taken.setdefault(entity, set()).add(places[pair.clue])
        return {entity: frozenset(own) for entity, own in sorted(taken.items())}

    def _without_mapping(self, move: _Move) -> list[Branch]:
        """Return the branches that keep all tails: where the relation has taken the last clue.

        Of a claim it tells something, too, where all clues but names are mapped and no tail has such a name; that
        branch goes no further.
        """
        steps = self._walk_on(move)
        self.ended += [step for step in steps if self.has_claim and self._missing(step)]
        return [step for step in steps if not self._missing(step)]

    def _where(self, branch: Branch) -> str:
        """Return the name of the entity where a branch stands; of several the path that leads to all of them."""
        if len(branch.frontier) == 1:
            return self.walk.names.name_of(int(branch.frontier[0]))
        start = self.walk.names.name_of(int(branch.starts[0]))
        return ARROW.join([start, *map(self.walk.step_label, branch.path)])


def _came_by(branch: Branch) -> _Move:
    """Return the last step of a branch as one whose tails have still to be asked about."""
    before = Branch(branch.mapped, branch.path[:-1], branch.layers[:-1])
    return _Move(before, branch.path[-1], frozenset(), branch.frontier)


def _reached(move: _Move, named: Named) -> list[Branch]:
    """Return a branch for each way to map: a clue of the relation (or none), and the clues of an entity (§3.4, 1-2)."""
    by_clues: dict[frozenset[int], list[int]] = {}
    for entity, clues in named.items():
        by_clues.setdefault(clues, []).append(entity)
    return [
        move.branch.step(clues.union(own), move.relation, np.array(entities))
        for own in ([{clue} for clue in sorted(move.clues)] or [set()])
        for clues, entities in by_clues.items()
    ]
