"""Entities of one name read alike, and are all answers: a prompt shows the name once."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.oracle.plans import FixedPlans, propose_ends
from kgqa_core.systems.answering import PlanSource
from kgqa_core.systems.eperm import Eperm, EpermSection
from kgqa_core.systems.rog import Rog, RogSection
from kgqa_core.systems.types import System
from kgqa_core.types import Question
from tests.loading import graph_of_text
from tests.scripted import ScriptedModel
from tests.systems.asking import answer_all
from tests.systems.following import LINES, lines_under

TRIPLES = ("f1 directed_by p1", "f1 directed_by p2", "f1 directed_by p3", "f2 directed_by p1")
TRIPLES += ("p1 born_in c2", "p2 born_in c2", "p3 born_in c1")
NAMES = {"f1": "Alpha", "p1": "John Smith", "p2": "John Smith", "p3": "Ida Moon"}


@pytest.fixture
def search(tmp_path: Path) -> SearchGraph:
    names = "".join(f"{one}\t{name}\n" for one, name in NAMES.items())
    graph = graph_of_text(tmp_path, "".join("\t".join(one.split()) + "\n" for one in TRIPLES), names)
    return SearchGraph(graph, graph, None, 1, False)


SYSTEMS = {
    "rog": {},
    "rog, nobody reads": {"reasoning": "none"},
    "rog, votes": {"reasoning": "vote"},
    "eperm": {},
    "eperm, nobody reads": {"predictor": "none"},
}


def ids_of(search: SearchGraph, *labels: str) -> tuple[int, ...]:
    """Return the ids of some labels."""
    return tuple(search.graph.entity_labels.index(label) for label in labels)


@pytest.fixture
def question(search: SearchGraph) -> Question:
    golds = ids_of(search, "p1", "p2")
    return Question("q", "who directed Alpha?", "who directed [topic]?", ids_of(search, "f1"), golds, "test")


DIRECTED, BORN = ("directed_by",), ("directed_by", "born_in")


@pytest.mark.parametrize("name", SYSTEMS)
def test_all_that_a_name_means_is_answered(search: SearchGraph, question: Question, name: str) -> None:
    golds = question.answers
    plans = PlanSource(FixedPlans({"q": [DIRECTED]}))
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
    others = {*ids_of(search, "p3")} if "," in name else set()
    assert set(found.answers) == set(golds) | others
    assert {path[-1].tail for path in found.paths} >= set(golds)
    for prompt in model.prompts_of("reason"):
        shown = [line.partition(" (score")[0] for line in lines_under(prompt, "Paths:")]
        assert sorted(shown) == ["Alpha → directed_by → Ida Moon", "Alpha → directed_by → John Smith"]


def test_a_path_that_stands_for_several_has_the_score_of_the_best(search: SearchGraph, question: Question) -> None:
    """The model tells the two apart by what stands around them: .9 and .5 share 1, whatever the other's .1."""
    model = ScriptedModel().on("score_entities", "", "1: John Smith = 0.10\n2: John Smith = 0.90\n3: Ida Moon = 0.50")
    system = Eperm(search, LINES, PlanSource(FixedPlans({"q": [DIRECTED]})), EpermSection(retriever=False))
    answer_all(system, [question], search, model.on("reason", "", "John Smith"))
    (prompt,) = model.prompts_of("reason")
    assert lines_under(prompt, "Paths:") == [
        "Alpha → directed_by → John Smith (score 0.64)",
        "Alpha → directed_by → Ida Moon (score 0.36)",
    ]


def test_each_path_is_a_vote_even_if_another_reads_alike(search: SearchGraph, question: Question) -> None:
    """Both of one name were born in one town: it has two votes, the other town one."""
    votes = RogSection(reasoning="vote", vote_top=1)
    system = Rog(search, LINES, PlanSource(FixedPlans({"q": [BORN]})), votes)
    (answered,) = answer_all(system, [question], search, None)
    assert answered.answer.prediction.answers == ids_of(search, "c2")


def test_a_candidate_of_a_pool_may_have_the_name_of_another(search: SearchGraph, question: Question) -> None:
    (found,) = propose_ends(search, {"q": [DIRECTED, DIRECTED, DIRECTED, DIRECTED]}, [question])
    assert found.candidates == ids_of(search, "p1", "p2", "p3")
