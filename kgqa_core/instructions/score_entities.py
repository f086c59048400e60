"""score_entities: which candidates on a plan's way lead on to an answer? (EPERM's finder, Eq. 3; Think-on-Graph).

EPERM asks about one candidate per call, and then the answer is a bare number; several at once answer one per line.
"""

from __future__ import annotations

from dataclasses import dataclass

from kgqa_core.instructions.escapes import escape
from kgqa_core.instructions.plan_text import failure
from kgqa_core.instructions.prompts import Prompts
from kgqa_core.instructions.render import NOTHING, fill_prompt, render_lines
from kgqa_core.instructions.scores import Scores, last_score, parse_scores, write_scores
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.lm.constraints import Choices
from kgqa_core.lm.types import Constraint, Prompt


@dataclass(frozen=True, slots=True)
class EntityCandidate:
    """One entity on the way, with what stands around it."""

    name: str
    triples: tuple[str, ...] = ()  # see ``render.render_triples``


@dataclass(frozen=True, slots=True)
class EntitiesCase:
    """A question, the plan that is followed, and the entities that it has led to."""

    question: str
    candidates: tuple[EntityCandidate, ...]
    question_id: str = ""
    topics: tuple[str, ...] = ()  # names
    plan: tuple[str, ...] = ()  # steps
    scores: tuple[float, ...] | None = None  # taught, per candidate: the share of what is reached from it that is gold


@dataclass(frozen=True, slots=True)
class ScoreEntitiesInstruction:
    """The instruction ``score_entities``."""

    prompts: Prompts

    @property
    def name(self) -> str:
        """Return ``score_entities``."""
        return "score_entities"

    def render(self, case: EntitiesCase) -> Prompt:
        """Return the prompt."""
        values = {
            "question": case.question,
            "topics": render_lines(map(escape, case.topics)),
            "plan": render_lines([" → ".join(map(escape, case.plan))] if case.plan else []),
            "candidates": "\n".join(_shown(place, one) for place, one in enumerate(case.candidates, 1)) or NOTHING,
        }
        constraint = self.constraint(case)
        return fill_prompt(self.prompts, self.name, values, question_id=case.question_id, constraint=constraint)

    def target(self, case: EntitiesCase) -> str | None:
        """Return the score of the one candidate, or a line for each of several."""
        if case.scores is None or not case.candidates:
            return None
        if len(case.candidates) == 1:
            return f"{case.scores[0]:.2f}"
        return write_scores(_names(case), list(enumerate(case.scores)))

    def parse(self, text: str, case: EntitiesCase) -> Scores | ParseFailure:
        """Return the scores of a text; of one candidate its last number, wherever that stands."""
        found = parse_scores(text, _names(case), countdown=False)
        if isinstance(found, ParseFailure) and len(case.candidates) == 1:
            score = last_score(text)
            return failure("no score", text) if score is None else Scores(((0, score),))
        return found

    def constraint(self, case: EntitiesCase) -> Constraint | None:
        """Return the scores 0.00 to 1.00 where one candidate is asked about."""
        return Choices([f"{cents / 100:.2f}" for cents in range(101)]) if len(case.candidates) == 1 else None


def _names(case: EntitiesCase) -> list[str]:
    return [candidate.name for candidate in case.candidates]


def _shown(place: int, candidate: EntityCandidate) -> str:
    return "\n".join([f"{place}: {escape(candidate.name)}", *(f"   {triple}" for triple in candidate.triples)])
