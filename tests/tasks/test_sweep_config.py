"""Sweep files: what is refused, in which words; every figure that stages record has a name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kgqa_core.config import RunConfig
from kgqa_core.errors import ConfigError
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.tracking import read_record
from tasks.sweep_config import COSTS, CURVES, curve_label, is_score, label_of
from tasks.sweep_points import read_sweep
from tests.conftest import TOWNS

Write = Callable[..., Path]


def test_figures_are_named_in_words_and_controls_have_scores_alone() -> None:
    named = {
        "hits1": "Hits@1, percent",
        "f1.hop3": "F1, percent, 3-hop",
        "template_control.hits1": "template control: Hits@1, percent",
        "ceiling.f1.hop2": "ceiling: F1, percent, 2-hop",
        "answer.questions_per_second": "questions per CPU second",
    }
    assert {name: label_of(name) for name in named} == named
    assert [name for name in (*named, "num_train", "dev.hits1") if is_score(name)] == ["hits1", "f1.hop3"]
    for name in ("hits", "hits1.hops2", "control.hits1", "template_control.num_train", "hits1.hop", ""):
        with pytest.raises(ValueError, match="no stage records"):
            label_of(name)


def test_stages_record_the_figures_and_curves_that_are_named(tiny_config: RunConfig) -> None:
    pipeline = Pipeline(tiny_config)
    records = {key: read_record(pipeline.artifact(key).folder) for key in pipeline.specs}
    recorded = {name for record in records.values() for name in record.metrics}
    subset_only = {"num_masked_texts", "num_masked_texts_held_out"}
    assert COSTS.keys() - recorded == subset_only
    assert CURVES.keys() <= records["explorer-seed0"].curves.keys()
    assert curve_label("dev.hits1") == "Hits@1 on dev, percent"


def refused(path: Path, *overrides: str) -> str:
    """Return the message with which a sweep is refused."""
    with pytest.raises(ConfigError) as raised:
        read_sweep(path, overrides)
    return str(raised.value)


# What is refused


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("set: {}", r"missing key 'base'"),
        ("base: ../town.yaml", r"no configuration file .*town\.yaml'; did you mean .*towns\.yaml"),
        ("base: []", r"base = .*must be one value or more"),
        ("base: [../towns.yaml, ../x/towns.yaml]", r"base: two have one name; the names are towns, towns"),
    ],
)
def test_a_base_that_is_none_is_named(write: Write, text: str, message: str) -> None:
    assert re.search(message, refused(write(text)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("varry: {}", r"unknown key 'varry' .*did you mean 'vary'"),
        ("vary: {explorer.epochs: 3}", r"vary.explorer.epochs = 3: must be a list"),
        ("vary: {explorer.epochs: []}", r"must be one value or more, each given once"),
        ("vary: {explorer.epochs: [3, 3]}", r"must be one value or more, each given once"),
        ("points: [{label: a}, {label: a}]", r"points: two have one name"),
        ("points: [{set: {}}]", r"missing key 'points.0.label'"),
        ("vary: {explorer.epohs: [1]}", r"run 'epohs=1'.*\n.*unknown key 'explorer.epohs'"),
        ("vary: {explorer.epochs: [1, x]}", r"run 'epochs=x'.*\n.*explorer.epochs = 'x'"),
        ("vary: {explorer.epochs.deep: [1]}", r"'epochs' is a value, not a section"),
        ("vary: {dataset.questions.path: [a/x, b/x]}", r"two runs are both called 'path=x'"),
        ("set: {explorer.epochs: 1}\nvary: {explorer.epochs: [1]}", r"varied, and set in 'set'"),
        ("points: [{label: a, set: {encoder.dim: 8}}]\nvary: {encoder: [{}]}", r"varied, and set in point 'a'"),
        ("vary: {explorer.epochs: [1]}\nrepeat: explorer.epoch", r"repeat = .*'explorer.epochs'\?"),
        ("table: [hits]", r"no stage records 'hits'; legal: hits1, .*did you mean 'hits"),
        ("table: []", r"table = .*one value or more"),
        ("plots: [{x: point}]", r"plots.0.x = 'point': legal are none here; so are the figures"),
        ("plots: [{x: num_train}]", r"plots.0.x is a figure: say in 'lines'"),
        ("plots: [{x: num_train, lines: base}]", r"plots.0.lines = 'base'"),
        ("plots: [{}]", r"any other plot needs one"),
        ("plots: [{kind: curves, x: base, y: dev.hits1}]", r"have no 'x'"),
        ("plots: [{kind: curves, y: dev.hits}]", r"no curve is called 'dev.hits'.*'dev.hits1'\?"),
        ("plots: [{kind: lins, x: base}]", r"legal are lines, points, curves; did you mean 'lines'"),
        ("plots: [{x: base, y: train.cpu_seconds, beside: ceiling}]", r"no figure in 'y' is a score"),
        (
            "vary: {evaluation.edge_budget: [5, all]}\nplots: [{x: evaluation.edge_budget, log_x: true}]",
            r"plots.0.log_x: not every evaluation.edge_budget is a number above 0",
        ),
        ("plots: [{x: num_train, lines: [], even_x: true}]", r"0.even_x: values at equal distances need a dimension"),
    ],
)
def test_what_is_wrong_is_named(write: Write, text: str, message: str) -> None:
    said = refused(write(f"base: ../towns.yaml\n{text}"))
    assert re.search(message, said), said


@pytest.mark.parametrize("shown", ["table: [system.rog.hits1]", "plots: [{x: point, y: [system.rog.f1]}]"])
def test_a_row_that_no_run_compares_is_named_before_any_runs(write: Write, shown: str) -> None:
    runs = "base: ../towns.yaml\npoints: [{label: a, set: {systems: {run: [explorer, rog], answered_by: [oracle]}}}]\n"
    assert re.search(r"no run has a row 'rog'; rows: explorer, rog-oracle", refused(write(runs + shown)))
    read_sweep(write(runs + shown.replace("rog", "rog-oracle")))
    assert "no run has a row 'rog'; rows: none" in refused(write("base: ../towns.yaml\ntable: [system.rog.hits1]"))


def test_what_the_sweep_varies_cannot_be_set(write: Write) -> None:
    path = write("base: ../towns.yaml\npoints: [{label: a, set: {encoder: {kind: hash}}}]\n")
    assert "the sweep itself sets encoder" in refused(path, "encoder.dim=8")
    assert "is not of the form section.key=value" in refused(path, "encoder.dim")


def test_runs_share_one_home(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("base: [../towns.yaml, ../rivers.yaml]\n")
    (tmp_path / "rivers.yaml").write_text(TOWNS + f"runtime: {{home: {tmp_path / 'elsewhere'}}}\n", encoding="utf-8")
    assert "its runs have several homes" in refused(path)
