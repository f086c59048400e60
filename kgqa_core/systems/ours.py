"""Ours: explorer and planner fused, a language model asked only where the two disagree (see ``fusion``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from kgqa_core.config_systems import OursSection
from kgqa_core.graph.execute import execute_plans
from kgqa_core.graph.follow import end_of, reasoning_paths
from kgqa_core.graph.kg import to_relations
from kgqa_core.instructions.plan import render_plan
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.planners.types import Plan, weigh_plans
from kgqa_core.systems.explorer_system import ExplorerSystem
from kgqa_core.systems.fusion import Fusion, Option, disagree, fuse, options_of
from kgqa_core.systems.plan_source import LmPlans, PlanSource
from kgqa_core.systems.types import Ask, Steps, SystemAnswer
from kgqa_core.systems.walk import Walk
from kgqa_core.types import LabelPath, Prediction, Question, ReasoningPath


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is known of a question before the first call."""

    explored: Prediction
    plans: list[Plan] | None  # None: to be asked for


@dataclass(frozen=True, slots=True)
class Ours:
    """The best combination found, declared as such. Implements ``System``."""

    walk: Walk
    explorer: ExplorerSystem
    plans: PlanSource
    judge: LmPlans  # how the language model is asked what it thinks of plans
    fusion: Fusion
    settings: OursSection
    name: str = "ours"
    needs_topic: bool = True
    on_rows: bool = False  # the explorer's candidates are entities

    def prepare(self, questions: Sequence[Question]) -> list[Prepared]:
        """Explore, and plan where that takes no call."""
        explored = replace(self.explorer, evidence_of_answers=True).answer(questions)
        plans = self.plans.prepare([self._placed(one) for one in questions], self.settings.num_plans)
        return [Prepared(*one) for one in zip(explored, plans, strict=True)]

    def steps(self, question: Question, prepared: Prepared) -> Steps:
        """Fuse; where explorer and planner disagree, first ask the model how probable it thinks the plans."""
        explored, plans, inside = prepared.explored, prepared.plans, self._placed(question)
        if plans is None:
            (reply,) = yield [self.plans.ask(inside, self.settings.num_plans)]
            plans = self.plans.read(reply, self.settings.num_plans)
        options = options_of(explored, self.reach(inside, plans))
        weights = weigh_plans([plan.log_prob for plan in plans])
        apart = disagree(options)
        if apart and self.fusion.decided_by == "lm":
            ask = self.judge.ask(inside, len(plans))
            (reply,) = yield [Ask(ask.instruction, ask.case, options=tuple(render_plan(plan.path) for plan in plans))]
            if not isinstance(reply.result, ParseFailure):
                weights = weigh_plans(reply.log_probs)
        prediction, chosen = fuse(question, explored, options, weights, self.fusion)
        paths = self._evidence(inside, prediction, explored, plans, chosen)
        counts = {
            "num_plans": len(plans),
            "num_options": len(options),
            "disagree": float(apart),
            "num_paths": sum(map(bool, paths)),
        }
        return SystemAnswer(replace(prediction, paths=paths), (), counts)

    def reach(self, inside: Question, plans: Sequence[Plan]) -> list[tuple[int, ...]]:
        """Return the entities that each plan reaches; ``inside`` is a question placed on the walked graph."""
        (found,) = execute_plans(
            self.walk.graph,
            [inside.topics],
            [[plan.path for plan in plans]],
            reenter_topic=self.walk.reenter_topic,
        )
        return [self.walk.to_entities(entities.tolist()) for entities in found]

    def _placed(self, question: Question) -> Question:
        return self.walk.subgraphs.to_rows(question) if self.walk.subgraphs else question

    def _evidence(
        self,
        inside: Question,
        prediction: Prediction,
        explored: Prediction,
        plans: Sequence[Plan],
        chosen: Option | None,
    ) -> tuple[ReasoningPath, ...]:
        """Return a path for each answer: along the chosen plan, else the explorer's own and others along those."""
        found = dict(zip(explored.candidates, explored.paths, strict=False))
        if chosen is not None and not chosen.explored:
            found |= self._along(plans[chosen.plans[0]].path, inside, prediction.answers)
        return tuple(found.get(entity, ()) for entity in prediction.candidates)

    def _along(self, plan: LabelPath, inside: Question, entities: Sequence[int]) -> dict[int, ReasoningPath]:
        """Return the first path along a plan to each of ``entities``, all of which it reaches."""
        relations = to_relations(self.walk.graph, plan)
        found: dict[int, ReasoningPath] = {}
        if relations is None:
            return found
        walks = reasoning_paths(self.walk.graph, inside.topics, relations, reenter_topic=self.walk.reenter_topic)
        for path in islice(walks, len(entities)):  # the first path to every end comes before any second
            (end,) = self.walk.to_entities([end_of(path)])
            found[end] = self._stored(path)
        return found

    def _stored(self, path: ReasoningPath) -> ReasoningPath:
        """Return a path between rows as one between entities."""
        if self.walk.subgraphs is None:
            return path
        return tuple(
            replace(step, head=self.walk.to_entities([step.head])[0], tail=self.walk.to_entities([step.tail])[0])
            for step in path
        )
