"""Prompts that fit the model's context: what scores lowest is dropped first, and counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from kgqa_core.instructions.choose import Candidate, ChooseCase, ChooseInstruction
from kgqa_core.instructions.reason import ExplainCase, ExplainInstruction, ReasonCase, ReasonInstruction
from kgqa_core.instructions.render import ScoredPath
from kgqa_core.lm.types import Prompt

Item = TypeVar("Item")
CountTokens = Callable[[Sequence[Prompt]], list[int]]


@dataclass(frozen=True, slots=True)
class Fitted(Generic[Item]):
    """A prompt, and how much of what it should have shown it shows."""

    prompt: Prompt
    kept: tuple[Item, ...]  # in the order they were given
    dropped: int  # how many others there were
    num_tokens: int  # of the prompt
    fits: bool = True  # False: too long even without any item; the model will say so


@dataclass(frozen=True, slots=True)
class Request(Generic[Item]):
    """One prompt to be made, of some of ``items``."""

    render: Callable[[tuple[Item, ...]], Prompt]  # gets the items kept, in their order
    items: tuple[Item, ...]
    scores: tuple[float, ...]  # parallel to items


def fit_all(
    requests: Sequence[Request[Item]], count_tokens: CountTokens, *, context: int, reserve: int
) -> list[Fitted[Item]]:
    """Return each prompt with the most items that fit, lowest score dropped first, of equals the last.

    The number of items is found by halving, for all prompts together: a prompt that fits whole is counted once, any
    other about log2(its items) times.

    Args:
        requests: the prompts.
        count_tokens: of prompts, as ``LanguageModel.count_tokens``.
        context: tokens that prompt and answer may have together.
        reserve: tokens of them kept for the answer.
    """
    limit = context - reserve
    low = [-1] * len(requests)  # the most items known to fit; -1: none is known to
    high = [len(request.items) + 1 for request in requests]  # the fewest known not to fit
    best: list[Fitted[Item] | None] = [None] * len(requests)
    tried = [len(request.items) for request in requests]  # whole first: most prompts fit
    open_ = list(range(len(requests)))
    while open_:
        kept = [_strongest(requests[index], tried[index]) for index in open_]
        prompts = [requests[index].render(items) for index, items in zip(open_, kept, strict=True)]
        for index, items, prompt, tokens in zip(open_, kept, prompts, count_tokens(prompts), strict=True):
            dropped = len(requests[index].items) - len(items)
            if tokens <= limit:
                low[index], best[index] = tried[index], Fitted(prompt, items, dropped, tokens)
            else:
                high[index] = tried[index]
                if not items:
                    best[index] = Fitted(prompt, items, dropped, tokens, fits=False)
            tried[index] = (low[index] + high[index]) // 2
        open_ = [index for index in open_ if high[index] - low[index] > 1]
    return [fitted for fitted in best if fitted is not None]


def _strongest(request: Request[Item], count: int) -> tuple[Item, ...]:
    """Return the ``count`` items of highest score, in their own order."""
    ranked = sorted(range(len(request.items)), key=lambda index: (-request.scores[index], index))[:count]
    return tuple(request.items[index] for index in sorted(ranked))


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
