"""extract_clues: the keywords of a question that entities and relations of a graph can stand for (FiSKE §3.2)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kgqa_core.instructions.answers import distinct_names, parse_answers
from kgqa_core.instructions.plan_text import failure
from kgqa_core.instructions.prompts import Prompts
from kgqa_core.instructions.render import fill_prompt
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.lm.types import Constraint, Prompt

_HEADING = re.compile(r"[ \t*#-]*(?:the\s+)?(?:clues?|key\s?words?)(?:\s+are)?\s*:\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CluesCase:
    """A question alone: clues take the place of topic entities."""

    question: str
    question_id: str = ""


@dataclass(frozen=True, slots=True)
class ExtractCluesInstruction:
    """The instruction ``extract_clues``."""

    prompts: Prompts

    @property
    def name(self) -> str:
        """Return ``extract_clues``."""
        return "extract_clues"

    def render(self, case: CluesCase) -> Prompt:
        """Return the prompt."""
        return fill_prompt(self.prompts, self.name, {"question": case.question}, question_id=case.question_id)

    def target(self, case: CluesCase) -> str | None:
        """Return None: no graph says which words of a question count."""
        return None

    def parse(self, text: str, case: CluesCase) -> tuple[str, ...] | ParseFailure:
        """Return the distinct clues of a text: lines, a list, or one line with commas."""
        lines = [_HEADING.sub("", line, count=1) for line in text[:20_000].split("\n")]
        found = parse_answers("\n".join(lines))
        if isinstance(found, ParseFailure) or not found.names:
            return failure("no clue", text)
        names = found.names
        if len(names) == 1 and "," in names[0] and names[0] != case.question:
            names = distinct_names(part.strip(" .()") for part in names[0].split(","))
        return names or failure("no clue", text)

    def constraint(self, case: CluesCase) -> Constraint | None:
        """Return None: clues are words of the question, and which is the model's to say."""
        return None
