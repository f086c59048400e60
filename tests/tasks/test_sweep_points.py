"""Sweeps: which runs a file asks for, and its rows, side by side."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kgqa_core.config import RunConfig
from kgqa_core.config_base import FileDataset
from kgqa_core.config_file import read_config
from kgqa_core.run.pipeline import Pipeline
from tasks import sweep_points as points
from tasks.sweep_points import SeedRow, Spread, Sweep, join_repetitions, read_sweep
from tests.conftest import PROJECT

Write = Callable[..., Path]


def labels(sweep: Sweep) -> list[str]:
    return [point.label for point in sweep.points]


def settings(sweep: Sweep, section: str, *names: str) -> list[tuple[Any, ...]]:
    """What each run's configuration says under some names of a section."""
    sections = [getattr(point.config, section) for point in sweep.points]
    return [tuple(getattr(one, name) for name in names) for one in sections]


# What is read


def test_every_combination_is_a_run_in_the_order_of_the_file(write: Write) -> None:
    sweep = read_sweep(
        write(
            "base: [../towns.yaml, ../rivers.yaml]\n"
            "set: {explorer.epochs: 3}\n"
            "vary: {dataset.questions.train_size: [7, null], explorer.width: [5]}\n"
        )
    )
    assert labels(sweep) == [
        f"{base}, train_size={size}, width=5" for base in ("towns", "rivers") for size in ("7", "default")
    ]
    assert sweep.file.dimensions == ["base", "dataset.questions.train_size", "explorer.width"]
    first = sweep.points[0]
    assert first.place == {"base": "towns", "dataset.questions.train_size": 7, "explorer.width": 5}
    assert settings(sweep, "explorer", "epochs", "width") == [(3, 5)] * 4
    assert first.config.name == "sizes towns, train_size=7, width=5"
    assert len({point.config.name for point in sweep.points}) == 4
    alone = read_sweep(write("base: ../towns.yaml\n"))
    assert (labels(alone), alone.points[0].place) == (["towns"], {})


def test_points_are_settings_with_a_label_and_are_crossed_with_what_varies(write: Write) -> None:
    given = "points:\n  - {label: small, set: {encoder: {kind: hash, dim: 16}}}\n  - {label: plain}\n"
    sweep = read_sweep(write(f"base: ../towns.yaml\n{given}vary: {{explorer.steps: [1, 2]}}\n"))
    assert labels(sweep) == ["small, steps=1", "small, steps=2", "plain, steps=1", "plain, steps=2"]
    assert settings(sweep, "encoder", "dim") == [(16,), (16,), (256,), (256,)]
    # A section set as a whole is not changed by other runs.
    text = "base: ../towns.yaml\nset: {encoder: {kind: hash}}\nvary: {encoder.dim: [8, 16]}\n"
    assert settings(read_sweep(write(text)), "encoder", "dim") == [(8,), (16,)]


def test_paths_resolve_against_the_file_they_stand_in(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KGQA_DATA", str(tmp_path / "data"))
    sweep = read_sweep(
        write(
            "base: ../towns.yaml\n"
            "set: {encoder: {kind: local, path: '${KGQA_DATA}/encoder'}}\n"
            "vary: {encoder.pooling: [last, first_last], dataset.questions.path: [own.jsonl]}\n"
        )
    )
    dataset = sweep.points[0].config.dataset
    assert isinstance(dataset, FileDataset)
    assert dataset.graph.path == tmp_path / "triples.tsv"  # in the run configuration
    assert dataset.questions.path == tmp_path / "sweeps/own.jsonl"  # in the sweep
    folder = tmp_path / "data/encoder"
    assert settings(sweep, "encoder", "path", "pooling") == [(folder, "last"), (folder, "first_last")]


def test_what_is_advised_for_a_run_is_that_run_wherever_the_command_is_given(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(
        "base: ../towns.yaml\n"
        "set:\n"
        "  encoder: {kind: local, path: encoder}\n"
        "  explorer.also_train_on: [../rivers.yaml]\n"
        "  explorer.init_from: models:/kgqa-towns@champion\n"
        "points:\n"
        "  - {label: own, set: {dataset.questions: {format: jsonl, files: {train: a.jsonl, dev: s3://towns/b.jsonl}}}}\n"
        "  - {label: hashed, set: {encoder: {kind: hash}, explorer.also_train_on: []}}\n"
        "vary: {dataset.questions.train_size: [7, null]}\n"
    )
    monkeypatch.chdir(tmp_path)
    for point in read_sweep(path).points:
        conf, *overrides = shlex.split(point.given)
        assert read_config(Path(conf), [one.removeprefix("--set=") for one in overrides]) == point.config


def test_a_setting_from_the_command_line_is_for_all_runs_and_comes_before_what_varies(
    write: Write, tmp_path: Path
) -> None:
    path = write("base: ../towns.yaml\nset: {explorer.epochs: 3, explorer.width: 5}\nvary: {explorer.steps: [1, 2]}\n")
    sweep = read_sweep(path, ["explorer.epochs=7", "dataset.questions.path=other.jsonl"])
    assert settings(sweep, "explorer", "epochs", "width", "steps") == [(7, 5, 1), (7, 5, 2)]
    assert isinstance(sweep.points[0].config.dataset, FileDataset)
    assert sweep.points[0].config.dataset.questions.path == tmp_path / "sweeps/other.jsonl"
    # Explorers are registered only where that is asked for.
    assert settings(sweep, "tracking", "register_models") == [(False,)] * 2
    asked = read_sweep(path, ["tracking.register_models=true"])
    assert settings(asked, "tracking", "register_models") == [(True,)] * 2


def test_long_labels_make_short_names_that_differ(write: Write) -> None:
    long = "a" * 90
    text = f"base: ../towns.yaml\npoints: [{{label: {long} b}}, {{label: {long} c}}]\n"
    names = [point.config.name for point in read_sweep(write(text)).points]
    assert len(set(names)) == 2
    assert all(len(name) <= 100 for name in names)


def test_settings_are_named_by_the_part_that_tells_them_apart() -> None:
    keys = {"explorer.edge_budget": "explorer.edge_budget", "evaluation.edge_budget": "evaluation.edge_budget"}
    assert points.short_names([*keys, "explorer.steps"]) == {**keys, "explorer.steps": "steps"}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "default"),
        (0.25, "0.25"),
        (1e-3, "0.001"),
        (40, "40"),
        ("all", "all"),
        ([0, 1], "0+1"),
        ({"kind": "hash", "dim": 64}, "hash 64"),
        ("../wc2014-mixed.yaml", "wc2014-mixed"),
    ],
)
def test_values_are_shown_short(value: object, shown: str) -> None:
    assert points.show_value(value) == shown


# What we ship


@pytest.mark.parametrize("path", sorted((PROJECT / "conf" / "sweeps").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_sweep_that_we_ship_is_read(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KGQA_DATA", str(tmp_path / "data"))
    sweep = read_sweep(path)
    assert len(sweep.points) > 1
    assert sweep.file.plots
    assert path.read_text(encoding="utf-8").startswith("# Purpose ")


# Rows come from artifacts, and repetitions become a mean and a spread


def row(seed: int = 0, **given: Any) -> SeedRow:
    place = {"explorer.steps": given.pop("steps", 1), "draw": given.pop("draw", 0)}
    made = {"evaluation": given.pop("evaluation", f"{place}{seed}")}
    return SeedRow(place, "run", seed, made, given.pop("figures", {}), given.pop("curves", {}))


def test_seeds_and_repeated_settings_are_joined_the_rest_is_kept_in_order() -> None:
    rows = [
        row(seed, steps=steps, draw=draw, figures={"hits1": 10.0 * steps + draw + seed})
        for steps in (2, 1)
        for draw in (0, 1)
        for seed in (0, 1)
    ]
    joined = join_repetitions(rows, ["draw"])
    assert [one.place for one in joined] == [{"explorer.steps": 2}, {"explorer.steps": 1}]
    assert [one.figures["hits1"].mean for one in joined] == [21.0, 11.0]
    assert [one.count for one in joined] == [4, 4]
    assert [one.place["draw"] for one in join_repetitions(rows, [])] == [0, 1, 0, 1]
    same = [row(draw=draw, evaluation="all questions", figures={"hits1": 50.0}) for draw in (0, 1, 2)]
    (joined_once,) = join_repetitions(same, ["draw"])
    assert (joined_once.count, joined_once.figures["hits1"]) == (1, Spread(50.0, 0.0, 1))


def test_figures_and_steps_that_not_all_repetitions_have_are_left_out() -> None:
    rows = [
        row(0, figures={"hits1": 3.0, "hits1.hop2": 2.0}, curves={"dev.hits1": [(3, 1.0), (6, 2.0)]}),
        row(1, figures={"hits1": 5.0}, curves={"dev.hits1": [(3, 5.0), (7, 9.0)]}),
        row(2, figures={"hits1": 10.0}, curves={"dev.hits1": [(3, 6.0)]}),
    ]
    (joined,) = join_repetitions(rows, [])
    assert joined.figures == {"hits1": Spread(6.0, math.sqrt(13), 3)}
    assert [(step, found.mean) for step, found in joined.curves["dev.hits1"]] == [(3, 4.0)]


def test_a_row_is_read_from_the_artifacts_of_a_run(tiny_config: RunConfig) -> None:
    pipeline = Pipeline(tiny_config)
    keys = {"questions": "questions", "encodings": "encodings"} | {
        name: f"{name}-seed0" for name in ("explorer", "evaluation")
    }
    folders = {name: pipeline.artifact(key).folder for name, key in keys.items()}
    found = points.read_row({"explorer.steps": 2}, "tiny", 0, folders)
    assert found.fingerprints == {name: folder.name for name, folder in folders.items()}
    assert 0 <= found.figures["hits1"] <= found.figures["ceiling.hits1"] <= 100
    assert {"template_control.f1.hop1", "hits1.hop2", "num_train", "train.cpu_seconds"} <= found.figures.keys()
    assert found.figures["encoding_dim"] == 31
    assert found.figures["answer.edges_per_question"] > found.figures["answer.candidates_per_question"] > 0
    steps = [step for step, _ in found.curves["dev.hits1"]]
    assert steps == sorted(steps) != []


def test_a_row_has_the_scores_of_systems_and_a_tuning_anew_is_no_repetition_of_the_same(tmp_path: Path) -> None:
    def tuned(place: int, hits1: float) -> SeedRow:
        folder = tmp_path / f"answers {place}"
        folder.mkdir()
        scores = [{"overall": {"hits1": hits1, "f1": 7.0, "calls_per_question": 3.0}}]
        (folder / "scores.json").write_text(json.dumps(scores), encoding="utf-8")
        plain = row(draw=place, evaluation="one explorer", figures={"hits1": 50.0})
        return points.with_systems(plain, {"eperm-oracle": folder})

    rows = [tuned(0, 60.0), tuned(1, 80.0)]
    assert rows[0].figures == {"hits1": 50.0, "system.eperm-oracle.hits1": 60.0, "system.eperm-oracle.f1": 7.0}
    assert rows[0].judged == {"evaluation": "one explorer", "system eperm-oracle": "answers 0"}
    (joined,) = join_repetitions(rows, ["draw"])
    assert joined.figures["system.eperm-oracle.hits1"] == Spread(70.0, math.sqrt(200), 2)
    assert points.header([], ["system.eperm-oracle.hits1"]) == ["n", "eperm-oracle: Hits@1"]
    with pytest.raises(ValueError, match=r"system\.ROW\.<score>"):
        points.header([], ["system.eperm.hit1"])


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("hits1", Spread(99.126, 0.0, 1), "99.13"),
        ("hits1", Spread(99.126, 0.304, 3), "99.13 ± 0.30"),
        ("hits1", Spread(100.0, 0.0, 3), "100.00"),
        ("answer.edges_per_question", Spread(36265.4, 0.0, 1), "36,265"),
        ("answer.edges_per_question", Spread(9.25, 0.0, 1), "9.25"),
        ("num_train", Spread(12274.0, 0.0, 1), "12,274"),
    ],
)
def test_figures_are_shown_with_their_spread(name: str, value: Spread, shown: str) -> None:
    assert points.show_spread(name, value) == shown


def test_a_table_has_a_line_per_point_and_empty_cells_for_what_a_run_does_not_have() -> None:
    joined = join_repetitions([row(steps=1, figures={"hits1": 50.0}), row(steps=2, figures={"f1": 25.0})], ["draw"])
    assert points.header(["explorer.steps"], ["hits1", "f1"]) == ["steps", "n", "Hits@1", "F1"]
    assert points.cells(joined, ["explorer.steps"], ["hits1", "f1"]) == [
        ["1", "1", "50.00", ""],
        ["2", "1", "", "25.00"],
    ]
