"""What a question file says before it is linked to a graph, and what became of its lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kgqa_core.graph.formats import (
    NOT_JSON,
    NOT_UTF8,
    TRUNCATED,
    WRONG_FIELDS,
    line_blocks,
    require_file,
)
from kgqa_core.types import Question, Reject

Span = tuple[int, int]  # characters of a text: start, one past the end


@dataclass(frozen=True, slots=True)
class RawQuestion:
    """One parsed line. Entities are still labels or names."""

    id: str
    text: str  # markup removed
    answers: tuple[str, ...]
    topics: tuple[str, ...]  # empty: to be linked by name
    mentions: tuple[Span, ...] = ()  # where the file itself marks the topics in ``text``
    hops: int | None = None
    chain: tuple[str, ...] | None = None  # relation labels, "~label" walks it backwards
    claim: str | None = None
    verdict: bool | None = None
    keep: bool = False  # also where graph or file lack its topics or answers: it is asked, and counts as wrong
    link: bool = False  # where the graph has none of ``topics``: by the longest name in the text, as without topics


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a line is rejected."""

    reason: str  # a short, fixed phrase
    unknown: str = ""  # the name that the graph does not know, where that is why


@dataclass(slots=True)
class Loaded:
    """The outcome of one or more question files."""

    questions: list[Question] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    unknown: dict[tuple[str, int], str] = field(default_factory=dict)  # (file, line) of a reject -> the unknown name
    notes: dict[tuple[str, str], list[str]] = field(default_factory=dict)  # (kind, split) -> one example per case

    def reject(self, reject: Reject, *, unknown: str = "") -> None:
        """Keep a line that is not used, and the name in it that the graph does not know."""
        self.rejects.append(reject)
        if unknown:
            self.unknown[reject.file, reject.line] = unknown
            self.note("unknown_entity", "", f"{reject.file}:{reject.line}: {unknown}")

    def note(self, kind: str, split: str, example: str) -> None:
        """Count something doubtful about a line that is used."""
        self.notes.setdefault((kind, split), []).append(example)


Parser = Callable[[str, int], "RawQuestion | Fault"]  # (line, its number) -> what it says


def parse_lines(path: Path, parse: Parser) -> Iterator[tuple[int, str, RawQuestion | Fault]]:
    """Yield (line number, line, what it says) for each line of a question file that is not blank.

    Raises InputError where the file is missing.
    """
    require_file(path, what="question file")
    before = 0
    for lines, complete in line_blocks(path):
        for number, line in enumerate(lines, before + 1):
            if isinstance(line, bytes):
                yield number, line.decode("utf-8", errors="replace"), Fault(NOT_UTF8)
            elif line.strip():
                parsed = parse(line, number)
                unfinished = isinstance(parsed, Fault) and parsed.reason in (NOT_JSON, WRONG_FIELDS)
                cut_off = unfinished and number == before + len(lines) and not complete
                yield number, line, Fault(TRUNCATED) if cut_off else parsed
        before += len(lines)
