"""An explanation and the answers after it, as text: what ``explain`` and ``chain_of_thought`` give."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kgqa_core.instructions.answers import LEAD, Answers, parse_answers, write_answers
from kgqa_core.instructions.plan_text import failure
from kgqa_core.instructions.types import ParseFailure

HEADING = "Answers:"

_HEADING = re.compile("^" + LEAD, re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Explained:
    """Answers with the text that leads to them."""

    explanation: str  # may be empty
    answers: Answers  # none, without abstention: the text states no answer by itself


def write_explained(explanation: str, answers: Iterable[str]) -> str:
    """Return the explanation, then a heading, then one answer per line."""
    return f"{explanation.strip()}\n{HEADING}\n{write_answers(answers)}"


def parse_explained(text: str, known: Iterable[str] = ()) -> Explained | ParseFailure:
    """Return what any text explains and answers; never raises.

    The answers stand after the last heading that has some; without one, the whole text is an explanation.
    """
    if not text.strip():
        return failure("empty text", text)
    known = tuple(known)
    for heading in reversed(list(_HEADING.finditer(text))):
        answers = parse_answers(text[heading.start() :], known)  # whose first line is read without the heading
        if isinstance(answers, Answers):
            return Explained(text[: heading.start()].strip(), answers)
    return Explained(text.strip(), Answers(()))
