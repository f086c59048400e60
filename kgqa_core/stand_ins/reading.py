"""Reading a rendered prompt back into its parts, from the prompt file that it was made of.

Each template becomes a pattern with one capture per placeholder, so that any wording of a user's works. A value that
holds a template's own separating lines can be read in two ways; then the shortest reading is taken.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from kgqa_core.instructions.escapes import unescape
from kgqa_core.instructions.prompts import Prompts, Template, split_placeholders
from kgqa_core.instructions.render import NOTHING
from kgqa_core.lm.types import Prompt
from kgqa_core.stand_ins.shown import ShownCandidate, ShownEntity, ShownPath, read_candidates, read_entities
from kgqa_core.stand_ins.walks import read_path, split_steps

_LINE, _NUMBER, _ANY = r"[^\n]*", r"\d+", r".*?"
_SHAPES = {"path": _LINE, "plan": _LINE, "entity": _LINE, "relation": _LINE, "budget": _NUMBER, "num_plans": _NUMBER}
_SCORE = re.compile(r"(.*) \(score (\d\.\d\d)\)")
_FILES = {"reason": ("reason_scored", "reason")}  # instructions that have several prompt files


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """The parts of one prompt; what its file does not show is empty."""

    instruction: str
    file: str  # name of the prompt file
    question: str = ""
    topics: tuple[str, ...] = ()  # names
    path: tuple[str, ...] = ()  # steps so far
    plan: tuple[str, ...] = ()  # steps
    relations: tuple[str, ...] = ()  # steps, or labels to plan with
    entities: tuple[ShownEntity, ...] = ()  # of score_entities
    candidates: tuple[ShownCandidate, ...] = ()  # of choose
    paths: tuple[ShownPath, ...] = ()
    clues: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  # of the entities of map_entities
    entity: str = ""  # name
    relation: str = ""  # step
    budget: int = 1
    num_plans: int = 1


class PromptReader:
    """Reads the prompts that some prompt files make."""

    def __init__(self, prompts: Prompts, *others: Prompts, steps: Collection[str] = ()) -> None:
        """Take the prompt files of a run, all of them where its systems have files of their own.

        ``steps``: those that the graph has; with them names that hold an arrow are told from ways.
        """
        self._steps = frozenset(steps)
        self._patterns: dict[str, list[_Pattern]] = {}
        for own in (prompts, *others):
            for name, template in own.templates.items():
                known = self._patterns.setdefault(name, [])
                if all(pattern.sha256 != template.sha256 for pattern in known):
                    known.append(_Pattern(name, template))

    def read(self, prompt: Prompt) -> ReadPrompt | None:
        """Return the parts of a prompt; None where none of the files made it."""
        for file in _FILES.get(prompt.instruction, (prompt.instruction,)):
            for pattern in self._patterns.get(file, ()):
                values = pattern.values(prompt)
                if values is not None and (file != "reason_scored" or _all_scored(values["paths"])):
                    return self._parts(prompt.instruction, file, values)
        return None

    def _parts(self, instruction: str, file: str, values: dict[str, str]) -> ReadPrompt:
        shown = values.get
        scored = file == "reason_scored"
        is_entities = instruction == "score_entities"
        return ReadPrompt(
            instruction=instruction,
            file=file,
            question=shown("question", ""),
            topics=_items(shown("topics", NOTHING)),
            path=_steps(shown("path", NOTHING), self._steps),
            plan=_steps(shown("plan", NOTHING), self._steps),
            relations=_items(shown("relations", NOTHING)),
            entities=read_entities(shown("candidates", NOTHING)) if is_entities else (),
            candidates=() if is_entities else read_candidates(shown("candidates", NOTHING), self._steps),
            paths=tuple(self._path(line, scored) for line in _lines(shown("paths", NOTHING))),
            clues=_items(shown("clues", NOTHING)),
            names=_items(shown("entities", NOTHING)),
            entity=unescape(shown("entity", "")),
            relation=unescape(shown("relation", "")),
            budget=int(shown("budget", "1")),
            num_plans=int(shown("num_plans", "1")),
        )

    def _path(self, line: str, scored: bool) -> ShownPath:
        match = _SCORE.fullmatch(line) if scored else None
        text, score = (match[1], float(match[2])) if match else (line, 1.0)
        return read_path(text, score, self._steps)


class _Pattern:
    """One prompt file as a matcher."""

    def __init__(self, name: str, template: Template) -> None:
        self.name, self.sha256 = name, template.sha256
        self._texts = _compile(template.text)
        self._systems = _compile(template.system)

    def values(self, prompt: Prompt) -> dict[str, str] | None:
        """Return what stands at each placeholder; None where the prompt is none of this file."""
        text = _match(self._texts, prompt.text)
        system = _match(self._systems, prompt.system)
        return None if text is None or system is None else {**system, **text}


def _compile(text: str) -> tuple[re.Pattern[str], ...]:
    """Return the patterns of a template, the one to be tried first before others: questions have one line, mostly."""
    found = []
    for question in (_LINE, _ANY):
        first, *rest = split_placeholders(text)
        pattern, seen = re.escape(first), set[str]()
        for name, literal in zip(rest[::2], rest[1::2], strict=True):
            shape = question if name == "question" else _SHAPES.get(name, _ANY)
            pattern += (f"(?P={name})" if name in seen else f"(?P<{name}>{shape})") + re.escape(literal)
            seen.add(name)
        found.append(re.compile(pattern, re.DOTALL))
    return tuple(found)


def _match(patterns: Iterable[re.Pattern[str]], text: str) -> dict[str, str] | None:
    for pattern in patterns:
        if found := pattern.fullmatch(text):
            return found.groupdict()
    return None


def _lines(value: str) -> list[str]:
    return [] if value == NOTHING else value.split("\n")


def _items(value: str) -> tuple[str, ...]:
    return tuple(map(unescape, _lines(value)))


def _steps(value: str, known: Collection[str]) -> tuple[str, ...]:
    return () if value == NOTHING else split_steps(value, known)


def _all_scored(value: str) -> bool:
    return all(_SCORE.fullmatch(line) for line in _lines(value))
