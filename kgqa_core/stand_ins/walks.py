"""Paths and triples as prompts show them, read back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kgqa_core.graph.label_paths import write_step
from kgqa_core.instructions.escapes import unescape
from kgqa_core.instructions.render import ARROW

_COMMA = ", "


@dataclass(frozen=True, slots=True)
class ShownPath:
    """One reasoning path as a prompt shows it."""

    text: str  # without its score
    score: float
    names: tuple[str, ...]  # of the entities, in walking order; of triples: of all that they hold
    steps: tuple[str, ...]  # between them; of triples: their relations
    ends: tuple[str, ...]  # the name that it ends at; of triples, which do not say: both of the last one


def read_path(text: str, score: float, known: Collection[str]) -> ShownPath:
    """Return a path of names and steps, or of triples; ``known`` steps tell arrows in names from others."""
    if text.startswith("(") and text.endswith(")") and (triples := read_triples(text, known)):
        names = tuple(dict.fromkeys(name for head, _, tail in triples for name in (head, tail)))
        last = triples[-1]
        return ShownPath(text, score, names, tuple(relation for _, relation, _ in triples), (last[2], last[0]))
    names, steps = _split_walk(text.split(ARROW), known)
    return ShownPath(text, score, names, steps, names[-1:])


def split_steps(text: str, known: Collection[str]) -> tuple[str, ...]:
    """Return the steps of a plan or a path so far; those that hold an arrow are found among the known ones."""
    pieces = text.split(ARROW)
    steps = tuple(map(unescape, pieces))
    if not known or all(step in known for step in steps):
        return steps
    return _cut(pieces, known) or steps


def read_triples(text: str, known: Collection[str]) -> list[tuple[str, str, str]]:
    """Return the triples of a text like "(a, r, b), (b, s, c)"; none where it holds none."""
    found: list[tuple[str, str, str]] = []
    waiting = ""
    for part in text[1:-1].split("), ("):
        waiting = f"{waiting}), ({part}" if waiting else part
        triple = _triple(waiting, known)
        if triple is not None:
            found.append(triple)
            waiting = ""
    return [] if waiting else found


def _triple(text: str, known: Collection[str]) -> tuple[str, str, str] | None:
    """Return the one triple whose relation is known; of three parts any."""
    pieces = text.split(_COMMA)
    if len(pieces) == 3 and (not known or _is_known(pieces[1], known)):
        return unescape(pieces[0]), unescape(pieces[1]), unescape(pieces[2])
    for place in range(1, len(pieces) - 1):
        for end in range(place + 1, len(pieces)):
            relation = _COMMA.join(pieces[place:end])
            if _is_known(relation, known):
                head, tail = _COMMA.join(pieces[:place]), _COMMA.join(pieces[end:])
                return unescape(head), unescape(relation), unescape(tail)
    return None


def _is_known(relation: str, known: Collection[str]) -> bool:
    """Say whether a relation, which triples show by its label, is one of the known steps."""
    return write_step(unescape(relation)) in known


def _split_walk(pieces: Sequence[str], known: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names and steps of a path cut at its arrows."""
    texts = tuple(map(unescape, pieces))
    names, steps = texts[::2], texts[1::2]
    if len(texts) % 2 and (not known or all(step in known for step in steps)):
        return names, steps
    return _split_odd(texts, known) or (names, steps)


def _split_odd(texts: Sequence[str], known: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return a way to put together names that hold arrows, so that every step is known; of several the longest."""
    best: list[tuple[tuple[str, ...], tuple[str, ...]] | None] = [None] * (len(texts) + 1)
    for end in range(1, len(texts) + 1):  # best[end]: the first ``end`` texts, a name at their end
        best[end] = ((ARROW.join(texts[:end]),), ())
        for name in range(1, end - 1):
            for step in range(name, 0, -1):
                before = best[step]
                label = ARROW.join(texts[step : name + 1])
                if before is None or label not in known or name + 1 >= end:
                    continue
                found = ((*before[0], ARROW.join(texts[name + 1 : end])), (*before[1], label))
                here = best[end]
                if here is None or len(found[1]) > len(here[1]):
                    best[end] = found
    found_all = best[len(texts)]
    return found_all if found_all is not None and found_all[1] else None


def _cut(pieces: Sequence[str], known: Collection[str]) -> tuple[str, ...] | None:
    """Return the pieces put together to known steps; None where that cannot be done."""
    best: list[tuple[str, ...] | None] = [(), *[None] * len(pieces)]
    for end in range(1, len(pieces) + 1):
        for start in range(end):
            step, before = unescape(ARROW.join(pieces[start:end])), best[start]
            if before is not None and step in known:
                best[end] = (*before, step)
                break
    return best[-1]
