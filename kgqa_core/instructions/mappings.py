"""What belongs to what as text, one pair per line: ``clue -> relation = 8``, and whatever models write instead."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kgqa_core.instructions.options import Options
from kgqa_core.instructions.plan_text import failure
from kgqa_core.instructions.types import ParseFailure

MAX_LINE, MAX_LINES, MAX_SPLITS = 2000, 2000, 20

_ARROW = re.compile(r"\s*(?:->|=>|→|\|)\s*")
_SCORE = re.compile(
    r"\s*(?:=|:|,|\(|\|)\s*(?:score\s*[:=]?\s*)?(\d{1,3}(?:\.\d+)?)(?:\s*/\s*(\d{1,3}))?\s*\)?\W*\Z", re.IGNORECASE
)
_ORDINAL = re.compile(r"\W*\d{1,3}[.):]\s+")
_NOTHING = re.compile(r"\W*(?:none|nothing|no (?:clue|match|mapping)\w*)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ClueMatch:
    """One clue with what it maps to."""

    clue: int  # index
    option: int  # index
    score: float  # 0..10; of a text that gives none: 10


@dataclass(frozen=True, slots=True)
class Mappings:
    """All that a text maps, in its order; none is a result, too: the exploration ends there."""

    pairs: tuple[ClueMatch, ...]
    num_unknown: int = 0  # pairs whose clue or option is none of those given


def parse_mappings(text: str, clues: Sequence[str], options: Sequence[str]) -> Mappings | ParseFailure:
    """Return the pairs of any text; never raises. A pair given twice counts once."""
    known_clues, known_options = Options(clues), Options(options)
    pairs: dict[tuple[int, int], float] = {}
    num_unknown = 0
    for line in text.split("\n", MAX_LINES)[:MAX_LINES]:
        if not _ARROW.search(line[:MAX_LINE]):
            continue
        pair = _parse_line(line[:MAX_LINE].strip(), known_clues, known_options)
        if pair is None:
            num_unknown += 1
        else:
            pairs.setdefault((pair.clue, pair.option), pair.score)
    if not pairs and not num_unknown and not _NOTHING.match(text):
        return failure("no mapping", text)
    return Mappings(tuple(ClueMatch(clue, option, score) for (clue, option), score in pairs.items()), num_unknown)


def _parse_line(line: str, clues: Options, options: Options) -> ClueMatch | None:
    """Return the pair of a line: any arrow may be the one between them, as names may hold arrows."""
    scored = _SCORE.search(line)
    for arrow in list(_ARROW.finditer(line))[:MAX_SPLITS]:
        left, right = line[: arrow.start()], line[arrow.end() :]
        clue = clues.find(left)
        if clue is None:
            clue = clues.find(_ORDINAL.sub("", left, count=1))
        if clue is None:
            continue
        option = options.find(right)
        if option is not None:
            return ClueMatch(clue, option, 10.0)
        option = options.find(line[arrow.end() : scored.start()]) if scored and scored.start() > arrow.end() else None
        if option is not None and scored:
            value = float(scored[1]) * (10 / float(scored[2]) if scored[2] and float(scored[2]) else 1)
            return ClueMatch(clue, option, min(max(value, 0.0), 10.0))
    return None
