"""What a system is: an order of instructions over the graph and the explorer, question by question.

A system is a generator over one question: it yields what it asks a language model, gets the replies, and returns its
answer. ``systems.runner`` takes many questions one step at a time, so that the model always gets large batches.

A new system is a module beside this one, with its settings, its steps and a ``SystemType``, and a line in
``config_systems.SYSTEMS``. What it may be made of, ``run.compare.Parts`` opens.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import pyarrow as pa

from kgqa_core.instructions.types import Instruction, ParseFailure
from kgqa_core.lm.types import GREEDY, Decoding, Generation
from kgqa_core.types import LabelPath, Prediction, Question

Result = TypeVar("Result")
Item = TypeVar("Item")

Status = Literal["answered", "abstained", "unmatched", "unreadable", "skipped", "failed"]
"""unmatched: all that was answered are names that nothing in the graph bears; unreadable: the last call gave no result;
skipped: without a topic, where the system needs one; failed: the system raised."""

ROOMS = (64, 128, 256, 512, 1024, 2048)  # tokens of an answer; few sizes, so that calls of a round share batches
LINE_TOKENS = 16  # of a line with two names


@dataclass(frozen=True, slots=True)
class Ask(Generic[Result]):
    """One call of a language model."""

    instruction: Instruction[Any, Result]
    case: Any  # of the instruction; its question_id is filled in by the runner
    decoding: Decoding = GREEDY
    options: tuple[str, ...] = ()  # texts to be weighed; empty: a text is generated


@dataclass(frozen=True, slots=True)
class Reply(Generic[Result]):
    """What came of one call."""

    result: Result | ParseFailure  # of the first text; where options were weighed, a failure only if the call failed
    case: Any  # as it was asked: what did not fit the context is left out of it
    texts: tuple[Generation, ...] = ()  # best first, as many as the decoding asks for
    log_probs: tuple[float, ...] = ()  # of the options, natural log; -inf where nobody could tell


@dataclass(frozen=True, slots=True)
class SystemAnswer:
    """What a system answers to one question."""

    prediction: Prediction  # answers first among the candidates, each with its evidence path, () where it has none
    unmatched: tuple[str, ...] = ()  # names that were answered, and that nothing in the graph bears
    counts: Mapping[str, float] = field(default_factory=dict)  # of whatever the system counts: num_paths, conflicts
    confidence: float | None = None  # 0..1; None: see ``Answered.confidence``
    plans: tuple[LabelPath, ...] = ()  # that were followed, best first


Steps = Generator[Sequence[Ask[Any]], Sequence[Reply[Any]], SystemAnswer]
"""Yields the calls of one round, which do not depend on each other; is sent their replies in the same order."""

Rounds = Generator[Sequence[Ask[Any]], Sequence[Reply[Any]], Any]
"""A part of a system's steps, with a result of its own."""


class System(Protocol):
    """Answers questions, each by itself."""

    needs_topic: ClassVar[bool] = True  # is a question without a topic entity beyond it?
    on_rows: ClassVar[bool] = True  # does it walk ``SearchGraph.graph``, where an entity may have a row per question?

    def prepare(self, questions: Sequence[Question]) -> Sequence[Any]:
        """Return for each question what is found for many at once: the explorer's candidates, a planner's plans."""
        return [None] * len(questions)

    def steps(self, question: Question, prepared: Any) -> Steps:
        """Answer one question; ``prepared`` is its own part of what ``prepare`` returned."""


@dataclass(frozen=True, slots=True)
class AskedCall:
    """One call as it is kept for whoever opens a question; its fields are columns of schemas.SYSTEM_CALLS."""

    round: int  # from 1; calls of a round do not depend on each other
    instruction: str
    prompt: str
    system_prompt: str
    texts: tuple[str, ...]  # what was said; of weighed options: each with its log-probability
    problem: str  # of the call, or why its text holds no result; empty where all went well
    num_tokens: int  # given
    confidence: float | None = None  # 0..1: geometric mean over the first text's tokens, or the best option's share


@dataclass(frozen=True, slots=True)
class Answered:
    """One question with what a system made of it."""

    question: Question
    answer: SystemAnswer
    status: Status
    error: str = ""  # traceback, where the system raised
    calls: tuple[AskedCall, ...] = ()
    faithful: tuple[bool, ...] = ()  # per answer of the prediction: is there a path in the graph that ends in it?
    num_invented: int = 0  # paths that do not stand in the graph or end elsewhere; the prediction has () in their place
    confidence: float | None = None  # 0..1: the system's own, else that of the last call; None: nobody told


@dataclass(frozen=True, slots=True)
class Round:
    """Some questions that were answered together."""

    answered: Sequence[Answered]
    usage: pa.Table  # schemas.METER, of these questions, perhaps of more


@dataclass(slots=True)
class CallsLeft:
    """How many calls one question may still make; the last one is kept for its answer."""

    limit: int | None = None  # FiSKE holds every system to 30 (its section 4.1); None: no limit
    used: int = 0
    refused: int = 0  # calls that there was no room for

    def fit(self, asks: Sequence[Item]) -> list[Item]:
        """Return the first of ``asks`` that leave a call for the answer, and count them as made."""
        room = len(asks) if self.limit is None else max(0, self.limit - 1 - self.used)
        kept = list(asks[:room])
        self.used += len(kept)
        self.refused += len(asks) - len(kept)
        return kept

    def ask(self, asks: Sequence[tuple[Item, Ask[Any]]]) -> Rounds:
        """Ask in one round what there is room for; return each item that was asked about with its reply."""
        kept = self.fit(asks)
        replies = yield [ask for _, ask in kept]
        return list(zip([item for item, _ in kept], replies, strict=True))


def room_for(num_lines: int) -> Decoding:
    """Return a greedy decoding with room for so many lines with two names each."""
    wanted = LINE_TOKENS * (num_lines + 2)
    return Decoding(max_new_tokens=next((room for room in ROOMS if room >= wanted), ROOMS[-1]))
