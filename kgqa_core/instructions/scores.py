"""Instructions that name options of the prompt, one per line with a number, and how such lines are read.

Relations and entities are scored (``3: directed_by = 0.90``; EPERM, Think-on-Graph), or mapped to clues
(``clue -> relation = 8``; FiSKE). Models write these lines in many ways, and all of them are looked at.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from kgqa_core.instructions.render import ARROW, escape, render_lines, unescape
from kgqa_core.instructions.types import Case, Instruction, ParseFailure
from kgqa_core.lm.constraints import Choices
from kgqa_core.lm.types import Constraint

MAX_LINE, MAX_LINES = 2000, 2000  # characters of a line and lines of a text that are looked at
MAX_NUMBERS, MAX_SPLITS = 40, 20  # numbers and arrows of a line that are tried

_BETWEEN_WORDS = re.compile(r"[\s_./:-]+")
_AROUND = " \t\"'`*“”.,;|()[]{}<>"


class Options:
    """Texts to choose from, found by themselves or, where that is no other's, by nearly the same text."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = tuple(texts)
        self._exact: dict[str, int] = {}
        folded: dict[str, list[int]] = {}
        for index, text in enumerate(self.texts):
            self._exact.setdefault(text, index)
            folded.setdefault(_fold(text), []).append(index)
        self._folded = {text: ids[0] for text, ids in folded.items() if text and len(ids) == 1}

    def find(self, text: str) -> int | None:
        """Return the index of the option that ``text`` names: exactly, else whatever its case, quotes and blanks."""
        for form in (text, text.strip(), unescape(text.strip())):
            if form in self._exact:
                return self._exact[form]
        return self._folded.get(_fold(unescape(text)))


def _fold(text: str) -> str:
    composed = unicodedata.normalize("NFC", text).casefold()  # as some tokenizers have models read it
    return _BETWEEN_WORDS.sub(" ", composed).strip(_AROUND)  # "- **author**" has both around it


def _lines(text: str) -> Iterator[str]:
    for line in text.split("\n", MAX_LINES)[:MAX_LINES]:
        yield line[:MAX_LINE].strip()


# ------ Scores as text.


# "0.9", "0,9", ".9", "90 %", "9/10": the number, its percent sign, its whole. Four digits are a year, and no score.
_NUMBER = re.compile(r"(?<![\w.])(0,\d\d?|\d{1,3}(?:\.\d+)?|\.\d+)(?!\w|\.\d)(?:\s*(%)|\s*/\s*(100?)\b)?")
# A text that begins with a score. "1." and "2)" number a line, and are none.
_BEGINS = re.compile(r"\W*(?:score\W*)?(?!\d+[:.)\]](?!\d))" + _NUMBER.pattern, re.IGNORECASE)
_ASSIGN = " = "
_ORDINAL = re.compile(r"\W*(\d{1,4})\s*[:.)\]]\s*")  # "3: ", "- 3) "
# Atomic: a reply of nothing but tags must not be tried in all its parts.
_TAGGED = re.compile(r"<choice>(?>(.*?)</choice>)(?>.*?<score>)(.*?)</score>", re.IGNORECASE | re.DOTALL)
_AFTER_NAME = " \t=:,(|→*-"


@dataclass(frozen=True, slots=True)
class Scores:
    """Which options were scored, in the order they were given."""

    scores: tuple[tuple[int, float], ...]  # (index of the option, 0..1); each option once


def write_scores(options: Sequence[str], scores: Sequence[tuple[int, float]], *, budget: int | None = None) -> str:
    """Return one line per scored option, each with its number before it.

    The number counts down from ``budget`` (what is left of it, this one included), or is the option's own, from 1.
    """
    return "\n".join(
        f"{index + 1 if budget is None else budget - place}: {escape(options[index])}{_ASSIGN}{score:.2f}"
        for place, (index, score) in enumerate(scores)
    )


def parse_scores(text: str, options: Sequence[str], *, countdown: bool) -> Scores | ParseFailure:
    """Return the scores of any text; never raises. Values above 1 are read as out of 10 or of 100."""
    known = Options(options)
    found: dict[int, float] = {}
    for name, value in _TAGGED.findall(text[: MAX_LINE * 10]):
        index, number = known.find(name), _NUMBER.search(value)
        if index is not None and number:
            found.setdefault(index, _share(number))
    if not found:
        left = [*_lines(text)][::-1]
        while left:
            line = left.pop()
            # The first number from the right with an option before it is the score; others stand in its reason.
            for number in reversed(list(islice(_NUMBER.finditer(line), MAX_NUMBERS))):
                index = _option_before(line[: number.start()], known, countdown)
                if index is not None:
                    left += [line[number.end() :]] if index not in found else []  # some models write all on one line
                    found.setdefault(index, _share(number))
                    break
    return Scores(tuple(found.items())) if found else ParseFailure("no score of a known option")


def _option_before(text: str, known: Options, countdown: bool) -> int | None:
    """Return the option that a line names before its score: "3: Rome = ", "Rome - score: "."""
    bare = text.rstrip(_AFTER_NAME)
    if bare[-5:].lower() == "score":
        bare = bare[:-5].rstrip(_AFTER_NAME)
    for form in (text.removesuffix(_ASSIGN), bare):
        ordinal = _ORDINAL.match(form)
        rest = form[ordinal.end() :] if ordinal else form
        if ordinal and not countdown:  # several options may have one name: then the number tells
            own = int(ordinal[1]) - 1
            if 0 <= own < len(known.texts) and (not rest or Options([known.texts[own]]).find(rest) == 0):
                return own
        for candidate in (rest, form) if ordinal else (form,):
            index = known.find(candidate)
            if index is not None:
                return index
    return None


def _share(number: re.Match[str]) -> float:
    """Return the score, 0..1, that a match of ``_NUMBER`` writes; of 10 or of 100 where it does not say of what."""
    value, percent, whole = float(number[1].replace(",", ".")), number[2], number[3]
    if percent or whole:
        value /= 100 if percent else float(whole)
    elif value > 1:
        value /= 10 if value <= 10 else 100
    return min(max(value, 0.0), 1.0)


# ------ Mappings as text.


_ARROW = re.compile(r"\s*(?:->|=>|→|\|)\s*")
# What an option ends at: a mark, mostly with its score, and out of how many, where it says so (" = 8", ": score 8/10",
# " (8)"), or the end of the line.
_MAPPED = re.compile(
    r"\s*(?:[=:,;(|]\s*(?:(?:score\s*[:=]?\s*)?(\d{1,3}(?:\.\d+)?)(?!\w|\.\d)(?:\s*/\s*(\d{1,3}))?)?|\Z)",
    re.IGNORECASE,
)
_BULLET = re.compile(r"\W*\d{1,3}[.):]\s+")  # "1. ", "- 2) "
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


def parse_mappings(text: str, clues: Sequence[str], options: Sequence[str]) -> Mappings | ParseFailure:
    """Return the pairs of any text; never raises. A pair given twice counts once, one of nothing shown not at all."""
    known_clues, known_options = Options(clues), Options(options)
    pairs: dict[tuple[int, int], ClueMatch] = {}
    lines = [line for line in _lines(text) if _ARROW.search(line)]
    left = lines[::-1]
    while left:
        if found := _parse_pair(left.pop(), known_clues, known_options):
            pair, behind = found
            left += [behind] if (pair.clue, pair.option) not in pairs else []  # some models write all on one line
            pairs.setdefault((pair.clue, pair.option), pair)
    if not lines and not _NOTHING.match(text):
        return ParseFailure("no mapping")
    return Mappings(tuple(pairs.values()))


def _parse_pair(line: str, clues: Options, options: Options) -> tuple[ClueMatch, str] | None:
    """Return the pair of a line, and what stands behind it: any arrow may be its own, as names may hold arrows."""
    begun = []  # (clue, where its option begins)
    for arrow in list(_ARROW.finditer(line))[:MAX_SPLITS]:
        left = line[: arrow.start()]
        for clue in (clues.find(left), clues.find(_BULLET.sub("", left, count=1))):
            begun += [(clue, arrow.end())] if clue is not None else []
    *marks, end = _MAPPED.finditer(line)
    for mark in (end, *reversed(marks[:MAX_SPLITS])):
        for clue, place in begun:
            option = options.find(line[place : mark.start()])
            if option is not None:
                whole = float(mark[2] or 10) or 10.0  # "8/0" counts as 8 of 10
                score = min(float(mark[1] or whole) * (10 / whole), 10.0)
                return ClueMatch(clue, option, score), line[mark.end() :]
    return None


# ------ score_relations: which relations at the frontier lead on to an answer? (EPERM's retriever, Think-on-Graph.)


USUAL_BUDGET = 3  # relations to be named at most: what every adapter was taught, the shipped one nothing else


@dataclass(frozen=True, slots=True)
class RelationsCase(Case):
    """A question, the path so far, and the relations that go on from it."""

    relations: tuple[str, ...]  # steps, "^" before one walked backward; distinct
    topics: tuple[str, ...] = ()  # names
    path: tuple[str, ...] = ()  # steps so far
    budget: int = USUAL_BUDGET  # relations to be named at most
    scores: tuple[float, ...] | None = None  # taught, per relation: the share of golds in what is reached through it


class ScoreRelationsInstruction(Instruction[RelationsCase, Scores]):
    """The instruction ``score_relations``."""

    name: ClassVar[str] = "score_relations"

    def values(self, case: RelationsCase) -> dict[str, str]:
        """Return path so far, relations and budget; the answer counts down from it (EPERM A.4)."""
        shown = {"topics": _list(case.topics), "path": _one_line(case.path), "relations": _list(case.relations)}
        return shown | {"budget": str(case.budget)}

    def target(self, case: RelationsCase) -> str | None:
        """Return the best relations within the budget, best first; where none leads to an answer one that scores 0."""
        ranked = sorted(enumerate(case.scores or ()), key=lambda pair: (-pair[1], pair[0]))[: case.budget]
        kept = [(index, score) for index, score in ranked if score > 0] or ranked[:1]
        return write_scores(case.relations, kept, budget=case.budget) if kept else None

    def lines(self, case: RelationsCase) -> tuple[str, ...]:
        """Return how an answer begins that names each relation first, to be weighed."""
        return tuple(f"{case.budget}: {escape(relation)}{_ASSIGN.rstrip()}" for relation in case.relations)

    def parse(self, text: str, case: RelationsCase) -> Scores | ParseFailure:
        """Return the scores of the relations that a text names, the first ``budget`` of them."""
        found = parse_scores(text, case.relations, countdown=True)
        return found if isinstance(found, ParseFailure) else Scores(found.scores[: case.budget])


def _list(items: Sequence[str]) -> str:
    return render_lines(map(escape, items))


def _one_line(steps: Sequence[str]) -> str:
    return render_lines([ARROW.join(map(escape, steps))] if steps else [])


# ------ score_entities: which candidates on a plan's way lead on to an answer? (EPERM's finder.)


@dataclass(frozen=True, slots=True)
class EntityCandidate:
    """One entity on the way, with what stands around it."""

    name: str
    triples: tuple[str, ...] = ()  # see ``render.render_triples``


@dataclass(frozen=True, slots=True)
class EntitiesCase(Case):
    """A question, the plan that is followed, and the entities that it has led to."""

    candidates: tuple[EntityCandidate, ...]
    topics: tuple[str, ...] = ()  # names
    plan: tuple[str, ...] = ()  # steps
    scores: tuple[float, ...] | None = None  # taught, per candidate: the share of golds in what is reached from it


class ScoreEntitiesInstruction(Instruction[EntitiesCase, Scores]):
    """The instruction ``score_entities``."""

    name: ClassVar[str] = "score_entities"

    def values(self, case: EntitiesCase) -> dict[str, str]:
        """Return the candidates by number, each with the triples around it."""
        shown = [
            "\n".join([f"{place}: {escape(one.name)}", *(f"   {triple}" for triple in one.triples)])
            for place, one in enumerate(case.candidates, 1)
        ]
        return {"topics": _list(case.topics), "plan": _one_line(case.plan), "candidates": render_lines(shown)}

    def target(self, case: EntitiesCase) -> str | None:
        """Return the score of the one candidate, or a line for each of several."""
        if case.scores is None or not case.candidates:
            return None
        if len(case.candidates) == 1:
            return f"{case.scores[0]:.2f}"
        return write_scores([one.name for one in case.candidates], list(enumerate(case.scores)))

    def parse(self, text: str, case: EntitiesCase) -> Scores | ParseFailure:
        """Return the scores of a text; numbers alone are in order; of one candidate the first, else the last number."""
        found = parse_scores(text, [one.name for one in case.candidates], countdown=False)
        if not isinstance(found, ParseFailure):
            return found
        plain = [_BEGINS.fullmatch(part) for part in re.split(r"\s*[\n,;]\s*", text[:MAX_LINE].strip(" \n[]()"))]
        if len(plain) == len(case.candidates) and all(plain):
            return Scores(tuple((place, _share(number)) for place, number in enumerate(plain) if number))
        if len(case.candidates) == 1:
            first = _BEGINS.match(text[:MAX_LINE])
            numbers = [first] if first else list(_NUMBER.finditer(text[-MAX_LINE:]))
            return Scores(((0, _share(numbers[-1])),)) if numbers else ParseFailure("no score")
        return found

    def constraint(self, case: EntitiesCase) -> Constraint | None:
        """Return the scores 0.00 to 1.00 where one candidate is asked about."""
        return Choices([f"{cents / 100:.2f}" for cents in range(101)]) if len(case.candidates) == 1 else None


# ------ map_relations and map_entities: which clues do relations of an entity, or entities behind one, stand for?


@dataclass(frozen=True, slots=True)
class MapCase(Case):
    """The clues left, and what may stand for them where the exploration is."""

    clues: tuple[str, ...]
    options: tuple[str, ...]  # steps ("^" before one walked backward) or names; the released code asks about 20 or 80
    entity: str = ""  # name of where the options start; of several entities the path that leads to them
    relation: str = ""  # step that leads to entities
    pairs: tuple[tuple[int, int], ...] | None = None  # taught: (clue, option) by place; none: nothing fits


class MapRelationsInstruction(Instruction[MapCase, Mappings]):
    """The instruction ``map_relations`` (FiSKE §3.4)."""

    name: ClassVar[str] = "map_relations"
    fit: ClassVar[str] = f"{_ASSIGN}9"  # behind every pair that is taught

    def values(self, case: MapCase) -> dict[str, str]:
        """Return what the prompts of both instructions show."""
        named = {"entity": escape(case.entity), "relation": escape(case.relation)}
        return {"clues": _list(case.clues), **dict.fromkeys(("relations", "entities"), _list(case.options)), **named}

    def target(self, case: MapCase) -> str | None:
        """Return a line per taught pair; None where names are such that it would be read as something else."""
        if case.pairs is None:
            return None
        lines = [f"{escape(case.clues[at])} -> {escape(case.options[option])}{self.fit}" for at, option in case.pairs]
        found = self.parse(text := "\n".join(lines) or "none", case)
        pairs = [(pair.clue, pair.option) for pair in found.pairs] if isinstance(found, Mappings) else None
        return text if pairs == list(case.pairs) else None

    def parse(self, text: str, case: MapCase) -> Mappings | ParseFailure:
        """Return pairs of (clue, option) with scores of 0 to 10."""
        return parse_mappings(text, case.clues, case.options)


class MapEntitiesInstruction(MapRelationsInstruction):
    """The instruction ``map_entities`` (FiSKE §3.4), which differs in its wording."""

    name: ClassVar[str] = "map_entities"
    fit: ClassVar[str] = ""
