"""Answers as text: one name per line, and whatever models write instead; then from names to entities."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from kgqa_core.evaluation.metrics import normalise_name
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.render import escape, escape_all, unescape
from kgqa_core.instructions.types import ParseFailure

ABSTENTION = "I do not know"
MAX_NAME = 300  # characters; a longer line is prose, not a name
MAX_LINES = 2000  # of an answer that are read
MAX_TEXT = 100_000  # characters of a text that are read
MAX_HEADINGS = 20  # of a text that are tried, from its end
MOST_JOINED = 5  # parts between commas, or "and", that one name has beside others on its line

# A whole line that says "I do not know", "unknown", "none of these", "it cannot be determined".
_ABSTAINED = re.compile(
    r"[\W_]*(?:(?:i(?: a|.)m sorry,? (?:but )?)?i (?:do not|don.?t) (?:know(?: the answers?\b.*)?|have enough inf.*)"
    r"|i (?:cannot|can.?t|am unable to) (?:answer|determine|tell)\b.*"
    r"|unknown|null|none|none of (?:these|the above|them)|n/?a|no answers?|not enough information"
    r"|(?:it )?cannot be (?:determined|answered)\b.*)[\W_]*",
    re.IGNORECASE,
)
# "Yes", "**True**", "No, he did not", "false - it was": a verdict alone, or before a stop, a comma or a dash.
_VERDICT = re.compile(r"[\W_]*(yes|no|true|false)(?:[\W_]*\Z|[*_]*\s*[.,;:!–—](?!\w)|\s+-\s)", re.IGNORECASE)
BULLET = re.compile(r"^\s*(?:[-*•–]|\(?\d{1,3}[.)])\s+")  # "- ", "• ", "1. ", "(2) "
LEAD = (
    r"(?:(?:so|therefore|thus|hence),?\s+)?(?:(?:the|my)\s+)?(?:(?:final|correct|possible|right)\s+){0,3}answers?(?:\(s\))?"
    r"(?:\s+to\s+(?:the|this)\s+question)?[\s*_\"]*+(?:(?:is|are)\b[\s*_]*+:?|:)[ \t*_]*+"
)  # possessive: a reply of nothing but stars must not be tried in all its parts
"""What stands before an answer: "Answer:", "So the final answer is"; a key of JSON, too."""
_TITLE = r"(?:#+[ \t]|\*\*)[ \t*]*(?:the\s+)?(?:final\s+|correct\s+)?answers?(?:\(s\))?[ \t*]*$"  # in Markdown, alone
_CLAUSE = r"(?:[^\n\\]{1,80}?,[ \t]+)?"  # "In conclusion, "; a name that begins so is written with an escape
_HEADING = re.compile(rf"^(?:[ \t*#>_•–{{\"-]*+{_CLAUSE}{LEAD}|[ \t]*{_TITLE})", re.IGNORECASE | re.MULTILINE)
_MORE = re.compile(r"and \d+ more\W*", re.IGNORECASE)  # what a prompt says of names that it leaves out
# No name: "```json", "],", a line of LaTeX's "\[" or "$$", a line that ends with ":", "[" or "{".
_FENCE = re.compile(r"```\w*|[\[\](){},]+|\\[\[\]]|\$\$|.*[:\[{]")
# A line with a LaTeX box, and as what it is read: so models end that learned mathematics.
BOXED = re.compile(r"^.*\\boxed\{(?:\\text\w*\{)?([^{}\n]*).*$", re.MULTILINE)
AS_ANSWER = r"Answer: \1"
_BOLD = re.compile(r"(\*{1,3}|__?|`)(.+?)\1")  # "**Paris**", "_Paris_", "`Paris`"
# Bold names that a line begins with, "\0" for each, before its end or what is said of them: "**A** and **B** – ..."
_BOLDS = re.compile(r"\0(?:(?:[\s,;&]|and\b)*\0)*(?=[\s.,;]*\Z|\s*[:(–—-])")
_QUOTES = re.compile(r"^(?:\"(.*)\"|'(.*)'|“(.*)”)\Z")  # a line in quotes: one of the three groups is what they enclose
_QUOTED = re.compile(r"\s*(?:\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)')\s*(?:,|\Z)")  # a list's next text in quotes
_ESCAPED = re.compile(r"\\(?:u(?![dD][89a-fA-F])([0-9a-fA-F]{4})|(.))")  # of JSON, but for half characters
_INITIALS = re.compile(r"(?:.*\W)?(?:[^\W\d_]\.){2,}")  # "Washington, D.C.": that stop is the name's
_PARTS = re.compile(r"(\s*(?:;|,\s+and\s+|,|\s+and\s+|\s*\|)\s*)")  # what stands between the names of one line


@dataclass(frozen=True, slots=True)
class Answers:
    """What was answered, by name."""

    names: tuple[str, ...]  # distinct by ``normalise_name``, in the order they were given
    abstained: bool = False  # said so in as many words
    verdict: str = field(default="", compare=False)  # yes, no, true or false, where prose begins so: of true/false ones


@dataclass(frozen=True, slots=True)
class Matched:
    """Which entities some names stand for."""

    entities: tuple[int, ...]  # distinct, in the order of the names
    unmatched: tuple[str, ...]  # names that nothing in the graph has


def distinct_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names without empty ones and repetitions; what differs in case or blanks alone is a repetition."""
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(normalise_name(name), name)
    first.pop("", None)
    return tuple(first.values())


def write_answers(names: Iterable[str], known: Collection[str] = ()) -> str:
    """Return the target text of these answers: one per line, the abstention where there is none.

    A line is what is read back as the name: nearly always the name as it is, else with its ends escaped. Names in
    ``known`` (those that a prompt shows) are written as the prompt shows them.
    """
    lines = []
    for name in distinct_names(names):
        if name in known:
            lines.append(escape(name))
            continue
        first, last = escape_all(name[0]), escape_all(name[-1])
        tried = (escape(name), first + escape(name[1:]), escape(name[:-1]) + last)
        kept = (line for line in tried if not _ABSTAINED.fullmatch(line) and _read(line) == [name])
        lines.append(next(kept, first + escape(name[1:-1]) + last))
    return "\n".join(lines) or ABSTENTION


def parse_answers(text: str, known: Iterable[str] = (), question: str | None = None) -> Answers | ParseFailure:
    """Return the answers of any text: lines, bullets, a list; never raises.

    Names in ``known`` (those that a prompt shows) are taken as they stand, whatever they look like, and without a note
    in brackets behind them. With ``question`` they are found inside prose too, where no line is one of them by itself.
    What the question names ("the director of Dawn is ...") is then no answer, unless the prose names nothing else.
    """
    known = tuple(known)
    shown = {normalise_name(name): name for name in known}
    found: list[str] = []
    prose: list[str] = []
    abstained = False
    for line in BOXED.sub(AS_ANSWER, text[:MAX_TEXT]).split("\n", MAX_LINES)[:MAX_LINES]:
        readings = _readings(line, known, shown)
        as_shown = next((names for names in readings if not shown.keys().isdisjoint(map(normalise_name, names))), None)
        if as_shown is None and _ABSTAINED.fullmatch(_without_lead(line)[:MAX_NAME]):
            abstained = True
            continue
        found += as_shown or _read(line)
        prose.append(line)
    is_prose = shown.keys().isdisjoint(map(normalise_name, found))
    first_words = next(filter(None, map(_without_lead, prose)), "")
    begun = _VERDICT.match(first_words) if is_prose else None
    if question is not None and is_prose:
        named = find_names("\n".join(prose), known)
        asked = find_names(question, known) if len(named) > 1 else []
        found = [name for name in named if name not in asked] or named or found
    names = distinct_names(found)
    if names or abstained:
        return Answers(names, abstained=not names, verdict=begun[1] if begun else "")
    return ParseFailure("no answer")


def _readings(line: str, known: Collection[str], shown: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield what a line may name: as it stands, as text, without its stop, and without a note in brackets."""
    yield [unescape(line.strip())]
    yield _read(line)
    yield _read(without_stop(line))
    bare, _, note = without_stop(line).rpartition(" (")
    if note.endswith(")"):  # "Adgar Collin (director)"
        yield [name if name in known else shown.get(normalise_name(name), name) for name in _read(bare)]


def find_names(text: str, names: Iterable[str]) -> list[str]:
    """Return which of some names stand in a text as words of their own, in its order; of what overlaps the longest.

    Case counts ("It" is a film, "it" is none), unless no name stands there in its own case.
    """
    longest_first = sorted(dict.fromkeys(names), key=len, reverse=True)
    for form in (_on_one_line, normalise_name):
        said, found = form(unescape(text)), dict[int, str]()
        for name in longest_first:
            own = form(name)
            if own and own in said:
                begins, ends = r"(?<!\w)" if own[0].isalnum() else "", r"(?!\w)" if own[-1].isalnum() else ""
                pattern = begins + re.escape(own) + ends
                found |= {match.start(): name for match in re.finditer(pattern, said)}
                said = re.sub(pattern, "\0" * len(own), said)
        if found:
            break
    return list(dict.fromkeys(found[place] for place in sorted(found)))


def _on_one_line(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def without_stop(text: str) -> str:
    """Return a text without blanks around it and without the stop that ends a sentence."""
    text = text.strip()
    ends = text.endswith(".") and not text.endswith("..") and not _INITIALS.fullmatch(text)
    return text[:-1] if ends else text


def _without_lead(line: str) -> str:
    """Return a line without its bullet, and without what stands before an answer; then without its stop, too."""
    line = BULLET.sub("", line.strip())
    if not (match := _HEADING.match(line)):
        return line
    rest = BULLET.sub("", line[match.end() :])
    if rest.count("**") % 2:  # the lead took the mark that begins a bold answer
        rest = "**" + rest
    return without_stop(rest)


def _read(line: str) -> list[str]:
    """Return the names that one line gives: none where it is a heading, prose or a bracket."""
    line = _without_lead(line)
    if not line or len(line) > MAX_NAME or _FENCE.fullmatch(line) or _MORE.fullmatch(line):
        return []
    if line[0] in "[\"'" and (names := _listed(line)):
        return names
    found = [line]
    if _BOLD.match(line) and (bold := _BOLDS.match(_BOLD.sub("\0", line))):
        num_names = bold[0].count("\0")
        found = [match[2] for match in _BOLD.finditer(line)][:num_names]
    names = [unescape(_QUOTES.sub(r"\1\2\3", name).strip()) for name in found]
    return [name for name in names if name.strip()]


def _listed(line: str) -> list[str]:
    """Return the quoted names, or a list's members, but for one cut off; none where a line is a name, as "[REC]"."""
    inner = line.removeprefix("[").rstrip(" .,}").removesuffix("]")
    names, place = [], 0
    while place < len(inner) and (match := _QUOTED.match(inner, place)):
        names.append(match[1] if match[1] is not None else match[2])
        place = match.end()
    if names and (line[0] == "[" or place == len(inner)):
        read = (_ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else found[2], name) for name in names)
        return [unescape(name) for name in read if name.strip()]
    is_list = line[0] == "[" and "," in inner
    return [part for part in map(str.strip, inner.split(",")) if part] if is_list else []


def match_answers(
    answers: Answers | Iterable[str],
    candidates: Mapping[int, str],
    search: SearchGraph | None = None,
    question_id: str = "",
) -> Matched:
    """Return the entities that answers stand for: candidates of that name first, then those of what is searched.

    ``candidates`` (name by entity id) are what the prompt showed, or plans reached: all that are called exactly so,
    else all whatever their case. Of other entities with one name, or that alias, the smallest id is meant, a literal
    last. A name's final stop counts where something is called so with it. Ids are of ``search.graph``: where each
    question has its own subgraph, rows of that one.
    """
    exact: dict[str, list[int]] = {}  # "prince", a tag, is not "Prince", who directs
    folded: dict[str, list[int]] = {}
    for entity, name in sorted(candidates.items()):
        exact.setdefault(name, []).append(entity)
        folded.setdefault(normalise_name(name), []).append(entity)

    @cache  # aliases are looked through
    def ids_of(name: str) -> list[int]:
        forms = dict.fromkeys((name, name.removesuffix(".")))
        for form in forms:
            if ids := exact.get(form) or folded.get(normalise_name(form), []):
                return ids
        if search is None:
            return []
        known = (search.entities_named(question_id, form, any_case=case) for form in forms for case in (False, True))
        named: list[int] = next((ids.tolist() for ids in known if len(ids)), [])
        labels = map(search.entities.label_of, search.to_entities(named))
        is_literal = dict(zip(named, (label.startswith('"') for label in labels), strict=True))
        return sorted(named, key=lambda one: (is_literal[one], one))[:1]

    found: dict[int, None] = {}
    unmatched: list[str] = []
    for name in answers.names if isinstance(answers, Answers) else answers:
        parts = [name] if ids_of(name) else _split_names(name, ids_of)
        for part in filter(None, parts if any(map(ids_of, parts)) else [name]):
            found |= dict.fromkeys(ids_of(part))
            unmatched += [] if ids_of(part) else [part]
    return Matched(tuple(found), tuple(unmatched))


def _split_names(text: str, ids_of: Callable[[str], list[int]]) -> list[str]:
    """Return the names of "A, B and C": names hold commas, too, so the longest that ``ids_of`` knows comes first."""
    pieces, names = _PARTS.split(text), list[str]()  # names at even places, and between them what parts them
    while pieces:
        longest = min(len(pieces), 2 * MOST_JOINED - 1)
        size = next((size for size in range(longest, 1, -2) if ids_of("".join(pieces[:size]))), 1)
        names.append("".join(pieces[:size]))
        pieces = pieces[size + 1 :]
    return names


# ------ An explanation and the answers after it, as text: what ``explain`` and ``chain_of_thought`` give.


HEADING = "Answers:"


def write_explained(explanation: str, answers: Iterable[str]) -> str:
    """Return the explanation, then a heading, then one answer per line."""
    return f"{explanation.strip()}\n{HEADING}\n{write_answers(answers)}"


def parse_explained(text: str, known: Iterable[str] = (), question: str | None = None) -> Answers | ParseFailure:
    """Return the answers of any text that explains them first; never raises.

    They stand after the last heading that has some; without one, the whole text is an explanation, and its last line
    answers with what it names of ``known``: if that is nothing, the answers are none, without abstention. ``question``:
    see ``parse_answers``.
    """
    if not text.strip():
        return ParseFailure("empty text")
    known, text = tuple(known), BOXED.sub(AS_ANSWER, text[-MAX_TEXT:])
    for heading in reversed(list(_HEADING.finditer(text))[-MAX_HEADINGS:]):
        answers = parse_answers(text[heading.start() :], known, question)  # its first line is read without the heading
        if isinstance(answers, Answers):
            return answers
    last = text.strip().rpartition("\n")[2]
    answers = parse_answers(last, known, question) if find_names(last, known) else Answers(())
    return answers if isinstance(answers, Answers) else Answers(())
