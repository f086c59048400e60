"""Scoring of one planner: its plans for the evaluation split, against the paths that reach the answers."""

from __future__ import annotations

import time
from pathlib import Path

from kgqa_core.artifacts import write_json
from kgqa_core.errors import InputError
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.tracking import Recorder, hop_metric
from tasks.runtime import pipeline_task
from tasks.stage import StageOutcome, run_stage

SCORES_FILE = "scores.json"


@pipeline_task("score planner")
def score_planner(pipeline: Pipeline, planner: str, seed: int) -> StageOutcome:
    """Ask for plans, follow the first of each where there is a graph, and score them."""
    key = f"plans-{planner}-seed{seed}"

    def write(folder: Path, recorder: Recorder) -> None:
        from kgqa_core.planners.cases import read_best_f1, read_cases, read_hops
        from kgqa_core.planners.evaluate import ALL, ask_planner, planner_figures, write_plans
        from kgqa_core.run.open import open_planner, plan_ground, validity

        config, source = pipeline.config, pipeline.artifact("supervision").folder
        questions = read_cases(source, config.evaluation.split)
        if not questions:
            raise InputError(f"there are no {config.evaluation.split} questions to plan; set evaluation.split")
        ground = plan_ground(pipeline)
        with open_planner(pipeline, planner, seed) as opened:
            started = time.process_time()
            plans = ask_planner(
                opened.planner,
                questions,
                num_plans=pipeline.config.plans.num_plans,
                progress=lambda done, total: pipeline.progress(f"planning ({planner}, seed {seed})", done, total),
            )
            recorder.metric("plan.cpu_seconds", time.process_time() - started)
            for name, value in opened.cost().items():
                recorder.metric(f"lm.{name}", value)
        f1 = None
        if ground is not None:
            from kgqa_core.questions.build import read_questions
            from kgqa_core.run.open import ground_of

            asked = read_questions(pipeline.artifact("questions").folder, config.evaluation.split)
            f1 = ground.f1_of_first(ground_of(pipeline).place(asked), plans)
        figures = planner_figures(
            questions,
            plans,
            signed=ground is not None,
            is_valid=validity(pipeline, ground),
            f1=f1,
            hops=read_hops(source),
            best_f1=read_best_f1(source),
        )
        write_plans(folder / "plans.parquet", planner, questions, plans, signed=ground is not None)
        write_json(folder / SCORES_FILE, {"planner": planner, "seed": seed, "figures": figures})
        for hops, values in figures.items():
            for name, value in values.items():
                metric = name.replace("@", "_at_")
                recorder.metric(metric if hops == ALL else hop_metric(metric, hops), value)
        recorder.table("plans", "plans.parquet")

    return run_stage(pipeline, key, write, seed=seed, system=planner)
