"""The figures that a sweep can show: every one that stages record has a name in words."""

from __future__ import annotations

import pytest

from kgqa_core.config import RunConfig
from kgqa_core.errors import ConfigError
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.sweeps.config import COSTS, CURVES, curve_label, is_score, label_of
from kgqa_core.tracking import read_record


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("hits1", "Hits@1, percent"),
        ("f1.hop3", "F1, percent, 3-hop"),
        ("template_control.hits1", "template control: Hits@1, percent"),
        ("ceiling.f1.hop2", "ceiling: F1, percent, 2-hop"),
        ("answer.questions_per_second", "questions per CPU second"),
    ],
)
def test_figures_are_named_in_words(name: str, label: str) -> None:
    assert label_of(name) == label


@pytest.mark.parametrize(
    "name", ["hits", "hits1.hops2", "control.hits1", "template_control.num_train", "hits1.hop", ""]
)
def test_a_figure_that_no_stage_records_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="no stage records"):
        label_of(name)


def test_controls_have_scores_and_no_costs() -> None:
    assert [name for name in ("hits1", "f1.hop2", "num_train", "dev.hits1", "ceiling.f1") if is_score(name)] == [
        "hits1",
        "f1.hop2",
    ]


def test_stages_record_the_figures_and_curves_that_are_named(tiny_config: RunConfig) -> None:
    pipeline = Pipeline(tiny_config)
    records = {key: read_record(pipeline.artifact(key).folder) for key in pipeline.specs}
    recorded = {name for record in records.values() for name in record.metrics}
    subset_only = {"num_masked_texts", "num_masked_texts_held_out"}
    assert COSTS.keys() - recorded == subset_only
    assert CURVES.keys() <= records["explorer-seed0"].curves.keys()
    assert curve_label("dev.hits1") == "Hits@1 on dev, percent"
