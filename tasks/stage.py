"""What every stage task does around its one core call: build under the store's lock, and record what it measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kgqa_core.artifacts import Artifact
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.tracking import Recorder, write_record

SYSTEM = "explorer"


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """One stage of a finished run."""

    key: str
    artifact: Artifact
    built: bool  # False: it was there already


def run_stage(
    pipeline: Pipeline,
    key: str,
    write: Callable[[Path, Recorder], None],
    *,
    seed: int | None = None,
    system: str = SYSTEM,
) -> StageOutcome:
    """Build one stage if it is not there.

    Args:
        pipeline: the run.
        key: the stage.
        write: the core call: fills a folder, and tells the recorder what is worth a look.
        seed: of a stage that belongs to one trained system.
        system: which system that is.
    """
    spec = pipeline.specs[key]
    recipe = pipeline.recipe(key)

    def fill(folder: Path) -> None:
        recorder = Recorder(spec.stage, system=None if seed is None else system, seed=seed)
        for name, value in spec.section.items():
            recorder.param(name, value if isinstance(value, str | int | float | bool | None) else str(value))
        write(folder, recorder)
        write_record(folder, recorder.record(recipe.fingerprint if recipe else ""))

    artifact, built = pipeline.build(key, fill)
    return StageOutcome(key, artifact, built)
