"""Rows of a sweep come from artifacts, and repetitions become a mean and a spread."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.config import RunConfig
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.sweeps.points import (
    SeedRow,
    Spread,
    cells,
    header,
    join_repetitions,
    markdown,
    read_row,
    show_spread,
    spread,
)


def row(seed: int = 0, **given: Any) -> SeedRow:
    place = {"explorer.steps": given.pop("steps", 1), "draw": given.pop("draw", 0)}
    made = {"evaluation": given.pop("evaluation", f"{place}{seed}")}
    return SeedRow(place, "run", seed, made, given.pop("figures", {}), given.pop("curves", {}))


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=7))
def test_a_spread_is_mean_and_sample_deviation(values: list[float]) -> None:
    found = spread(values)
    assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-6)
    assert found.deviation == pytest.approx(statistics.stdev(values), abs=1e-6)
    assert found.count == len(values)


def test_one_value_has_no_spread() -> None:
    assert spread([7.0]) == Spread(7.0, 0.0, 1)


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


def test_repetitions_that_are_the_same_explorer_count_once() -> None:
    same = [row(draw=draw, evaluation="all questions", figures={"hits1": 50.0}) for draw in (0, 1, 2)]
    (joined,) = join_repetitions(same, ["draw"])
    assert joined.count == 1
    assert joined.figures["hits1"] == Spread(50.0, 0.0, 1)


def test_figures_and_steps_that_not_all_repetitions_have_are_left_out() -> None:
    rows = [
        row(0, figures={"hits1": 1.0, "hits1.hop2": 2.0}, curves={"dev.hits1": [(3, 1.0), (6, 2.0)]}),
        row(1, figures={"hits1": 3.0}, curves={"dev.hits1": [(3, 5.0), (7, 9.0)]}),
    ]
    (joined,) = join_repetitions(rows, [])
    assert joined.figures.keys() == {"hits1"}
    assert [(step, found.mean) for step, found in joined.curves["dev.hits1"]] == [(3, 3.0)]


def test_a_row_is_read_from_the_artifacts_of_a_run(tiny_config: RunConfig) -> None:
    pipeline = Pipeline(tiny_config)
    keys = {"questions": "questions", "encodings": "encodings"} | {
        name: f"{name}-seed0" for name in ("explorer", "evaluation")
    }
    folders = {name: pipeline.artifact(key).folder for name, key in keys.items()}
    found = read_row({"explorer.steps": 2}, "tiny", 0, folders)
    assert found.fingerprints == {name: folder.name for name, folder in folders.items()}
    assert 0 <= found.figures["hits1"] <= found.figures["ceiling.hits1"] <= 100
    assert {"template_control.f1.hop1", "hits1.hop2", "num_train", "train.cpu_seconds"} <= found.figures.keys()
    assert found.figures["encoding_dim"] == 31
    assert found.figures["answer.edges_per_question"] > found.figures["answer.candidates_per_question"] > 0
    steps = [step for step, _ in found.curves["dev.hits1"]]
    assert steps == sorted(steps) != []


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
    assert show_spread(name, value) == shown


def test_a_table_has_a_line_per_point_and_empty_cells_for_what_a_run_does_not_have() -> None:
    joined = join_repetitions([row(steps=1, figures={"hits1": 50.0}), row(steps=2, figures={"f1": 25.0})], ["draw"])
    names = header(["explorer.steps"], ["hits1", "f1"])
    lines = cells(joined, ["explorer.steps"], ["hits1", "f1"])
    assert names == ["steps", "n", "Hits@1", "F1"]
    assert lines == [["1", "1", "50.00", ""], ["2", "1", "", "25.00"]]
    assert markdown(names, lines, 1).splitlines() == [
        "| steps | n | Hits@1 | F1 |",
        "| --- | ---: | ---: | ---: |",
        "| 1 | 1 | 50.00 |  |",
        "| 2 | 1 |  | 25.00 |",
    ]
