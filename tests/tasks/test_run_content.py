"""What a tracker is to show follows from the records alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kgqa_core.artifacts import Artifact, Recipe
from kgqa_core.run.pipeline import StageOutcome
from kgqa_core.tracking import TrackingRecord
from tasks.run_content import FlowRun, Stage, flow_content, system_contents

RUN = FlowRun("id", "brave-otter", "demo", "demo", "c0ffee", "name: demo\n", "0123abcd", 1_000)


def stage(key: str, *, built: bool = True, **recorded: Any) -> Stage:
    name = key.partition("-")[0]
    recipe = Recipe(name, 1, {"key": key}, {})
    artifact = Artifact(Path("artifacts") / key, recipe, f"content of {key}", ())
    return Stage(StageOutcome(key, artifact, built), TrackingRecord(name, recipe.fingerprint, **recorded))


def test_stages_of_one_system_and_seed_are_one_run_and_the_last_one_names_it() -> None:
    stages = [
        stage("graph"),
        stage("explorer-seed1", system="explorer", seed=1, metrics={"loss": 0.5}, params={"epochs": 3}),
        stage("explorer-seed2", system="explorer", seed=2),
        stage("evaluation-seed1", system="explorer", seed=1, metrics={"hits1": 97.0}, params={"split": "test"}),
    ]
    first, second = system_contents(RUN, stages)
    assert first.content.name == "explorer seed 1"
    assert first.identity == ("fingerprint.evaluation", stages[3].fingerprint)
    assert first.partial == (stages[1].fingerprint,)
    assert first.content.tags["fingerprint"] == stages[3].fingerprint
    assert {name: value for name, (_, value, _) in first.content.metrics.items()} == {"loss": 0.5, "hits1": 97.0}
    assert first.content.params == {"system": "explorer", "seed": 1, "epochs": 3, "split": "test"}
    assert second.identity == ("fingerprint.explorer", stages[2].fingerprint)
    assert second.partial == ()
    (only,) = system_contents(RUN, [stage("controls", system="template control", metrics={"hits1": 80.0})])
    assert only.content.name == "template control"
    assert "seed" not in only.content.tags


def test_the_run_of_the_flow_shows_every_stage_and_the_mean_over_seeds() -> None:
    stages = [
        stage("graph", built=False, metrics={"num_triples": 13}, params={"format": "tsv"}, ended_ms=7_000),
        *(
            stage(f"evaluation-seed{seed}", system="explorer", seed=seed, metrics={"f1": 10.0 * seed})
            for seed in (1, 4)
        ),
    ]
    content = flow_content(RUN, stages)
    shown = {name: value for name, (_, value, _) in content.metrics.items()}
    assert shown == {
        "graph/num_triples": 13,
        "graph/seconds": 7,
        "evaluation-seed1/seconds": 0,
        "evaluation-seed4/seconds": 0,
        "explorer/f1": 25,
    }
    assert content.tags["stage.graph"] == "skipped"
    assert content.tags["stage.evaluation-seed4"] == "built"
    assert content.data == {"graph": "content of graph"}
    assert content.params == {"config_name": "demo", "config_hash": "c0ffee", "graph/format": "tsv"}
    assert content.texts == {"config.yaml": "name: demo\n"}


def test_a_run_without_stages_is_still_a_run() -> None:
    content = flow_content(RUN, [])
    assert content.metrics == {}
    assert content.ended_ms == RUN.started_ms
    assert system_contents(RUN, []) == []
