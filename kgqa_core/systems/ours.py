"""Ours: explorer and planner fused; plans are asked for only where the explorer is in doubt (see ``fusion``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from kgqa_core.config_systems import OursSection
from kgqa_core.graph.execute import execute_plans
from kgqa_core.graph.label_paths import to_relations
from kgqa_core.instructions.evidence import end_of, gather_evidence, reasoning_paths
from kgqa_core.instructions.prompts import Prompts
from kgqa_core.instructions.reason import ReasonCase, ReasonInstruction
from kgqa_core.planners.plan_weights import weigh_plans
from kgqa_core.planners.types import Plan
from kgqa_core.systems.alone import ALL_CANDIDATES
from kgqa_core.systems.answering import answer_by_name
from kgqa_core.systems.explorer_system import ExplorerSystem
from kgqa_core.systems.fusion import Fusion, Option, fuse, options_of
from kgqa_core.systems.plan_source import PlanSource
from kgqa_core.systems.types import Ask, Steps, SystemAnswer
from kgqa_core.systems.walk import Walk
from kgqa_core.types import LabelPath, Prediction, Question, ReasoningPath


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is known of a question before the first call."""

    explored: Prediction
    plans: list[Plan] | None = None  # those that need no call; None: to be asked for, where the explorer is in doubt


@dataclass(frozen=True, slots=True)
class Ours:
    """The best combination found, declared as such. Implements ``System``."""

    walk: Walk
    prompts: Prompts
    explorer: ExplorerSystem
    plans: PlanSource
    fusion: Fusion
    settings: OursSection
    name: str = "ours"
    needs_topic: bool = True
    on_rows: bool = False  # the explorer's candidates are entities

    def prepare(self, questions: Sequence[Question]) -> list[Prepared]:
        """Explore all questions; plan for those in doubt where that takes no call."""
        explored = replace(self.explorer, evidence_paths=ALL_CANDIDATES).answer(questions)
        doubted = [place for place, one in enumerate(explored) if self.fusion.is_in_doubt(one)]
        inside = [self._placed(questions[place]) for place in doubted]
        plans = dict(zip(doubted, self.plans.prepare(inside, self.settings.num_plans), strict=True))
        return [Prepared(one, plans.get(place)) for place, one in enumerate(explored)]

    def steps(self, question: Question, prepared: Prepared) -> Steps:
        """Keep what the explorer is sure of; else ask for plans, fuse, and where asked to, let the model decide."""
        explored, doubt = prepared.explored, self.fusion.is_in_doubt(prepared.explored)
        plans = prepared.plans or []
        inside = self._placed(question)
        if doubt and prepared.plans is None:
            (reply,) = yield [self.plans.ask(inside, self.settings.num_plans)]
            plans = self.plans.read(reply, self.settings.num_plans)
        reached = self.reach(inside, plans)
        options = options_of(explored, reached, weigh_plans([plan.log_prob for plan in plans]))
        prediction, chosen = fuse(question, explored, options, self.fusion)
        asked_lm = len(options) > 1 and self.settings.disagreement == "lm"
        if asked_lm and chosen is not None:
            ask, steps = self._decide(question, inside, plans)
            (reply,) = yield [ask]
            said = answer_by_name(self.walk, question, reply.result, steps, on_rows=False).prediction.answers
            only = _nearest(options, said)
            if only is not None:
                prediction, chosen = fuse(question, explored, [only], self.fusion)
        paths = self._evidence(inside, prediction, explored, plans, chosen)
        counts = {
            "num_plans": len(plans),
            "num_options": len(options),
            "in_doubt": float(doubt),
            "lm_decides": float(asked_lm),
            "num_paths": sum(map(bool, paths)),
        }
        return SystemAnswer(replace(prediction, paths=paths), (), counts)

    def reach(self, inside: Question, plans: Sequence[Plan]) -> list[tuple[int, ...]]:
        """Return the entities that each plan reaches; ``inside`` is a question placed on the walked graph."""
        found = execute_plans(
            self.walk.graph,
            [inside.topics],
            [[plan.path for plan in plans]],
            reenter_topic=self.walk.reenter_topic,
        )
        return [self.walk.to_entities(found.reached(0, place).tolist()) for place in range(len(plans))]

    def _placed(self, question: Question) -> Question:
        return self.walk.subgraphs.to_rows(question) if self.walk.subgraphs else question

    def _decide(
        self, question: Question, inside: Question, plans: Sequence[Plan]
    ) -> tuple[Ask[Any], tuple[ReasoningPath, ...]]:
        """Return the call that shows the paths of all plans, and those paths."""
        weights = weigh_plans([plan.log_prob for plan in plans])
        found = gather_evidence(
            self.walk.graph,
            inside.topics,
            [(plan.path, weight) for plan, weight in zip(plans, weights, strict=True)],
            max_paths=self.settings.max_paths,
            names=self.walk.names,
            reenter_topic=self.walk.reenter_topic,
        )
        shown = tuple(dict.fromkeys(self.walk.names.name_of(end) for end in found.ends))
        return Ask(ReasonInstruction(self.prompts), ReasonCase(question.text, "", found.paths, shown)), found.steps

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
        if chosen is not None and chosen.plan is not None:
            found |= self._along(plans[chosen.plan].path, inside, prediction.answers)
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


def _nearest(options: Sequence[Option], said: Sequence[int]) -> Option | None:
    """Return the option that shares most with what the model said, by F1; None where none shares anything."""
    given = set(said)
    scored = [(2 * len(given & set(one.entities)) / (len(given) + len(one.entities)), one) for one in options]
    best = max(scored, key=lambda pair: pair[0], default=(0.0, None))
    return best[1] if best[0] > 0 else None
