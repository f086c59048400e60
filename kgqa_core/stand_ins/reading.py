"""Reading a rendered prompt back into its parts, from the prompt file that it was made of.

Each template becomes a pattern with one capture per placeholder, so that any wording of a user's works. A value that
holds its template's own separating lines can be read in more ways than one; the shortest reading is taken.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kgqa_core.errors import ConfigError, shorten
from kgqa_core.instructions.escapes import unescape
from kgqa_core.instructions.prompts import Prompts, Template, split_placeholders
from kgqa_core.instructions.render import NOTHING
from kgqa_core.lm.types import Prompt
from kgqa_core.stand_ins.shown import ShownCandidate, ShownEntity, read_candidates, read_entities
from kgqa_core.stand_ins.walks import ShownPath, read_path, split_steps

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
