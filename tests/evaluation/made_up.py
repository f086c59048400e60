"""Predictions of made-up systems, written as an evaluation writes them and read back as runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from kgqa_core.evaluation.predictions import SystemSource
from kgqa_core.evaluation.runs import EvaluatedRun, read_system_run
from kgqa_core.schemas import METER
from kgqa_core.systems.tables import write_answered
from kgqa_core.systems.types import Answered, AskedCall, Round, Status, SystemAnswer
from kgqa_core.types import Prediction, Question, Step

GRAPH = "ab" * 32
NAMES = SimpleNamespace(entity_names=[f"entity {number}" for number in range(31)], relation_names=["leads_to"])


@dataclass(frozen=True)
class Reply:
    """What a made-up system does with one question."""

    answers: Sequence[int] = ()
    supported: Sequence[int] = ()  # of them, those whose path stands in the graph
    unmatched: Sequence[str] = ()
    status: Status | None = None  # None: as the answers say
    calls: int = 0
    tokens: int = 0  # read by each call; as many as 10 are given
    money: float | None = 0.0  # of each call; None: the model has no price
    confidence: float | None = None  # of the answer
    stopped: str | None = None
    counts: Mapping[str, float] = field(default_factory=dict)
    verdict: bool | None = None
    error: str = ""
    silence: Status = "abstained"  # the status without an answer

    def answered(self, question: Question) -> Answered:
        path = (Step(0, 0, 1),)
        prediction = Prediction(
            question.id,
            tuple(self.answers),
            tuple(1 / (place + 1) for place in range(len(self.answers))),
            tuple(self.answers),
            tuple(path if entity in self.supported else () for entity in self.answers),
            covered=bool({*self.answers} & {*question.answers}),
            verdict=self.verdict,
        )
        calls = [AskedCall(1, "reason", f"prompt {n}", "", (f"text {n}",), "", 10) for n in range(self.calls)]
        return Answered(
            question,
            SystemAnswer(prediction, tuple(self.unmatched), self.counts),
            self.status or ("answered" if self.answers or self.verdict is not None else self.silence),
            self.error,
            tuple(calls),
            tuple(entity in self.supported for entity in self.answers),
            confidence=self.confidence,
        )

    def usage(self, question: Question) -> dict[str, Any]:
        nothing = {one.name: 0 for one in METER if pa.types.is_integer(one.type) or pa.types.is_floating(one.type)}
        return {
            **nothing,
            "system": "s",
            "model": "m",
            "instruction": "reason",
            "question_id": question.id,
            "num_calls": self.calls,
            "num_stopped": int(self.stopped is not None),
            "num_prompt_tokens": self.calls * self.tokens,
            "num_tokens": self.calls * 10,
            "seconds": self.calls / 4,
            "money": None if self.money is None else self.calls * self.money,
        }


def ask(id: str, *golds: int, **more: Any) -> Question:
    return Question(id, f"what is {id}?", f"what is {id}?", (0,), golds, "test", **more)


def in_full(questions: Sequence[Question], predictions: Sequence[Prediction]) -> list[Prediction]:
    """Return a prediction for every question, an empty one for those that have none."""
    given = {one.question_id: one for one in predictions}
    return [given.get(one.id, Prediction(one.id, (), (), ())) for one in questions]


def write_system(
    folder: Path, system: str, questions: Sequence[Question], replies: Sequence[Reply], **about: Any
) -> Path:
    """Write the predictions of a made-up system and return their path; ``about``: of its source."""
    source = SystemSource(**{"graph": GRAPH, "system": system, "seed": 0, **about})
    path = folder / f"{source.name}.parquet"
    pairs = list(zip(questions, replies, strict=True))
    rows = [reply.usage(question) for question, reply in pairs if reply.calls or reply.stopped]
    done = Round([reply.answered(question) for question, reply in pairs], pa.Table.from_pylist(rows, schema=METER))
    write_answered(path, done, NAMES, source)
    return path


def make_system(
    folder: Path, system: str, questions: Sequence[Question], replies: Sequence[Reply], **about: Any
) -> EvaluatedRun:
    return read_system_run(write_system(folder, system, questions, replies, **about))
