"""RoG: plan, retrieve, reason (Luo et al., 2024; §4, Algorithm 1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from kgqa_core.config_base import Section
from kgqa_core.config_systems import PlanSourceName, SystemType
from kgqa_core.graph.follow import end_of
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.answers import Explained
from kgqa_core.instructions.plan import Plan, weigh_plans
from kgqa_core.instructions.reason import Evidence, ExplainInstruction, ReasonCase, ReasonInstruction, gather_evidence
from kgqa_core.instructions.render import Prompts
from kgqa_core.systems.answering import answer_by_name, answer_with
from kgqa_core.systems.plans import PlanSource
from kgqa_core.systems.types import Ask, Parts, Steps, SystemAnswer
from kgqa_core.types import Question

NO_PROMPT = 10_000  # reasoning paths of a question where no prompt has to hold them


class RogSection(Section):
    """Settings of RoG."""

    plans: PlanSourceName = "lm"  # none: w/o planning, no path at all; random: random plans (Table 2)
    num_plans: Annotated[int, Field(ge=1)] = 3  # top-K of the beam
    reasoning: Literal["lm", "none", "vote"] = "lm"  # none: all that is reached; vote: the most often reached
    vote_top: Annotated[int, Field(ge=1)] = 5  # answers of vote
    max_paths: Annotated[int, Field(ge=1)] = 40  # reasoning paths in the prompt
    explain: bool = False  # ask for an explanation with the answers


@dataclass(frozen=True, slots=True)
class Rog:
    """Plans followed in the graph; all that they lead along in one prompt. Implements ``System``.

    The beam only picks plans: a path has no score of its own, and all go into the prompt (A.10).
    """

    search: SearchGraph
    prompts: Prompts
    plans: PlanSource
    settings: RogSection
    name: str = "rog"
    needs_topic: bool = True
    on_rows: bool = True

    def prepare(self, questions: Sequence[Question]) -> Sequence[list[Plan] | None]:
        """Return the plans that do not have to be asked for."""
        return self.plans.prepare(questions, self.settings.num_plans)

    def steps(self, question: Question, prepared: list[Plan] | None) -> Steps:
        """Plan, retrieve, reason."""
        plans = prepared
        if plans is None:
            (reply,) = yield [self.plans.ask(question, self.settings.num_plans)]
            plans = self.plans.read(reply, self.settings.num_plans)
        found = self._retrieve(question, plans)
        if self.settings.reasoning == "lm":
            (reply,) = yield [self._reason(question, found)]
            said = reply.result.answers if isinstance(reply.result, Explained) else reply.result
            answer = answer_by_name(self.search, question, said, found.steps, on_rows=self.on_rows)
        else:
            answer = answer_with(question, self._without_reasoning(found), found.steps)
        counts = {"num_plans": len(plans), "num_paths": len(found.paths), "num_plans_cut": found.num_left_out}
        return SystemAnswer(answer.prediction, answer.unmatched, {**answer.counts, **counts})

    def _retrieve(self, question: Question, plans: Sequence[Plan]) -> Evidence:
        """Return the reasoning paths along the plans (Algorithm 1)."""
        weights = weigh_plans([plan.log_prob for plan in plans])
        return gather_evidence(
            self.search,
            question.topics,
            [(plan.path, weight) for plan, weight in zip(plans, weights, strict=True)],
            max_paths=self.settings.max_paths if self.settings.reasoning == "lm" else NO_PROMPT,
        )

    def _without_reasoning(self, found: Evidence) -> list[int]:
        """Return all that the paths end at, or the few that most of them do."""
        if self.settings.reasoning == "none":
            return list(found.ends)
        votes = Counter(end_of(path) for path in found.steps)
        ranked = sorted(found.ends, key=lambda end: -votes[end])  # of equals the first found
        return ranked[: self.settings.vote_top]

    def _reason(self, question: Question, found: Evidence) -> Ask[Any]:
        shown = tuple(dict.fromkeys(path.end for path in found.paths))
        if self.settings.explain:
            return Ask(ExplainInstruction(self.prompts), ReasonCase(question.text, "", found.paths, shown))
        return Ask(ReasonInstruction(self.prompts), ReasonCase(question.text, "", found.paths, shown))


def open_rog(parts: Parts) -> Rog:
    """Open RoG."""
    return Rog(parts.search, parts.prompts, parts.plans(parts.settings.plans), parts.settings)


ROG = SystemType(open_rog, settings=RogSection, hard_negatives=True, plan_source=lambda settings: str(settings.plans))
