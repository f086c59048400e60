"""A stage is one new file and one line: a stage of one's own runs, resumes, goes stale and is shown as ours do."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from kgqa_core.config import RunConfig
from kgqa_core.errors import ConfigError
from kgqa_core.run import stages
from kgqa_core.run.ensure import ensure
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.tracking import read_record

DEGREES = '''
"""How many triples each entity has."""

from collections import Counter

from kgqa_core.artifacts import write_json
from kgqa_core.run.open import graph_of
from kgqa_core.run.stages import Stage, StageSpec


def specs(config):
    yield StageSpec("degrees", {"reenter_topic": config.dataset.reenter_topic}, NEEDS)


def build(run, spec, folder, recorder):
    graph = graph_of(run)
    counts = Counter((graph.group_ptr[1:] - graph.group_ptr[:-1]).tolist())
    write_json(folder / "degrees.json", {str(degree): count for degree, count in sorted(counts.items())})
    recorder.metric("num_entities", sum(counts.values()))


NEEDS = ("graph",)
STAGES = (Stage("degrees", 1, "count degrees", specs, build),)
'''


@pytest.fixture
def degrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The new file; the one line is the next to last."""
    (tmp_path / "degrees_stage.py").write_text(DEGREES, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(stages, "MODULES", [*stages.MODULES, "degrees_stage"])
    monkeypatch.delitem(sys.modules, "degrees_stage", raising=False)
    importlib.invalidate_caches()
    return tmp_path / "degrees_stage.py"


@pytest.mark.usefixtures("degrees")
def test_a_new_stage_is_one_file_and_one_line(tiny_copy: RunConfig) -> None:
    pipeline = Pipeline(tiny_copy)
    assert [(stage.key, stage.state) for stage in pipeline.status()][-1] == ("degrees", "missing")
    outcomes = ensure(pipeline, ["degrees"])
    assert [outcome.key for outcome in outcomes if outcome.built] == ["degrees"]
    record = read_record(pipeline.artifact("degrees").folder)
    assert (record.stage, record.params) == ("degrees", {"reenter_topic": False})
    assert record.metrics["num_entities"] > 0
    assert not any(outcome.built for outcome in ensure(Pipeline(tiny_copy), ["degrees"]))


@pytest.mark.usefixtures("degrees")
def test_a_stage_that_needs_one_that_is_not_made_says_so_before_anything_runs(
    tiny_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("degrees_stage.NEEDS", ("graph", "dense-seed0"))
    with pytest.raises(ConfigError, match=r"degrees needs 'dense-seed0', .*: give the sections 'plans' .* and 'dense'"):
        Pipeline(tiny_config)
