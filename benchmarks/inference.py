"""Questions answered per CPU second by a trained 3-hop explorer whose texts are encoded already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.measure import cpu_seconds, write_section
from benchmarks.workload import WHOLE, interleaved, open_workload
from kgqa_core.evaluation.metrics import score_predictions
from kgqa_core.explorer.explore import ExploreOptions
from kgqa_core.explorer.model import Card, load_explorer
from kgqa_core.explorer.predict import predict
from kgqa_core.run.open import encoder_of
from kgqa_core.types import Prediction, Question


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    questions: int | None  # None: all of test and dev
    repeats: int
    batch_sizes: Sequence[int]  # beside the run's own
    settings: Sequence[str] = ()  # of the run


FULL = Size(questions=400, repeats=2, batch_sizes=(64,), settings=("explorer.seeds=[0]",))
SMALL = Size(questions=100, repeats=2, batch_sizes=(16,), settings=("explorer.epochs=1", "explorer.seeds=[0]"))


def run(home: Path, size: Size = FULL) -> None:
    """Answer the test and dev questions with each way to walk, and write the speed beside the accuracy."""
    workload = open_workload(home, command="train-explorer", settings=size.settings)
    seed = workload.config.explorer.seeds[0]
    folder = workload.pipeline.artifact(f"explorer-seed{seed}").folder
    model, card = load_explorer(folder, encoder=encoder_of(workload.config.encoding).name)
    questions = distinct([*workload.questions("test", size.questions), *workload.questions("dev", size.questions)])
    paths = workload.config.evaluation.evidence_paths
    rows = [
        "| edges walked | batch | answers only, questions per CPU s | with evidence paths | asked | Hits@1 | F1 |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for label, options, asked in ways_to_walk(card):
        for batch_size in (workload.config.runtime.batch_size, *size.batch_sizes):
            answer = partial(
                predict,
                model,
                workload.graph,
                questions,
                texts=workload.texts,
                text_row=workload.text_row,
                options=options,
                answer_threshold=card.answer_threshold,
                mask_topics=card.mask_topics,
                batch_size=batch_size,
            )
            bare, with_paths, scores = measure(answer, questions, paths, size.repeats)
            rows.append(
                f"| {label} | {batch_size} | {bare:,.0f} | {with_paths:,.0f} | {asked} | {scores['hits1']:.2f} | "
                f"{scores['f1']:.2f} |"
            )
    note = (
        f"{len(questions):,} test and dev questions, no two with the same masked text and topics; every question is "
        f"walked anew in every round, and no answer is remembered. Medians of {size.repeats} interleaved rounds on one "
        "thread, of the whole of predict(): from linked questions to ranked candidates and answers, and in the fourth "
        f"column {paths} evidence paths per question too. Encodings of the masked "
        "texts are at hand."
    )
    write_section("Inference", "\n".join([*rows, "", note]), "python -m benchmarks inference")


def distinct(questions: Sequence[Question]) -> list[Question]:
    """Return the questions without those that the explorer cannot tell from an earlier one."""
    first: dict[tuple[str, tuple[int, ...]], Question] = {}
    for question in questions:
        first.setdefault((question.masked, question.topics), question)
    return list(first.values())


def ways_to_walk(card: Card) -> list[tuple[str, ExploreOptions, str]]:
    """Return (label, options, questions per CPU second that were asked for)."""
    kept = ExploreOptions(edge_budget=card.edge_budget, reenter_topic=card.reenter_topic)
    whole = ExploreOptions(edge_budget=WHOLE, reenter_topic=card.reenter_topic)
    ways = [("all: no K, no threshold", whole, ">= 400"), (f"K = {card.edge_budget}, no threshold", kept, "")]
    threshold = card.attention_threshold
    chosen = replace(kept, attention_threshold=threshold)
    return [*ways, (f"K = {card.edge_budget}, attention >= {threshold:g} (chosen on dev)", chosen, ">= 10,000")]


def measure(
    answer: Callable[..., list[Prediction]], questions: Sequence[Question], paths: int, repeats: int
) -> tuple[float, float, dict[str, float]]:
    """Return questions per CPU second without and with so many evidence paths, and the figures of the answers."""
    seconds = interleaved(
        {
            "bare": lambda: cpu_seconds(lambda: answer(evidence_paths=0)),
            "paths": lambda: cpu_seconds(lambda: answer(evidence_paths=paths)),
        },
        repeats,
    )
    bare, with_paths = (len(questions) / median(seconds[name]) for name in ("bare", "paths"))
    return bare, with_paths, score_predictions(questions, answer(evidence_paths=0)).summary()
