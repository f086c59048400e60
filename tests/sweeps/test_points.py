"""Sweep files: which runs they ask for, and what is refused, in which words."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kgqa_core.config import FileDataset, LocalEncoderSection
from kgqa_core.errors import ConfigError
from kgqa_core.sweeps.points import Sweep, read_sweep, short_names, show_value

PROJECT = Path(__file__).resolve().parents[2]

TOWNS = """\
dataset:
  name: towns
  source: files
  graph: {format: tsv, path: triples.tsv}
  questions: {format: jsonl, path: questions.jsonl}
encoder: {kind: hash}
explorer: {steps: 2, edge_budget: 10, epochs: 1}
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a sweep file beside two run configurations, and return its path."""
    for name in ("towns", "rivers"):
        (tmp_path / f"{name}.yaml").write_text(TOWNS.replace("towns", name), encoding="utf-8")

    def write_sweep(text: str) -> Path:
        path = tmp_path / "sweeps" / "sizes.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write_sweep


def labels(sweep: Sweep) -> list[str]:
    return [point.label for point in sweep.points]


def refused(path: Path, *overrides: str) -> str:
    """Return the message with which a sweep is refused."""
    with pytest.raises(ConfigError) as raised:
        read_sweep(path, overrides)
    return str(raised.value)


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
        "towns, train_size=7, width=5",
        "towns, train_size=default, width=5",
        "rivers, train_size=7, width=5",
        "rivers, train_size=default, width=5",
    ]
    assert sweep.file.dimensions == ["base", "dataset.questions.train_size", "explorer.width"]
    first = sweep.points[0]
    assert first.place == {"base": "towns", "dataset.questions.train_size": 7, "explorer.width": 5}
    assert (first.config.explorer.epochs, first.config.explorer.width) == (3, 5)
    assert first.config.name == "sizes towns, train_size=7, width=5"
    assert len({point.config.name for point in sweep.points}) == 4


def test_points_are_settings_with_a_label_and_are_crossed_with_what_varies(write: Write) -> None:
    sweep = read_sweep(
        write(
            "base: ../towns.yaml\n"
            "points:\n"
            "  - {label: small, set: {encoder: {kind: hash, dim: 16}}}\n"
            "  - {label: plain}\n"
            "vary: {explorer.steps: [1, 2]}\n"
        )
    )
    assert labels(sweep) == ["small, steps=1", "small, steps=2", "plain, steps=1", "plain, steps=2"]
    dims = [point.config.encoder.model_dump()["dim"] for point in sweep.points]
    assert dims == [16, 16, 256, 256]


def test_a_section_set_as_a_whole_is_not_changed_by_other_runs(write: Write) -> None:
    text = "base: ../towns.yaml\nset: {encoder: {kind: hash}}\nvary: {encoder.dim: [8, 16]}\n"
    assert [point.config.encoder.model_dump()["dim"] for point in read_sweep(write(text)).points] == [8, 16]


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
    config = sweep.points[0].config
    assert isinstance(config.dataset, FileDataset)
    assert config.dataset.graph.path == tmp_path / "triples.tsv"  # in the run configuration
    assert config.dataset.questions.path == tmp_path / "sweeps/own.jsonl"  # in the sweep
    assert isinstance(config.encoder, LocalEncoderSection)
    assert config.encoder.path == tmp_path / "data/encoder"
    assert [point.config.encoder.model_dump()["pooling"] for point in sweep.points] == ["last", "first_last"]


def test_a_setting_from_the_command_line_is_for_all_runs_and_comes_before_what_varies(
    write: Write, tmp_path: Path
) -> None:
    path = write("base: ../towns.yaml\nset: {explorer.epochs: 3, explorer.width: 5}\nvary: {explorer.steps: [1, 2]}\n")
    sweep = read_sweep(path, ["explorer.epochs=7", "dataset.questions.path=other.jsonl"])
    explorers = [point.config.explorer for point in sweep.points]
    assert [(explorer.epochs, explorer.width, explorer.steps) for explorer in explorers] == [(7, 5, 1), (7, 5, 2)]
    assert isinstance(sweep.points[0].config.dataset, FileDataset)
    assert sweep.points[0].config.dataset.questions.path == tmp_path / "sweeps/other.jsonl"


def test_explorers_of_a_sweep_are_registered_only_where_that_is_asked_for(write: Write) -> None:
    path = write("base: ../towns.yaml\nvary: {explorer.steps: [1, 2]}\n")
    assert not any(point.config.tracking.register_models for point in read_sweep(path).points)
    asked = read_sweep(path, ["tracking.register_models=true"])
    assert all(point.config.tracking.register_models for point in asked.points)


def test_a_sweep_without_anything_varied_is_one_run(write: Write) -> None:
    sweep = read_sweep(write("base: ../towns.yaml\n"))
    assert labels(sweep) == ["towns"]
    assert sweep.points[0].place == {}


def test_long_labels_make_short_names_that_differ(write: Write) -> None:
    long = "a" * 90
    text = f"base: ../towns.yaml\npoints: [{{label: {long} b}}, {{label: {long} c}}]\n"
    names = [point.config.name for point in read_sweep(write(text)).points]
    assert len(set(names)) == 2
    assert all(len(name) <= 100 for name in names)


def test_settings_are_named_by_the_part_that_tells_them_apart() -> None:
    assert short_names(["explorer.edge_budget", "evaluation.edge_budget", "explorer.steps"]) == {
        "explorer.edge_budget": "explorer.edge_budget",
        "evaluation.edge_budget": "evaluation.edge_budget",
        "explorer.steps": "steps",
    }


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
    assert show_value(value) == shown


# What is refused


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("set: {}", r"missing key 'base'"),
        ("base: ../town.yaml", r"no configuration file .*town\.yaml'; did you mean .*towns\.yaml"),
        ("base: ../towns.yaml\nvarry: {}", r"unknown key 'varry' .*did you mean 'vary'"),
        ("base: []", r"base = .*must be one value or more"),
        ("base: [../towns.yaml, ../x/towns.yaml]", r"base: two have one name; the names are towns, towns"),
        ("base: ../towns.yaml\nvary: {explorer.epochs: 3}", r"vary.explorer.epochs = 3: must be a list"),
        ("base: ../towns.yaml\nvary: {explorer.epochs: []}", r"must be one value or more, each given once"),
        ("base: ../towns.yaml\nvary: {explorer.epochs: [3, 3]}", r"must be one value or more, each given once"),
        ("base: ../towns.yaml\npoints: [{label: a}, {label: a}]", r"points: two have one name"),
        ("base: ../towns.yaml\npoints: [{set: {}}]", r"missing key 'points.0.label'"),
        ("base: ../towns.yaml\nvary: {explorer.epohs: [1]}", r"run 'epohs=1'.*\n.*unknown key 'explorer.epohs'"),
        ("base: ../towns.yaml\nvary: {explorer.epochs: [1, x]}", r"run 'epochs=x'.*\n.*explorer.epochs = 'x'"),
        ("base: ../towns.yaml\nvary: {explorer.epochs.deep: [1]}", r"'epochs' is a value, not a section"),
        ("base: ../towns.yaml\nvary: {dataset.questions.path: [a/x, b/x]}", r"two runs are both called 'path=x'"),
        ("base: ../towns.yaml\nset: {explorer.epochs: 1}\nvary: {explorer.epochs: [1]}", r"varied, and set in 'set'"),
        (
            "base: ../towns.yaml\npoints: [{label: a, set: {encoder.dim: 8}}]\nvary: {encoder: [{kind: hash}]}",
            r"'encoder' is varied, and set in point 'a'",
        ),
        (
            "base: ../towns.yaml\nvary: {explorer.epochs: [1]}\nrepeat: explorer.epoch",
            r"repeat = .*'explorer.epochs'\?",
        ),
        ("base: ../towns.yaml\ntable: [hits]", r"no stage records 'hits'; legal: hits1, .*did you mean 'hits"),
        ("base: ../towns.yaml\ntable: []", r"table = .*one value or more"),
        ("base: ../towns.yaml\nplots: [{x: point}]", r"plots.0.x = 'point': legal are none here; so are the figures"),
        ("base: ../towns.yaml\nplots: [{x: num_train}]", r"plots.0.x is a figure: say in 'lines'"),
        ("base: ../towns.yaml\nplots: [{x: num_train, lines: base}]", r"plots.0.lines = 'base'"),
        ("base: ../towns.yaml\nplots: [{}]", r"any other plot needs one"),
        ("base: ../towns.yaml\nplots: [{kind: curves, x: base, y: dev.hits1}]", r"have no 'x'"),
        ("base: ../towns.yaml\nplots: [{kind: curves, y: dev.hits}]", r"no curve is called 'dev.hits'.*'dev.hits1'\?"),
        (
            "base: ../towns.yaml\nplots: [{kind: lins, x: base}]",
            r"legal are lines, points, curves; did you mean 'lines'",
        ),
        (
            "base: ../towns.yaml\nvary: {explorer.steps: [1]}\n"
            "plots: [{x: explorer.steps, y: train.cpu_seconds, beside: ceiling}]",
            r"no figure in 'y' is a score",
        ),
        (
            "base: ../towns.yaml\nvary: {evaluation.edge_budget: [5, all]}\n"
            "plots: [{x: evaluation.edge_budget, log_x: true}]",
            r"plots.0.log_x: not every evaluation.edge_budget is a number above 0",
        ),
        (
            "base: ../towns.yaml\nplots: [{x: num_train, lines: [], even_x: true}]",
            r"plots.0.even_x: values at equal distances need a dimension",
        ),
    ],
)
def test_what_is_wrong_is_named(write: Write, text: str, message: str) -> None:
    said = refused(write(text))
    assert re.search(message, said), said


def test_what_the_sweep_varies_cannot_be_set(write: Write) -> None:
    path = write("base: ../towns.yaml\npoints: [{label: a, set: {encoder: {kind: hash}}}]\n")
    assert "the sweep itself sets encoder" in refused(path, "encoder.dim=8")
    assert "is not of the form section.key=value" in refused(path, "encoder.dim")


def test_runs_share_one_home(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("base: [../towns.yaml, ../rivers.yaml]\n")
    (tmp_path / "rivers.yaml").write_text(TOWNS + f"runtime: {{home: {tmp_path / 'elsewhere'}}}\n", encoding="utf-8")
    assert "its runs have several homes" in refused(path)


# What we ship


def sweep_files() -> list[Path]:
    return sorted((PROJECT / "conf" / "sweeps").glob("*.yaml"))


@pytest.mark.parametrize("path", sweep_files(), ids=lambda path: path.stem)
def test_every_sweep_that_we_ship_is_read(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KGQA_DATA", str(tmp_path / "data"))
    sweep = read_sweep(path)
    assert len(sweep.points) > 1
    assert sweep.file.plots
    assert path.read_text(encoding="utf-8").startswith("# Purpose ")
