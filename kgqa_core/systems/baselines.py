"""The baselines of the papers: direct prompting (IO), chain of thought (CoT), KAPING and Think-on-Graph (ToG)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from kgqa_core.config_base import Section
from kgqa_core.config_systems import SystemType
from kgqa_core.graph.csr import sorted_distinct
from kgqa_core.graph.follow import leave
from kgqa_core.graph.search_graph import SearchGraph, relations_around
from kgqa_core.instructions.choose import EnoughCase, EnoughInstruction
from kgqa_core.instructions.reason import ChainOfThoughtInstruction, DirectInstruction, ReasonCase
from kgqa_core.instructions.render import Prompts, render_triples, show_path
from kgqa_core.instructions.scores import EntitiesCase, EntityCandidate, RelationsCase, ScoreEntitiesInstruction
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.lm.types import Decoding
from kgqa_core.systems.answering import Relations, answer_by_name, answer_on_paths, ask_reason, ask_relations, positive
from kgqa_core.systems.types import Ask, CallsLeft, Rounds, Steps, System, room_for
from kgqa_core.types import Question, ReasoningPath, Step


@dataclass(frozen=True, slots=True)
class Direct(System):
    """The question and nothing else, in one call: what is right the model knows without any graph."""

    search: SearchGraph
    prompts: Prompts
    thinks: bool = False  # aloud, before it answers: chain of thought
    needs_topic: ClassVar[bool] = False
    on_rows: ClassVar[bool] = False

    def steps(self, question: Question, prepared: None) -> Steps:
        """Ask once."""
        instruction = ChainOfThoughtInstruction(self.prompts) if self.thinks else DirectInstruction(self.prompts)
        (reply,) = yield [Ask(instruction, ReasonCase(question.text))]
        return answer_by_name(self.search, question, reply.result, ())


DIRECT = SystemType(lambda parts: Direct(parts.search, parts.prompts), roles=lambda settings: ("direct",))
COT = replace(DIRECT, open=lambda parts: Direct(parts.search, parts.prompts, thinks=True))


# ------ KAPING: the triples around the topics that are most like the question, in one prompt (Baek et al., 2023; §3).
# Nothing is trained. The text encoder compares each triple of the neighbourhood with the question, one by one.


class KapingSection(Section):
    """Settings of KAPING."""

    num_triples: Annotated[int, Field(ge=1)] = 10  # K, as published
    hops: Annotated[int, Field(ge=1)] = 1  # as published; 2 where answers lie behind nameless nodes (Freebase)
    max_ranked: Annotated[int, Field(ge=1)] = 1000  # ours: triples encoded per question, nearest first, hubs in turns


@dataclass(frozen=True, slots=True)
class Kaping(System):
    """Ranks triples one by one, and asks once."""

    search: SearchGraph
    prompts: Prompts
    encode: Callable[[Sequence[str]], np.ndarray]  # texts -> unit-norm rows
    settings: KapingSection

    def prepare(self, questions: Sequence[Question]) -> Sequence[tuple[list[Step], int]]:
        """Return each question's K triples, the most similar first, and how many around it were not ranked."""
        around = [self._around(question) for question in questions]
        texts = [[render_triples(self.search, (step,)) for step in steps] for steps, _ in around]
        distinct = dict.fromkeys(chain((question.text for question in questions), *texts))
        places = {text: place for place, text in enumerate(distinct)}
        vectors = self.encode(list(distinct))
        found = []
        for question, (steps, num_left_out), own in zip(questions, around, texts, strict=True):
            scores = vectors[[places[text] for text in own]] @ vectors[places[question.text]]
            best = np.argsort(-scores, kind="stable")[: self.settings.num_triples]
            found.append(([steps[place] for place in best.tolist()], num_left_out))
        return found

    def steps(self, question: Question, prepared: tuple[list[Step], int]) -> Steps:
        """Show the triples, each as a path of one step that leads away from the topics."""
        paths = [(step,) for step in prepared[0]]
        (reply,) = yield [ask_reason(self.search, self.prompts, question.text, paths)]
        answer = answer_on_paths(self.search, question, reply.result, paths)
        return replace(answer, counts={**answer.counts, "num_paths": len(paths), "num_unranked": prepared[1]})

    def _around(self, question: Question) -> tuple[list[Step], int]:
        """Return the distinct triples within ``hops`` of the topics, nearest first, and how many more there are."""
        graph, found, num_all = self.search.graph, dict[tuple[int, int, int], Step](), 0
        frontier = seen = sorted_distinct(np.asarray(question.topics, dtype=np.int64))
        for _ in range(self.settings.hops):
            owner, relations, ends = graph.edges_of(frontier)
            twice = np.isin(ends, frontier) & (relations >= graph.num_relations)  # met from their other end as well
            num_all += int(np.count_nonzero(~(twice | np.isin(ends, np.setdiff1d(seen, frontier)))))
            turn = np.arange(len(owner)) - np.searchsorted(owner, owner)  # so that no hub crowds out the others
            edges = np.stack((frontier[owner], relations, ends))[:, np.argsort(turn, kind="stable")]
            for start, relation, end in zip(*edges, strict=True):
                if len(found) == self.settings.max_ranked:
                    break
                step = graph.step(int(start), int(relation), int(end))
                found.setdefault((step.head, step.relation, step.tail), step)
            frontier = np.setdiff1d(ends, seen)
            seen = np.union1d(seen, frontier)
        return list(found.values()), num_all - len(found)


KAPING = SystemType(
    lambda parts: Kaping(parts.search, parts.prompts, parts.encode, parts.settings),
    settings=KapingSection,
    roles=lambda settings: ("reason",),
    encodes=True,
)


# ------ Think-on-Graph: a beam search over relations and entities, pruned by the language model (Sun et al., 2024).
#
# At most 2ND + D + 1 calls for a beam of N and D steps: per step N relation calls, N entity calls and one whether what
# was found suffices; then the answer.


VERDICT = Decoding(max_new_tokens=16)


class TogSection(Section):
    """Settings of Think-on-Graph."""

    width: Annotated[int, Field(ge=1)] = 3
    depth: Annotated[int, Field(ge=1)] = 3
    relations: Relations = "written"
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


@dataclass(frozen=True, slots=True)
class Tog(System):
    """Prunes a beam step by step."""

    search: SearchGraph
    prompts: Prompts
    settings: TogSection
    max_calls: int | None = None  # per question; exploration leaves one for the answer

    def steps(self, question: Question, prepared: None) -> Steps:
        """Search until the paths suffice, or nothing goes on, and reason on them; else think aloud, without paths."""
        calls, left = CallsLeft(self.max_calls), Counter(num_unseen=0, num_unread=0)
        paths, num_steps, is_unsure = yield from self._search(question, calls, left)
        if is_unsure and self.settings.unsure == "alone":
            paths = []
        if paths:
            (reply,) = yield [ask_reason(self.search, self.prompts, question.text, paths)]
            answer = answer_on_paths(self.search, question, reply.result, paths)
        else:
            (reply,) = yield [Ask(ChainOfThoughtInstruction(self.prompts), ReasonCase(question.text))]
            answer = answer_by_name(self.search, question, reply.result, (), on_rows=True)
        counts = {"num_steps": num_steps, "num_paths": len(paths), "num_refused_calls": calls.refused}
        return replace(answer, counts={**answer.counts, **counts, **left})

    def _search(self, question: Question, calls: CallsLeft, left: Counter[str]) -> Rounds:
        """Return the paths of the beam, the last step's first, without those that another goes on from.

        Return also the number of steps, and whether the model was unsure of the paths at the last one. ``left`` counts
        the entities that ``max_entities`` left out, and the replies without any score.
        """
        beam = [_Item(topic) for topic in question.topics]
        paths: list[ReasoningPath] = []
        for depth in range(1, self.settings.depth + 1):
            chosen = yield from self._choose_relations(question, calls, beam)
            beam = yield from self._choose_entities(question, calls, chosen, left)
            if not beam:
                return paths, depth - 1, False
            new = list(dict.fromkeys(item.path for item in beam))
            paths = new + [old for old in paths if all(path[: len(old)] != old for path in new)]
            if depth == self.settings.depth and self.settings.unsure == "reason":
                return paths, depth, False
            shown = tuple(show_path(self.search, path) for path in paths)
            case = EnoughCase(question.text, topics=self._topics(question), paths=shown)
            replies = yield calls.fit([Ask(EnoughInstruction(self.prompts), case, VERDICT)])
            if replies and replies[0].result is True:
                return paths, depth, False
        return paths, depth, bool(replies)  # where the cap left no call to ask it is not unsure

    def _choose_relations(self, question: Question, calls: CallsLeft, beam: Sequence[_Item]) -> Rounds:
        """Return the best (entity, relation) pairs of the whole beam."""
        asks: list[tuple[tuple[_Item, list[int]], Ask[Any]]] = []
        avoided = self.search.avoided(question.topics)
        for item in beam:
            around = relations_around(self.search.graph, np.array([item.entity]), avoided)
            if around:
                labels, names = tuple(map(self.search.step_label, around)), self._topics(question)
                path, width = show_path(self.search, item.path).steps, self.settings.width
                case = RelationsCase(question.text, labels, topics=names, path=path, budget=width)
                asks.append(((item, around), ask_relations(self.prompts, case, self.settings.relations)))
        scored = [
            replace(item, relation=around[option], score=score)
            for (item, around), reply in (yield from calls.ask(asks))
            for option, score in positive(reply)
        ]
        return sorted(scored, key=lambda item: -item.score)[: self.settings.width]  # of equals the first

    def _choose_entities(
        self, question: Question, calls: CallsLeft, chosen: Sequence[_Item], left: Counter[str]
    ) -> Rounds:
        """Return the best entities behind the chosen relations, each on its best path."""
        is_asked, avoided = self.settings.entity_prune == "lm", self.search.avoided(question.topics)
        behind = [leave(self.search.graph, np.array([item.entity]), item.relation, avoided) for item in chosen]
        tails = [reached[: self.settings.max_entities] for reached in behind]
        left["num_unseen"] += sum(map(len, behind)) - sum(map(len, tails))
        asks: list[tuple[int, Ask[Any]]] = []
        for number, (item, reached) in enumerate(zip(chosen, tails, strict=True)):
            if is_asked and len(reached) > 1:  # of one there is nothing to choose
                candidates = tuple(EntityCandidate(self.search.name_of(entity)) for entity in reached.tolist())
                plan = (*show_path(self.search, item.path).steps, self.search.step_label(item.relation))
                case = EntitiesCase(question.text, candidates, topics=self._topics(question), plan=plan)
                asks.append((number, Ask(ScoreEntitiesInstruction(self.prompts), case, room_for(len(candidates)))))
        replies = dict((yield from calls.ask(asks)))
        scored: list[_Item] = []
        for number, (item, reached) in enumerate(zip(chosen, tails, strict=True)):
            unread = number in replies and isinstance(replies[number].result, ParseFailure)
            left["num_unread"] += unread
            alike = 1 / len(reached) if unread else 1.0  # unread: as in the released code
            scores: Sequence[tuple[int, float]] = [(place, alike) for place in range(len(reached))]
            if is_asked and len(reached) > 1 and not unread:
                scores = positive(replies.get(number))
            for place, score in scores:
                entity = int(reached[place])
                step = self.search.graph.step(item.entity, item.relation, entity)
                scored.append(_Item(entity, (*item.path, step), score=item.score * score))
        distinct: dict[int, _Item] = {}
        for item in sorted(scored, key=lambda item: -item.score):
            distinct.setdefault(item.entity, item)
        return list(distinct.values())[: self.settings.width]

    def _topics(self, question: Question) -> tuple[str, ...]:
        return tuple(map(self.search.name_of, question.topics))


TOG = SystemType(
    lambda parts: Tog(parts.search, parts.prompts, parts.settings, max_calls=parts.max_calls),
    settings=TogSection,
    roles=lambda settings: ("score", "reason", "direct"),
)
