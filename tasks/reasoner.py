"""Tuning of the language model on instructions: one set of adapters per seed."""

from __future__ import annotations

from pathlib import Path

from kgqa_core.artifacts import JOURNAL
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.tracking import Recorder
from tasks.runtime import pipeline_task
from tasks.stage import StageOutcome, run_stage

SYSTEM = "reasoner"


@pipeline_task("tune language model")
def tune_reasoner(pipeline: Pipeline, seed: int) -> StageOutcome:
    """Train adapters, or all weights; a training that was killed goes on where it was."""

    def write(folder: Path, recorder: Recorder) -> None:
        from kgqa_core.instructions.plan import END, SEPARATOR, START
        from kgqa_core.lm.tune import tune_in_processes
        from kgqa_core.lm.tune_data import TuneJob
        from kgqa_core.run.open import INSTRUCTIONS_FILE, base_folder, device_of

        config = pipeline.config
        assert config.reasoner is not None
        job = TuneJob(
            base=base_folder(pipeline),
            examples=(pipeline.artifact("instructions").folder / INSTRUCTIONS_FILE,),
            section=config.reasoner,
            seed=seed,
            path_tokens=(START, SEPARATOR, END) if config.reasoner.path_tokens else (),
            out=folder,
            journal=folder / JOURNAL,
            device=device_of(config),
            threads=config.runtime.threads,
        )
        report = tune_in_processes(
            job,
            config.runtime.processes,
            on_point=recorder.curve,
            progress=lambda done, total: pipeline.progress(f"tuning (seed {seed})", done, total),
        )
        for name in ("num_steps", "num_tokens", "num_trainable", "num_parameters", "cpu_seconds", "train_loss"):
            recorder.metric(f"tune.{name}", getattr(report, name))
        for instruction, loss in report.dev_losses.items():
            recorder.metric(f"tune.dev_loss.{instruction}", loss)

    return run_stage(pipeline, f"reasoner-seed{seed}", write, seed=seed, system=SYSTEM)
