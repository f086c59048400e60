"""Paths and triples as prompts show them, read back."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kgqa_core.errors import ConfigError, shorten
from kgqa_core.graph.kg import write_step
from kgqa_core.instructions.choose import label_of
from kgqa_core.instructions.render import ARROW, NOTHING, Prompts, Template, split_placeholders, unescape
from kgqa_core.lm.types import Prompt

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


# ------ Candidates as prompts show them, read back: those of ``choose``, and those of ``score_entities``.


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


# ------ Reading a rendered prompt back into its parts, from the prompt file that it was made of.


_LINE, _NUMBER, _ANY = r"[^\n]*", r"\d+", r".*?"
_SHAPES = {"path": _LINE, "plan": _LINE, "entity": _LINE, "relation": _LINE, "budget": _NUMBER, "num_plans": _NUMBER}
_SCORE = re.compile(r"(.*) \(score (\d+\.\d\d)\)")
_SCORED = "reason_scored"


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """The parts of one prompt; what its file does not show is empty."""

    instruction: str
    question: str = ""
    topics: tuple[str, ...] = ()  # names
    path: tuple[str, ...] = ()  # steps so far
    plan: tuple[str, ...] = ()  # steps
    relations: tuple[str, ...] = ()  # steps; of ``plan``: labels
    candidates: tuple[ShownCandidate, ...] = ()  # of ``choose``
    scored: tuple[ShownEntity, ...] = ()  # of ``score_entities``
    paths: tuple[ShownPath, ...] = ()
    clues: tuple[str, ...] = ()
    entity: str = ""  # where a mapping starts: a name, or what stands for several
    relation: str = ""  # step that a mapping of entities follows
    entities: tuple[str, ...] = ()  # names that it may map to
    budget: int = 1  # relations to be named at most
    num_plans: int = 1  # asked for


class PromptReader:
    """Reads the prompts that some prompt files make."""

    def __init__(self, prompts: Prompts, *others: Prompts, steps: Collection[str] = ()) -> None:
        """Take the prompt files of a run, with ``others`` where some of its systems have their own.

        ``steps``: those of the graph; see ``walks.read_path``.
        """
        self._steps = frozenset(steps)
        self._patterns: dict[str, list[_Pattern]] = {}
        for own in (prompts, *others):
            for file, template in own.templates.items():
                known = self._patterns.setdefault(file, [])
                if all(pattern.sha256 != template.sha256 for pattern in known):
                    known.append(_Pattern(template))

    def read(self, prompt: Prompt) -> ReadPrompt:
        """Return the parts of a prompt.

        Raises:
            ConfigError: none of the files makes such a prompt.
        """
        name = prompt.instruction
        for file in (_SCORED, "reason") if name == "reason" else (name,):
            for pattern in self._patterns.get(file, ()):
                values = pattern.values(prompt)
                if values is not None and (file != _SCORED or all(map(_SCORE.fullmatch, _lines(values["paths"])))):
                    return self._parts(name, values, is_scored=file == _SCORED)
        raise ConfigError(
            f"a stand-in for a language model answers only prompts of files that it knows; this one of instruction "
            f"{name!r} was made of none of them: {shorten(prompt.text)}. Give it all prompt files of the run"
        )

    def _parts(self, instruction: str, values: Mapping[str, str], *, is_scored: bool) -> ReadPrompt:
        def value(name: str) -> str:
            return values.get(name, NOTHING)

        is_choice = instruction == "choose"
        return ReadPrompt(
            instruction=instruction,
            question=values["question"],
            topics=_items(value("topics")),
            path=self._split(value("path")),
            plan=self._split(value("plan")),
            relations=_items(value("relations")),
            candidates=read_candidates(value("candidates"), self._steps) if is_choice else (),
            scored=() if is_choice else read_entities(value("candidates")),
            paths=tuple(self._path(line, is_scored) for line in _lines(value("paths"))),
            clues=_items(value("clues")),
            entity=unescape(values.get("entity", "")),
            relation=unescape(values.get("relation", "")),
            entities=_items(value("entities")),
            budget=int(values.get("budget", 1)),
            num_plans=int(values.get("num_plans", 1)),
        )

    def _split(self, value: str) -> tuple[str, ...]:
        return () if value == NOTHING else split_steps(value, self._steps)

    def _path(self, line: str, is_scored: bool) -> ShownPath:
        match = _SCORE.fullmatch(line) if is_scored else None
        return read_path(match[1], float(match[2]), self._steps) if match else read_path(line, 1.0, self._steps)


class _Pattern:
    """One prompt file, user's and system's turn, as a matcher."""

    def __init__(self, template: Template) -> None:
        self.sha256 = template.sha256
        self._user, self._system = _compile(template.text), _compile(template.system)

    def values(self, prompt: Prompt) -> dict[str, str] | None:
        """Return what stands at each placeholder; None where the prompt was not made of this file."""
        user = _match(self._user, prompt.text)
        system = None if user is None else _match(self._system, prompt.system)
        return None if user is None or system is None else {**system, **user}


def _compile(text: str) -> tuple[re.Pattern[str], ...]:
    """Return two patterns of a template: for a question of one line, as nearly all are, and for any."""
    first, *rest = split_placeholders(text)
    found = []
    for question in (_LINE, _ANY):
        pattern, seen = re.escape(first), set[str]()
        for name, literal in zip(rest[::2], rest[1::2], strict=True):
            shape = question if name == "question" else _SHAPES.get(name, _ANY)
            pattern += (f"(?P={name})" if name in seen else f"(?P<{name}>{shape})") + re.escape(literal)
            seen.add(name)
        found.append(re.compile(pattern, re.DOTALL))
    return tuple(found)


def _match(patterns: Sequence[re.Pattern[str]], text: str) -> dict[str, str] | None:
    return next((found.groupdict() for pattern in patterns if (found := pattern.fullmatch(text))), None)


def _lines(value: str) -> list[str]:
    return [] if value == NOTHING else value.split("\n")


def _items(value: str) -> tuple[str, ...]:
    return tuple(map(unescape, _lines(value)))
