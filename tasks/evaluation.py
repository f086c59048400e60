"""Scoring of one trained explorer on the evaluation split."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from kgqa_core.artifacts import write_json
from kgqa_core.errors import InputError
from kgqa_core.pipeline import Pipeline
from kgqa_core.questions.loaders import read_questions
from kgqa_core.tracking import Recorder, hop_metric
from kgqa_core.workspace import open_system
from tasks.runtime import pipeline_task
from tasks.stage import SYSTEM, StageOutcome, run_stage

SHOWN = ("hits1", "f1", "em", "coverage")


@pipeline_task("evaluate explorer")
def evaluate_one_explorer(pipeline: Pipeline, seed: int) -> StageOutcome:
    """Answer, score, and put the controls beside the scores."""

    def write(folder: Path, recorder: Recorder) -> None:
        from kgqa_core.evaluation.metrics import score_predictions
        from kgqa_core.evaluation.predictions import write_predictions
        from kgqa_core.evaluation.report import report_row

        system = open_system(pipeline, seed)
        questions = read_questions(pipeline.artifact("questions").folder, pipeline.config.evaluation.split)
        if not questions:
            split = pipeline.config.evaluation.split
            raise InputError(f"there are no {split} questions to score; set evaluation.split, or add some")
        predictions = system.answer(
            questions, progress=lambda done, total: pipeline.progress(f"answering (seed {seed})", done, total)
        )
        scores = score_predictions(questions, predictions)
        write_predictions(
            folder / "predictions.parquet",
            questions,
            predictions,
            entity_names=system.graph.entity_names,
            render_path=system.render,
        )
        row = report_row(f"{SYSTEM} (seed {seed})", "learned", scores)
        controls = json.loads((pipeline.artifact("controls").folder / "scores.json").read_text(encoding="utf-8"))
        write_json(folder / "scores.json", [asdict(row), *controls])
        for name, value in row.overall.items():
            recorder.metric(name, value)
        for hops, figures in row.by_hops.items():
            for name in SHOWN:
                recorder.metric(hop_metric(name, hops), figures[name])
        for control in controls:  # beside the system, so that every chart of a child run can show them
            series = control["role"].replace(" ", "_")
            for name in SHOWN:
                recorder.metric(f"{series}.{name}", control["overall"][name])
            for hops, figures in control["by_hops"].items():
                recorder.metric(hop_metric(f"{series}.hits1", hops), figures["hits1"])
        recorder.table("predictions", "predictions.parquet")

    return run_stage(pipeline, f"evaluation-seed{seed}", write, seed=seed)
