"""Forty triples of invented films, people and cities, small enough to follow every system by hand.

What makes it hard, on purpose: two people are called Ida Moon, a film is called as a relation word (Capital), terms of
office are nodes without a name (m.1, m.2), a year is an entity that films and terms share, and nearly every answer is
reached along a wrong path, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from kgqa_core.graph.kg import KnowledgeGraph, to_labels, to_relations
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.types import LabelPath, Question
from tests.loading import graph_of_text

TRIPLES = """\
Salt Road | directed_by | Ida Moon
Salt Road | starred | Oto Brandt
Salt Road | starred | Mara Quill
Salt Road | year | 1989
Salt Road | genre | drama
Glass Harbour | directed_by | Ida Moon
Glass Harbour | starred | Lev Sand
Glass Harbour | year | 1992
Glass Harbour | genre | comedy
The Ninth Kite | directed_by | Oto Brandt
The Ninth Kite | starred | Mara Quill
The Ninth Kite | year | 1992
The Ninth Kite | genre | comedy
Nightjar | directed_by | Mara Quill
Nightjar | starred | Lev Sand
Nightjar | starred | Oto Brandt
Nightjar | year | 1995
Capital | directed_by | Lev Sand
Capital | starred | Ida Moon
Capital | genre | comedy
Ida Moon | born_in | Port Amber
Oto Brandt | born_in | Port Amber
Mara Quill | born_in | Westerby
Lev Sand | born_in | Low Ferry
Ida Moon (painter) | born_in | Low Ferry
Blue Dunes | painted_by | Ida Moon (painter)
Port Amber | located_in | Osmania
Westerby | located_in | Osmania
Low Ferry | located_in | Veria
Osmania | capital | Westerby
Veria | capital | Low Ferry
Port Amber | mayor | m.1
m.1 | holder | Oto Brandt
m.1 | since | 1989
m.1 | until | 1992
Port Amber | mayor | m.2
m.2 | holder | Mara Quill
m.2 | since | 1992
Westerby | twin | Low Ferry
Lev Sand | spouse | Mara Quill
"""
NAMES = {"Ida Moon (painter)": "Ida Moon"}  # label: name; any other is called as it is labelled

# id, text, topic, plan, answers (labels)
ASKED = """\
directed | who directed Salt Road? | Salt Road | directed_by | Ida Moon
starred | which films starred Mara Quill? | Mara Quill | ^starred | Salt Road; The Ninth Kite
painted | who painted Blue Dunes? | Blue Dunes | painted_by | Ida Moon (painter)
capital | what is the capital of Osmania? | Osmania | capital | Westerby
born | where was the director of Salt Road born? | Salt Road | directed_by > born_in | Port Amber
mayor | who became mayor of Port Amber in 1992? | Port Amber | mayor > holder | Mara Quill
other | what else did the director of Salt Road direct? | Salt Road | directed_by > ^directed_by | Glass Harbour
country | where is the place located in which the director of Salt Road was born? | Salt Road \
| directed_by > born_in > located_in | Osmania
years | what year had the films that starred those who starred in Nightjar? | Nightjar \
| starred > ^starred > year | 1989; 1992
"""


@dataclass(frozen=True)
class Forty:
    """The graph with its questions."""

    graph: KnowledgeGraph
    questions: tuple[Question, ...]  # nine with a topic and a chain, two true/false, one without a topic

    def id_of(self, label: str) -> int:
        return _id(self.graph, label)

    def ids(self, *labels: str) -> tuple[int, ...]:
        return tuple(map(self.id_of, labels))

    def labels(self, entities: Sequence[int]) -> list[str]:
        return [self.graph.label_of(entity) for entity in entities]

    def question(self, id: str) -> Question:
        return next(one for one in self.questions if one.id == id)

    @cached_property
    def search(self) -> SearchGraph:
        """What systems search: three hops, topics not re-entered."""
        return SearchGraph(self.graph, self.graph, None, 3, False)

    @cached_property
    def plans(self) -> dict[str, tuple[LabelPath, ...]]:
        """The gold plan of every question that has one."""
        return {one.id: (to_labels(self.graph, one.chain),) for one in self.questions if one.chain is not None}


def make_forty(folder: Path) -> Forty:
    """Build the graph under ``folder`` and link the questions to it."""
    triples = [line.split(" | ") for line in TRIPLES.splitlines()]
    names = "".join(f"{label}\t{name}\n" for label, name in NAMES.items())
    graph = graph_of_text(folder, "".join("\t".join(one) + "\n" for one in triples), names)
    linked = [_link(graph, *line.split(" | ")) for line in ASKED.splitlines()]
    return Forty(graph, (*linked, *_verdicts(graph), _without_topic()))


def _link(graph: KnowledgeGraph, id: str, text: str, topic: str, plan: str, answers: str) -> Question:
    chain = to_relations(graph, plan.split(" > "))
    assert chain is not None, plan
    golds = tuple(sorted(_id(graph, label) for label in answers.split("; ")))
    masked = text.replace(topic, "[topic]")
    return Question(id, text, masked, (_id(graph, topic),), golds, "test", hops=len(chain), chain=chain)


def _verdicts(graph: KnowledgeGraph) -> list[Question]:
    """Return a claim that is right and one that is wrong."""
    right = _link(graph, "right", "was Glass Harbour directed by Ida Moon?", "Glass Harbour", "directed_by", "Ida Moon")
    right = replace(right, masked="was [topic] directed by [claim]?", claim=_id(graph, "Ida Moon"), verdict=True)
    text = "was Glass Harbour directed by Lev Sand?"
    return [right, replace(right, id="wrong", text=text, claim=_id(graph, "Lev Sand"), verdict=False)]


def _without_topic() -> Question:
    return Question("no topic", "who directed it?", "who directed it?", (), (), "test")


def _id(graph: KnowledgeGraph, label: str) -> int:
    found = graph.ids_of_label(label)
    assert found is not None, label
    return found
