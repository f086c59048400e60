"""Runs that start from another run's explorer, or learn from its questions too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kgqa_core.config_file import read_config
from kgqa_core.errors import ArtifactError
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.tracking import read_record
from tests.conftest import with_home

TRAINED = "explorer-seed0"


@pytest.fixture
def conf(tmp_path: Path) -> Callable[..., Pipeline]:
    """Write a run configuration on a graph of cities, or of other places; return its stages."""

    def write(name: str, place: str = "city", **explorer: object) -> Pipeline:
        numbers = range(23 if place == "city" else 31)
        triples = [f"{place}{n}\tlies_in\tland{n % 5}\n{place}{n}\thas_mayor\tmayor{n}\n" for n in numbers]
        (tmp_path / f"{place}.tsv").write_text("".join(triples), "utf-8")
        asked = [f'{{"question": "where does {place}{n} lie?", "answers": ["land{n % 5}"]}}\n' for n in numbers]
        asked += [f'{{"question": "who runs {place}{n}?", "answers": ["mayor{n}"]}}\n' for n in numbers]
        (tmp_path / f"{place}.jsonl").write_text("".join(asked), "utf-8")
        settings = {"steps": 1, "width": 8, "edge_budget": 9, "epochs": 3, "warmup_steps": 3, **explorer}
        path = tmp_path / f"{name}.yaml"
        path.write_text(
            f"dataset: {{name: places, source: files, graph: {{format: tsv, path: {place}.tsv}}, "
            f"questions: {{format: jsonl, path: {place}.jsonl}}}}\n"
            f"encoder: {{kind: hash, dim: 32}}\nexplorer: {settings}\n".replace("'", ""),
            "utf-8",
        )
        return Pipeline(with_home(read_config(path), tmp_path / "home"))

    return write


Build = Callable[[Pipeline], list[str]]


def test_the_run_to_start_from_is_trained_first_and_once(conf: Callable[..., Pipeline], build_stages: Build) -> None:
    first = conf("first", epochs=20)
    second = conf("second", epochs=1, learning_rate=1e-9, init_attention=1.0, init_from="first.yaml")
    assert first.find(TRAINED) is None
    build_stages(second)
    assert first.find(TRAINED) is not None
    assert read_record(second.artifact(TRAINED).folder).params["init_fresh"] == "none"
    hits = [read_record(run.artifact(TRAINED).folder).metrics["dev.hits1"] for run in (first, second)]
    fresh = conf("fresh", epochs=1, learning_rate=1e-9)  # it hardly learns, and starts from nothing
    build_stages(fresh)
    assert hits[0] == hits[1] > read_record(fresh.artifact(TRAINED).folder).metrics["dev.hits1"]
    assert TRAINED not in build_stages(first)


def test_what_was_learned_on_one_graph_answers_on_another(conf: Callable[..., Pipeline], build_stages: Build) -> None:
    conf("first", epochs=60, learning_rate=0.01)
    settings = {"place": "village", "epochs": 1, "learning_rate": 1e-9}  # learns nothing of its own
    carried, blank = conf("carried", init_from="first.yaml", init_attention=1.0, **settings), conf("blank", **settings)
    for run in (carried, blank):
        build_stages(run)
    hits = [read_record(run.artifact(TRAINED).folder).metrics["dev.hits1"] for run in (carried, blank)]
    assert hits[0] == 100.0 > hits[1]


def test_another_training_of_the_start_makes_this_one_stale(conf: Callable[..., Pipeline], build_stages: Build) -> None:
    conf("first", epochs=2)
    second = conf("second", epochs=1, init_from="first.yaml")
    build_stages(second)
    conf("first", epochs=3)
    again = conf("second", epochs=1, init_from="first.yaml")
    states = {stage.key: stage.state for stage in again.status()}
    assert states[TRAINED] == "stale"
    assert TRAINED in build_stages(again)


def test_a_start_with_fewer_steps_lists_what_is_fresh_and_another_width_is_refused(
    conf: Callable[..., Pipeline], build_stages: Build
) -> None:
    conf("first", steps=1)
    second = conf("second", steps=2, init_from="first.yaml")
    build_stages(second)
    assert "propagate.1.weight" in str(read_record(second.artifact(TRAINED).folder).params["init_fresh"])
    with pytest.raises(ArtifactError, match="has width 8, this one 16"):
        build_stages(conf("wider", width=16, init_from="first.yaml"))


def test_questions_of_another_run_are_learned_too(conf: Callable[..., Pipeline], build_stages: Build) -> None:
    conf("other")
    alone, both = conf("alone"), conf("both", also_train_on="[other.yaml]")
    for run in (alone, both):
        build_stages(run)
    steps = [read_record(run.artifact(TRAINED).folder).curves["train.loss"][-1][0] for run in (alone, both)]
    assert steps[1] == 2 * steps[0]
