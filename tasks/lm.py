"""The embedded language model: tokenizer and weights, made from the graph and the training questions."""

from __future__ import annotations

from pathlib import Path

from kgqa_core.config_lm import EmbeddedLmSection
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.tracking import Recorder
from tasks.runtime import pipeline_task
from tasks.stage import StageOutcome, run_stage

CURVE_EVERY = 10  # steps per point


@pipeline_task("make embedded language model")
def make_embedded_model(pipeline: Pipeline) -> StageOutcome:
    """Make and train it on planning; it is saved as an ordinary transformers folder."""

    def write(folder: Path, recorder: Recorder) -> None:
        from kgqa_core.instructions.plan import END, SEPARATOR, START
        from kgqa_core.lm.embedded import make_embedded
        from kgqa_core.run.open import INSTRUCTIONS_FILE, MODEL_FOLDER, device_of, known_steps, plan_ground

        section, ground = pipeline.config.lm, plan_ground(pipeline)
        assert isinstance(section, EmbeddedLmSection)

        def told(step: int, steps: int, loss: float) -> None:
            pipeline.progress("training the embedded model", step, steps)
            if step % CURVE_EVERY == 0 or step == steps:
                recorder.curve("lm.loss", step, loss)

        report = make_embedded(
            [pipeline.artifact("instructions").folder / INSTRUCTIONS_FILE],
            section,
            folder / MODEL_FOLDER,
            steps=known_steps(pipeline),
            markers=(START, SEPARATOR, END),
            names=ground.graph.entity_names if ground else (),
            device=device_of(pipeline.config),
            progress=told,
        )
        for name in ("num_parameters", "num_tokens", "num_examples", "num_too_long", "cpu_seconds", "flops"):
            recorder.metric(name, getattr(report, name))

    return run_stage(pipeline, "lm", write)
