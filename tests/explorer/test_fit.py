"""Training end to end: what is saved, and what is recorded on the way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kgqa_core.errors import InputError
from kgqa_core.explorer.checkpoint import load_explorer
from kgqa_core.explorer.fit import CURVE_EVERY, FitSettings, fit_explorer
from kgqa_core.explorer.predict import predict
from kgqa_core.graph.build import build_graph
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.tracking import Recorder, TrackingRecord
from kgqa_core.types import Question
from tests.explorer import films
from tests.explorer.worlds import make_question

SETTINGS = FitSettings(
    steps=2,
    width=17,
    edge_budget=29,
    epochs=7,
    batch_size=11,
    learning_rate=0.01,
    warmup_steps=3,
    seed=0,
    reenter_topic=False,
    threads=1,
    encoder=films.ENCODER.name,
)
TEXTS = (*films.TEXT_ROW, *films.RELATIONS)
ENCODINGS = dict(zip(TEXTS, films.ENCODER.encode(TEXTS), strict=True))


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> KnowledgeGraph:
    """The films, built as any graph is; labels sort as the entity ids in ``films`` do."""
    folder = tmp_path_factory.mktemp("films")
    lines = [f"e{head:02}\t{films.RELATIONS[relation]}\te{tail:02}\n" for head, relation, tail in films.TRIPLES]
    (folder / "triples.tsv").write_text("".join(lines), encoding="utf-8")
    build_graph(folder / "triples.tsv", format="tsv", out_dir=folder / "graph")
    return open_graph(folder / "graph")


def fit(
    graph: KnowledgeGraph,
    folder: Path,
    settings: FitSettings = SETTINGS,
    *,
    train: Sequence[Question] | None = None,
    dev: Sequence[Question] | None = None,
) -> TrackingRecord:
    """Train on the films; return what was recorded."""
    recorder, questions = Recorder("explorer"), films.questions()
    folder.mkdir(exist_ok=True)
    fit_explorer(
        graph,
        train=questions if train is None else train,
        dev=questions[::3] if dev is None else dev,
        encodings=ENCODINGS,
        settings=settings,
        folder=folder,
        recorder=recorder,
    )
    return recorder.record("fingerprint")


def test_the_checkpoint_holds_what_predicting_needs(graph: KnowledgeGraph, tmp_path: Path) -> None:
    record = fit(graph, tmp_path)
    model, card = load_explorer(tmp_path, encoder=films.ENCODER.name)
    assert (card.steps, card.width, card.edge_budget, card.reenter_topic) == (2, 17, 29, False)
    assert card.encoding_dim == films.ENCODER.dim
    assert card.answer_threshold == record.metrics["dev.answer_threshold"]
    question = make_question([5], masked=films.WHO)
    (prediction,) = predict(
        model,
        graph,
        [question],
        texts=films.TEXTS,
        text_row=films.TEXT_ROW,
        options=films.OPTIONS,
        answer_threshold=card.answer_threshold,
    )
    assert prediction.answers == (films.director(5),)


def test_the_same_settings_give_the_same_files_and_another_seed_others(graph: KnowledgeGraph, tmp_path: Path) -> None:
    first, same, other = tmp_path / "first", tmp_path / "same", tmp_path / "other"
    fit(graph, first)
    fit(graph, same)
    fit(graph, other, replace(SETTINGS, seed=1))
    for name in ("model.json", "model.safetensors"):
        assert (first / name).read_bytes() == (same / name).read_bytes()
    assert (first / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()


def test_curves_have_a_point_per_some_steps_and_one_at_the_end(graph: KnowledgeGraph, tmp_path: Path) -> None:
    record = fit(graph, tmp_path)
    num_steps = 7 * 7  # epochs x batches of 69 questions
    steps = [step for step, _, _ in record.curves["train.loss"]]
    assert steps == [CURVE_EVERY, 2 * CURVE_EVERY, num_steps]
    assert [step for step, _, _ in record.curves["dev.hits1"]] == [7 * epoch for epoch in range(1, 8)]
    assert record.metrics["dev.hits1"] == record.curves["dev.hits1"][-1][1]
    assert record.metrics["train.cpu_seconds"] > 0
    assert record.curves["train.loss"][-1][1] < record.curves["train.loss"][0][1]
    assert {value for _, value, _ in record.curves["train.coverage"]} == {100.0}


def test_without_dev_the_threshold_is_a_half_and_nothing_is_watched(graph: KnowledgeGraph, tmp_path: Path) -> None:
    record = fit(graph, tmp_path, dev=[])
    assert record.metrics["dev.answer_threshold"] == 0.5
    assert json.loads((tmp_path / "model.json").read_text())["answer_threshold"] == 0.5
    assert "dev.hits1" not in record.curves
    assert "dev.f1" not in record.metrics


@pytest.mark.parametrize(
    "train", [[], [make_question([3], masked=films.WHO)], [make_question([], [3], masked=films.WHO)]]
)
def test_nothing_to_learn_from_is_said_before_anything_is_written(
    graph: KnowledgeGraph, tmp_path: Path, train: list[Question]
) -> None:
    with pytest.raises(InputError, match=rf"none of the {len(train)} training questions.*kgqa lint"):
        fit(graph, tmp_path / "out", train=train)
    assert list((tmp_path / "out").iterdir()) == []
