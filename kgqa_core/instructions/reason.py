"""reason: from a question and reasoning paths to its answers (RoG §4.4; EPERM's predictor, with a score per path)."""

from __future__ import annotations

from dataclasses import dataclass

from kgqa_core.instructions.answers import Answers, parse_answers, write_answers
from kgqa_core.instructions.prompts import Prompts
from kgqa_core.instructions.render import ScoredPath, fill_prompt, render_paths
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.lm.types import Constraint, Prompt


@dataclass(frozen=True, slots=True)
class ReasonCase:
    """A question with the paths that its plans led along."""

    question: str
    question_id: str = ""
    paths: tuple[ScoredPath, ...] = ()
    shown: tuple[str, ...] = ()  # names of the entities that the paths end at: taken as they stand in an answer
    answers: tuple[str, ...] | None = None  # names that are taught; none at all: to abstain


@dataclass(frozen=True, slots=True)
class ReasonInstruction:
    """The instruction ``reason``."""

    prompts: Prompts
    scored: bool = False  # show a score after each path and ask to prefer high ones (EPERM A.4)

    @property
    def name(self) -> str:
        """Return ``reason``."""
        return "reason"

    def render(self, case: ReasonCase) -> Prompt:
        """Return the prompt: all paths in one (RoG A.10)."""
        values = {"question": case.question, "paths": render_paths(case.paths, scored=self.scored)}
        file = "reason_scored" if self.scored else "reason"
        return fill_prompt(self.prompts, file, values, question_id=case.question_id, instruction=self.name)

    def target(self, case: ReasonCase) -> str | None:
        """Return the answers that are taught."""
        return None if case.answers is None else write_answers(case.answers)

    def parse(self, text: str, case: ReasonCase) -> Answers | ParseFailure:
        """Return the distinct answers of a text, or that it abstains."""
        return parse_answers(text, case.shown)

    def constraint(self, case: ReasonCase) -> Constraint | None:
        """Return None: which entities, and how many, is the model's to say."""
        return None
