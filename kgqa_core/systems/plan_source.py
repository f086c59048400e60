"""Where a system's plans come from: the model that answers (asked in a step of its own), a planner, chance, a pool."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kgqa_core.graph.kg import KnowledgeGraph, to_labels
from kgqa_core.instructions.path_constraint import PathConstraints
from kgqa_core.planners.generator import PlanAsker
from kgqa_core.planners.types import Plan, Planner, PlanQuestion
from kgqa_core.systems.types import Ask, Reply
from kgqa_core.types import LabelPath, Question


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
        return list(
            self.planner.plan([as_plan_question(one, self.mask_topics) for one in questions], num_plans=num_plans)
        )

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
        chance = random.Random(seed_of("random plans", question.id, self.seed))
        drawn = [random_plan(self.graph, self.space, question.topics, chance) for _ in range(4 * num)]
        return list(dict.fromkeys(plan for plan in drawn if plan))[:num]


@dataclass(frozen=True, slots=True)
class PooledPlans:
    """The plans of a pool that was made beforehand, in its order and of equal weight. Implements ``Planner``."""

    plans: Mapping[str, Sequence[LabelPath]]  # by question id
    name: str = "pool"

    def plan(self, questions: Sequence[PlanQuestion], *, num_plans: int = 3) -> list[list[Plan]]:
        """Return each question's pool, whole."""
        pools = [self.plans.get(question.id, ()) for question in questions]
        return [[Plan(path, -math.log(len(pool))) for path in pool] for pool in pools]


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
    """Return a seed that follows from what is drawn for whom, whatever the order of drawing."""
    return int.from_bytes(hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()[:8], "big")


def as_plan_question(question: Question, mask_topics: bool) -> PlanQuestion:
    """Return a question as planners see it."""
    return PlanQuestion(question.id, question.asked(mask_topics), question.topics)
