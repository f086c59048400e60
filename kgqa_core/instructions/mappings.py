"""What belongs to what as text, one pair per line: ``clue -> relation = 8``, and whatever models write instead."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kgqa_core.instructions.answers import distinct_names, parse_answers
from kgqa_core.instructions.plan import failure
from kgqa_core.instructions.render import Prompts, escape, render_lines
from kgqa_core.instructions.scores import Options
from kgqa_core.instructions.types import Instruction, ParseFailure

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


# ------ map_relations: which of the clues left does a relation of this entity stand for? (FiSKE §3.4).


@dataclass(frozen=True, slots=True)
class MapRelationsCase:
    """The clues left and the relations of the entity where the exploration stands."""

    question: str
    clues: tuple[str, ...]
    relations: tuple[str, ...]  # steps, "^" before one walked backward; the released code asks about 20 at once
    question_id: str = ""
    entity: str = ""  # name; of several entities the path that leads to them


@dataclass(frozen=True, slots=True)
class MapRelationsInstruction(Instruction[MapRelationsCase, Mappings]):
    """The instruction ``map_relations``."""

    name: ClassVar[str] = "map_relations"
    prompts: Prompts

    def values(self, case: MapRelationsCase) -> dict[str, str]:
        """Return what the prompt shows."""
        return {
            "clues": render_lines(map(escape, case.clues)),
            "entity": escape(case.entity),
            "relations": render_lines(map(escape, case.relations)),
        }

    def parse(self, text: str, case: MapRelationsCase) -> Mappings | ParseFailure:
        """Return pairs of (clue, relation) with scores of 0 to 10."""
        return parse_mappings(text, case.clues, case.relations)


# ------ map_entities: which of the clues left does an entity behind this relation stand for? (FiSKE §3.4).


@dataclass(frozen=True, slots=True)
class MapEntitiesCase:
    """The clues left and the entities that a mapped relation leads to."""

    question: str
    clues: tuple[str, ...]
    entities: tuple[str, ...]  # names; the released code asks about 80 at most
    question_id: str = ""
    entity: str = ""  # name of the entity that the relation starts at; of several the path that leads to them
    relation: str = ""  # step


@dataclass(frozen=True, slots=True)
class MapEntitiesInstruction(Instruction[MapEntitiesCase, Mappings]):
    """The instruction ``map_entities``."""

    name: ClassVar[str] = "map_entities"
    prompts: Prompts

    def values(self, case: MapEntitiesCase) -> dict[str, str]:
        """Return what the prompt shows."""
        return {
            "clues": render_lines(map(escape, case.clues)),
            "entity": escape(case.entity),
            "relation": escape(case.relation),
            "entities": render_lines(map(escape, case.entities)),
        }

    def parse(self, text: str, case: MapEntitiesCase) -> Mappings | ParseFailure:
        """Return pairs of (clue, entity)."""
        return parse_mappings(text, case.clues, case.entities)


# ------ extract_clues: the keywords of a question that entities and relations of a graph can stand ...


_HEADING = re.compile(r"[ \t*#-]*(?:the\s+)?(?:clues?|key\s?words?)(?:\s+are)?\s*:\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CluesCase:
    """A question alone: clues take the place of topic entities."""

    question: str
    question_id: str = ""


@dataclass(frozen=True, slots=True)
class ExtractCluesInstruction(Instruction[CluesCase, tuple[str, ...]]):
    """The instruction ``extract_clues``."""

    name: ClassVar[str] = "extract_clues"
    prompts: Prompts

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
