"""The controls on the real WikiMovies graph and its questions of one to three hops."""

import os
from pathlib import Path

import pytest

from kgqa_core.evaluation.figures import report_row
from kgqa_core.evaluation.metrics import score_predictions
from kgqa_core.graph.build import build_graph
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.questions.link import load_question_file
from kgqa_core.systems.controls import fit_template_control, gold_chain_ceiling
from kgqa_core.types import Question, Split

pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif("KGQA_DATA" not in os.environ, reason="KGQA_DATA does not name the folder of real data"),
]


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> KnowledgeGraph:
    folder = tmp_path_factory.mktemp("wikimovies")
    build_graph(Path(os.environ["KGQA_DATA"]) / "metaqa" / "kb.txt", format="wikimovies", out_dir=folder)
    return open_graph(folder)


def load(films: KnowledgeGraph, split: Split) -> list[Question]:
    folder = Path(os.environ["KGQA_DATA"]) / "metaqa"
    questions: list[Question] = []
    for hops in (1, 2, 3):
        path = folder / f"{hops}-hop" / f"qa_{split}.txt"
        questions += load_question_file(path, format="metaqa", graph=films, split=split, hops=hops)[0]
    return questions


def test_ceiling_and_joint_template_control(films: KnowledgeGraph) -> None:
    test = load(films, "test")
    ceiling = gold_chain_ceiling(films, test, max_hops=3)
    figures = report_row(ceiling.name, "ceiling", score_predictions(test, ceiling.predictions)).by_hops
    assert ceiling.name == "gold-chain ceiling"
    assert [part["n"] for part in figures.values()] == [1000, 1000, 1000]
    assert figures["1"]["hits1"] == pytest.approx(96.65, abs=0.01)  # films of one title share a node
    assert figures["2"]["f1"] == figures["3"]["f1"] == 100

    control = fit_template_control(films, load(films, "train"), max_hops=3, sample=7)
    reached = report_row("template", "template control", score_predictions(test, control.answer(test))).by_hops
    assert len(control.paths) == 515
    assert figures["1"]["hits1"] - 0.2 < reached["1"]["hits1"] <= figures["1"]["hits1"]
    assert reached["2"]["hits1"] == reached["3"]["hits1"] == 100
