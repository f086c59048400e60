"""What a model said after an exploration, as an answer: on the paths it was shown, or out of its own knowledge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kgqa_core.instructions.answers import Answers
from kgqa_core.instructions.evidence import end_of
from kgqa_core.instructions.prompts import Prompts
from kgqa_core.instructions.reason import ReasonCase, ReasonInstruction
from kgqa_core.instructions.render import ScoredPath, render_reasoning_path
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.systems.answering import abstain, answer_by_name, answer_with
from kgqa_core.systems.named import entities_named
from kgqa_core.systems.types import Ask, SystemAnswer
from kgqa_core.systems.walk import Walk, ends_of
from kgqa_core.types import Question, ReasoningPath

VERDICTS = {"yes": True, "true": True, "no": False, "false": False}
"""What a model may answer to a true/false question instead of a name."""


def show_paths(walk: Walk, paths: Sequence[ReasoningPath]) -> tuple[ScoredPath, ...]:
    """Return paths as prompts show them, all of one weight."""
    return tuple(ScoredPath(render_reasoning_path(walk.names, path)) for path in paths)


def ask_reason(walk: Walk, prompts: Prompts, text: str, paths: Sequence[ReasoningPath]) -> Ask[Answers]:
    """Return the call that asks for the answers that some paths support."""
    names = dict.fromkeys(walk.names.name_of(end_of(path)) for path in with_stations(walk, paths))
    return Ask(ReasonInstruction(prompts), ReasonCase(text, "", show_paths(walk, paths), tuple(names)))


def with_stations(walk: Walk, paths: Sequence[ReasoningPath]) -> list[ReasoningPath]:
    """Return the paths, and behind them the ways to entities on them that no path ends at.

    A question that names several things is often answered by what lies between them. What has the name of an end is
    left out: the end is meant.
    """
    names = {walk.names.name_of(end_of(path)) for path in paths}
    found = dict.fromkeys(paths)
    for path in paths:
        for length in range(1, len(path)):
            if walk.names.name_of(end_of(path[:length])) not in names:
                found.setdefault(path[:length])
    return list(found)


def answer_on_paths(
    walk: Walk, question: Question, said: Answers | ParseFailure, paths: Sequence[ReasoningPath]
) -> SystemAnswer:
    """Return what was answered on ``paths``, for a system that walks itself (``System.on_rows``).

    A true/false question may be answered by a name or by a verdict; a verdict means the claim, or all else that the
    paths end at.
    """
    if question.claim is not None:
        paths = [*paths, *(_turned(path) for path in paths if path and ends_of(path[0])[0] == question.claim)]
    verdict = _read_verdict(question, said)
    if verdict is None:
        return answer_by_name(walk, question, said, with_stations(walk, paths), on_rows=True)
    ends = dict.fromkeys(map(end_of, paths))
    return _decided(question, verdict, [end for end in ends if (end == question.claim) == verdict], paths)


def answer_alone(walk: Walk, question: Question, said: Answers | ParseFailure) -> SystemAnswer:
    """Return what was answered without any path, for a system that walks itself; nothing of it is evidence."""
    verdict = _read_verdict(question, said)
    if verdict is not None:
        return _decided(question, verdict, [question.claim] if verdict and question.claim is not None else [], ())
    if walk.subgraphs is None or isinstance(said, ParseFailure):
        return answer_by_name(walk, question, said, ())
    if said.abstained:
        return abstain(question)
    found, unmatched = dict[int, None](), []
    for name in said.names:
        rows = entities_named(walk, question.id, name)
        rows = rows if len(rows) else entities_named(walk, question.id, name, any_case=True)
        found.update(dict.fromkeys(rows[:1].tolist()))
        unmatched += [] if len(rows) else [name]
    return SystemAnswer(answer_with(question, tuple(found), ()).prediction, tuple(unmatched))


def _read_verdict(question: Question, said: Answers | ParseFailure) -> bool | None:
    """Return the verdict of a true/false question's answer; None where it is no verdict."""
    if question.claim is None or isinstance(said, ParseFailure) or len(said.names) != 1:
        return None
    return VERDICTS.get(said.names[0].strip(" .!").casefold())


def _decided(question: Question, verdict: bool, answers: Sequence[int], paths: Sequence[ReasoningPath]) -> SystemAnswer:
    found = answer_with(question, answers, paths)
    return replace(found, prediction=replace(found.prediction, verdict=verdict, abstained=False))


def _turned(path: ReasoningPath) -> ReasoningPath:
    """Return a path walked from its end to its start."""
    return tuple(replace(step, reverse=not step.reverse) for step in reversed(path))
