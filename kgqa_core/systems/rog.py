"""RoG: plan, retrieve, reason (Luo et al., 2024; §4, Algorithm 1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, model_validator

from kgqa_core.config_base import Section
from kgqa_core.config_systems import PlanSourceName, SystemType
from kgqa_core.graph.follow import end_of
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.plan import Plan, weigh_plans
from kgqa_core.instructions.reason import (
    MOST_IN_BLOCKS,
    ExplainInstruction,
    ReasonCase,
    ReasonInstruction,
    gather_evidence,
)
from kgqa_core.instructions.render import Prompts
from kgqa_core.systems.answering import PlanSource, answer_by_name, answer_with
from kgqa_core.systems.types import Ask, Steps, System, SystemAnswer
from kgqa_core.types import Question

NO_PROMPT = 10_000  # reasoning paths of a question where no prompt has to hold them


class RogSection(Section):
    """Settings of RoG."""

    plans: PlanSourceName = "lm"  # none: w/o planning, no path at all; random: random plans (Table 2)
    num_plans: Annotated[int, Field(ge=1)] = 3  # top-K of the beam
    plan_mass: Annotated[float, Field(gt=0, le=1)] = 1.0  # plans are followed until they have this share of probability
    reasoning: Literal["lm", "none", "vote"] = "lm"  # none: all that is reached; vote: the most often reached
    vote_top: Annotated[int, Field(ge=1)] = 5  # answers of vote
    max_paths: Annotated[int, Field(ge=1)] = 40  # reasoning paths in a prompt that has a line for each
    explain: bool = False  # ask for an explanation with the answers

    @model_validator(mode="after")
    def _asks_who_explains(self) -> RogSection:
        if self.explain and self.reasoning != "lm":
            raise ValueError(f"explain: true goes with reasoning: lm; {self.reasoning} asks nobody who could explain")
        return self


@dataclass(frozen=True, slots=True)
class Rog(System):
    """Plans followed in the graph; all paths along them, unscored, in one prompt (A.10)."""

    search: SearchGraph
    prompts: Prompts
    plans: PlanSource
    settings: RogSection

    def prepare(self, questions: Sequence[Question]) -> Sequence[list[Plan] | None]:
        """Return the plans that do not have to be asked for."""
        return self.plans.prepare(questions, self.settings.num_plans)

    def steps(self, question: Question, prepared: list[Plan] | None) -> Steps:
        """Plan; retrieve the reasoning paths along the plans; reason on them (Algorithm 1)."""
        kept, plans = self.settings, prepared
        if plans is None:
            plans = yield from self.plans.ask(question, kept.num_plans)
        weights = weigh_plans([plan.log_prob for plan in plans])
        heavier = [sum(other for other in weights if other > weight) for weight in weights]  # of equals: all
        sure = zip(plans, weights, heavier, strict=True)
        weighed = [(plan.path, weight) for plan, weight, mass in sure if mass < kept.plan_mass or kept.plan_mass == 1]
        in_blocks = self.prompts["reason"].in_blocks and not kept.explain
        most = max(kept.max_paths, MOST_IN_BLOCKS) if in_blocks else kept.max_paths
        if kept.reasoning != "lm":
            most = NO_PROMPT
        found = gather_evidence(self.search, question.topics, weighed, max_paths=most)
        ways = found.steps + found.alike
        if kept.reasoning == "lm":
            shown = tuple(dict.fromkeys(path.end for path in found.paths))
            instruction = ExplainInstruction(self.prompts) if kept.explain else ReasonInstruction(self.prompts)
            (reply,) = yield [Ask(instruction, ReasonCase(question.text, found.paths, shown))]
            answer = answer_by_name(self.search, question, reply.result, ways, on_rows=True)
        else:
            votes = Counter(end_of(path) for path in ways)
            voted = sorted(found.ends, key=lambda end: -votes[end])[: kept.vote_top]  # of equals the first found
            tied = dict.fromkeys(found.ends, 1.0) if kept.reasoning == "none" else None  # a set
            answer = answer_with(question, found.ends if tied else voted, ways, weights=tied)
        counts = {"num_plans": len(plans), "num_paths": len(found.paths), "num_plans_cut": found.num_left_out}
        followed = tuple(path for path, _ in weighed)
        return SystemAnswer(answer.prediction, answer.unmatched, {**answer.counts, **counts}, plans=followed)


ROG = SystemType(
    lambda parts: Rog(parts.search, parts.prompts, parts.plans(parts.settings.plans), parts.settings),
    settings=RogSection,
    roles=lambda settings: ("reason",) if settings.reasoning == "lm" else (),
    hard_negatives=True,
    plan_source=lambda settings: str(settings.plans),
)
