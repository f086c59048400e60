"""Choosing on dev how explorer and planner are fused, for the system ``ours``."""

from __future__ import annotations

from pathlib import Path

from kgqa_core.artifacts import write_json
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.tracking import Recorder
from tasks.runtime import pipeline_task
from tasks.stage import StageOutcome, run_stage


@pipeline_task("choose fusion")
def choose_fusion(pipeline: Pipeline, seed: int) -> StageOutcome:
    """Answer dev with explorer and planner, and keep what fuses them best."""

    def write(folder: Path, recorder: Recorder) -> None:
        from kgqa_core.run.compare import FUSION_FILE, find_fusion

        found = find_fusion(pipeline, seed)
        write_json(folder / FUSION_FILE, found)
        for part, point in found["on_dev"].items():
            for figure in ("hits1", "f1", "asked"):
                part = part.replace(" ", "_")
                recorder.metric(f"dev.{part}.{figure}", 100 * point[figure] if figure == "asked" else point[figure])
        recorder.param("fusion.weight", found["chosen"]["weight"])
        recorder.param("fusion.decided_by", found["chosen"]["decided_by"])
        recorder.param("fusion.beats_its_parts_on_dev", found["beats_its_parts"])

    return run_stage(pipeline, f"fusion-seed{seed}", write, seed=seed, system="fusion")
