"""FiSKE: clues, starting entities by their names, relation and entity mapping in turns (Tao et al., 2024; §3, Table 6).

No topic entity is given to it. Once a branch has mapped all clues, its paths answer the question; else the model does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from kgqa_core.config_base import Section
from kgqa_core.config_systems import SystemType
from kgqa_core.graph.csr import Ints, shared_sorted, sorted_distinct
from kgqa_core.graph.follow import NOTHING, end_of, leave
from kgqa_core.graph.search_graph import SearchGraph, links_to, relations_around
from kgqa_core.instructions.reason import DirectInstruction, ExtractCluesInstruction, ReasonCase, ask_for_what
from kgqa_core.instructions.render import Prompts, say_where
from kgqa_core.instructions.scores import MapCase, MapEntitiesInstruction, Mappings, MapRelationsInstruction, Options
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.systems.answering import answer_by_name, answer_on_paths, ask_reason, list_paths
from kgqa_core.systems.types import Ask, CallsLeft, Rounds, Steps, System, room_for
from kgqa_core.types import Question, RelationPath

MAX_CLUES = 16  # of a question; a text with more is no list of clues
Named = Mapping[int, frozenset[int]]  # entity -> places of the clues that it takes


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
class Fiske(System):
    """Explores until a branch has mapped all clues."""

    search: SearchGraph
    prompts: Prompts
    settings: FiskeSection
    max_calls: int | None = None  # per question; exploration leaves one for the answer
    needs_topic: ClassVar[bool] = False

    def steps(self, question: Question, prepared: None) -> Steps:
        """Extract clues, explore, answer."""
        kept = self.settings
        text = ask_for_what(question.text) if kept.rewrite_question else question.text
        calls = CallsLeft(self.max_calls)
        replies = yield calls.fit([Ask(ExtractCluesInstruction(self.prompts), ReasonCase(text), room_for(MAX_CLUES))])
        said = [reply.result for reply in replies if not isinstance(reply.result, ParseFailure)]
        texts = said[0] if said else ()
        clues = look_up(self.search, question.id, texts[:MAX_CLUES], kept)
        exploration = Exploration(self.search, self.prompts, kept, calls, text, clues, question.claim is not None)
        yield from exploration.rounds()
        ways = [(branch.path, branch.layers) for branch in exploration.evidence()]
        paths = list_paths(self.search.graph, ways, max_triples=kept.answer_triples)
        if paths or not kept.end_flag:
            (reply,) = yield [ask_reason(self.search, self.prompts, text, paths)]
            answer = answer_on_paths(self.search, question, reply.result, paths)
        else:
            (reply,) = yield [Ask(DirectInstruction(self.prompts), ReasonCase(text))]
            answer = answer_by_name(self.search, question, reply.result, (), on_rows=True)
        counts = {"num_clues": len(clues.texts), "num_starts": len(clues.starts), "num_rounds": exploration.num_rounds}
        counts |= {"num_paths": len(paths), "num_complete": len(exploration.complete)}
        counts |= {"num_clues_cut": len(texts) - len(clues.texts), "num_starts_cut": clues.num_left_out}
        ends = set(chain.from_iterable(layers[-1].tolist() for path, layers in ways if path))
        counts |= {"num_unseen": exploration.num_unseen, "num_ends_cut": len(ends.difference(map(end_of, paths)))}
        counts["num_refused_calls"] = calls.refused
        return replace(answer, counts={**answer.counts, **counts})


FISKE = SystemType(
    lambda parts: Fiske(parts.search, parts.prompts, parts.settings, max_calls=parts.max_calls),
    settings=FiskeSection,
    roles=lambda settings: ("clues", "reason", "direct"),
)


# ------ Branches of the exploration (§3.4): which clues each has mapped, where it stands; and the clues themselves.


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """One state of clues on one relation path, with all entities that it stands for."""

    start: int  # place of the clue that names the starting entities
    mapped: frozenset[int]  # places of all clues that have a mapping, ``start`` among them
    path: RelationPath  # from the starting entities on
    layers: tuple[Ints, ...]  # entities, ascending, after 0..len(path) steps

    @property
    def frontier(self) -> Ints:
        """Return the entities where it stands."""
        return self.layers[-1]

    def step(self, mapped: Iterable[int], relation: int, reached: Ints) -> Branch:
        """Return the branch after one more step, with these clues mapped on the way."""
        return Branch(self.start, self.mapped.union(mapped), (*self.path, relation), (*self.layers, reached))


def merge_branches(branches: Iterable[Branch]) -> list[Branch]:
    """Return one branch for those of equal state: the same clues mapped, the same relation path from the same name."""
    groups: dict[object, list[Branch]] = defaultdict(list)
    for branch in branches:
        groups[branch.start, branch.mapped, branch.path].append(branch)
    merged = []
    for group in groups.values():
        layers = zip(*(branch.layers for branch in group), strict=True)
        united = tuple(sorted_distinct(np.concatenate(same)) for same in layers)
        merged.append(replace(group[0], layers=united) if group[1:] else group[0])
    return merged


def split_branches(branches: Iterable[Branch], most: int) -> list[Branch]:
    """Return a branch for each entity where one stands, for the first ``most`` of each; equal ones once."""
    found: dict[object, Branch] = {}
    for branch in branches:
        before = tuple(int(layer[0]) for layer in branch.layers[:-1])
        for entity in branch.frontier[:most].tolist():
            own = replace(branch, layers=(*branch.layers[:-1], np.array([entity])))
            found.setdefault((branch.start, branch.mapped, branch.path, before, entity), own)
    return list(found.values())


class Clues(NamedTuple):
    """Clues by their place."""

    texts: tuple[str, ...]
    named: list[Ints]  # entities of that name, per clue, ascending; whatever its case, where none is written so
    starts: list[Branch]  # one per clue that names entities, and per entity of it
    num_left_out: int  # starts that ``max_starts`` had no room for


def look_up(search: SearchGraph, question_id: str, texts: Sequence[str], settings: FiskeSection) -> Clues:
    """Return the clues of one question, with what they name in its graph, and at most ``max_starts`` starts.

    Starts are named as it is written; only where no clue is a name like that, case does not count. Rare names come
    first: one that many entities bear says little. With ``proper`` starts names without a capital or a digit give way
    to those with one: a graph may well have entities called "film" or "director".
    """
    find = partial(search.entities_named, question_id)
    exact = list(map(find, texts))
    named = [own if len(own) else find(text, any_case=True) for text, own in zip(texts, exact, strict=True)]
    names = exact if any(map(len, exact)) else named
    places = [place for place in range(len(names)) if len(names[place])]
    if settings.starts == "proper":  # scripts without case are neither lower case nor upper
        is_proper = [not text.islower() or any(map(str.isdigit, text)) for text in texts]
        places = [place for place in places if is_proper[place]] or places
    places.sort(key=lambda place: len(names[place]))
    pairs = [(place, entity) for place in places for entity in names[place].tolist()]
    kept = sorted(pairs[: settings.max_starts])
    starts = [Branch(place, frozenset([place]), (), (np.array([entity]),)) for place, entity in kept]
    return Clues(tuple(texts), named, starts, len(pairs) - len(kept))


# ------ The exploration of one question: relation and entity mapping in turns (§3.4).


@dataclass(slots=True)
class Move:
    """One step of a branch, before its tails have taken any clue."""

    branch: Branch
    relation: int
    clues: set[int]  # that the relation takes; may be none where it leads to a named entity
    tails: Ints  # where it leads to: of a relation to named entities those alone
    named: Named  # of these tails the clues that name them, without asking

    def reached(self, named: Named) -> list[Branch]:
        """Return a branch for each way to map: a clue of the relation (or none) with those of an entity (case 1, 2)."""
        by_clues: dict[frozenset[int], list[int]] = defaultdict(list)
        for entity, clues in named.items():
            by_clues[clues].append(entity)
        return [
            self.branch.step(clues.union(own), self.relation, np.array(entities))
            for own in ([{clue} for clue in sorted(self.clues)] or [set()])
            for clues, entities in by_clues.items()
        ]

    def all_tails(self) -> list[Branch]:
        """Return the branches after the step with all its tails, where no entity was asked about."""
        if by_name := self.reached(self.named):
            return by_name
        return [self.branch.step([clue], self.relation, self.tails) for clue in sorted(self.clues)]


@dataclass(slots=True)
class Exploration:
    """The branches of one question; ``rounds`` explores."""

    search: SearchGraph
    prompts: Prompts
    settings: FiskeSection
    calls: CallsLeft
    question: str  # as prompts show it
    clues: Clues
    has_claim: bool = False  # a true/false question
    complete: list[tuple[Branch, ...]] = field(default_factory=list)  # with all clues mapped: one, or two that meet
    walked: list[Branch] = field(default_factory=list)  # all that took a step, as far as branches may meet
    ended: list[Branch] = field(default_factory=list)  # that could not go on
    num_rounds: int = 0
    num_unseen: int = 0  # entities that ``max_entities`` left out

    def rounds(self) -> Rounds:
        """Explore round by round; the round of the first complete branch is finished, and is the last."""
        most = self.settings.max_rounds or len(self.clues.texts)
        going = self._settle(self.clues.starts)
        while going and self.num_rounds < most and not (self.complete and self.settings.end_flag):
            self.num_rounds += 1
            moves, stuck = yield from self._map_relations(going)
            if self.settings.entity_mapping == "always":
                found = yield from self._map_entities(moves)
                moving = {id(move.branch) for move, reached in zip(moves, found, strict=True) if reached}
                still = {id(one.branch): one.branch for one in moves if id(one.branch) not in moving}
                self.ended += [*stuck, *still.values()]
                going = self._settle([branch for reached in found for branch in reached])
            else:  # where no relation takes a branch further, its last step has still to be asked about
                late = [branch for branch in stuck if branch.path]
                before = [replace(one, path=one.path[:-1], layers=one.layers[:-1]) for one in late]
                last = [Move(old, one.path[-1], set(), one.frontier, {}) for old, one in zip(before, late, strict=True)]
                found = yield from self._map_entities(last)
                self.ended += [branch for branch, reached in zip(late, found, strict=True) if not reached]
                self.ended += self._settle([branch for reached in found for branch in reached])
                going = self._settle([branch for move in moves for branch in move.all_tails()])
        self.ended += going

    def evidence(self) -> list[Branch]:
        """Return the branches that the answer rests on: the shortest that are complete; without the end flag all.

        Else those speak against a claim that have mapped most, and lack only names that are in the graph.
        """
        if not self.settings.end_flag:
            return [*chain.from_iterable(self.complete), *self.ended]
        lengths = [max(len(branch.path) for branch in found) for found in self.complete]
        shortest = [one for one, size in zip(self.complete, lengths, strict=True) if size == min(lengths)]
        named, ended = self.clues.named, self.ended if self.has_claim and not shortest else []
        against = [one for one in ended if one.path and all(len(named[clue]) for clue in self._missing(one))]
        most = max((len(branch.mapped) for branch in against), default=0)
        return [*chain.from_iterable(shortest), *(one for one in against if len(one.mapped) == most)]

    def _missing(self, branch: Branch) -> frozenset[int]:
        return frozenset(range(len(self.clues.texts))) - branch.mapped

    def _left(self, branch: Branch) -> frozenset[int]:
        return self._missing(branch) if self.settings.state else frozenset(range(len(self.clues.texts)))

    def _settle(self, branches: Sequence[Branch]) -> list[Branch]:
        """Keep what is complete, alone or as two that meet; return the other branches, merged or one by one."""
        stops = self.settings.end_flag or self.settings.state  # else a branch with all clues mapped goes on, too
        merges = self.settings.merge_branches
        own = merge_branches(branches) if merges else branches
        self.complete += [(one,) for one in own if stops and one.path and not self._missing(one)]
        for branch in own:
            if self.settings.branches_meet and branch.path:
                self._meet(branch)
                self.walked.append(branch)
        going = [branch for branch in own if self._missing(branch) or not stops]
        self.num_unseen += sum(len(one.frontier[self.settings.max_entities :]) for one in going if not merges)
        return going if merges else split_branches(going, self.settings.max_entities)

    def _meet(self, branch: Branch) -> None:
        """Complete a branch by each that walked before it, has mapped what it misses, and stands where it stands."""
        missing = self._missing(branch)
        for other in self.walked if missing else ():
            if other.start != branch.start and missing <= other.mapped and self._missing(other):
                shared = shared_sorted(other.frontier, branch.frontier)
                if len(shared):
                    pair = (replace(one, layers=(*one.layers[:-1], shared)) for one in (other, branch))
                    self.complete.append(tuple(pair))

    def _map_relations(self, branches: Sequence[Branch]) -> Rounds:
        """Ask which clues left each branch's relations stand for; return the moves, and the branches without any."""
        ahead = [self._look_ahead(branch) for branch in branches]
        asks: list[tuple[tuple[list[Move], list[int]], Ask[Any]]] = []
        size = self.settings.relation_batch
        for branch, (moves, left) in zip(branches, ahead, strict=True):
            for batch in (moves[first : first + size] for first in range(0, len(moves) if left else 0, size)):
                labels = tuple(self.search.step_label(move.relation) for move in batch)
                clues = tuple(self.clues.texts[place] for place in sorted(left))
                case = MapCase(self.question, clues, labels, entity=self._where(branch))
                ask = Ask(MapRelationsInstruction(self.prompts), case, room_for(len(batch)))
                asks.append(((batch, sorted(left)), ask))
        for (batch, places), reply in (yield from self.calls.ask(asks)):
            for pair in reply.result.pairs if isinstance(reply.result, Mappings) else ():
                if pair.score >= self.settings.min_relation_score:
                    batch[pair.option].clues.add(places[pair.clue])
        mapped: list[Move] = []
        stuck: list[Branch] = []
        for branch, (moves, _) in zip(branches, ahead, strict=True):
            has_both = any(move.named and move.clues for move in moves)  # rules out other ways to named entities
            own = [move for move in moves if move.clues or (move.named and not has_both)]
            avoided = self.search.avoided(branch.layers[0])
            for move in (one for one in own if not one.named):
                move.tails = leave(self.search.graph, branch.frontier, move.relation, avoided)
            mapped += own
            stuck += [] if own else [branch]
        return mapped, stuck

    def _look_ahead(self, branch: Branch) -> tuple[list[Move], frozenset[int]]:
        """Return the steps ahead of a branch, and the clues left to ask about: neither names nearby nor a label."""
        graph, left = self.search.graph, self._left(branch)
        avoided = self.search.avoided(branch.layers[0])
        targets = sorted_distinct(np.concatenate([NOTHING, *(self.clues.named[place] for place in left)]))
        targets = targets[~np.isin(targets, avoided)]
        links = links_to(graph, branch.frontier, targets) if len(targets) else {}
        near = np.array(sorted(set(chain.from_iterable(links.values()))), dtype=np.int64)
        meant = {at: frozenset(shared_sorted(near, self.clues.named[at]).tolist()) for at in left}
        named = {one: frozenset(at for at in left if one in meant[at]) for one in near.tolist()}
        is_free = not links or self.settings.branches_meet  # else names nearby are all that lies ahead
        relations = relations_around(graph, branch.frontier, avoided) if is_free else list(links)
        left = left.difference(*named.values())
        moves = []
        for relation in relations:
            tails = np.array(links.get(relation, NOTHING))
            moves.append(Move(branch, relation, set(), tails, {entity: named[entity] for entity in tails.tolist()}))
        if len(left) == 1:  # of several clues the model decides, as a label that fits may belong to a later step
            (clue,), labels = left, [graph.relation_names[one % graph.num_relations] for one in relations]
            found = Options(distinct := list(dict.fromkeys(labels))).find(self.clues.texts[clue])
            for move, label in zip(moves, labels, strict=True):
                move.clues |= {clue} if found is not None and label == distinct[found] else set()
        return moves, frozenset() if any(move.clues for move in moves) else left

    def _map_entities(self, moves: Sequence[Move]) -> Rounds:
        """Ask which clues left the tails of each move stand for; return the branches after each move.

        Where no tail takes a clue, a branch keeps all tails if the relation has taken the last one, else it ends; of a
        claim that tells something, too.
        """
        asks: list[tuple[tuple[Move, list[list[int]]], Ask[Any]]] = []
        for move in moves:
            if not move.named:
                self.num_unseen += len(move.tails[self.settings.max_entities :])
                shown: dict[str, list[int]] = {}  # tails of one name are one line of a prompt
                for entity in move.tails[: self.settings.max_entities].tolist():
                    shown.setdefault(self.search.name_of(entity), []).append(entity)
                clues = tuple(self.clues.texts[place] for place in sorted(self._left(move.branch)))
                where, label = self._where(move.branch), self.search.step_label(move.relation)
                case = MapCase(self.question, clues, tuple(shown), entity=where, relation=label)
                ask = Ask(MapEntitiesInstruction(self.prompts), case, room_for(len(shown)))
                asks.append(((move, list(shown.values())), ask))
        found = {id(move): move.named for move in moves if move.named}
        for (move, entities), reply in (yield from self.calls.ask(asks)):
            if isinstance(reply.result, Mappings):  # an entity takes all clues that it is mapped to
                places, taken = sorted(self._left(move.branch)), dict[int, frozenset[int]]()
                for pair in reply.result.pairs:
                    for entity in entities[pair.option] if pair.score > 0 else ():
                        taken[entity] = taken.get(entity, frozenset()) | {places[pair.clue]}
                found[id(move)] = dict(sorted(taken.items()))
        reached: list[list[Branch]] = []
        for move in moves:
            steps = move.reached(found.get(id(move), {}))
            if id(move) in found and not steps:
                all_tails = move.all_tails()
                self.ended += [step for step in all_tails if self.has_claim and self._missing(step)]
                steps = [step for step in all_tails if not self._missing(step)]
            reached.append(steps)
        return reached

    def _where(self, branch: Branch) -> str:
        """Return the name of the entity where a branch stands; of several the path to them."""
        steps = map(self.search.step_label, branch.path)
        return say_where(self.search, branch.frontier, int(branch.layers[0][0]), steps)
