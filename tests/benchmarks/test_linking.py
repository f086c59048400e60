"""How the benchmark of linking scores topics that were found against those given."""

from __future__ import annotations

import pytest

from benchmarks.linking_score import error_kind, score_links
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.types import Question
from tests.loading import graph_of_text

NAMES = {"r": "Rope", "h": "Hell", "i": "In Hell", "o": "oscar", "O": "Oscar", "w": "Oscar Wilde"}


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> KnowledgeGraph:
    folder = tmp_path_factory.mktemp("linking")
    return graph_of_text(
        folder,
        "".join(f"{label}\tis\tthing\n" for label in NAMES),
        "".join(f"{label}\t{name}\n" for label, name in NAMES.items()),
    )


def asked(films: KnowledgeGraph, labels: str) -> Question:
    return Question(labels, "", "", tuple(films.entity_labels.index(label) for label in labels), (), "test")


def test_scores_of_topic_sets(films: KnowledgeGraph) -> None:
    given, found = ([asked(films, labels) for labels in asks] for asks in (["r", "h", "o", ""], ["r", "i", "oO", "r"]))
    score = score_links(given, found, films)
    assert (score.num_questions, score.exact, score.holds_topic) == (3, 1 / 3, 2 / 3)
    assert (score.precision, score.recall, score.f1) == pytest.approx((1.5 / 3, 2 / 3, (1 + 2 / 3) / 3))
    assert score.errors == {"extra homonym": 1, "nested name": 1}
    assert score_links([], [], films).f1 == 0.0


@pytest.mark.parametrize(
    ("given", "found", "kind"),
    [
        ("r", "", "no topic"),
        ("rh", "r", "missing topic"),
        ("o", "oO", "extra homonym"),
        ("r", "rh", "extra name"),
        ("o", "O", "homonym"),
        ("w", "o", "nested name"),
        ("r", "h", "other name"),
    ],
)
def test_kinds_of_errors(films: KnowledgeGraph, given: str, found: str, kind: str) -> None:
    assert error_kind(set(asked(films, given).topics), set(asked(films, found).topics), films) == kind
