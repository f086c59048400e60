"""The benchmark of the harness measures every part of an evaluation, on systems that do nothing."""

from __future__ import annotations

import pytest

from benchmarks.harness import PARTS, WITH_CALLS, measure, report
from kgqa_core.config import RunConfig
from kgqa_core.run.pipeline import Pipeline


@pytest.mark.slow
def test_every_part_of_an_evaluation_is_measured(tiny_config: RunConfig) -> None:
    pipeline = Pipeline(tiny_config)
    folders = [str(pipeline.artifact(stage).folder) for stage in ("graph", "questions")]
    found = measure(*folders, count=30, systems=2)
    assert found["questions"] == 30
    assert found["ms"].keys() == PARTS.keys()
    assert found["called"].keys() >= WITH_CALLS.keys()
    assert "| 30 questions |" in report([found], 2)
