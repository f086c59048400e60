"""Asking a model many cases of one instruction: what it said, read, and what went wrong, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from kgqa_core.instructions.choose import Candidate, ChooseCase, ChooseInstruction
from kgqa_core.instructions.explain import ExplainCase, ExplainInstruction
from kgqa_core.instructions.fitting import Request
from kgqa_core.instructions.reason import ReasonCase, ReasonInstruction
from kgqa_core.instructions.render import ScoredPath
from kgqa_core.instructions.types import Instruction, ParseFailure
from kgqa_core.lm.types import GREEDY, Decoding, Generation, LanguageModel, Prompt

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Replies(Generic[Result]):
    """What a model said to some cases, the best text of each."""

    results: tuple[Result | ParseFailure, ...]  # parallel to the cases; whoever asked abstains on a failure
    texts: tuple[Generation, ...]  # parallel to the cases
    failures: dict[str, int]  # reason, or problem of the call -> cases
    num_unfinished: int  # texts that were cut at max_new_tokens


def ask(
    model: LanguageModel, instruction: Instruction[Any, Result], cases: Sequence[Any], *, decoding: Decoding = GREEDY
) -> Replies[Result]:
    """Return what ``model`` says to every case; a call without a text is a failure by the name of its problem."""
    return read_replies(instruction, cases, model.generate([instruction.render(case) for case in cases], decoding))


def read_replies(
    instruction: Instruction[Any, Result], cases: Sequence[Any], texts: Sequence[Sequence[Generation]]
) -> Replies[Result]:
    """Return the best text of each case, read; for prompts that were rendered elsewhere (``fitting.fit_all``)."""
    best = tuple(of_case[0] for of_case in texts)
    results = tuple(
        ParseFailure(text.problem, "") if text.problem else instruction.parse(text.text, case)
        for text, case in zip(best, cases, strict=True)
    )
    failures = Counter(result.reason for result in results if isinstance(result, ParseFailure))
    return Replies(results, best, dict(failures), sum(not text.finished for text in best))


def path_request(
    instruction: ReasonInstruction | ExplainInstruction, case: ReasonCase | ExplainCase
) -> Request[ScoredPath]:
    """Return the request for a prompt with as many paths as fit."""

    def render(kept: tuple[ScoredPath, ...]) -> Prompt:
        fitted: Any = replace(case, paths=kept)
        return instruction.render(fitted)

    return Request(render, case.paths, tuple(path.score for path in case.paths))


def candidate_request(instruction: ChooseInstruction, case: ChooseCase) -> Request[Candidate]:
    """Return the request for a prompt with as many candidates as fit; it must be read as the case of those kept."""
    return Request(
        lambda kept: instruction.render(replace(case, candidates=kept)),
        case.candidates,
        tuple(candidate.probability for candidate in case.candidates),
    )
