"""plan: from a question to relation paths, written ``<PATH>directed_by<SEP>^starred_actors</PATH>`` (RoG §4.3).

Steps are those of ``graph.kg``: a relation's label, with "^" before it where it is walked backward. What would
break the frame (a marker or a line break inside a label, blanks at its ends) is written as ``\\u{HEX}`` and read back,
so that any label survives.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from kgqa_core.instructions.render import BREAKS, Prompts, escape, unescape
from kgqa_core.instructions.types import Instruction, ParseFailure, failure
from kgqa_core.lm.types import Constraint
from kgqa_core.types import LabelPath

START, SEPARATOR, END = "<PATH>", "<SEP>", "</PATH>"

_UNSAFE = re.compile(BREAKS + r"|<(?=(?:SEP|/?PATH)>)", re.IGNORECASE)
_PLAN = re.compile(r"<PATH>(.*?)(?:</PATH>|(?=<PATH>)|\Z)", re.IGNORECASE | re.DOTALL)
_MARKER = re.compile(r"</?(?:SEP|PATH)>", re.IGNORECASE)
_SEPARATOR = re.compile(re.escape(SEPARATOR), re.IGNORECASE)
_END = re.compile(re.escape(END), re.IGNORECASE)


def render_step(step: str) -> str:
    """Return one step as it stands in a plan text: itself, but for the characters that would break the frame."""
    return escape(step, _UNSAFE)


def render_plan(path: LabelPath) -> str:
    """Return the text of a plan of at least one step; ValueError for none, or for an empty step."""
    if not path or not all(path):
        raise ValueError(f"a plan is one or more non-empty steps, not {path!r}")
    return f"{START}{SEPARATOR.join(render_step(step) for step in path)}{END}"


def parse_plan(text: str) -> LabelPath | ParseFailure:
    """Return the first plan of any text, whatever stands around it; see ``parse_plans``."""
    plans = parse_plans(text)
    return plans if isinstance(plans, ParseFailure) else plans[0]


def parse_plans(text: str) -> tuple[LabelPath, ...] | ParseFailure:
    """Return the distinct plans of any text in their order, or why there is none; never raises.

    The end marker may be missing (generation stops there, and drops it). So may the start marker where the prompt
    ends with it: the text then begins with the plan.
    """
    bodies = [found[1] for found in _PLAN.finditer(text)]
    if not bodies and _MARKER.search(text):
        bodies = [_END.split(text, maxsplit=1)[0]]
    if not bodies:
        return failure("no plan", text)
    plans = [plan for plan in map(_steps, bodies) if plan]
    return tuple(dict.fromkeys(plans)) if plans else failure("empty plan", text)


def _steps(body: str) -> LabelPath:
    """Return the steps between two markers; none at all where one of them is empty."""
    steps = tuple(unescape(piece.strip()) for piece in _SEPARATOR.split(body))
    return steps if all(steps) else ()


@dataclass(frozen=True, slots=True)
class PlanCase:
    """A question to plan for; the planner sees the question only (EPERM Eq. 6)."""

    question: str  # as it is read: with a placeholder where it names a topic, unless the run says otherwise
    question_id: str = ""
    path: LabelPath | None = None  # the one that is taught
    paths_allowed: Constraint | None = None  # those that exist around the topics, or a trie of relations


@dataclass(frozen=True, slots=True)
class PlanInstruction(Instruction[PlanCase, tuple[LabelPath, ...]]):
    """The instruction ``plan``."""

    name: ClassVar[str] = "plan"
    prompts: Prompts

    def target(self, case: PlanCase) -> str | None:
        """Return the plan that is taught."""
        return None if case.path is None else render_plan(case.path)

    def parse(self, text: str, case: PlanCase) -> tuple[LabelPath, ...] | ParseFailure:
        """Return the distinct plans of a text, in their order."""
        return parse_plans(text)

    def constraint(self, case: PlanCase) -> Constraint | None:
        """Return the paths that exist, where the case brings them."""
        return case.paths_allowed
