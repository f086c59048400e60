"""Scores of options as text, one per line: ``3: directed_by = 0.90``, and whatever models write instead."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kgqa_core.instructions.escapes import escape
from kgqa_core.instructions.options import Options
from kgqa_core.instructions.plan_text import failure
from kgqa_core.instructions.types import ParseFailure

MAX_LINE, MAX_NUMBERS, MAX_LINES = 2000, 40, 2000  # characters, numbers and lines that are looked at

_NUMBER = re.compile(r"(?<![\w.])(\d{1,3}(?:\.\d+)?|\.\d+)(?:\s*(%)|\s*/\s*(10{1,2})\b)?")
_ASSIGN = " = "
_ORDINAL = re.compile(r"\W*(\d{1,4})\s*[:.)\]]\s*")
_TAGGED = re.compile(r"<choice>(.*?)</choice>.*?<score>(.*?)</score>", re.IGNORECASE | re.DOTALL)
_AFTER_NAME = " \t=:,(|→-"


@dataclass(frozen=True, slots=True)
class Scores:
    """Which options were scored, in the order they were given."""

    scores: tuple[tuple[int, float], ...]  # (index of the option, 0..1); each option once
    num_unknown: int = 0  # lines with a score of something that was no option


def write_scores(options: Sequence[str], scores: Sequence[tuple[int, float]], *, budget: int | None = None) -> str:
    """Return one line per scored option, each with its number before it.

    The number counts down from ``budget`` (what is left of it, this one included), or is the option's own, from 1.
    """
    numbers = [index + 1 if budget is None else budget - place for place, (index, _) in enumerate(scores)]
    return "\n".join(
        f"{number}: {escape(options[index])}{_ASSIGN}{score:.2f}"
        for number, (index, score) in zip(numbers, scores, strict=True)
    )


def parse_scores(text: str, options: Sequence[str], *, countdown: bool) -> Scores | ParseFailure:
    """Return the scores of any text; never raises. Values above 1 are read as out of 10 or of 100."""
    known = Options(options)
    found: dict[int, float] = {}
    num_unknown = 0
    for name, value in _TAGGED.findall(text[: MAX_LINE * 10]):
        index, number = known.find(name), _NUMBER.search(value)
        if index is not None and number:
            found.setdefault(index, _share(number))
        num_unknown += index is None
    if not found:
        for line in text.split("\n", MAX_LINES)[:MAX_LINES]:
            score = _parse_line(line[:MAX_LINE].strip(), known, countdown)
            if score is not None and score[0] is None:
                num_unknown += 1
            elif score is not None and score[0] is not None:
                found.setdefault(score[0], score[1])
    return Scores(tuple(found.items()), num_unknown) if found else failure("no score of a known option", text)


def last_score(text: str) -> float | None:
    """Return the last number of a text as a share of 1, for prompts that ask for a bare score."""
    numbers = list(_NUMBER.finditer(text[-MAX_LINE:]))
    return _share(numbers[-1]) if numbers else None


def _parse_line(line: str, known: Options, countdown: bool) -> tuple[int | None, float] | None:
    """Return (option, score) of a line; no option where it is none of ours, None where there is no score.

    Numbers are tried from the right: the first with an option before it is the score, others stand in its reason.
    """
    numbers = list(_NUMBER.finditer(line))[-MAX_NUMBERS:]
    for number in reversed(numbers):
        index = _option_before(line[: number.start()], known, countdown)
        if index is not None:
            return index, _share(number)
    return (None, 0.0) if numbers and _ASSIGN in line else None


def _option_before(text: str, known: Options, countdown: bool) -> int | None:
    bare = text.rstrip(_AFTER_NAME)
    forms = [
        text.removesuffix(_ASSIGN),
        bare[: -len("score")].rstrip(_AFTER_NAME) if bare[-5:].lower() == "score" else bare,
    ]
    for form in forms:
        ordinal = _ORDINAL.match(form)
        if ordinal and not countdown:  # several options may have one name: then the number tells
            own = int(ordinal[1]) - 1
            if own < len(known.texts) and Options([known.texts[own]]).find(form[ordinal.end() :]) == 0:
                return own
        for candidate in ([form[ordinal.end() :]] if ordinal else []) + [form]:
            index = known.find(candidate)
            if index is not None:
                return index
    return None


def _share(number: re.Match[str]) -> float:
    value = float(number[1])
    if number[2] or number[3]:
        value /= 100 if number[2] else float(number[3])
    elif value > 1:
        value /= 10 if value <= 10 else 100
    return min(max(value, 0.0), 1.0)
