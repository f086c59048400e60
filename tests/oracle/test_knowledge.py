"""What the oracle knows of the questions about forty triples, and which clues it takes out of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kgqa_core.graph.kg import to_labels
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.graph.shortest import PathFinder
from kgqa_core.instructions.plan import PathConstraints
from kgqa_core.lm.types import Prompt
from kgqa_core.oracle.oracle import Knowledge, Known, clues_of, step_clues
from kgqa_core.types import Question
from tests.forty_triples import Forty

Recall = Callable[[str], Known]


@pytest.fixture(scope="module")
def recall(forty: Forty) -> Recall:
    """What is known of one question."""
    knowledge = Knowledge(forty.search, forty.questions, forty.plans)

    def of(id: str) -> Known:
        known = knowledge.of_prompt(Prompt("", question_id=id), forty.question(id).text)
        assert known is not None
        return known

    return of


def test_golds_topics_and_plans_are_known_by_name(recall: Recall) -> None:
    born = recall("born")
    assert (born.golds, born.topics, born.plans) == ({"Port Amber"}, ("Salt Road",), (("directed_by", "born_in"),))
    assert born.layers == (({"Salt Road"}, {"Ida Moon"}, {"Port Amber"}),)
    assert recall("painted").golds == {"Ida Moon"}  # as its label is not what prompts show
    assert recall("wrong").golds == {"Ida Moon"}
    nothing = recall("no topic")
    assert (nothing.golds, nothing.topics, nothing.plans, nothing.layers) == (frozenset(), (), (), ())


def test_ways_lead_to_golds_alone(recall: Recall) -> None:
    assert recall("mayor").layers == (({"Port Amber"}, {"m.2"}, {"Mara Quill"}),)
    (years,) = recall("years").layers
    assert years[1] == {"Lev Sand", "Oto Brandt"} and years[2] == {"Glass Harbour", "Salt Road"}


def test_a_plan_that_the_graph_cannot_follow_has_no_way(forty: Forty) -> None:
    born = forty.question("born")
    knowledge = Knowledge(forty.search, [born], {"born": [("made_up", "born_in"), ("capital", "twin")]})
    known = knowledge.of_prompt(Prompt("", question_id="born"), born.text)
    assert known is not None and known.layers[0] == (frozenset(),) * 3 and not known.layers[1][0]


def test_questions_of_one_text_are_known_together_whoever_asks_first(forty: Forty) -> None:
    """Equal prompts are one call, in a batch and in a cache: the answer must not hang on whose call it is."""
    first = Question("a", "where is it?", "where is it?", forty.ids("Salt Road"), forty.ids("drama"), "test")
    second = replace(first, id="b", topics=forty.ids("Nightjar"), answers=forty.ids("1995"))
    knowledge = Knowledge(forty.search, [second, first], {})
    asked = [knowledge.of_prompt(Prompt("", question_id=id), first.text) for id in ("a", "b", "elsewhere")]
    assert asked[0] is not None and asked[0].golds == {"drama", "1995"} and asked[0].id == "a"
    assert asked[1] == asked[0] == asked[2]
    assert knowledge.of_prompt(Prompt("", question_id="b"), "in which place is it?") == asked[0]  # worded anew
    assert knowledge.of_prompt(Prompt("", question_id="c"), "what is that?") is None


def test_a_masked_question_is_known_by_its_constraint(forty: Forty) -> None:
    first = replace(forty.question("directed"), id="a")
    film = forty.ids("Nightjar")
    second = Question("b", "who directed Nightjar?", first.masked, film, forty.ids("Mara Quill"), "test")
    knowledge = Knowledge(forty.search, [first, second], {})
    space = PathConstraints(forty.graph)

    def golds(id: str, constraint: bool) -> frozenset[str]:
        around = space.around(film if id == "b" else first.topics) if constraint else None
        known = knowledge.of_prompt(Prompt("", constraint=around, question_id=id), first.masked)
        assert known is not None
        return known.golds

    assert (golds("a", True), golds("b", True)) == ({"Ida Moon"}, {"Mara Quill"})
    assert golds("a", False) == golds("b", False) == {"Ida Moon"}  # equal prompts: the first of them is meant


def test_a_question_with_a_subgraph_of_its_own_is_known_by_its_rows(rows: tuple[SearchGraph, list[Question]]) -> None:
    walk, questions = rows
    asked = next(one for one in questions if one.topics and one.answers)
    elsewhere = replace(asked, id="elsewhere", text="what else?")  # has no subgraph
    (placed,) = walk.place([asked])
    found = PathFinder(walk.graph, max_hops=walk.max_hops).find(placed.topics, placed.answers).paths
    plans = {asked.id: [to_labels(walk.graph, path) for path in found]}
    knowledge = Knowledge(walk, [asked, elsewhere], plans)
    known = knowledge.of_prompt(Prompt("", question_id=asked.id), asked.text)
    assert known is not None and known.golds == {walk.entities.name_of(gold) for gold in asked.answers}
    assert known.plans and known.layers[0][0] == set(known.topics) and known.layers[0][-1] <= known.golds
    other = knowledge.of_prompt(Prompt("", question_id="elsewhere"), "what else?")
    assert other is not None and other.golds == known.golds and other.plans == ()


def test_the_key_tells_knowledge_apart(forty: Forty) -> None:
    whole = Knowledge(forty.search, forty.questions, {})
    assert whole.key == Knowledge(forty.search, list(reversed(forty.questions)), {}).key
    others = [
        Knowledge(forty.search, forty.questions[:-1], {}),
        Knowledge(forty.search, forty.questions, forty.plans),
        Knowledge(forty.search, [*forty.questions[1:], replace(forty.questions[0], answers=())], {}),
        Knowledge(replace(forty.search, reenter_topic=True), forty.questions, {}),
    ]
    assert len({whole.key, *(other.key for other in others)}) == 5


@pytest.mark.parametrize(
    ("id", "clues"),
    [
        ("directed", ("Salt Road", "directed")),
        ("starred", ("Mara Quill", "starred")),
        ("born", ("Salt Road", "director", "born")),  # the question's own words
        ("other", ("Salt Road", "director", "direct")),  # each word once
        ("mayor", ("Port Amber", "mayor", "holder")),  # no word of the question: the relation's
        ("years", ("Nightjar", "starred", "starred 2", "year")),
        ("no topic", ()),
    ],
)
def test_clues_are_the_topic_and_one_per_step(recall: Recall, id: str, clues: tuple[str, ...]) -> None:
    known = recall(id)
    assert clues_of(known) == clues
    assert step_clues(known) == clues[1:]


def test_a_topic_is_written_as_in_the_question(forty: Forty) -> None:
    question = replace(forty.question("directed"), text="who directed salt road?")
    knowledge = Knowledge(forty.search, [question], forty.plans)
    known = knowledge.of_prompt(Prompt("", question_id="directed"), question.text)
    assert known is not None and clues_of(known)[0] == "salt road"
