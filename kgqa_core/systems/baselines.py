"""direct and cot: the question alone, in one call. What they get right the model knows without any graph.

direct is the IO baseline; cot (chain of thought) thinks the question through before it answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from kgqa_core.config_base import Section
from kgqa_core.config_systems import SystemType
from kgqa_core.graph.follow import leave
from kgqa_core.graph.search_graph import SearchGraph, relations_around
from kgqa_core.instructions.answers import Explained
from kgqa_core.instructions.choose import EnoughCase, EnoughInstruction
from kgqa_core.instructions.reason import ChainOfThoughtInstruction, DirectCase, DirectInstruction
from kgqa_core.instructions.render import Prompts
from kgqa_core.instructions.scores import (
    EntitiesCase,
    EntityCandidate,
    RelationsCase,
    ScoreEntitiesInstruction,
    ScoreRelationsInstruction,
    Scores,
)
from kgqa_core.lm.types import Decoding
from kgqa_core.systems.answering import answer_alone, answer_by_name, answer_on_paths, ask_reason, show_paths
from kgqa_core.systems.types import Ask, CallsLeft, Parts, Reply, Rounds, Steps, room_for
from kgqa_core.types import Question, ReasoningPath


@dataclass(frozen=True, slots=True)
class Direct:
    """The question, and nothing else. Implements ``System``."""

    search: SearchGraph
    prompts: Prompts
    thinks: bool = False  # aloud, before it answers
    needs_topic: bool = False
    on_rows: bool = False

    @property
    def name(self) -> str:
        """Return its name in tables."""
        return "cot" if self.thinks else "direct"

    def prepare(self, questions: Sequence[Question]) -> Sequence[None]:
        """Return nothing for each question: there is nothing to prepare."""
        return [None] * len(questions)

    def steps(self, question: Question, prepared: None) -> Steps:
        """Ask once."""
        if self.thinks:
            (reply,) = yield [Ask(ChainOfThoughtInstruction(self.prompts), DirectCase(question.text))]
        else:
            (reply,) = yield [Ask(DirectInstruction(self.prompts), DirectCase(question.text))]
        said = reply.result.answers if isinstance(reply.result, Explained) else reply.result
        return answer_by_name(self.search, question, said, ())


def open_direct(parts: Parts) -> Direct:
    """Open direct."""
    return Direct(parts.search, parts.prompts)


def open_cot(parts: Parts) -> Direct:
    """Open cot."""
    return Direct(parts.search, parts.prompts, thinks=True)


DIRECT = SystemType(open_direct)
COT = SystemType(open_cot)


# ------ Think-on-Graph: a beam search over relations and entities, pruned by the language model (Sun et al., 2024).


VERDICT = Decoding(max_new_tokens=16)


class TogSection(Section):
    """Settings of Think-on-Graph."""

    width: Annotated[int, Field(ge=1)] = 3
    depth: Annotated[int, Field(ge=1)] = 3
    entity_prune: Literal["lm", "none"] = "lm"  # none: entities in order of id, without a call
    max_entities: Annotated[int, Field(ge=1)] = 20  # candidates per relation that the model sees
    unsure: Literal["alone", "reason"] = "alone"  # at the last step: as published, without the paths; or on them


@dataclass(frozen=True, slots=True)
class _Item:
    """One place of the beam."""

    entity: int  # where it stands
    path: ReasoningPath = ()  # how it came there
    relation: int = -1  # chosen to go on along
    score: float = 1.0  # of that relation, or of it times the entity's


@dataclass(slots=True)
class _State:
    """The beam of one question."""

    question: Question
    calls: CallsLeft
    topics: tuple[str, ...]  # names
    paths: dict[ReasoningPath, None] = field(default_factory=dict)  # that were in the beam, the last step's first
    num_steps: int = 0
    is_unsure: bool = False  # at the last step the paths did not suffice


@dataclass(frozen=True, slots=True)
class Tog:
    """Prunes a beam step by step. Implements ``System``."""

    search: SearchGraph
    prompts: Prompts
    settings: TogSection
    max_calls: int | None = None  # per question; exploration leaves one for the answer
    name: str = "tog"
    needs_topic: bool = True
    on_rows: bool = True

    def prepare(self, questions: Sequence[Question]) -> Sequence[None]:
        """Return nothing for each question: there is nothing to prepare."""
        return [None] * len(questions)

    def steps(self, question: Question, prepared: None) -> Steps:
        """Search until the paths suffice, or nothing goes on, and reason on them; else think aloud, without paths."""
        names = tuple(map(self.search.name_of, question.topics))
        state = _State(question, CallsLeft(self.max_calls), names)
        yield from self._search(state)
        paths = [] if state.is_unsure and self.settings.unsure == "alone" else list(state.paths)
        if paths:
            (reply,) = yield [ask_reason(self.search, self.prompts, question.text, paths)]
            answer = answer_on_paths(self.search, question, reply.result, paths)
        else:
            (reply,) = yield [Ask(ChainOfThoughtInstruction(self.prompts), DirectCase(question.text))]
            said = reply.result.answers if isinstance(reply.result, Explained) else reply.result
            answer = answer_alone(self.search, question, said)
        counts = {"num_steps": state.num_steps, "num_paths": len(paths), "num_refused_calls": state.calls.refused}
        return replace(answer, counts={**answer.counts, **counts})

    def _search(self, state: _State) -> Rounds:
        """Walk the beam step by step; what was in it is in ``state.paths``."""
        beam = [_Item(topic) for topic in state.question.topics]
        for depth in range(1, self.settings.depth + 1):
            chosen = yield from self._choose_relations(state, beam)
            beam = yield from self._choose_entities(state, chosen)
            if not beam:
                return
            state.num_steps = depth
            state.paths = _with_earlier([item.path for item in beam], state.paths)
            if depth == self.settings.depth and self.settings.unsure == "reason":
                return
            replies = yield state.calls.fit([self._ask_enough(state)])
            if replies and replies[0].result is True:
                return
        state.is_unsure = bool(replies)  # not where the cap left no call to ask

    def _choose_relations(self, state: _State, beam: Sequence[_Item]) -> Rounds:
        """Return the best (entity, relation) pairs of the whole beam."""
        instruction = ScoreRelationsInstruction(self.prompts)
        asks: list[Ask[Any]] = []
        asked_for: list[tuple[_Item, list[int]]] = []
        avoided = self.search.avoided(state.question.topics)
        for item in beam:
            around = relations_around(self.search.graph, np.array([item.entity]), avoided)
            if around:
                labels = tuple(map(self.search.step_label, around))
                case = RelationsCase(
                    state.question.text,
                    labels,
                    topics=state.topics,
                    path=self._labels(item.path),
                    budget=self.settings.width,
                )
                asks.append(Ask(instruction, case))
                asked_for.append((item, around))
        replies = yield state.calls.fit(asks)
        scored = [
            replace(item, relation=around[option], score=score)
            for (item, around), reply in zip(asked_for, replies, strict=False)
            for option, score in _scores(reply)
        ]
        return _best(scored, self.settings.width)

    def _choose_entities(self, state: _State, chosen: Sequence[_Item]) -> Rounds:
        """Return the best entities that the chosen relations lead to, each on its best path."""
        tails = [self._tails(state, item) for item in chosen]
        asks = [
            self._ask_entities(state, item, reached) for item, reached in zip(chosen, tails, strict=True) if reached[1:]
        ]
        replies = iter((yield state.calls.fit(asks if self.settings.entity_prune == "lm" else [])))
        scored: list[_Item] = []
        for item, reached in zip(chosen, tails, strict=True):
            scores: Sequence[tuple[int, float]] = [(place, 1.0) for place in range(len(reached))]
            if len(reached) > 1 and self.settings.entity_prune == "lm":
                reply = next(replies, None)
                scores = () if reply is None else _scores(reply)
            for place, score in scores:
                step = self.search.step(item.entity, item.relation, reached[place])
                scored.append(_Item(reached[place], (*item.path, step), score=item.score * score))
        ranked = _best(scored, len(scored))
        distinct: dict[int, _Item] = {}
        for item in ranked:
            distinct.setdefault(item.entity, item)
        return list(distinct.values())[: self.settings.width]

    def _tails(self, state: _State, item: _Item) -> list[int]:
        avoided = self.search.avoided(state.question.topics)
        found = leave(self.search.graph, np.array([item.entity]), item.relation, avoided)
        return [int(entity) for entity in found[: self.settings.max_entities]]

    def _ask_entities(self, state: _State, item: _Item, reached: Sequence[int]) -> Ask[Scores]:
        candidates = tuple(EntityCandidate(self.search.name_of(entity)) for entity in reached)
        plan = (*self._labels(item.path), self.search.step_label(item.relation))
        case = EntitiesCase(state.question.text, candidates, topics=state.topics, plan=plan)
        return Ask(ScoreEntitiesInstruction(self.prompts), case, room_for(len(candidates)))

    def _ask_enough(self, state: _State) -> Ask[bool]:
        """Return the call that asks whether the paths so far answer the question."""
        case = EnoughCase(state.question.text, topics=state.topics, paths=show_paths(self.search, list(state.paths)))
        return Ask(EnoughInstruction(self.prompts), case, VERDICT)

    def _labels(self, path: ReasoningPath) -> tuple[str, ...]:
        num = self.search.graph.num_relations
        return tuple(self.search.step_label(step.relation + num * step.reverse) for step in path)


def _scores(reply: Reply[Any]) -> tuple[tuple[int, float], ...]:
    """Return the options of a reply that are worth anything; none where it could not be read."""
    return tuple(pair for pair in reply.result.scores if pair[1] > 0) if isinstance(reply.result, Scores) else ()


def _best(items: Sequence[_Item], width: int) -> list[_Item]:
    """Return the items of the highest scores, of equals the first."""
    return sorted(items, key=lambda item: -item.score)[:width]


def _with_earlier(paths: Sequence[ReasoningPath], earlier: dict[ReasoningPath, None]) -> dict[ReasoningPath, None]:
    """Return the paths, and behind them the earlier ones that none of them goes on from."""
    found = dict.fromkeys(paths)
    return found | {old: None for old in earlier if all(path[: len(old)] != old for path in paths)}


def open_tog(parts: Parts) -> Tog:
    """Open Think-on-Graph."""
    return Tog(parts.search, parts.prompts, parts.settings, max_calls=parts.max_calls)


TOG = SystemType(open_tog, settings=TogSection)
