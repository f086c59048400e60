"""Answers as text: one name per line, and whatever models write instead; then from names to entities."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kgqa_core.evaluation.metrics import normalise_name
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.instructions.render import escape, escape_all, unescape
from kgqa_core.instructions.types import ParseFailure, failure

ABSTENTION = "I do not know"
MAX_NAME = 300  # characters; a longer line is prose, not a name
MAX_LINES = 2000  # of an answer that are read

_ABSTAINED = re.compile(
    r"(?:i (?:do not|don.?t) know|i (?:cannot|can.?t|am unable to) (?:answer|determine|tell)\b.*"
    r"|unknown|none|none of (?:these|the above|them)|n/?a|no answers?|not enough information"
    r"|(?:it )?cannot be (?:determined|answered)\b.*)\W*",
    re.IGNORECASE,
)
_BULLET = re.compile(r"(?:[-*•–]|\(?\d{1,3}[.)])\s+")
LEAD = (
    r"[ \t*#>_•–-]*(?:(?:so|therefore|thus|hence),?\s+)?(?:the\s+)?(?:(?:final|correct|possible|right)\s+)*answers?"
    r"(?:\s+to\s+(?:the|this)\s+question)?[\s*_]*(?:(?:is|are)\b[\s*_]*:?|:)[ \t*_]*"
)
"""What stands before an answer: "Answer:", "So the final answer is"."""
_LEAD = re.compile(LEAD, re.IGNORECASE)
_FENCE = re.compile(r"```\w*|[\[\](){},]+")
_BOLD = re.compile(r"(\*\*|__|`)(.+)\1")
_QUOTES = re.compile(r"\"(.*)\"|'(.*)'|“(.*)”")
_QUOTED = re.compile(r"\s*(?:\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)')\s*(?:,|\Z)")
_PARTS = re.compile(r"\s*(?:;|,\s+and\s+|,|\s+and\s+|\s*\|)\s*")


@dataclass(frozen=True, slots=True)
class Answers:
    """What was answered, by name."""

    names: tuple[str, ...]  # distinct by ``normalise_name``, in the order they were given
    abstained: bool = False  # said so in as many words


@dataclass(frozen=True, slots=True)
class Matched:
    """Which entities some names stand for."""

    entities: tuple[int, ...]  # distinct, in the order of the names
    unsupported: tuple[int, ...]  # those of them that were no candidates, but are in the graph by that name
    unmatched: tuple[str, ...]  # names that nothing in the graph has


def distinct_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names without empty ones and repetitions; what differs in case or blanks alone is a repetition."""
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(normalise_name(name), name)
    first.pop("", None)
    return tuple(first.values())


def write_answers(names: Iterable[str]) -> str:
    """Return the target text of these answers: one per line, the abstention where there is none.

    A line is what is read back as the name: nearly always the name as it is, else with its ends escaped.
    """
    lines = []
    for name in distinct_names(names):
        first, last = escape_all(name[0]), escape_all(name[-1])
        tried = (escape(name), first + escape(name[1:]), escape(name[:-1]) + last)
        kept = (line for line in tried if not _ABSTAINED.fullmatch(line) and _read(line) == [name])
        lines.append(next(kept, first + escape(name[1:-1]) + last))
    return "\n".join(lines) or ABSTENTION


def parse_answers(text: str, known: Iterable[str] = ()) -> Answers | ParseFailure:
    """Return the answers of any text: lines, bullets, a list; never raises.

    Names in ``known`` (those that a prompt shows) are taken as they stand, whatever they look like.
    """
    shown = {normalise_name(name) for name in known}
    found: list[str] = []
    abstained = False
    for line in text.split("\n", MAX_LINES)[:MAX_LINES]:
        name = unescape(line.strip())
        if normalise_name(name) in shown:
            found.append(name)
        elif _ABSTAINED.fullmatch(_BULLET.sub("", line.strip(), count=1)[:MAX_NAME]):
            abstained = True
        else:
            found += _read(line)
    names = distinct_names(found)
    if names or abstained:
        return Answers(names, abstained=not names)
    return failure("no answer", text)


def _read(line: str) -> list[str]:
    """Return the names that one line gives: none where it is a heading, prose or a bracket."""
    line = line.strip()
    if match := _BULLET.match(line):
        line = line[match.end() :]
    if match := _LEAD.match(line):
        line = line[match.end() :].strip()
        line = line[:-1] if line.endswith(".") and not line.endswith("..") else line
    if not line or len(line) > MAX_NAME or line.endswith(":") or _FENCE.fullmatch(line):
        return []
    if line.startswith("[") and (names := _listed(line)):
        return names
    line = line[:-1] if line.endswith(('",', "',")) else line
    if match := _BOLD.fullmatch(line):
        line = match[2]
    if match := _QUOTES.fullmatch(line):
        line = next(group for group in match.groups() if group is not None)
    name = unescape(line.strip())
    return [name] if name.strip() else []


def _listed(line: str) -> list[str]:
    """Return the members of a list on one line; none where it is no list but a name in brackets, as "[REC]"."""
    inner = line[1:].rstrip(" .")
    inner = inner.removesuffix("]")
    names, place = [], 0
    while place < len(inner) and (match := _QUOTED.match(inner, place)):
        names.append(match[1] if match[1] is not None else match[2])
        place = match.end()
    if names and place == len(inner):
        return [unescape(re.sub(r"\\(.)", r"\1", name)) for name in names if name.strip()]
    return [part for part in map(str.strip, inner.split(",")) if part] if "," in inner else []


def match_answers(
    answers: Answers | Iterable[str], candidates: Mapping[int, str], graph: KnowledgeGraph | None = None
) -> Matched:
    """Return the entities that answers stand for: candidates of that name first, then the graph's.

    ``candidates`` (name by entity id) are what the prompt showed, or plans reached: all that are called exactly so,
    else all whatever their case. Of the graph's entities with one name the smallest id is meant.
    """
    exact: dict[str, list[int]] = {}  # "prince", a tag, is not "Prince", who directs
    folded: dict[str, list[int]] = {}
    for entity, name in sorted(candidates.items()):
        exact.setdefault(name, []).append(entity)
        folded.setdefault(normalise_name(name), []).append(entity)

    def ids_of(name: str) -> list[int]:
        ids = exact.get(name) or folded.get(normalise_name(name), [])
        if ids or graph is None:
            return ids
        return list((graph.ids_of_name(name) or graph.ids_of_folded_name(name))[:1])

    found: dict[int, None] = {}
    unmatched: list[str] = []
    for name in answers.names if isinstance(answers, Answers) else answers:
        parts = [name] if ids_of(name) else [part for part in _PARTS.split(name) if part]
        for part in parts if any(map(ids_of, parts)) else [name]:
            found |= dict.fromkeys(ids_of(part))
            unmatched += [] if ids_of(part) else [part]
    return Matched(tuple(found), tuple(entity for entity in found if entity not in candidates), tuple(unmatched))


# ------ An explanation and the answers after it, as text: what ``explain`` and ``chain_of_thought`` give.


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
