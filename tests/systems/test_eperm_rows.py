"""EPERM where each question has a subgraph of its own: it walks rows, and answers entities."""

from __future__ import annotations

from pathlib import Path

from kgqa_core.graph.build import build_graph
from kgqa_core.graph.kg import open_graph
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.graph.subgraph_build import build_subgraphs
from kgqa_core.graph.subgraphs import open_subgraphs
from kgqa_core.instructions.render import read_prompts
from kgqa_core.questions.build import load_question_file
from kgqa_core.systems.eperm import Eperm, EpermSection
from kgqa_core.systems.plans import GivenPlans, HardNegativePlans
from kgqa_core.systems.runner import answer_all
from tests.nsm import write_nsm
from tests.scripted import ScriptedModel


def test_a_question_is_answered_from_its_own_triples(tmp_path: Path) -> None:
    path = write_nsm(tmp_path / "dev.jsonl")
    build_graph(path, format="nsm", out_dir=tmp_path / "graph")
    graph = open_graph(tmp_path / "graph")
    build_subgraphs([path], graph=graph, out_dir=tmp_path)
    questions, _ = load_question_file(path, format="nsm", graph=graph)
    subgraphs = open_subgraphs(tmp_path)
    walk = SearchGraph(subgraphs.graph, graph, subgraphs, max_hops=2, reenter_topic=False)
    model = ScriptedModel()
    model.on("score_relations", "who is the brother of ann", "2: sibling = 0.90\n1: likes = 0.10")
    model.on("score_entities", "", "0.80", times=None)
    model.on("reason", "who is the brother of ann", "Bob")
    model.on("reason", "what does ann like", "m.jazz\nm.rock")  # of q1's subgraph nothing is seen from here
    plans = GivenPlans(HardNegativePlans({"q1": [("sibling", "sibling")], "q2": [("likes",)]}))
    asked = [one for one in questions if one.id in ("q1", "q2", "q6")]
    first, second, third = answer_all(Eperm(walk, read_prompts(), plans, EpermSection()), asked, walk, model)
    assert third.status == "skipped"
    (bob,), (rock,) = graph.ids_of_name("Bob"), graph.ids_of_name("m.rock")
    assert first.answer.prediction.answers == (bob,)
    assert first.faithful == (True,)
    assert "m.ann → sibling → m.s1 → sibling → Bob (score 1.00)" in first.calls[-1].prompt
    assert second.answer.prediction.answers == (rock,)
    assert second.answer.unmatched == ("m.jazz",)
