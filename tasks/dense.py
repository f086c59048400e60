"""Training of one dense planner."""

from __future__ import annotations

from pathlib import Path

from kgqa_core.run.pipeline import Pipeline
from kgqa_core.tracking import Recorder
from tasks.runtime import pipeline_task
from tasks.stage import StageOutcome, run_stage

SYSTEM = "dense"
CURVE_EVERY = 20  # steps per point


@pipeline_task("train dense planner")
def train_dense_planner(pipeline: Pipeline, seed: int) -> StageOutcome:
    """Fine-tune the text encoder on pairs of questions and relation paths."""

    def write(folder: Path, recorder: Recorder) -> None:
        import torch

        from kgqa_core.planners.dense import fit_dense
        from kgqa_core.run.open import DENSE_FOLDER, taught

        section = pipeline.config.dense
        assert section is not None
        torch.set_num_threads(pipeline.config.runtime.threads)

        def told(step: int, total: int, loss: float) -> None:
            pipeline.progress(f"training the dense planner (seed {seed})", step, total)
            if step % CURVE_EVERY == 0 or step == total:
                recorder.curve("dense.loss", step, loss)

        report = fit_dense(taught(pipeline), section, folder / DENSE_FOLDER, seed=seed, progress=told)
        for name in ("num_questions", "num_without_paths", "num_paths", "cpu_seconds"):
            recorder.metric(f"dense.{name}", report[name])

    return run_stage(pipeline, f"dense-seed{seed}", write, seed=seed, system=SYSTEM)
