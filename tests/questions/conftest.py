"""A small film graph with homonyms, and writers of question files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kgqa_core.config_base import QuestionSection
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.build import QuestionReport, build_questions
from tests.loading import graph_of_text, searched

TRIPLES = """\
f1	directed_by	p1
f1	release_year	1954
f1	starred_actors	p2
f2	directed_by	p1
f2	release_year	1958
f3	directed_by	p3
f3	release_year	1998
f4	directed_by	p4
f4	starred_actors	p3
"""
NAMES = """\
f1	Rear Window
f2	Vertigo
f3	Rear Window
f4	[REC]
p1	Alfred Hitchcock
p2	Grace Kelly
p3	Jeff Bleckner
p4	Ödön von Horváth
"""


@pytest.fixture(scope="session")
def films(tmp_path_factory: pytest.TempPathFactory) -> KnowledgeGraph:
    """Two films share the name "Rear Window"; years are their own names."""
    folder = tmp_path_factory.mktemp("films")
    return graph_of_text(folder, TRIPLES, NAMES)


@pytest.fixture
def ids(films: KnowledgeGraph) -> Callable[..., tuple[int, ...]]:
    """Entity ids of labels, ascending."""
    return lambda *labels: tuple(sorted(films.entity_labels.index(label) for label in labels))


FAMILY = """\
m.01n	people.person.parents	m.02b
m.01n	people.person.parents	m.03v
m.02b	people.person.date_of_birth	1971-10-13
m.02b	people.person.children	m.01n
"""
FAMILY_NAMES = "m.01n\tAnn\nm.02b\tBob\n"


@pytest.fixture
def family(tmp_path: Path) -> KnowledgeGraph:
    """Freebase in small: MIDs, some with a name, and a date."""
    return graph_of_text(tmp_path, FAMILY, FAMILY_NAMES)


@pytest.fixture
def build_family(tmp_path: Path, family: KnowledgeGraph) -> Callable[..., QuestionReport]:
    """Build the questions in ``tmp_path``."""

    def build_here(format: str, **section: Any) -> QuestionReport:
        asked = QuestionSection(format=format, path=tmp_path, **section)
        return build_questions(asked, search=searched(family, 2), out_dir=tmp_path / "questions")

    return build_here
