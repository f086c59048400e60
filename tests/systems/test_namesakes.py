"""Entities of one name read alike, and are all answers: a prompt shows the name once."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgqa_core.graph.build import build_graph
from kgqa_core.graph.kg import open_graph
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.oracle.plans import FixedPlans
from kgqa_core.systems.answering import PlanSource
from kgqa_core.systems.eperm import Eperm, EpermSection
from kgqa_core.systems.rog import Rog, RogSection
from kgqa_core.systems.runner import answer_all
from kgqa_core.systems.types import System
from kgqa_core.types import Question
from tests.scripted import ScriptedModel
from tests.systems.following import LINES, lines_under

TRIPLES = ("f1 directed_by p1", "f1 directed_by p2", "f1 directed_by p3", "f2 directed_by p1")
NAMES = {"f1": "Alpha", "p1": "John Smith", "p2": "John Smith", "p3": "Ida Moon"}


@pytest.fixture
def search(tmp_path: Path) -> SearchGraph:
    (tmp_path / "kb.tsv").write_text("".join("\t".join(one.split()) + "\n" for one in TRIPLES), encoding="utf-8")
    (tmp_path / "names.tsv").write_text("".join(f"{one}\t{name}\n" for one, name in NAMES.items()), encoding="utf-8")
    build_graph(tmp_path / "kb.tsv", format="tsv", out_dir=tmp_path / "graph", names=tmp_path / "names.tsv")
    graph = open_graph(tmp_path / "graph")
    return SearchGraph(graph, graph, None, 1, False)


SYSTEMS = {
    "rog": {},
    "rog, nobody reads": {"reasoning": "none"},
    "rog, votes": {"reasoning": "vote"},
    "eperm": {},
    "eperm, nobody reads": {"predictor": "none"},
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_all_that_a_name_means_is_answered(search: SearchGraph, name: str) -> None:
    ids = {label: search.graph.ids_of_label(label) for label in ("f1", *NAMES)}
    golds = (ids["p1"], ids["p2"])
    question = Question("q", "who directed Alpha?", "who directed [topic]?", (ids["f1"],), golds, "test")  # type: ignore[arg-type]
    plans = PlanSource(FixedPlans({"q": [("directed_by",)]}))
    system: System
    if name.startswith("rog"):
        system = Rog(search, LINES, plans, RogSection.model_validate(SYSTEMS[name]))
    else:
        quiet = {"retriever": False, "entity_scores": False, **SYSTEMS[name]}
        system = Eperm(search, LINES, plans, EpermSection.model_validate(quiet))
    model = ScriptedModel().on("reason", "", "John Smith")
    (answered,) = answer_all(system, [question], search, model)
    assert answered.error == ""
    found = answered.answer.prediction
    others = {ids["p3"]} if "," in name else set()
    assert set(found.answers) == set(golds) | others
    assert {path[-1].tail for path in found.paths} >= set(golds)
    for prompt in model.prompts_of("reason"):
        shown = [line.partition(" (score")[0] for line in lines_under(prompt, "Paths:")]
        assert sorted(shown) == ["Alpha → directed_by → Ida Moon", "Alpha → directed_by → John Smith"]
