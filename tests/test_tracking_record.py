"""The record that a stage leaves in its artifact: exact round trips, and nothing that cannot be read back."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.errors import ArtifactError, KgqaError
from kgqa_core.evaluation.metrics import ANSWER_BUCKETS
from kgqa_core.tracking import (
    FILE_NAME,
    HOP_METRIC,
    Recorder,
    TrackingRecord,
    answers_metric,
    hop_metric,
    read_record,
    write_record,
)
from tasks.run_content import mean_metrics

names = st.text(min_size=1, max_size=7)
finite = st.floats(allow_nan=False, allow_infinity=False)
params = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | finite | st.text(max_size=11)
points = st.tuples(st.integers(0, 2**40), finite, st.integers(0, 2**45))
records = st.builds(
    TrackingRecord,
    stage=names,
    fingerprint=names,
    system=st.none() | names,
    seed=st.none() | st.integers(0, 2**31),
    params=st.dictionaries(names, params, max_size=5),
    tags=st.dictionaries(names, names, max_size=3),
    metrics=st.dictionaries(names, finite, max_size=5),
    curves=st.dictionaries(names, st.lists(points, max_size=7), max_size=2),
    tables=st.dictionaries(names, names, max_size=2),
    started_ms=st.integers(0, 2**45),
    ended_ms=st.integers(0, 2**45),
)


def typed(value: object) -> object:
    """Return ``value`` with its types spelled out: in Python True == 1 == 1.0, on disk they differ."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    return (type(value).__name__, value)


@given(record=records)
def test_a_record_comes_back_as_it_was_written(
    record: TrackingRecord, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("artifact")
    first = write_record(folder, record).read_bytes()
    again = read_record(folder)
    assert again == record
    assert typed(again.params) == typed(record.params)
    turned = replace(record, metrics=dict(reversed(record.metrics.items())))  # whatever the order of recording
    assert write_record(folder, turned).read_bytes() == first


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        *(({"metrics": {"loss": value}}, "train_explorer") for value in (math.nan, math.inf, -math.inf)),
        ({"params": {"layers": ["first", "last"]}}, r"params\.layers"),
    ],
)
def test_what_could_not_be_read_back_does_not_reach_the_disk(
    tmp_path: Path, fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(ArtifactError, match=named):
        write_record(tmp_path, TrackingRecord("train_explorer", "f00", **fields))
    assert not (tmp_path / FILE_NAME).exists()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"stage": None}, "stage"),
        ({"metrics": {"hits1": "97.5"}}, "metrics.hits1"),
        ({"colour": "red"}, "colour"),
        ({"curves": {"loss": [[1, 0.5]]}}, "curves.loss"),
        ({"seed": 1.0}, "seed"),
        *((text, FILE_NAME) for text in (b"", b"{", b"[]", b'{"stage": "x"}', b"\xff\xfe", b'{"metrics": {"x": NaN}}')),
        (None, "the next run rebuilds it"),
    ],
)
def test_a_damaged_foreign_or_missing_record_is_refused_by_name(
    tmp_path: Path, content: dict[str, Any] | bytes | None, named: str
) -> None:
    path = write_record(tmp_path, TrackingRecord("evaluate", "f00"))
    if content is None:
        path.unlink()
    else:
        changed = content if isinstance(content, bytes) else json.dumps(json.loads(path.read_text()) | content).encode()
        path.write_bytes(changed)
    with pytest.raises(ArtifactError, match=named):
        read_record(tmp_path)


def test_a_recorder_turns_into_a_record_with_the_times_of_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", iter([10.0, 11.5, 13.0, 17.25]).__next__)
    recorder = Recorder("train_explorer", system="explorer", seed=7)
    recorder.param("epochs", 3)
    recorder.param("lr", 1e-3)
    recorder.curve("train/loss", 1, 0.75)
    recorder.curve("train/loss", 2, 0.5)
    recorder.metric("hits1", 97)
    recorder.table("predictions", "predictions.parquet")
    told = recorder.record("f00d")
    recorder.metric("f1", 80.0)  # it goes on
    assert told == TrackingRecord(
        stage="train_explorer",
        fingerprint="f00d",
        system="explorer",
        seed=7,
        params={"epochs": 3, "lr": 1e-3},
        metrics={"hits1": 97.0},
        curves={"train/loss": [(1, 0.75, 11500), (2, 0.5, 13000)]},
        tables={"predictions": "predictions.parquet"},
        started_ms=10000,
        ended_ms=17250,
    )


@pytest.mark.parametrize("name", ["", "hits@1", "/hits", "a//b", "a/../b", "x" * 201, "f1%", "naïve"])
def test_a_name_that_trackers_refuse_and_a_figure_that_is_no_number_stop_the_stage(name: str) -> None:
    recorder = Recorder("evaluate")
    with pytest.raises(KgqaError, match="cannot name"):
        recorder.metric(name, 1.0)
    with pytest.raises(KgqaError, match=r"train/loss, step 13 became nan"):
        recorder.curve("train/loss", 13, math.nan)
    with pytest.raises(KgqaError, match="hits1 became inf"):
        recorder.metric("hits1", math.inf)


@pytest.mark.parametrize(("series", "name"), [(None, "hits1"), ("template_control", "template_control.hits1")])
def test_figures_per_hop_and_number_of_answers_have_names_that_trackers_take(series: str | None, name: str) -> None:
    found = HOP_METRIC.fullmatch(hop_metric(name, 13))
    assert found is not None
    assert (found["series"], found["metric"], found["hops"]) == (series, "hits1", "13")
    for other in (name, *(answers_metric(name, bucket) for bucket in ANSWER_BUCKETS)):
        Recorder("evaluate").metric(other, 1.0)
        assert HOP_METRIC.fullmatch(other) is None


def test_the_mean_over_seeds_covers_only_what_every_seed_measured() -> None:
    seeds = [
        TrackingRecord("evaluate", "a", seed=1, metrics={"hits1": 90.0, "f1": 80.0}),
        TrackingRecord("evaluate", "b", seed=2, metrics={"hits1": 95.0}),
        TrackingRecord("evaluate", "c", seed=3, metrics={"hits1": 97.0, "em": 1.0}),
    ]
    assert mean_metrics(seeds) == {"hits1": 94.0}
    assert mean_metrics([]) == {}
