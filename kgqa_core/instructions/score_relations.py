"""score_relations: which relations at the frontier lead on to an answer? (EPERM's retriever, Eq. 2; Think-on-Graph)."""

from __future__ import annotations

from dataclasses import dataclass

from kgqa_core.instructions.escapes import escape
from kgqa_core.instructions.prompts import Prompts
from kgqa_core.instructions.render import fill_prompt, render_lines
from kgqa_core.instructions.scores import Scores, parse_scores, write_scores
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.lm.types import Constraint, Prompt


@dataclass(frozen=True, slots=True)
class RelationsCase:
    """A question, the path so far, and the relations that go on from it."""

    question: str
    relations: tuple[str, ...]  # steps, "^" before one walked backward; distinct
    question_id: str = ""
    topics: tuple[str, ...] = ()  # names
    path: tuple[str, ...] = ()  # steps so far
    budget: int = 3  # relations to be named at most
    scores: tuple[float, ...] | None = (
        None  # taught, per relation: the share of what is reached through it that is gold
    )


@dataclass(frozen=True, slots=True)
class ScoreRelationsInstruction:
    """The instruction ``score_relations``."""

    prompts: Prompts

    @property
    def name(self) -> str:
        """Return ``score_relations``."""
        return "score_relations"

    def render(self, case: RelationsCase) -> Prompt:
        """Return the prompt: path so far, relations, budget, and a countdown in the answer (EPERM A.4)."""
        values = {
            "question": case.question,
            "topics": render_lines(map(escape, case.topics)),
            "path": render_lines([" → ".join(map(escape, case.path))] if case.path else []),
            "relations": render_lines(map(escape, case.relations)),
            "budget": str(case.budget),
        }
        return fill_prompt(self.prompts, self.name, values, question_id=case.question_id)

    def target(self, case: RelationsCase) -> str | None:
        """Return the best relations within the budget, best first; None where none leads to an answer."""
        if case.scores is None:
            return None
        ranked = sorted(enumerate(case.scores), key=lambda pair: (-pair[1], pair[0]))[: case.budget]
        kept = [(index, score) for index, score in ranked if score > 0]
        return write_scores(case.relations, kept, budget=case.budget) if kept else None

    def parse(self, text: str, case: RelationsCase) -> Scores | ParseFailure:
        """Return the scores of the relations that a text names, the first ``budget`` of them."""
        found = parse_scores(text, case.relations, countdown=True)
        if isinstance(found, ParseFailure):
            return found
        return Scores(found.scores[: case.budget], found.num_unknown)

    def constraint(self, case: RelationsCase) -> Constraint | None:
        """Return None: scores and reasons are free."""
        return None
