"""Topics hidden and found again: wording is no topic, homonyms are told apart, a wrong link costs what it costs."""

from __future__ import annotations

import pytest

from kgqa_core.graph.build import build_graph
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.questions.link_index import NameIndex
from kgqa_core.questions.link_text import LinkSettings, TextLinker, learn_wording, relink
from kgqa_core.questions.linking_score import error_kind, score_links
from kgqa_core.types import Question

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
    (folder / "kb.tsv").write_text(TRIPLES, encoding="utf-8")
    (folder / "names.tsv").write_text(NAMES, encoding="utf-8")
    build_graph(folder / "kb.tsv", format="tsv", out_dir=folder / "graph", names=folder / "names.tsv")
    return open_graph(folder / "graph")


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


def linked(films: KnowledgeGraph, taught: list[Question], text: str, **settings: object) -> list[str]:
    given = LinkSettings(**settings)  # type: ignore[arg-type]
    (question,) = relink([asked(films, text)], films, examples=taught, settings=given)
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
        ("who acted in the Bridge on the River", []),
        ("who is the director of the film", []),  # wording alone is no topic
        ("", []),
    ],
)
def test_the_name_that_is_meant(films: KnowledgeGraph, taught: list[Question], text: str, topics: list[str]) -> None:
    assert linked(films, taught, text) == topics


def test_without_fuzzy_matching_a_misspelt_name_is_no_topic(films: KnowledgeGraph, taught: list[Question]) -> None:
    assert linked(films, taught, "who is the director of Vertgo", fuzzy=False) == []
    assert linked(films, taught, "who is the director of Vertgo", min_similarity=95.0) == []


def test_capitals_tell_homonyms_apart_where_questions_have_them(films: KnowledgeGraph, taught: list[Question]) -> None:
    assert linked(films, taught, "what films can be described by oscar") == ["oscar"]
    assert linked(films, taught, "who is the director of Oscar") == ["Oscar"]


def test_else_what_surrounds_them_does(films: KnowledgeGraph, taught: list[Question]) -> None:
    assert linked(films, taught, "what films can be described by oscar", cased=False) == ["oscar"]
    assert linked(films, taught, "who is the director of oscar", cased=False) == ["Oscar"]


def test_all_bearers_of_a_name_that_fit_alike_are_topics(films: KnowledgeGraph, taught: list[Question]) -> None:
    wide = {"margin": 100.0}
    assert linked(films, taught, "what did John Low make", **wide) == ["p2", "p3", "p4"]
    assert linked(films, taught, "what did John Low make", max_bearers=1, **wide) == ["p4"]  # of most edges


def test_several_mentions_where_training_questions_have_several(films: KnowledgeGraph, taught: list[Question]) -> None:
    both = [*taught, asked(films, "who acted in Rope and Vertigo", "Rope", "Vertigo")]
    assert linked(films, both, "who acted in Oscar and Hell") == ["Hell", "Oscar"]
    assert len(linked(films, taught, "who acted in Oscar and Hell")) == 1
    assert linked(films, taught, "who acted in Oscar and Hell", max_mentions=2) == ["Hell", "Oscar"]


def test_without_training_questions_the_longest_name_is_taken(films: KnowledgeGraph) -> None:
    assert linked(films, [], "who directed +1") == ["+1"]
    assert linked(films, [], "who is the director of Rope") == ["Rope"]  # by its capital
    assert linked(films, [], "who is the director of rope") == ["director"]


def test_what_was_hidden_is_found_in_the_text_and_masked_anew(films: KnowledgeGraph, taught: list[Question]) -> None:
    wrong = asked(films, "who acted in Oscar Wilde, the Rope", "Rope")
    (found,) = relink([wrong], films, examples=taught)
    assert found.masked == "who acted in [topic], the Rope"
    assert [films.label_of(topic) for topic in found.topics] == ["Oscar Wilde"]
    assert (found.text, found.answers, found.id) == (wrong.text, wrong.answers, wrong.id)
    (none,) = relink([asked(films, "who acted in Nothing", "Rope")], films, examples=taught)
    assert (none.topics, none.masked) == ((), "who acted in Nothing")


def test_a_claim_is_known_and_no_topic(films: KnowledgeGraph, taught: list[Question]) -> None:
    claim = asked(films, "did Alfred Hitchcock direct Hell", "Hell", claim="p1")
    (found,) = relink([claim], films, examples=taught)
    assert [films.label_of(topic) for topic in found.topics] == ["Hell"]
    assert found.masked == "did [claim] direct [topic]"
    assert (found.claim, found.verdict) == (claim.claim, True)


def test_answers_and_chains_teach_nothing(films: KnowledgeGraph, taught: list[Question]) -> None:
    index = NameIndex(films)
    other = [Question(q.id, q.text, q.masked, q.topics, (1, 2), "train", chain=(1,)) for q in taught]
    assert learn_wording(index, taught) == learn_wording(index, other)


def test_a_context_of_ones_own_decides_between_bearers(films: KnowledgeGraph) -> None:
    class Largest:
        def score(self, words: list[str], around: list[frozenset[int]]) -> list[float]:
            return [5.0 * len(own) for own in around]

    ((mention,),) = TextLinker(NameIndex(films), context=Largest()).link(["who knows John Low"])
    assert [films.label_of(entity) for entity in mention.entities] == ["p4"]
    assert (mention.how, mention.similarity, mention.span) == ("exact", 1.0, (10, 18))


def test_scores_of_topic_sets(films: KnowledgeGraph) -> None:
    given = [asked(films, "a", "Rope"), asked(films, "b", "Hell"), asked(films, "c", "p2"), asked(films, "d")]
    found = [asked(films, "a", "Rope"), asked(films, "b", "In Hell"), asked(films, "c", "p2", "p3"), asked(films, "d")]
    score = score_links(given, found, films)
    assert (score.num_questions, score.exact, score.holds_topic) == (3, 1 / 3, 2 / 3)
    assert (score.precision, score.recall) == pytest.approx((1.5 / 3, 2 / 3))
    assert score.f1 == pytest.approx((1 + 0 + 2 / 3) / 3)
    assert score.errors == {"extra homonym": 1, "nested name": 1}
    assert score_links([], [], films).f1 == 0.0


@pytest.mark.parametrize(
    ("given", "found", "kind"),
    [
        (["Rope"], [], "no topic"),
        (["Rope", "Hell"], ["Rope"], "missing topic"),
        (["oscar"], ["oscar", "Oscar"], "extra homonym"),
        (["Rope"], ["Rope", "Hell"], "extra name"),
        (["oscar"], ["Oscar"], "homonym"),
        (["Oscar Wilde"], ["oscar"], "nested name"),
        (["Rope"], ["Hell"], "other name"),
    ],
)
def test_kinds_of_errors(films: KnowledgeGraph, given: list[str], found: list[str], kind: str) -> None:
    ids = [set(asked(films, "", *labels).topics) for labels in (given, found)]
    assert error_kind(*ids, films) == kind
