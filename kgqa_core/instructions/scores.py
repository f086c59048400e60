"""Finding what a model means among options that it was shown: relations, entities, clues."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kgqa_core.instructions.plan import failure
from kgqa_core.instructions.render import NOTHING, Prompts, escape, render_lines, unescape
from kgqa_core.instructions.types import Instruction, ParseFailure
from kgqa_core.lm.constraints import Choices
from kgqa_core.lm.types import Constraint

_BETWEEN_WORDS = re.compile(r"[\s_./:-]+")
_AROUND = " \t\"'`*“”.,;()[]{}<>"


class Options:
    """Texts to choose from, found by themselves or, where that is no other's, by nearly the same text."""

    def __init__(self, texts: Sequence[str]) -> None:
        """Take the texts; of two that are equal the first is found."""
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
    return _BETWEEN_WORDS.sub(" ", text.strip(_AROUND).casefold()).strip()


# ------ Scores of options as text, one per line: ``3: directed_by = 0.90``, and whatever models write instead.


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


# ------ score_relations: which relations at the frontier lead on to an answer? (EPERM's retriever, ...


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
class ScoreRelationsInstruction(Instruction[RelationsCase, Scores]):
    """The instruction ``score_relations``."""

    name: ClassVar[str] = "score_relations"
    prompts: Prompts

    def values(self, case: RelationsCase) -> dict[str, str]:
        """Return path so far, relations and budget; the answer counts down from it (EPERM A.4)."""
        return {
            "topics": render_lines(map(escape, case.topics)),
            "path": render_lines([" → ".join(map(escape, case.path))] if case.path else []),
            "relations": render_lines(map(escape, case.relations)),
            "budget": str(case.budget),
        }

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


# ------ score_entities: which candidates on a plan's way lead on to an answer? (EPERM's finder, ...


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
class ScoreEntitiesInstruction(Instruction[EntitiesCase, Scores]):
    """The instruction ``score_entities``."""

    name: ClassVar[str] = "score_entities"
    prompts: Prompts

    def values(self, case: EntitiesCase) -> dict[str, str]:
        """Return what the prompt shows."""
        return {
            "topics": render_lines(map(escape, case.topics)),
            "plan": render_lines([" → ".join(map(escape, case.plan))] if case.plan else []),
            "candidates": "\n".join(_shown(place, one) for place, one in enumerate(case.candidates, 1)) or NOTHING,
        }

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
