"""The benchmark of sweeps: it has every sweep that we ship, and puts their plots beside the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import measure, sweeps
from tests.conftest import PROJECT


def test_every_sweep_that_we_ship_has_a_section_of_its_own() -> None:
    files = (PROJECT / "conf" / "sweeps").glob("*.yaml")
    shipped = {file.stem for file in files if "../papers/" not in file.read_text("utf-8")}  # those need models of 7B
    assert {sweep.file for sweep in sweeps.SWEEPS} == shipped
    assert len({sweep.title for sweep in sweeps.SWEEPS}) == len(sweeps.SWEEPS)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What the command is asked, which finds one cell and one plot."""
    (tmp_path / "1-speed.png").write_bytes(b"\x89PNG new")
    asked: list[list[str]] = []

    def found(arguments: list[str], home: Path) -> tuple[dict[str, Any], None]:
        asked.append(arguments)
        document = {"header": ["run", "n", "Hits@1"], "cells": [["a", "2", "99.00 ± 1.00"]], "dimensions": ["base"]}
        return {**document, "plots": [str(tmp_path / "1-speed.png")]}, None

    monkeypatch.setenv("KGQA_DATA", str(tmp_path))
    monkeypatch.setattr(measure, "RESULTS", tmp_path / "docs" / "results.md")
    monkeypatch.setattr(sweeps, "kgqa_json", found)
    return asked


def test_a_section_has_table_note_and_plots_and_older_plots_are_gone(tmp_path: Path, asked: list[list[str]]) -> None:
    images = tmp_path / "docs" / "images"
    images.mkdir(parents=True)
    for old in ("sweep-pruning-1.png", "sweep-pruning-2.png", "sweep-pruning-more-1.png"):
        (images / old).write_bytes(b"old")
    (sweep,) = sweeps.SMALL
    sweeps.run(tmp_path, [sweep])
    assert asked == [["sweep", "conf/sweeps/pruning.yaml"]]
    text = measure.RESULTS.read_text(encoding="utf-8")
    assert f"## {sweep.title}\n" in text and "| a | 2 | 99.00 ± 1.00 |" in text
    assert sweep.note in text and f"![{sweep.title}](images/sweep-pruning-1.png)" in text
    kept = {path.name: path.read_bytes() for path in images.iterdir()}
    assert kept == {"sweep-pruning-1.png": b"\x89PNG new", "sweep-pruning-more-1.png": b"old"}


def test_a_local_encoder_is_the_folder_inside_minilms_package(tmp_path: Path, asked: list[list[str]]) -> None:
    sweeps.run(tmp_path, [sweep for sweep in sweeps.SWEEPS if sweep.file == "encoder-local"])
    ((*_, option, setting),) = asked
    assert option == "--set"
    assert (Path(setting.removeprefix("encoder.path=")) / "model.safetensors").is_file()
