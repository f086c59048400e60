"""EPERM: retrieve a subgraph, find weighted evidence paths in it, predict from them (Long et al., 2025; Algorithm 1).

Its three modules: ``eperm_retriever`` (Eq. 2), ``eperm_finder`` (Eq. 3), and the predictor, the instruction ``reason``
with a score after each path (A.4). Ablations of Tables 3 and 4 by settings; without any evidence path (Table 3) it is
the system ``direct``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kgqa_core.config_systems import EpermSection
from kgqa_core.instructions.evidence import end_of
from kgqa_core.instructions.prompts import Prompts
from kgqa_core.instructions.reason import ReasonCase, ReasonInstruction
from kgqa_core.planners.types import Plan
from kgqa_core.systems.answering import answer_by_name, answer_with
from kgqa_core.systems.calls import CallsLeft
from kgqa_core.systems.eperm_finder import Finder, Found
from kgqa_core.systems.eperm_retriever import Retriever
from kgqa_core.systems.eperm_subgraph import Part
from kgqa_core.systems.plan_source import PlanSource
from kgqa_core.systems.types import Ask, Steps, SystemAnswer
from kgqa_core.systems.walk import Walk
from kgqa_core.types import Question


@dataclass(frozen=True, slots=True)
class Eperm:
    """Retriever, finder, predictor. Implements ``System``.

    Plans are made from the question alone (Eq. 6). Exploration leaves a call for the
    plans and one for the answer.
    """

    walk: Walk
    prompts: Prompts
    plans: PlanSource
    settings: EpermSection
    max_calls: int | None = None  # per question; None: no limit
    name: str = "eperm"
    needs_topic: bool = True
    on_rows: bool = True

    def prepare(self, questions: Sequence[Question]) -> Sequence[list[Plan] | None]:
        """Return the plans that do not have to be asked for."""
        return self.plans.prepare(questions, self.settings.num_plans)

    def steps(self, question: Question, prepared: list[Plan] | None) -> Steps:
        """Retrieve, plan, find, predict."""
        calls = CallsLeft(self.max_calls)
        planning = calls.fit([self.plans.ask(question, self.settings.num_plans)] if prepared is None else [])
        part = Part(self.walk.graph, None)
        if self.settings.retriever:
            part = yield from Retriever(self.walk, self.prompts, self.settings).retrieve(question, calls)
        plans = prepared or []
        if planning:
            (reply,) = yield planning
            plans = self.plans.read(reply, self.settings.num_plans)
        found = yield from Finder(self.walk, self.prompts, self.settings).find(question, plans, part, calls)
        counts = {"num_plans": len(plans), "num_paths": len(found.paths), "num_refused": calls.refused}
        if self.settings.predictor == "none":
            answer = answer_with(question, _ends(found), found.steps)
        else:
            shown = tuple(dict.fromkeys(self.walk.names.name_of(end_of(path)) for path in found.steps))
            instruction = ReasonInstruction(self.prompts, scored=self.settings.path_scores)
            (reply,) = yield [Ask(instruction, ReasonCase(question.text, paths=found.paths, shown=shown))]
            answer = answer_by_name(self.walk, question, reply.result, found.steps, on_rows=self.on_rows)
        return SystemAnswer(answer.prediction, answer.unmatched, {**answer.counts, **counts})


def _ends(found: Found) -> list[int]:
    """Return what the paths end at, that of the highest sum of scores first, of equals the first found."""
    totals: dict[int, float] = {}
    for steps, path in zip(found.steps, found.paths, strict=True):
        end = end_of(steps)
        totals[end] = totals.get(end, 0.0) + path.score
    return sorted(totals, key=lambda end: -totals[end])
