"""Scoring of one trained explorer on the evaluation split."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from kgqa_core.artifacts import write_json
from kgqa_core.errors import InputError
from kgqa_core.questions.build import read_questions
from kgqa_core.questions.coverage import fill_hops, find_answerable
from kgqa_core.run.open import open_system
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.tracking import Recorder, answers_metric, hop_metric
from tasks.runtime import pipeline_task
from tasks.stage import SYSTEM, StageOutcome, run_stage

SHOWN = ("hits1", "f1", "em", "coverage")


@pipeline_task("evaluate explorer")
def evaluate_one_explorer(pipeline: Pipeline, seed: int) -> StageOutcome:
    """Answer, score, and put the controls beside the scores."""

    def write(folder: Path, recorder: Recorder) -> None:
        import torch

        from kgqa_core.evaluation.metrics import score_predictions
        from kgqa_core.evaluation.predictions import Source, write_predictions
        from kgqa_core.evaluation.report import report_row
        from kgqa_core.systems.explorer_system import AnswerCost

        system, name = open_system(pipeline, seed), f"{SYSTEM} (seed {seed})"
        questions = read_questions(pipeline.artifact("questions").folder, pipeline.config.evaluation.split)
        if not questions:
            split = pipeline.config.evaluation.split
            raise InputError(f"there are no {split} questions to score; set evaluation.split, or add some")
        questions = fill_hops(
            questions,
            system.graph,
            reenter_topic=pipeline.config.dataset.reenter_topic,
            subgraphs=system.subgraphs,
        )
        torch.set_num_threads(pipeline.config.runtime.threads)
        system.answer(questions[:1])  # loads the compiled walk, which is no part of what answering costs
        costs = []
        for number in range(1, pipeline.config.evaluation.passes + 1):
            what, cost = f"answering (seed {seed}, pass {number})", AnswerCost()
            predictions = system.answer(questions, partial(pipeline.progress, what), cost)
            costs.append(cost)
        scores = score_predictions(questions, predictions)
        write_predictions(
            folder / "predictions.parquet",
            questions,
            predictions,
            entity_names=system.graph.entity_names,
            render_path=system.render,
            source=Source(graph=pipeline.artifact("graph").content, system=name),
        )
        answerable = find_answerable(questions, system.graph, subgraphs=system.subgraphs)
        row = asdict(report_row(name, "learned", scores, answerable))
        controls = json.loads((pipeline.artifact("controls").folder / "scores.json").read_text(encoding="utf-8"))
        write_json(folder / "scores.json", [row, *controls])
        record_scores(recorder, row, controls)
        fastest = min(costs, key=lambda cost: cost.cpu_seconds)
        for figure, value in fastest.figures().items():
            recorder.metric(f"answer.{figure}", value)
        recorder.table("predictions", "predictions.parquet")

    return run_stage(pipeline, f"evaluation-seed{seed}", write, seed=seed)


def record_scores(recorder: Recorder, row: Mapping[str, Any], controls: Sequence[Mapping[str, Any]]) -> None:
    """Record a system's figures, and those of its controls beside them, so that every chart of its run can show them.

    Rows are those of the report as plain dictionaries.
    """
    for name, value in row["overall"].items():
        recorder.metric(name, value)
    for metric in SHOWN:
        for hops, figures in row["by_hops"].items():
            recorder.metric(hop_metric(metric, hops), figures[metric])
        if row["answerable"]:
            recorder.metric(f"{metric}.answerable", row["answerable"][metric])
        for bucket, figures in row["by_answers"].items():
            recorder.metric(answers_metric(metric, bucket), figures[metric])
    for control in controls:
        series = control["role"].replace(" ", "_")
        for metric in SHOWN:
            recorder.metric(f"{series}.{metric}", control["overall"][metric])
        for hops, figures in control["by_hops"].items():
            recorder.metric(hop_metric(f"{series}.hits1", hops), figures["hits1"])
