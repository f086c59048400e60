"""Tuning of the language model on instructions: one set of adapters per seed."""

from __future__ import annotations

from pathlib import Path

from kgqa_core.artifacts import JOURNAL
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.run.stages import HOW_ASKED
from kgqa_core.tracking import Recorder
from tasks.runtime import pipeline_task
from tasks.stage import StageOutcome, run_stage

SYSTEM = "reasoner"


@pipeline_task("tune language model")
def tune_reasoner(pipeline: Pipeline, seed: int) -> StageOutcome:
    """Train adapters, or all weights; a training that was killed goes on where it was."""

    def write(folder: Path, recorder: Recorder) -> None:
        from kgqa_core.instructions.plan import END, SEPARATOR, START
        from kgqa_core.lm.tune.run import tune
        from kgqa_core.lm.tune.types import Phase, TuneRun, TuneSettings
        from kgqa_core.run.open import INSTRUCTIONS_FILE, base_folder, device_of

        config = pipeline.config
        section = config.reasoner
        assert section is not None
        phases = tuple(Phase(phase.until, phase.weights) for phase in section.phases)
        if not phases and section.objective == "direct":
            phases = (Phase(1.0, section.mixture),)
        own = {"variant", "objective", "instructions", "path_tokens", "phases", "lr_schedule", "folds", *HOW_ASKED}
        settings = TuneSettings(
            **section.model_dump(exclude=own),
            phases=phases,
            schedule=section.lr_schedule,
            path_tokens=(START, SEPARATOR, END) if section.path_tokens else (),
            seed=seed,
        )
        run = TuneRun(
            folder,
            journal=folder / JOURNAL,
            on_point=recorder.curve,
            progress=lambda done, total: pipeline.progress(f"tuning (seed {seed})", done, total),
            device=device_of(config),
            threads=config.runtime.threads,
        )
        report = tune(
            base_folder(pipeline), pipeline.artifact("instructions").folder / INSTRUCTIONS_FILE, settings, run
        )
        for name in ("num_steps", "num_tokens", "num_trainable", "num_parameters", "cpu_seconds", "train_loss"):
            recorder.metric(f"tune.{name}", getattr(report, name))
        for instruction, loss in report.dev_losses.items():
            recorder.metric(f"tune.dev_loss.{instruction}", loss)

    return run_stage(pipeline, f"reasoner-seed{seed}", write, seed=seed, system=SYSTEM)
