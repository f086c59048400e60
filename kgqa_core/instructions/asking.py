"""Prompts that fit the model's context: what scores lowest is dropped first, and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from kgqa_core.evaluation.rog import normalise_name
from kgqa_core.instructions.choose import Candidate, ChooseCase, ChooseInstruction
from kgqa_core.instructions.reason import ExplainCase, ExplainInstruction, ReasonCase, ReasonInstruction
from kgqa_core.instructions.render import Names, ScoredPath, escape
from kgqa_core.instructions.types import Instruction, ParseFailure
from kgqa_core.lm.types import GREEDY, Decoding, Generation, LanguageModel, Prompt
from kgqa_core.types import ReasoningPath

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


def fit_paths(
    render: Callable[[tuple[ScoredPath, ...]], Prompt],
    paths: Sequence[ScoredPath],
    count_tokens: CountTokens,
    *,
    context: int,
    reserve: int,
) -> Fitted[ScoredPath]:
    """Return the prompt with as many paths as fit; see ``fit_all``."""
    request = Request(render, tuple(paths), tuple(path.score for path in paths))
    return fit_all([request], count_tokens, context=context, reserve=reserve)[0]


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


# ------ Asking a model many cases of one instruction: what it said, read, and what went wrong, counted.


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


# ------ Where explanations to learn from come from: a template over the paths, or a teacher model ...


MAX_EXPLAINED = 3  # paths that a template's text goes through


@dataclass(frozen=True, slots=True)
class Taught:
    """What a teacher gave."""

    cases: tuple[ExplainCase, ...]  # with explanation and answers
    refused: dict[str, int]  # reason -> cases without a usable explanation


def explain_paths(names: Names, paths: Sequence[ReasoningPath]) -> str:
    """Return sentences that walk along the first few paths; empty for none."""
    return "\n".join(_sentence(names, path) for path in paths[:MAX_EXPLAINED] if path)


def _sentence(names: Names, path: ReasoningPath) -> str:
    parts: list[str] = []
    for step in path:
        start, end = (step.tail, step.head) if step.reverse else (step.head, step.tail)
        words = names.relation_text(step.relation)
        way = f'"{words}", read backward,' if step.reverse else f'"{words}"'
        begin = f"From {escape(names.name_of(start))}, " if not parts else "and from there "
        parts.append(f"{begin}{way} leads to {escape(names.name_of(end))}")
    return ", ".join(parts) + "."


def ask_teacher(
    model: LanguageModel,
    instruction: ExplainInstruction,
    cases: Iterable[ExplainCase],
    *,
    decoding: Decoding = GREEDY,
) -> Taught:
    """Return the cases with the teacher's explanations; kept are those that end in exactly the right answers.

    The teacher sees question and paths, not the answers: an explanation that argues towards a known answer need not
    follow from the paths.
    """
    cases = tuple(cases)
    kept: list[ExplainCase] = []
    refused: Counter[str] = Counter()
    for case, result in zip(cases, ask(model, instruction, cases, decoding=decoding).results, strict=True):
        if isinstance(result, ParseFailure):
            refused[result.reason] += 1
        elif _folded(result.answers.names) != _folded(case.answers):
            refused["other answers"] += 1
        elif not result.explanation:
            refused["no explanation"] += 1
        else:
            kept.append(replace(case, explanation=result.explanation))
    return Taught(tuple(kept), dict(refused))


def by_question(cases: Iterable[ExplainCase]) -> Mapping[str, str]:
    """Return question id -> explanation, for ``make_examples``."""
    return {case.question_id: case.explanation for case in cases if case.explanation}


def _folded(names: Iterable[str]) -> set[str]:
    return {normalise_name(name) for name in names}
