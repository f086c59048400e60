"""Branches of FiSKE's exploration: which clues each has mapped, where it stands, and what lies ahead of it (§3.4)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from kgqa_core.config_base import Section
from kgqa_core.config_systems import SystemType
from kgqa_core.graph.csr import Ints, shared_sorted, sorted_distinct
from kgqa_core.graph.follow import enter_from, leave, paths_through
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.search_graph import SearchGraph, links_to, relations_around
from kgqa_core.instructions.reason import DirectCase, DirectInstruction, ExtractCluesInstruction
from kgqa_core.instructions.render import ARROW, Prompts
from kgqa_core.instructions.scores import (
    MapEntitiesCase,
    MapEntitiesInstruction,
    Mappings,
    MapRelationsCase,
    MapRelationsInstruction,
    Options,
)
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.systems.answering import answer_alone, answer_on_paths, ask_reason
from kgqa_core.systems.types import Ask, CallsLeft, Parts, Rounds, Steps, room_for
from kgqa_core.types import Question, ReasoningPath, RelationPath


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


# ------ The system.


MAX_CLUES = 16  # of a question; a text with more is no list of clues
WH_WORDS = {"who": "which person", "where": "which place", "when": "what time"}
"""How the released code begins questions, so that what is asked for is a clue, too."""


class FiskeSection(Section):
    """Settings of FiSKE."""

    state: bool = True  # False, w/o stateful exploration: all clues in every round
    end_flag: bool = True  # False, w/o ending flag: evidence is always given, and there is no fallback
    merge_branches: bool = True  # ours: branches of equal state are asked about together; False: as published
    starts: Literal["all", "proper"] = "proper"  # ours: where a clue with a capital or a digit is a name, only such
    entity_mapping: Literal["always", "late"] = "late"  # ours: only where no relation takes a clue that is left
    branches_meet: bool = True  # ours: branches of two starts complete each other; a name nearby is not the only way
    relation_batch: Annotated[int, Field(ge=1)] = 20  # relations per call
    min_relation_score: Annotated[float, Field(ge=0, le=10)] = 5.0
    max_entities: Annotated[int, Field(ge=1)] = 80  # per call
    max_starts: Annotated[int, Field(ge=1)] = 10  # starting entities
    max_rounds: Annotated[int, Field(ge=1)] | None = None  # None: as many as there are clues
    rewrite_question: bool = True  # who, where, when as which person, which place, what time (the released code)
    answer_triples: Annotated[int, Field(ge=1)] = 30  # in the answer prompt


@dataclass(frozen=True, slots=True)
class Fiske:
    """Explores until a branch has mapped all clues. Implements ``System``."""

    search: SearchGraph
    prompts: Prompts
    settings: FiskeSection
    max_calls: int | None = None  # per question; exploration leaves one for the answer
    name: str = "fiske"
    needs_topic: bool = False
    on_rows: bool = True

    def prepare(self, questions: Sequence[Question]) -> Sequence[None]:
        """Return nothing for each question: there is nothing to prepare."""
        return [None] * len(questions)

    def steps(self, question: Question, prepared: None) -> Steps:
        """Extract clues, explore, answer."""
        text = rewrite_question(question.text) if self.settings.rewrite_question else question.text
        calls = CallsLeft(self.max_calls)
        replies = yield calls.fit([Ask(ExtractCluesInstruction(self.prompts), DirectCase(text), room_for(MAX_CLUES))])
        said = [reply.result for reply in replies if not isinstance(reply.result, ParseFailure)]
        clues = look_up(self.search, question.id, said[0][:MAX_CLUES] if said else ())
        starts = clues.starts(self.settings.max_starts, only_proper=self.settings.starts == "proper")
        exploration = Exploration(
            self.search, self.prompts, self.settings, calls, text, clues, starts, question.claim is not None
        )
        yield from exploration.rounds()
        branches = self._evidence(exploration)
        paths = list_paths(self.search.graph, branches, max_triples=self.settings.answer_triples)
        if paths or not self.settings.end_flag:
            (reply,) = yield [ask_reason(self.search, self.prompts, text, paths)]
            answer = answer_on_paths(self.search, question, reply.result, paths)
        else:
            (reply,) = yield [Ask(DirectInstruction(self.prompts), DirectCase(text))]
            answer = answer_alone(self.search, question, reply.result)
        counts = {
            "num_clues": len(clues.texts),
            "num_starts": len(starts),
            "num_rounds": exploration.num_rounds,
            "num_paths": len(paths),
            "num_complete": len(exploration.complete),
            "num_refused_calls": calls.refused,
        }
        return replace(answer, counts={**answer.counts, **counts})

    def _evidence(self, exploration: Exploration) -> Sequence[Branch]:
        """Return the branches that the answer rests on: the shortest complete evidence; without the end flag all."""
        complete = exploration.complete
        if not self.settings.end_flag:
            return [*(branch for found in complete for branch in found.branches), *exploration.ended]
        shortest = min((found.length for found in complete), default=0)
        return [
            branch for found in complete if found.length == shortest for branch in found.branches
        ] or exploration.refuting()


def rewrite_question(text: str) -> str:
    """Return a question whose first word says what is asked for."""
    first, blank, rest = text.strip().partition(" ")
    return f"{WH_WORDS[first.casefold()]}{blank}{rest}" if first.casefold() in WH_WORDS else text


# ------ The exploration of one question: relation and entity mapping in turns (§3.4).


@dataclass(slots=True)
class Exploration:
    """The branches of one question; ``rounds`` explores."""

    search: SearchGraph
    prompts: Prompts
    settings: FiskeSection
    calls: CallsLeft
    question: str  # as prompts show it
    clues: Clues
    starts: Sequence[Branch]
    has_claim: bool = False  # a true/false question
    complete: list[Found] = field(default_factory=list)  # with all clues mapped
    walked: list[Branch] = field(default_factory=list)  # all that took a step, as far as branches may meet
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
                found = yield from self._map_entities(moves)
                moving = {id(move.branch) for move, reached in zip(moves, found, strict=True) if reached}
                self.ended += [*stuck, *_distinct(move.branch for move in moves if id(move.branch) not in moving)]
                going = self._settle([branch for reached in found for branch in reached])
            else:
                late_ones = [branch for branch in stuck if branch.path]
                found = yield from self._map_entities([last_move(branch) for branch in late_ones])
                late = [branch for reached in found for branch in reached]
                self.ended += [branch for branch, reached in zip(late_ones, found, strict=True) if not reached]
                self.ended += self._settle(late)  # no relation takes the clues that they have left
                going = self._settle([branch for move in moves for branch in move.all_tails()])
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
        """Keep what is complete; return the other branches, merged or one by one."""
        stops = self.settings.end_flag or self.settings.state  # else a branch with all clues mapped goes on, too
        merges = self.settings.merge_branches
        own = merge_branches(branches) if merges else branches
        self.complete += [Found((one,)) for one in own if stops and one.path and not self._missing(one)]
        if self.settings.branches_meet:
            self._meet([branch for branch in own if branch.path])
        going = [branch for branch in own if self._missing(branch) or not stops]
        return going if merges else split_branches(going, self.settings.max_entities)

    def _meet(self, branches: Sequence[Branch]) -> None:
        """Keep those that meet a branch of another start, so that the two have mapped all clues between them."""
        for branch in branches:
            for other in self.walked if self._missing(branch) else ():
                if other.start != branch.start and not self._missing(branch) - other.mapped and self._missing(other):
                    found = meet(other, branch)
                    self.complete += [] if found is None else [found]
            self.walked.append(branch)

    def _left(self, branch: Branch) -> frozenset[int]:
        """Return the clues that a branch is asked about."""
        return self._missing(branch) if self.settings.state else self.clues.all

    def _missing(self, branch: Branch) -> frozenset[int]:
        """Return the clues that a branch has no mapping for."""
        return self.clues.all - branch.mapped

    def _map_relations(self, branches: Sequence[Branch]) -> Rounds:
        """Ask which clues left each branch's relations stand for.

        Returns the mapped relations as moves, and the branches that have none.
        """
        instruction = MapRelationsInstruction(self.prompts)
        asks: list[Ask[Any]] = []
        asked_for: list[tuple[Look, tuple[int, ...]]] = []
        only_named = not self.settings.branches_meet
        looks = [
            look_ahead(self.search, self.clues, branch, self._left(branch), only_named=only_named)
            for branch in branches
        ]
        for look in looks:
            size = self.settings.relation_batch
            for first in range(0, len(look.relations) if look.asked else 0, size):
                batch = look.relations[first : first + size]
                labels = tuple(map(self.search.step_label, batch))
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
        moves = [move for look in looks for move in moves_of(self.search, look)]
        moving = {id(move.branch) for move in moves}
        return moves, [branch for branch in branches if id(branch) not in moving]

    def _map_entities(self, moves: Sequence[Move]) -> Rounds:
        """Ask which clues left the tails of each move stand for; return the branches after each move."""
        instruction = MapEntitiesInstruction(self.prompts)
        asks: list[Ask[Any]] = []
        asked_for: list[tuple[Move, Sequence[list[int]]]] = []
        for move in moves:
            if not move.named:
                shown = self._by_name(move.tails)
                clues = self.clues.show(self._left(move.branch))
                where, label = self._where(move.branch), self.search.step_label(move.relation)
                case = MapEntitiesCase(self.question, clues, tuple(shown), entity=where, relation=label)
                asks.append(Ask(instruction, case, room_for(len(shown))))
                asked_for.append((move, list(shown.values())))
        replies = yield self.calls.fit(asks)
        found = {id(move): move.named for move in moves if move.named}
        for (move, shown_ids), reply in zip(asked_for, replies, strict=False):
            if isinstance(reply.result, Mappings):
                found[id(move)] = self._read(move, shown_ids, reply.result)
        reached: list[list[Branch]] = []
        for move in moves:
            named = found.get(id(move))
            reached.append([] if named is None else move.reached(named) or self._without_mapping(move))
        return reached

    def _by_name(self, tails: Ints) -> dict[str, list[int]]:
        """Return the first tails by their names: those of one name are one line of a prompt."""
        shown: dict[str, list[int]] = {}
        for entity in tails[: self.settings.max_entities].tolist():
            shown.setdefault(self.search.name_of(entity), []).append(entity)
        return shown

    def _read(self, move: Move, shown: Sequence[list[int]], said: Mappings) -> Named:
        """Return which clues each entity takes: all that it is mapped to."""
        places = sorted(self._left(move.branch))
        taken: dict[int, set[int]] = {}
        for pair in said.pairs:
            for entity in shown[pair.option] if pair.score > 0 else ():
                taken.setdefault(entity, set()).add(places[pair.clue])
        return {entity: frozenset(own) for entity, own in sorted(taken.items())}

    def _without_mapping(self, move: Move) -> list[Branch]:
        """Return the branches that keep all tails: where the relation has taken the last clue.

        Of a claim it tells something, too, where all clues but names are mapped and no tail has such a name; that
        branch goes no further.
        """
        steps = move.all_tails()
        self.ended += [step for step in steps if self.has_claim and self._missing(step)]
        return [step for step in steps if not self._missing(step)]

    def _where(self, branch: Branch) -> str:
        """Return the name of the entity where a branch stands; of several the path that leads to all of them."""
        if len(branch.frontier) == 1:
            return self.search.name_of(int(branch.frontier[0]))
        start = self.search.name_of(int(branch.starts[0]))
        return ARROW.join([start, *map(self.search.step_label, branch.path)])


def _distinct(branches: Iterable[Branch]) -> list[Branch]:
    return list({id(branch): branch for branch in branches}.values())


def open_fiske(parts: Parts) -> Fiske:
    """Open FiSKE."""
    return Fiske(parts.search, parts.prompts, parts.settings, max_calls=parts.max_calls)


FISKE = SystemType(open_fiske, settings=FiskeSection)
