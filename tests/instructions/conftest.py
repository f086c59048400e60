"""A small graph of films and a pact, questions about it, and what the graph teaches about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.graph.supervision import TaughtPath, read_supervision, write_supervision
from kgqa_core.instructions.render import Prompts, read_prompts
from kgqa_core.types import Question
from tests.loading import graph_of_text

TRIPLES = """\
Nightfall made_by Ida_Moon
Dawn made_by Ida_Moon
Dusk made_by Ida_Moon
Dawn year 1989
Dusk year 1992
Nightfall about cats
Snake about cats
Snake year 1992
Pact headquarters m.1
m.1 city Port_Amber
Pact member Freedonia
Pact member Osterlich
Freedonia capital Glory_City
"""


@dataclass(frozen=True)
class World:
    """All that instruction data is made of."""

    search: SearchGraph
    questions: tuple[Question, ...]
    rows: Mapping[str, Sequence[TaughtPath]]
    prompts: Prompts

    def id_of(self, name: str) -> int:
        (found,) = self.search.graph.ids_of_name(name)
        return found


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """13 triples; q1 has a best path and one that finds one answer of two; q2 passes a node without a name."""
    folder = tmp_path_factory.mktemp("world")
    lines = [line.split(" ") for line in TRIPLES.splitlines()]
    text = "".join("\t".join(parts).replace("_Moon", " Moon").replace("_Amber", " Amber") + "\n" for parts in lines)
    graph = graph_of_text(folder, text.replace("Glory_City", "Glory City"))

    def ask(id: str, text: str, topic: str, *answers: str) -> Question:
        ids = [graph.ids_of_name(name)[0] for name in (topic, *answers)]
        return Question(id, text, text.replace(topic, "[topic]"), (ids[0],), tuple(sorted(ids[1:])), "train")

    questions = (
        ask("q1", "when did the films appear that the maker of Nightfall also made?", "Nightfall", "1989", "1992"),
        ask("q2", "where does the Pact have its seat?", "Pact", "Port Amber"),
        ask("q3", "what is the capital of Freedonia?", "Freedonia", "Glory City"),
        Question("q4", "what is nothing?", "what is nothing?", (), (), "dev"),
    )
    search = SearchGraph(graph, graph, None, 3, reenter_topic=False)
    write_supervision(search, questions, folder / "paths.parquet")
    return World(
        search,
        questions,
        read_supervision(folder / "paths.parquet"),
        read_prompts(),
    )
