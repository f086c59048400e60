"""Paths and triples as prompts show them, read back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kgqa_core.graph.label_paths import write_step
from kgqa_core.instructions.escapes import unescape
from kgqa_core.instructions.render import ARROW

Triple = tuple[str, str, str]  # names of head and tail, label of the relation between them
Way = tuple[tuple[str, ...], tuple[str, ...]]  # names in walking order, steps between them

_COMMA, _NEXT = ", ", "), ("


@dataclass(frozen=True, slots=True)
class ShownPath:
    """One reasoning path as a prompt shows it."""

    text: str  # without its score
    score: float
    names: tuple[str, ...]  # of the entities, in walking order; of triples: of all that they hold
    steps: tuple[str, ...]  # between them; of triples: their relations
    ends: tuple[str, ...]  # the name that it ends at; of triples, which do not say: tail and head of the last one


def read_path(text: str, score: float, known: Collection[str]) -> ShownPath:
    """Return a path written as names and steps, or as triples.

    ``known``: the graph's steps; with them what is between names is told from arrows and commas inside a name.
    """
    if text.startswith("(") and text.endswith(")") and (triples := read_triples(text, known)):
        names = tuple(dict.fromkeys(name for head, _, tail in triples for name in (head, tail)))
        head, _, tail = triples[-1]
        return ShownPath(text, score, names, tuple(relation for _, relation, _ in triples), (tail, head))
    names, steps = _as_way(tuple(map(unescape, text.split(ARROW))), known)
    return ShownPath(text, score, names, steps, names[-1:])


def split_steps(text: str, known: Collection[str]) -> tuple[str, ...]:
    """Return the steps of a plan or of a path so far."""
    pieces = tuple(map(unescape, text.split(ARROW)))
    if not known or all(piece in known for piece in pieces):
        return pieces
    best: list[tuple[str, ...] | None] = [(), *[None] * len(pieces)]  # of the first pieces, put together to known steps
    for end in range(1, len(best)):
        for start in range(end):
            before, step = best[start], ARROW.join(pieces[start:end])
            if before is not None and step in known:
                best[end] = (*before, step)
                break
    return best[-1] or pieces


def read_triples(text: str, known: Collection[str]) -> list[Triple]:
    """Return the triples of a text like "(a, r, b), (b, s, c)"; none where that is not all that it holds."""
    found: list[Triple] = []
    waiting: list[str] = []
    for part in text[1:-1].split(_NEXT):
        waiting.append(part)
        triple = _read_triple(_NEXT.join(waiting), known)
        if triple is not None:
            found.append(triple)
            waiting = []
    return [] if waiting else found


def _read_triple(text: str, known: Collection[str]) -> Triple | None:
    """Return the triple whose relation is known; without known relations any text of three parts is one."""
    pieces = tuple(map(unescape, text.split(_COMMA)))
    if not known:
        return (pieces[0], pieces[1], pieces[2]) if len(pieces) == 3 else None
    for start in range(1, len(pieces) - 1):
        for end in range(start + 1, len(pieces)):
            relation = _COMMA.join(pieces[start:end])
            if write_step(relation) in known:
                return _COMMA.join(pieces[:start]), relation, _COMMA.join(pieces[end:])
    return None


def _as_way(pieces: Sequence[str], known: Collection[str]) -> Way:
    """Return the names and steps of a path cut at its arrows."""
    names, steps = tuple(pieces[::2]), tuple(pieces[1::2])
    if len(pieces) % 2 and (not known or all(step in known for step in steps)):
        return names, steps
    found = _put_together(pieces, known)
    return found if found[1] else (names, steps)


def _put_together(pieces: Sequence[str], known: Collection[str]) -> Way:
    """Return the way with the most known steps, each of one piece or more, as are the names between them."""
    best: list[Way] = [((), ())]  # best[end]: of the first ``end`` pieces, a name at their end
    for end in range(1, len(pieces) + 1):
        here: Way = ((ARROW.join(pieces[:end]),), ())
        for start in range(2, end):  # of the last name
            for begin in range(1, start):  # of the step before it
                names, steps = best[begin]
                step = ARROW.join(pieces[begin:start])
                if step in known and len(steps) >= len(here[1]):
                    here = ((*names, ARROW.join(pieces[start:end])), (*steps, step))
        best.append(here)
    return best[-1]
