"""Topics hidden and found again: wording is no topic, and homonyms are told apart."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.link_names import NameIndex
from kgqa_core.questions.link_text import TextLinker, learn_wording, link_topics
from kgqa_core.types import Question
from tests.loading import graph_of_text

# "director" and "film" are tags; "oscar" is a tag, "Oscar" a film; three people are called John Low.
TRIPLES = """\
Vertigo	directed_by	p1
Vertigo	has_tags	director
Vertigo	has_tags	film
Rear Window	directed_by	p1
The Birds	directed_by	p1
Oscar	directed_by	p2
Oscar	has_tags	oscar
In Hell	directed_by	p3
Hell	directed_by	p4
Rope	has_tags	Oscar Wilde
Rope	has_tags	oscar
Rope	starred_actors	p4
+1	directed_by	p4
"""
NAMES = "p1\tAlfred Hitchcock\np2\tJohn Low\np3\tJohn Low\np4\tJohn Low\n"


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> KnowledgeGraph:
    folder = tmp_path_factory.mktemp("relink")
    return graph_of_text(folder, TRIPLES, NAMES)


def asked(films: KnowledgeGraph, text: str, *topics: str, claim: str = "") -> Question:
    """Return a question with its topics given by label."""
    ids = tuple(sorted(id for topic in topics if (id := films.ids_of_label(topic)) is not None))
    masked = text
    for topic in ids:
        masked = masked.replace(films.name_of(topic), "[topic]")
    claimed = films.ids_of_label(claim) if claim else None
    verdict = True if claim else None
    return Question(text, text, masked, ids, (0,), "train", claim=claimed, verdict=verdict)


@pytest.fixture(scope="module")
def taught(films: KnowledgeGraph) -> list[Question]:
    return [
        asked(films, "who is the director of the film Vertigo", "Vertigo"),
        asked(films, "who is the director of Rear Window", "Rear Window"),
        asked(films, "what films can be described by oscar", "oscar"),
        asked(films, "who acted in Rope", "Rope"),
    ]


def linked(films: KnowledgeGraph, taught: list[Question], text: str) -> list[str]:
    (question,) = link_topics([asked(films, text)], TextLinker(NameIndex(films), taught))
    return [films.label_of(topic) for topic in question.topics]


@pytest.mark.parametrize(
    ("text", "topics"),
    [
        ("who is the director of Rear Window", ["Rear Window"]),
        ("who is the director of the film Vertigo", ["Vertigo"]),  # two longer names are only wording
        ("who is the director of rear window", ["Rear Window"]),
        ("who is the director of REAR-WINDOW?", ["Rear Window"]),
        ("who acted in Hell", ["Hell"]),  # not "In Hell": capitals mark one, and "in" is wording
        ("who acted in In Hell", ["In Hell"]),
        ("who is the director of birds", ["The Birds"]),  # the article is missing
        ("who is the director of Rearwindow", ["Rear Window"]),
        ("who is the director of Rear Widnow", ["Rear Window"]),
        ("who is the director of Vertgo", ["Vertigo"]),
        ("what films can be described by oscar", ["oscar"]),  # capitals tell homonyms apart
        ("who is the director of Oscar", ["Oscar"]),
        ("who acted in the Bridge on the River", []),
        ("who is the director of the film", []),  # wording alone is no topic
        ("", []),
    ],
)
def test_the_name_that_is_meant(films: KnowledgeGraph, taught: list[Question], text: str, topics: list[str]) -> None:
    assert linked(films, taught, text) == topics


def test_without_capitals_what_surrounds_them_does(films: KnowledgeGraph, taught: list[Question]) -> None:
    lower = [replace(one, text=one.text.lower(), masked=one.masked.lower()) for one in taught]
    assert linked(films, lower, "what films can be described by oscar") == ["oscar"]
    assert linked(films, lower, "who is the director of oscar") == ["Oscar"]


def test_of_many_bearers_those_of_most_edges_are_topics(tmp_path: Path) -> None:
    edges = [f"p{number}\tmade\tfilm {number * 10 + film}" for number in range(7) for film in range(number + 1)]
    graph = graph_of_text(tmp_path, "\n".join(edges), "".join(f"p{number}\tJohn Low\n" for number in range(7)))
    assert linked(graph, [], "what did John Low make") == ["p2", "p3", "p4", "p5", "p6"]


def test_several_mentions_where_training_questions_have_several(films: KnowledgeGraph, taught: list[Question]) -> None:
    both = [*taught, asked(films, "who acted in Rope and Vertigo", "Rope", "Vertigo")]
    assert linked(films, both, "who acted in Oscar and Hell") == ["Hell", "Oscar"]
    assert len(linked(films, taught, "who acted in Oscar and Hell")) == 1


def test_without_training_questions_the_longest_name_is_taken(films: KnowledgeGraph) -> None:
    assert linked(films, [], "who directed +1") == ["+1"]
    assert linked(films, [], "who is the director of Rope") == ["Rope"]  # by its capital
    assert linked(films, [], "who is the director of rope") == ["director"]
    assert linked(films, [], "what did John Low make") == ["p2", "p3", "p4"]  # all who bear it


def test_what_was_hidden_is_found_in_the_text_and_masked_anew(films: KnowledgeGraph, taught: list[Question]) -> None:
    wrong = asked(films, "who acted in Oscar Wilde, the Rope", "Rope")
    (found,) = link_topics([wrong], TextLinker(NameIndex(films), taught))
    assert found.masked == "who acted in [topic], the Rope"
    assert [films.label_of(topic) for topic in found.topics] == ["Oscar Wilde"]
    assert (found.text, found.answers, found.id) == (wrong.text, wrong.answers, wrong.id)
    (none,) = link_topics([asked(films, "who acted in Nothing", "Rope")], TextLinker(NameIndex(films), taught))
    assert (none.topics, none.masked) == ((), "who acted in Nothing")


def test_a_claim_is_known_and_no_topic(films: KnowledgeGraph, taught: list[Question]) -> None:
    claim = asked(films, "did Alfred Hitchcock direct Hell", "Hell", claim="p1")
    (found,) = link_topics([claim], TextLinker(NameIndex(films), taught))
    assert [films.label_of(topic) for topic in found.topics] == ["Hell"]
    assert found.masked == "did [claim] direct [topic]"
    assert (found.claim, found.verdict) == (claim.claim, True)


def test_answers_and_chains_teach_nothing(films: KnowledgeGraph, taught: list[Question]) -> None:
    index = NameIndex(films)
    other = [Question(q.id, q.text, q.masked, q.topics, (1, 2), "train", chain=(1,)) for q in taught]
    assert learn_wording(index, taught) == learn_wording(index, other)


def test_a_text_full_of_names_takes_no_longer_than_it_is_long(films: KnowledgeGraph) -> None:
    text, began = "who acted in " + "Rope Hell " * 1_900, time.process_time()
    (found,) = link_topics([asked(films, text)], TextLinker(NameIndex(films)))
    assert [films.label_of(topic) for topic in found.topics] == ["Rope"]
    assert time.process_time() - began < 3  # by comparing each name with each other it took ten seconds
