"""Running a system over questions: one round of all of them at a time, and every failure alone with its question."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kgqa_core.errors import InputError, shorten
from kgqa_core.evaluation.metrics import check_ranking, pair_outcome
from kgqa_core.instructions.fitting import Request, candidate_request, fit_all, path_request
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.lm.types import Decoding, Generation, LanguageModel, Prompt
from kgqa_core.systems.types import Answered, Ask, AskedCall, Reply, Status, Steps, System, SystemAnswer
from kgqa_core.systems.walk import Walk, is_evidence
from kgqa_core.types import Prediction, Question

FRAME_TOKENS = 64  # more than any chat template puts around a prompt
MAX_KEPT_ERROR = 4000  # characters of a traceback, its end


@dataclass(slots=True)
class _Run:
    """One question under way."""

    question: Question  # as it was asked
    steps: Steps
    asks: Sequence[Ask[Any]] = ()  # of the round that waits for replies
    calls: list[AskedCall] = field(default_factory=list)
    rounds: int = 0
    answer: SystemAnswer | None = None
    error: str = ""


def answer_all(
    system: System,
    questions: Sequence[Question],
    walk: Walk,
    model: LanguageModel | None,
    *,
    max_new_tokens: int | None = None,
) -> list[Answered]:
    """Return what a system answers to each question, in order.

    Args:
        system: who answers.
        questions: linked; without a topic they are skipped where the system needs one.
        walk: what it walks on; evidence is checked against it.
        model: who is asked, metered and held to its budget (``lm.metered``); None for a system that never asks.
        max_new_tokens: of any text but plans, at most; None: as each system has it.

    A question on which the system raises, or whose answer is no ranking of entities, is a prediction without an answer,
    with the traceback. Paths that do not stand in the graph are left out of the prediction, and counted: they are no
    evidence. What stops the model itself (an endpoint that is gone) raises: the calls made so far are in the call
    cache.
    """
    able = [question for question in questions if question.topics or not system.needs_topic]
    runs = _start(system, able, walk)
    going = [run for run in runs if _advance(run, None)]
    while going:
        replies = _ask(model, going, max_new_tokens)
        going = [run for run, own in zip(going, replies, strict=True) if _advance(run, own)]
    by_id = {run.question.id: run for run in runs}
    return [_finish(question, by_id.get(question.id), system, walk) for question in questions]


def _start(system: System, questions: Sequence[Question], walk: Walk) -> list[_Run]:
    """Begin every question; what ``prepare`` cannot do for all at once is done one by one."""
    placed: list[Question] = []
    runs = [_Run(question, _nothing()) for question in questions]
    for run in runs:
        try:
            inside = walk.subgraphs.to_rows(run.question) if system.on_rows and walk.subgraphs else run.question
            placed.append(inside)
        except Exception:
            run.error = _error()
    able = [run for run in runs if not run.error]
    try:
        prepared: Sequence[Any] = system.prepare(placed)
        for run, question, own in zip(able, placed, prepared, strict=True):
            run.steps = system.steps(question, own)
    except Exception:
        for run, question in zip(able, placed, strict=True):
            try:
                run.steps = system.steps(question, system.prepare([question])[0])
            except Exception:
                run.error = _error()
    return runs


def _nothing() -> Steps:
    """Stand where a question could not begin."""
    raise NotImplementedError
    yield


def _advance(run: _Run, replies: Sequence[Reply[Any]] | None) -> bool:
    """Take one question to its next round; say whether it has one."""
    if run.error:
        return False
    try:
        run.asks = next(run.steps) if replies is None else run.steps.send(replies)
        while not run.asks:  # a round without a call
            run.asks = run.steps.send(())
    except StopIteration as end:
        run.answer = end.value
        return False
    except Exception:
        run.error = _error()
        return False
    run.rounds += 1
    return True


def _error() -> str:
    return traceback.format_exc()[-MAX_KEPT_ERROR:]


def _ask(model: LanguageModel | None, runs: Sequence[_Run], max_new_tokens: int | None) -> list[list[Reply[Any]]]:
    """Return the replies to the round of each question; one that cannot be rendered fails alone."""
    if model is None:
        raise ValueError("a system that asks a language model needs one")
    rendered: list[tuple[_Run, int, Ask[Any], Prompt, Any]] = []
    for run in runs:
        try:
            run.asks = [_limited(ask, max_new_tokens) for ask in run.asks]
            made = [_render(model, run, ask) for ask in run.asks]
        except Exception:
            run.error = _error()
            continue
        rendered += [(run, place, ask, *one) for place, (ask, one) in enumerate(zip(run.asks, made, strict=True))]
    replies: dict[int, dict[int, Reply[Any]]] = {id(run): {} for run in runs}
    groups: dict[Decoding | None, list[int]] = {}
    for row, (_, _, ask, _, _) in enumerate(rendered):
        groups.setdefault(None if ask.options else ask.decoding, []).append(row)
    for decoding, rows in groups.items():
        prompts = [rendered[row][3] for row in rows]
        if decoding is None:
            given: list[Any] = model.score(prompts, [rendered[row][2].options for row in rows])
        else:
            given = model.generate(prompts, decoding)
        for row, own in zip(rows, given, strict=True):
            run, place, ask, prompt, case = rendered[row]
            try:
                reply = _weighed(case, own) if decoding is None else _read(ask, case, own)
            except Exception:
                run.error = _error()
                continue
            replies[id(run)][place] = reply
            run.calls.append(_call(run, ask, prompt, reply))
    return [[own for _, own in sorted(replies[id(run)].items())] for run in runs]


def _limited(ask: Ask[Any], max_new_tokens: int | None) -> Ask[Any]:
    """Return a call that gives no more tokens than allowed; a plan ends by itself."""
    decoding = ask.decoding
    if max_new_tokens is None or decoding.max_new_tokens <= max_new_tokens or ask.instruction.name == "plan":
        return ask
    return replace(ask, decoding=replace(decoding, max_new_tokens=max_new_tokens))


def _render(model: LanguageModel, run: _Run, ask: Ask[Any]) -> tuple[Prompt, Any]:
    """Return a call's prompt and its case, with as many paths or candidates as fit the model's context."""
    case = ask.case if ask.case.question_id == run.question.id else replace(ask.case, question_id=run.question.id)
    prompt = ask.instruction.render(case)
    reserve = ask.decoding.max_new_tokens
    # No token is shorter than a byte: most prompts need not be counted.
    if len(prompt.text) * 4 + len(prompt.system) * 4 + FRAME_TOKENS + reserve <= model.context:
        return prompt, case
    request: Request[Any] | None = None
    instruction: Any = ask.instruction
    if instruction.name in ("reason", "explain", "enough_information"):
        request, part = path_request(instruction, case), "paths"
    elif instruction.name == "choose":
        request, part = candidate_request(instruction, case), "candidates"
    if request is None:
        return prompt, case
    fitted = fit_all([request], model.count_tokens, context=model.context, reserve=reserve)[0]
    return fitted.prompt, replace(case, **{part: fitted.kept})


def _read(ask: Ask[Any], case: Any, texts: Sequence[Generation]) -> Reply[Any]:
    best = texts[0]
    result = ParseFailure(best.problem, "") if best.problem else ask.instruction.parse(best.text, case)
    return Reply(result, case, tuple(texts))


def _weighed(case: Any, log_probs: Sequence[float]) -> Reply[Any]:
    lost = all(value == float("-inf") for value in log_probs)
    return Reply(ParseFailure("no likelihood", "") if lost else None, case, (), tuple(log_probs))


def _call(run: _Run, ask: Ask[Any], prompt: Prompt, reply: Reply[Any]) -> AskedCall:
    texts = tuple(text.text for text in reply.texts)
    if ask.options:
        texts = tuple(f"{option}\t{value:.4f}" for option, value in zip(ask.options, reply.log_probs, strict=True))
    problem = reply.result.reason if isinstance(reply.result, ParseFailure) else ""
    num_tokens = sum(text.num_tokens for text in reply.texts)
    return AskedCall(run.rounds, ask.instruction.name, prompt.text, prompt.system, texts, problem, num_tokens)


def _finish(question: Question, run: _Run | None, system: System, walk: Walk) -> Answered:
    nothing = SystemAnswer(Prediction(question.id, (), (), (), abstained=True))
    if run is None:
        return Answered(question, nothing, "skipped")
    if run.error:
        return Answered(question, nothing, "failed", run.error, tuple(run.calls))
    try:
        answer, faithful, invented = _checked(question, run.answer, system, walk)
    except Exception:
        return Answered(question, nothing, "failed", _error(), tuple(run.calls))
    prediction = answer.prediction
    status: Status = "answered" if prediction.answers or prediction.verdict is not None else "abstained"
    return Answered(question, answer, status, "", tuple(run.calls), faithful, invented)


def _checked(
    question: Question, answer: SystemAnswer | None, system: System, walk: Walk
) -> tuple[SystemAnswer, tuple[bool, ...], int]:
    """Return an answer without invented paths, which of its entities have a path then, and how many were invented.

    Raises:
        InputError: no answer, or no ranking of entities of the graph, which would spoil the figures of all questions.
    """
    if not isinstance(answer, SystemAnswer):
        raise InputError(f"{system.name} answered {shorten(answer)} to {question.id!r}, which is no SystemAnswer")
    if system.on_rows and walk.subgraphs:
        answer = replace(answer, prediction=walk.subgraphs.to_entities(answer.prediction))
    prediction, num = answer.prediction, walk.entities.num_entities
    if prediction.question_id != question.id:
        raise InputError(f"{system.name} answered {prediction.question_id!r} when asked {question.id!r}")
    check_ranking(pair_outcome(question, prediction))
    if unknown := [entity for entity in (*prediction.candidates, *prediction.answers) if not 0 <= entity < num]:
        raise InputError(f"{system.name} answered entity {unknown[0]}; the graph's are 0 to {num - 1}")
    paths = tuple(
        path if is_evidence(walk.entities, path, entity) else ()
        for entity, path in zip(prediction.candidates, prediction.paths, strict=False)
    )
    invented = sum(map(bool, prediction.paths)) - sum(map(bool, paths))
    if invented:
        prediction = replace(prediction, paths=paths)
    supported = {entity for entity, path in zip(prediction.candidates, paths, strict=False) if path}
    faithful = tuple(entity in supported for entity in prediction.answers)
    return (replace(answer, prediction=prediction) if invented else answer), faithful, invented
