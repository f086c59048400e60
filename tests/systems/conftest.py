"""A small graph of films, built as any graph is: two directors who share a film, and a genre that is a hub."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kgqa_core.explorer.model import Card, Explorer
from kgqa_core.graph.build import build_graph
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.graph.search_graph import SearchGraph, open_subgraphs
from kgqa_core.graph.subgraph_build import build_subgraphs
from kgqa_core.systems.etd import ExplorerSystem
from kgqa_core.text.encoder import HashEncoder
from kgqa_core.types import Question, Step
from tests.forty_triples import Forty, make_forty
from tests.loading import graph_of_text, load_question_file
from tests.nsm import write_nsm

FILMS = {  # film: (directors, actors, year)
    "Ash": (["Dan"], ["Ann", "Bob"], "1999"),
    "Birch": (["Dan", "Eve"], ["Bob"], "2001"),
    "Cedar": (["Eve"], ["Ann", "Cat"], "1999"),
    "Dogwood": (["Eve"], ["Dan"], "2003"),
    "Elm": (["Flo"], ["Gus"], "2001"),
}


@pytest.fixture(scope="session")
def graph(tmp_path_factory: pytest.TempPathFactory) -> KnowledgeGraph:
    """Return the graph of ``FILMS``; every film has the genre Drama."""
    lines = []
    for film, (directors, actors, year) in FILMS.items():
        lines += [f"{film}\tdirected_by\t{name}" for name in directors]
        lines += [f"{film}\tstarred_actors\t{name}" for name in actors]
        lines += [f"{film}\trelease_year\t{year}", f"{film}\thas_genre\tDrama"]
    folder: Path = tmp_path_factory.mktemp("films")
    return graph_of_text(folder, "\n".join(lines) + "\n")


@pytest.fixture(scope="session")
def forty(tmp_path_factory: pytest.TempPathFactory) -> Forty:
    """Return forty triples of films, people and cities, with questions of one to three hops."""
    return make_forty(tmp_path_factory.mktemp("forty"))


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[SearchGraph, list[Question]]:
    """Return a walk of two steps in which each question has a subgraph of its own, and the questions."""
    folder: Path = tmp_path_factory.mktemp("rows")
    path = write_nsm(folder / "dev.jsonl")
    build_graph(path, format="nsm", out_dir=folder / "graph")
    graph = open_graph(folder / "graph")
    build_subgraphs([path], graph=graph, out_dir=folder)
    questions, _ = load_question_file(path, format="nsm", graph=graph)
    subgraphs = open_subgraphs(folder)
    return SearchGraph(subgraphs.graph, graph, subgraphs, max_hops=2, reenter_topic=False), questions


Ids = Callable[..., tuple[int, ...]]


@pytest.fixture(scope="session")
def ids(graph: KnowledgeGraph) -> Ids:
    """Return a function from labels to sorted entity ids."""
    return lambda *labels: tuple(sorted(graph.entity_labels.index(label) for label in labels))


@pytest.fixture(scope="session")
def walk(graph: KnowledgeGraph) -> SearchGraph:
    """Return what systems search: three hops, topics not re-entered."""
    return SearchGraph(graph, graph, None, max_hops=3, reenter_topic=False)


@pytest.fixture(scope="session")
def edge(graph: KnowledgeGraph, ids: Ids) -> Callable[..., Step]:
    """Return a function that makes a step of labels, be it in the graph or not."""

    def make(head: str, relation: str, tail: str, reverse: bool = False) -> Step:
        return Step(ids(head)[0], graph.relation_names.index(relation), ids(tail)[0], reverse)

    return make


@pytest.fixture(scope="session")
def path_of(graph: KnowledgeGraph) -> Ids:
    """Return a function from relation labels (``~`` before it: walked backwards) to a relation path."""

    def parse(*labels: str) -> tuple[int, ...]:
        forward = [graph.relation_names.index(label.lstrip("~")) for label in labels]
        back = [graph.num_relations if label.startswith("~") else 0 for label in labels]
        return tuple(map(sum, zip(forward, back, strict=True)))

    return parse


@pytest.fixture(scope="session")
def ask(ids: Ids) -> Callable[..., Question]:
    """Return a function that makes a question of labels."""

    def make(masked: str, topics: str, answers: str = "", claim: str = "", **more: object) -> Question:
        return Question(
            id=f"{masked} {topics} {claim}",
            text=masked,
            masked=masked,
            topics=ids(*topics.split()),
            answers=ids(*answers.split()),
            split="train",
            claim=ids(claim)[0] if claim else None,
            **more,  # type: ignore[arg-type]
        )

    return make


def untrained(graph: KnowledgeGraph, steps: int, **settings: int) -> ExplorerSystem:
    """What it answers is accidental, where it looks is not."""
    torch.manual_seed(0)
    model = Explorer(encoding_dim=31, width=5, steps=steps)
    card = Card("hash-v1-d31", 31, 5, steps, edge_budget=97, reenter_topic=False, answer_threshold=0.01)
    return ExplorerSystem(graph, model, card, HashEncoder(31).encode, **settings)
