"""reason: from a question and reasoning paths to its answers (RoG §4.4; EPERM's predictor, with a score per path)."""

from __future__ import annotations

from dataclasses import dataclass

from kgqa_core.instructions.answers import (
    Answers,
    Explained,
    parse_answers,
    parse_explained,
    write_answers,
    write_explained,
)
from kgqa_core.instructions.render import Prompts, ScoredPath, fill_prompt, render_paths
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


# ------ explain: from a question and reasoning paths to its answers and why (RoG A.10).


@dataclass(frozen=True, slots=True)
class ExplainCase:
    """A question with reasoning paths, and the explanation that is taught."""

    question: str
    question_id: str = ""
    paths: tuple[ScoredPath, ...] = ()
    shown: tuple[str, ...] = ()  # names of the entities that the paths end at
    explanation: str | None = None  # taught: from a teacher or a template of the paths
    answers: tuple[str, ...] = ()  # taught with it


@dataclass(frozen=True, slots=True)
class ExplainInstruction:
    """The instruction ``explain``."""

    prompts: Prompts

    @property
    def name(self) -> str:
        """Return ``explain``."""
        return "explain"

    def render(self, case: ExplainCase) -> Prompt:
        """Return the prompt."""
        values = {"question": case.question, "paths": render_paths(case.paths)}
        return fill_prompt(self.prompts, self.name, values, question_id=case.question_id)

    def target(self, case: ExplainCase) -> str | None:
        """Return the explanation and the answers that are taught."""
        return None if case.explanation is None else write_explained(case.explanation, case.answers)

    def parse(self, text: str, case: ExplainCase) -> Explained | ParseFailure:
        """Return the explanation and the answers of a text."""
        return parse_explained(text, case.shown)

    def constraint(self, case: ExplainCase) -> Constraint | None:
        """Return None: an explanation is free text."""
        return None


# ------ direct: from a question to its answers, without any graph (the IO baseline; tuned: RoG's Table 16).


@dataclass(frozen=True, slots=True)
class DirectCase:
    """A question alone."""

    question: str
    question_id: str = ""
    answers: tuple[str, ...] | None = None  # names that are taught


@dataclass(frozen=True, slots=True)
class DirectInstruction:
    """The instruction ``direct``."""

    prompts: Prompts

    @property
    def name(self) -> str:
        """Return ``direct``."""
        return "direct"

    def render(self, case: DirectCase) -> Prompt:
        """Return the prompt."""
        return fill_prompt(self.prompts, self.name, {"question": case.question}, question_id=case.question_id)

    def target(self, case: DirectCase) -> str | None:
        """Return the answers that are taught."""
        return None if case.answers is None else write_answers(case.answers)

    def parse(self, text: str, case: DirectCase) -> Answers | ParseFailure:
        """Return the distinct answers of a text, or that it abstains."""
        return parse_answers(text)

    def constraint(self, case: DirectCase) -> Constraint | None:
        """Return None: the answer space is everything."""
        return None


# ------ chain_of_thought: from a question to its answers by thinking aloud, without any graph (the ...


@dataclass(frozen=True, slots=True)
class ChainOfThoughtCase:
    """A question alone."""

    question: str
    question_id: str = ""


@dataclass(frozen=True, slots=True)
class ChainOfThoughtInstruction:
    """The instruction ``chain_of_thought``."""

    prompts: Prompts

    @property
    def name(self) -> str:
        """Return ``chain_of_thought``."""
        return "chain_of_thought"

    def render(self, case: ChainOfThoughtCase) -> Prompt:
        """Return the prompt."""
        return fill_prompt(self.prompts, self.name, {"question": case.question}, question_id=case.question_id)

    def target(self, case: ChainOfThoughtCase) -> str | None:
        """Return None: no graph says how to think."""
        return None

    def parse(self, text: str, case: ChainOfThoughtCase) -> Explained | ParseFailure:
        """Return the thoughts and the answers of a text."""
        return parse_explained(text)

    def constraint(self, case: ChainOfThoughtCase) -> Constraint | None:
        """Return None: thoughts are free text."""
        return None
