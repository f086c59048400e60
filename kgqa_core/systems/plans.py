"""Where a system's plans come from: the model that answers (asked in a step of its own), a planner, chance.

Or hard negatives: the gold plan among wrong plans that exist, so that only the question tells which is right.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kgqa_core.graph.follow import end_of, follow_path
from kgqa_core.graph.kg import KnowledgeGraph, golds_of, to_labels, to_relations
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.plan import PathConstraint, PathConstraints, Plan, PlanAsker, Planner, PlanQuestion
from kgqa_core.instructions.reason import gather_evidence
from kgqa_core.systems.types import Ask, Reply
from kgqa_core.types import LabelPath, Prediction, Question, ReasoningPath, RelationPath

NUM_WRONG = 2
MAX_TRIED = 200  # plans around one question's topics that are looked at

PlansOf = Mapping[str, Sequence[LabelPath]]
"""Question id -> plans."""


class PlanSource(Protocol):
    """Gives plans, either beforehand for many questions or in answer to a call."""

    def prepare(self, questions: Sequence[Question], num_plans: int) -> list[list[Plan] | None]:
        """Return each question's plans, best first; None where they have to be asked for."""
        ...

    def ask(self, question: Question, num_plans: int) -> Ask[object]:
        """Return the call that asks for a question's plans."""
        ...

    def read(self, reply: Reply[object], num_plans: int) -> list[Plan]:
        """Return the plans that came of that call, best first."""
        ...


@dataclass(frozen=True, slots=True)
class LmPlans:
    """The language model that answers also plans: one call per question. Implements ``PlanSource``."""

    asker: PlanAsker
    mask_topics: bool = True  # does it read questions with a placeholder where they name a topic?

    def prepare(self, questions: Sequence[Question], num_plans: int) -> list[list[Plan] | None]:
        """Return None for each question."""
        return [None] * len(questions)

    def ask(self, question: Question, num_plans: int) -> Ask[object]:
        """Return the call of the instruction ``plan``, a beam of ``num_plans``."""
        case = self.asker.case(as_plan_question(question, self.mask_topics))
        return Ask(self.asker.instruction, case, self.asker.decoding(num_plans))

    def read(self, reply: Reply[object], num_plans: int) -> list[Plan]:
        """Return the plans of the reply's texts."""
        return self.asker.read(reply.case, reply.texts)[:num_plans]


@dataclass(frozen=True, slots=True)
class GivenPlans:
    """Plans that are there before any call. Implements ``PlanSource``."""

    planner: Planner
    mask_topics: bool = True

    def prepare(self, questions: Sequence[Question], num_plans: int) -> list[list[Plan] | None]:
        """Return what the planner proposes."""
        asked = [as_plan_question(one, self.mask_topics) for one in questions]
        return list(self.planner.plan(asked, num_plans=num_plans))

    def ask(self, question: Question, num_plans: int) -> Ask[object]:
        """Raise: nothing has to be asked."""
        raise NotImplementedError

    def read(self, reply: Reply[object], num_plans: int) -> list[Plan]:
        """Raise: nothing was asked."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class RandomPlans:
    """Random plans that exist around the topics (RoG Table 2, w/ random plans). Implements ``Planner``."""

    graph: KnowledgeGraph
    space: PathConstraints
    seed: int = 0
    name: str = "random"

    def plan(self, questions: Sequence[PlanQuestion], *, num_plans: int = 3) -> list[list[Plan]]:
        """Return up to ``num_plans`` distinct plans of random length per question, all as probable."""
        return [
            [Plan(path, -math.log(num_plans)) for path in self._draw(question, num_plans)] for question in questions
        ]

    def _draw(self, question: PlanQuestion, num: int) -> list[LabelPath]:
        chance = random.Random(seed_of("random plans", question.id, self.seed) >> 192)
        drawn = [random_plan(self.graph, self.space, question.topics, chance) for _ in range(4 * num)]
        return list(dict.fromkeys(plan for plan in drawn if plan))[:num]


@dataclass(frozen=True, slots=True)
class NoPlans:
    """No plan for any question (RoG without planning). Implements ``Planner``."""

    name: str = "none"

    def plan(self, questions: Sequence[PlanQuestion], *, num_plans: int = 3) -> list[list[Plan]]:
        """Return an empty list per question."""
        return [[] for _ in questions]


def random_plan(
    graph: KnowledgeGraph, space: PathConstraints, topics: Sequence[int], chance: random.Random
) -> LabelPath | None:
    """Return a plan drawn relation by relation among those that lead somewhere; None where none does."""
    around = space.around(tuple(topics))
    wanted = chance.randint(1, space.max_hops)
    path: tuple[int, ...] = ()
    for length in range(1, wanted + 1):
        here, further = around.next_relations(path)
        options = further if length < wanted and len(further) else here
        if not len(options):
            break
        path = (*path, int(options[chance.randrange(len(options))]))
        if length < wanted and not len(further):
            break
    return to_labels(graph, path) if path else None


def seed_of(*parts: object) -> int:
    """Return a seed of 256 bits that follows from what is drawn for whom, whatever the order of drawing."""
    return int.from_bytes(hashlib.sha256("\x1f".join(map(str, parts)).encode("utf-8", "replace")).digest(), "big")


def as_plan_question(question: Question, mask_topics: bool) -> PlanQuestion:
    """Return a question as planners see it."""
    return PlanQuestion(question.id, question.asked(mask_topics), question.topics)


# ------ Hard negatives, which take the place of retrieval (``systems.pool: hard``): of plans, and of candidates.


def find_hard_negatives(
    graph: KnowledgeGraph, space: PathConstraints, questions: Sequence[Question], gold_plans: PlansOf, *, seed: int = 0
) -> dict[str, tuple[LabelPath, ...]]:
    """Return the plans of every question that has a gold plan; see ``with_hard_negatives``."""
    found = {one.id: with_hard_negatives(graph, space, one, gold_plans.get(one.id, ()), seed=seed) for one in questions}
    return {id: plans for id, plans in found.items() if plans}


def with_hard_negatives(
    graph: KnowledgeGraph,
    space: PathConstraints,
    question: Question,
    gold_plans: Sequence[LabelPath],
    *,
    seed: int = 0,
) -> tuple[LabelPath, ...]:
    """Return a question's first gold plan and two wrong ones, shuffled; none where it has no gold plan.

    Wrong plans lead from the topics to entities, none of them a gold. Those of the gold plan's length that share most
    of its beginning are taken first, then others; of equals a seed decides that follows from the question's id.

    Args:
        graph: also a graph of rows, for questions of rows.
        space: the plans that exist in it.
        question: with its golds.
        gold_plans: best first.
        seed: of the draw.
    """
    chance = random.Random(seed_of("pool", seed, question.id))
    around = space.around(question.topics)
    known = [path for plan in gold_plans if (path := to_relations(graph, plan))]
    if not known:
        return ()
    gold, golds = known[0], golds_of(question, reenter_topic=True)
    wrong: list[RelationPath] = []
    for path in _tried(around, gold, space.max_hops, chance):
        reached = follow_path(graph, question.topics, path, reenter_topic=space.reenter_topic)
        if path not in known and len(reached) and golds.isdisjoint(reached.tolist()):
            wrong.append(path)
        if len(wrong) == NUM_WRONG:
            break
    plans = [gold, *wrong]
    chance.shuffle(plans)
    return tuple(to_labels(graph, path) for path in plans)


def _tried(around: PathConstraint, gold: RelationPath, max_hops: int, chance: random.Random) -> list[RelationPath]:
    """Return plans that exist, in the order in which they are tried: the most like ``gold`` first."""
    found: dict[RelationPath, None] = {}
    for shared in range(len(gold) - 1, -1, -1):
        _extend(around, gold[:shared], len(gold), chance, found)
    for length in (*range(len(gold) - 1, 0, -1), *range(len(gold) + 1, max_hops + 1)):
        _extend(around, gold[: length - 1], length, chance, found)
        _extend(around, (), length, chance, found)
    return list(found)


def _extend(
    around: PathConstraint, begin: RelationPath, length: int, chance: random.Random, found: dict[RelationPath, None]
) -> None:
    """Add plans of ``length`` steps that begin with ``begin``, in an order drawn."""
    if len(found) >= MAX_TRIED:
        return
    here, further = around.next_relations(begin)
    options = (here if len(begin) + 1 == length else further).tolist()
    chance.shuffle(options)
    for relation in options:
        if len(begin) + 1 == length:
            found.setdefault((*begin, int(relation)))
        else:
            _extend(around, (*begin, int(relation)), length, chance, found)


@dataclass(frozen=True, slots=True)
class HardNegativePlans:
    """Gold and wrong plans in the order drawn, of equal weight. Implements ``Planner``."""

    plans: PlansOf
    name: str = "hard negatives"

    def plan(self, questions: Sequence[PlanQuestion], *, num_plans: int = 3) -> list[list[Plan]]:
        """Return all plans of each question."""
        found = [self.plans.get(question.id, ()) for question in questions]
        return [[Plan(path, -math.log(len(own))) for path in own] for own in found]


@dataclass(frozen=True, slots=True)
class HardNegativeCandidates:
    """Proposes where the plans end; the graph is that of the questions (no subgraphs). Implements ``CandidateSource``.

    One candidate of each plan, none better than another.
    """

    search: SearchGraph
    plans: PlansOf

    def answer(self, questions: Sequence[Question]) -> list[Prediction]:
        """Return a prediction per question, in order: the first end of each plan that no plan before it has."""
        return [self._candidates(question) for question in questions]

    def _candidates(self, question: Question) -> Prediction:
        paths: dict[int, ReasoningPath] = {}
        for plan in self.plans.get(question.id, ()):
            found = gather_evidence(self.search, question.topics, [(plan, 1.0)], max_paths=len(paths) + 1)
            fresh = [path for path in found.steps if end_of(path) not in paths]
            if fresh:
                paths[end_of(fresh[0])] = fresh[0]
        return Prediction(
            question.id,
            tuple(paths),
            tuple(1 / len(paths) for _ in paths),
            (),
            paths=tuple(paths.values()),
            covered=not set(question.answers).isdisjoint(paths),
            abstained=not paths,
        )
