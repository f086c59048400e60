"""Candidates as prompts show them, read back: those of ``choose``, and those of ``score_entities``."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from kgqa_core.instructions.choose import label_of
from kgqa_core.instructions.escapes import unescape
from kgqa_core.instructions.render import NOTHING
from kgqa_core.stand_ins.walks import read_path

_PROBABILITY = re.compile(r"(?:(.*?) )?\(probability (\d+\.\d{3})\)(?: \{evidence: (.*)\})?")
_EVIDENCE = re.compile(r"(?:(.*?) )?\{evidence: (.*)\}")
_INDENT = "   "


@dataclass(frozen=True, slots=True)
class ShownCandidate:
    """One candidate of ``choose``."""

    label: str  # empty in a list without labels
    name: str  # empty where names are not shown
    probability: float | None  # None where it is not shown
    evidence: str  # empty: none
    ends: tuple[str, ...]  # names in the evidence's last triple


@dataclass(frozen=True, slots=True)
class ShownEntity:
    """One candidate of ``score_entities``."""

    name: str
    triples: tuple[str, ...]  # around it, as they are shown


def read_candidates(value: str, known: Collection[str]) -> tuple[ShownCandidate, ...]:
    """Return the candidates of ``choose`` in order (``choose.render_candidates``); ``known``: see ``read_path``."""
    if value == NOTHING:
        return ()
    return tuple(_candidate(place, line, known) for place, line in enumerate(value.split("\n")))


def read_entities(value: str) -> tuple[ShownEntity, ...]:
    """Return the candidates of ``score_entities``: a numbered line each, their triples indented below."""
    found: list[tuple[str, list[str]]] = []
    for line in [] if value == NOTHING else value.split("\n"):
        own = f"{len(found) + 1}: "
        if line.startswith(own):
            found.append((unescape(line[len(own) :]), []))
        elif found:
            found[-1][1].append(line.removeprefix(_INDENT))
    return tuple(ShownEntity(name, tuple(triples)) for name, triples in found)


def _candidate(place: int, line: str, known: Collection[str]) -> ShownCandidate:
    label = label_of(place)
    if line != f"{label}." and not line.startswith(f"{label}. "):
        label = ""
    name = line[len(label) + 2 :] if label else line.removeprefix("-").removeprefix(" ")
    probability, evidence = None, ""
    if match := _PROBABILITY.fullmatch(name):
        name, probability, evidence = match[1] or "", float(match[2]), match[3] or ""
    elif match := _EVIDENCE.fullmatch(name):
        name, evidence = match[1] or "", match[2]
    ends = read_path(evidence, 1.0, known).ends if evidence else ()
    return ShownCandidate(label, unescape(name), probability, evidence, ends)
