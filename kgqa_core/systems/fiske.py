"""FiSKE: clues, starting entities by their names, relation and entity mapping in turns (Tao et al., 2024; §3, Table 6).

No topic entity is given to it. Once a branch has mapped all clues, its paths answer the question; else the model does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from kgqa_core.config_base import Section
from kgqa_core.config_systems import SystemType
from kgqa_core.graph.csr import Ints
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.reason import DirectCase, DirectInstruction, ExtractCluesInstruction
from kgqa_core.instructions.render import ARROW, Prompts
from kgqa_core.instructions.scores import (
    MapEntitiesCase,
    MapEntitiesInstruction,
    Mappings,
    MapRelationsCase,
    MapRelationsInstruction,
)
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.systems.answering import answer_alone, answer_on_paths, ask_reason
from kgqa_core.systems.fiske_branches import (
    Branch,
    Clues,
    Found,
    Look,
    Move,
    Named,
    last_move,
    list_paths,
    look_ahead,
    look_up,
    meet,
    merge_branches,
    moves_of,
    split_branches,
)
from kgqa_core.systems.types import Ask, CallsLeft, Parts, Rounds, Steps, room_for
from kgqa_core.types import Question

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
