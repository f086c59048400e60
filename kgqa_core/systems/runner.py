"""Running a system over questions: one round of all of them at a time, and every failure alone with its question."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from kgqa_core.errors import ArtifactError, EndpointError, InputError, UnableError, shorten
from kgqa_core.evaluation.predictions import SystemSource
from kgqa_core.graph.search_graph import SearchGraph, is_evidence
from kgqa_core.instructions.answers import Answers
from kgqa_core.instructions.plan import weigh_plans
from kgqa_core.instructions.reason import ReasonCase
from kgqa_core.instructions.types import ParseFailure, fit_prompt
from kgqa_core.lm.calls import Meter, RoleModels
from kgqa_core.lm.types import Decoding, LanguageModel, Prompt
from kgqa_core.schemas import METER
from kgqa_core.systems.types import Answered, Ask, AskedCall, Reply, Round, Status, Steps, System, SystemAnswer
from kgqa_core.types import Prediction, Question, check_ranking

FRAME_TOKENS = 64  # more than any chat template puts around a prompt
MAX_KEPT_ERROR = 4000  # characters of a traceback, its end
NO_ANSWER = Answers(())


@dataclass(frozen=True, slots=True)
class Bench:
    """One system, ready to be asked."""

    system: System
    search: SearchGraph
    model: LanguageModel | None  # metered and held to its budget; None: it asks no language model
    meters: tuple[Meter, ...]  # of that model, and of a planner with one of its own
    source: SystemSource
    max_new_tokens: int | None = None  # of every text but plans
    bound: bool = False  # are answers on paths held to the names that these show?
    abstain_below: float = 0.0  # confidence; less certain answers are kept back

    def answer(self, questions: Sequence[Question]) -> Round:
        """Return what the system answers to each question, in order, and what that cost.

        A question on which it raises, or whose answer is no ranking of entities, gets no answer, but a traceback. Paths
        that do not stand in ``search`` are no evidence: they are left out, and counted. What stops the model itself (an
        endpoint that is gone, a full disk) raises, wherever it is met: the calls made so far are in the call cache.
        What the model can never do (weigh options, over a chat API) fails the questions that need it.
        """
        system = self.system
        runs = {one.id: _Run(one) for one in questions if one.topics or not system.needs_topic}
        able: list[tuple[_Run, Question]] = []
        for run in runs.values():
            with run.alone():
                able.append((run, self.search.place([run.question])[0] if system.on_rows else run.question))
        try:
            prepared: Sequence[Any] = system.prepare([question for _, question in able])
            for (run, question), own in zip(able, prepared, strict=True):
                run.steps = system.steps(question, own)
        except Exception:  # what cannot be prepared for all at once is prepared one by one
            for run, question in able:
                with run.alone():
                    run.steps = system.steps(question, system.prepare([question])[0])
        going = [run for run in runs.values() if _advance(run)]
        while going:
            _ask(self, going)
            going = [run for run in going if _advance(run)]
        answered = [_finish(question, runs.get(question.id), self) for question in questions]
        if self.abstain_below:
            answered = [keep_back(one, self.abstain_below) for one in answered]
        return Round(answered, pa.concat_tables([METER.empty_table(), *(meter.take() for meter in self.meters)]))


def keep_back(answered: Answered, least: float) -> Answered:
    """Return a question without an answer that is less certain: an abstention, counted as ``num_kept_back``."""
    answer, is_sure = answered.answer, answered.confidence is None or answered.confidence >= least
    counts = {**answer.counts, "num_kept_back": float(not is_sure)}
    if is_sure:
        return replace(answered, answer=replace(answer, counts=counts))
    silent = Prediction(answered.question.id, (), (), (), covered=answer.prediction.covered)
    kept = SystemAnswer(silent, (), counts, plans=answer.plans)
    return replace(answered, answer=kept, status="abstained", faithful=(), confidence=None)


@dataclass(slots=True)
class _Run:
    question: Question  # as it was asked
    steps: Steps | None = None  # None: it could not begin
    asks: Sequence[Ask[Any]] = ()  # of the round that waits for replies
    replies: list[Any] = field(default_factory=list)  # to the round that is asked, in order
    calls: list[AskedCall] = field(default_factory=list)
    rounds: int = 0
    num_dropped: int = 0  # paths or candidates that no prompt had room for
    answer: SystemAnswer | None = None
    error: str = ""

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep what is raised within as its error; raise what no other question can go on from, either."""
        try:
            yield
        except Exception as problem:
            if isinstance(problem, EndpointError | ArtifactError) and not isinstance(problem, UnableError):
                raise
            self.error = traceback.format_exc()[-MAX_KEPT_ERROR:]


@dataclass(frozen=True, slots=True)
class _Call:
    run: _Run
    place: int  # in its round
    ask: Ask[Any]
    prompt: Prompt
    case: Any  # as the prompt shows it


def _advance(run: _Run) -> bool:
    if run.error or run.steps is None:
        return False
    run.asks = ()
    with run.alone():
        try:
            run.asks = run.steps.send(run.replies) if run.rounds else next(run.steps)
            while not run.asks:  # a round without a call
                run.asks = run.steps.send(())
        except StopIteration as end:
            run.answer = end.value
    run.rounds += 1
    return bool(run.asks)


def _ask(bench: Bench, runs: Sequence[_Run]) -> None:
    """Ask the round of each question, all calls that are decoded alike together; what cannot be read fails alone."""
    model = bench.model
    if model is None:
        raise ValueError("a system that asks a language model needs one")
    groups: dict[Decoding | None, list[_Call]] = {}
    for run in runs:
        with run.alone():
            calls = [_render(bench, model, run, place, ask) for place, ask in enumerate(run.asks)]
            run.replies = [None] * len(calls)
            for call in calls:
                groups.setdefault(None if call.ask.options else call.ask.decoding, []).append(call)
    for decoding, group in groups.items():
        prompts, options = [call.prompt for call in group], [call.ask.options for call in group]
        try:
            given: Any = model.score(prompts, options) if decoding is None else model.generate(prompts, decoding)
        except UnableError as problem:  # what this model can never do: other systems may do without
            for call in group:
                with call.run.alone():
                    raise problem
            continue
        for call, own_given in zip(group, given, strict=True):
            with call.run.alone():
                call.run.replies[call.place] = _read(call, own_given)


def _render(bench: Bench, model: LanguageModel, run: _Run, place: int, ask: Ask[Any]) -> _Call:
    """Return a call with its prompt: as many paths or candidates of its case as fit the context of who is asked."""
    model = model.of(ask.instruction.name) if isinstance(model, RoleModels) else model
    reserve, most = ask.decoding.max_new_tokens, bench.max_new_tokens
    if most is not None and reserve > most and ask.instruction.name != "plan":  # it ends by itself
        ask, reserve = replace(ask, decoding=replace(ask.decoding, max_new_tokens=most)), most
    case = replace(ask.case, question_id=run.question.id)
    if bench.bound and isinstance(case, ReasonCase):  # binds where paths show names, and nowhere else
        case = replace(case, bound=True)
    prompt = ask.instruction.render(case)
    # No token is shorter than a byte: most prompts need not be counted.
    if len(prompt.text) * 4 + len(prompt.system) * 4 + FRAME_TOKENS + reserve > model.context:
        whole, part = case, ask.instruction.part
        prompt, case = fit_prompt(ask.instruction, case, model.count_tokens, limit=model.context - reserve)
        run.num_dropped += len(getattr(whole, part)) - len(getattr(case, part)) if part else 0
    return _Call(run, place, ask, prompt, case)


def _read(call: _Call, given: Any) -> Reply[Any]:
    ask, texts = call.ask, tuple(given)
    if ask.options:
        lost = all(value == float("-inf") for value in given)
        reply: Reply[Any] = Reply(ParseFailure("no likelihood") if lost else None, call.case, (), texts)
        said = tuple(f"{option}\t{value:.4f}" for option, value in zip(ask.options, given, strict=True))
    else:
        best = texts[0]
        result = ParseFailure(best.problem) if best.problem else ask.instruction.parse(best.text, call.case)
        reply, said = Reply(result, call.case, texts), tuple(text.text for text in texts)
    problem = reply.result.reason if isinstance(reply.result, ParseFailure) else ""
    if reply.result == NO_ANSWER:
        problem = "no answer"  # of an explanation, which is kept all the same
    num_tokens, shown = sum(text.num_tokens for text in reply.texts), (call.prompt.text, call.prompt.system)
    told = (call.run.rounds, ask.instruction.name, *shown, said, problem, num_tokens, _confidence(reply))
    call.run.calls.append(AskedCall(*told))
    return reply


def _confidence(reply: Reply[Any]) -> float | None:
    """Return how sure the model is of what it said; None where it does not tell."""
    if any(value > -math.inf for value in reply.log_probs):
        return max(weigh_plans(reply.log_probs))
    if not reply.texts or reply.texts[0].problem or reply.texts[0].log_prob is None:
        return None
    return math.exp(min(0.0, reply.texts[0].log_prob) / max(1, reply.texts[0].num_tokens))


def _finish(question: Question, run: _Run | None, bench: Bench) -> Answered:
    """Return what came of a question: its answer without invented paths, checked, or why there is none."""
    nothing = SystemAnswer(Prediction(question.id, (), (), ()))
    if run is None:
        return Answered(question, nothing, "skipped")
    calls = tuple(run.calls)
    if not run.error:
        with run.alone():
            answer, num_invented = _checked(question, run.answer, bench)
    if run.error:
        return Answered(question, nothing, "failed", run.error, calls)
    if run.num_dropped:
        answer = replace(answer, counts={**answer.counts, "num_dropped": run.num_dropped})
    prediction = answer.prediction
    supported = {entity for entity, path in zip(prediction.candidates, prediction.paths, strict=False) if path}
    faithful = tuple(entity in supported for entity in prediction.answers)
    status: Status = "abstained"
    if prediction.answers or prediction.verdict is not None:
        status = "answered"
    elif answer.unmatched:
        status = "unmatched"
    elif calls and calls[-1].problem:
        status = "unreadable"
    sure = calls[-1].confidence if calls and answer.confidence is None else answer.confidence
    told = sure if status == "answered" else None
    return Answered(question, answer, status, "", calls, faithful, num_invented, told)


def _checked(question: Question, answer: SystemAnswer | None, bench: Bench) -> tuple[SystemAnswer, int]:
    """Return an answer without the paths that are no evidence for their candidates, and how many those were.

    What is no ranking of entities raises: it would spoil the figures of all questions.
    """
    search, name = bench.search, bench.source.system
    if not isinstance(answer, SystemAnswer):
        raise InputError(f"{name} answered {shorten(answer)} to {question.id!r}, which is no SystemAnswer")
    if bench.system.on_rows and search.subgraphs:
        answer = replace(answer, prediction=search.subgraphs.to_entities(answer.prediction))
    prediction, num = answer.prediction, search.entities.num_entities
    if prediction.question_id != question.id:
        raise InputError(f"{name} answered {prediction.question_id!r} when asked {question.id!r}")
    check_ranking(question.id, prediction.candidates, prediction.scores)
    if unknown := [entity for entity in (*prediction.candidates, *prediction.answers) if not 0 <= entity < num]:
        raise InputError(f"{name} answered entity {unknown[0]}; the graph's are 0 to {num - 1}")
    pairs = zip(prediction.candidates, prediction.paths, strict=False)
    paths = tuple(path if is_evidence(search.entities, path, entity) else () for entity, path in pairs)
    num_invented = sum(map(bool, prediction.paths)) - sum(map(bool, paths))
    if num_invented:
        answer = replace(answer, prediction=replace(prediction, paths=paths))
    return answer, num_invented
