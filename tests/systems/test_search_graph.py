"""What is searched: names, looking around, against loops over the triples; and caps that keep a call for the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from kgqa_core import schemas
from kgqa_core.graph.follow import leave
from kgqa_core.graph.kg import open_graph
from kgqa_core.graph.search_graph import SearchGraph, links_to, relations_around
from kgqa_core.instructions.answers import match_answers
from kgqa_core.instructions.reason import DirectInstruction, ReasonCase
from kgqa_core.instructions.render import read_prompts
from kgqa_core.systems.types import Ask, CallsLeft, room_for
from tests.forty_triples import TRIPLES, Forty
from tests.loading import graph_of_text

Sets = st.lists(st.integers(0, 10_000), min_size=1, max_size=6, unique=True)


def edges_of(forty: Forty) -> list[tuple[int, int, int]]:
    """Return (from, forward or reverse relation id, to) of every triple in both directions, from the text."""
    relations, num = forty.graph.step_ids, forty.graph.num_relations
    found = []
    for line in TRIPLES.splitlines():
        head, relation, tail = line.split(" | ")
        a, r, b = forty.id_of(head), relations[relation], forty.id_of(tail)
        found += [(a, r, b), (b, r + num, a)]
    return found


def as_set(forty: Forty, drawn: list[int]) -> np.ndarray:
    return np.unique(np.array(drawn) % forty.graph.num_entities)


@settings(max_examples=60)
@given(frontier=Sets, avoided=Sets, targets=Sets)
def test_what_lies_around_is_what_the_triples_say(
    forty: Forty, frontier: list[int], avoided: list[int], targets: list[int]
) -> None:
    here, not_there, wanted = (as_set(forty, drawn) for drawn in (frontier, avoided, targets))
    edges = [edge for edge in edges_of(forty) if edge[0] in here]
    leading = [edge for edge in edges if edge[2] not in not_there]
    around = relations_around(forty.graph, here, not_there)
    assert around == sorted({relation for _, relation, _ in leading})
    for relation in around:
        tails = sorted({tail for _, own, tail in leading if own == relation})
        assert leave(forty.graph, here, relation, not_there).tolist() == tails
    links = {(relation, tail) for _, relation, tail in edges if tail in wanted}
    found = links_to(forty.graph, here, wanted)
    assert {(relation, tail) for relation, tails in found.items() for tail in tails} == links
    assert list(found) == sorted(found) and all(tails == sorted(set(tails)) for tails in found.values())


def test_the_last_call_is_kept_for_the_answer() -> None:
    asks: list[Ask[Any]] = [Ask(DirectInstruction(read_prompts()), ReasonCase(str(number))) for number in range(5)]
    calls = CallsLeft(limit=5)
    assert [ask.case.question for ask in calls.fit(asks[:3])] == ["0", "1", "2"]
    assert [ask.case.question for ask in calls.fit(asks[3:])] == ["3"]
    assert calls.fit(asks) == []
    assert (calls.used, calls.refused) == (4, 6)
    assert CallsLeft().fit(asks) == asks
    assert CallsLeft(limit=1).fit(asks) == []


def test_answers_get_room_in_few_sizes() -> None:
    assert [room_for(lines).max_new_tokens for lines in (0, 2, 3, 20, 80, 500)] == [64, 64, 128, 512, 2048, 2048]


# Entities by name: as it is written, whatever its case, by alias


def test_aliases_are_names_of_last_resort(tmp_path: Path) -> None:
    graph = graph_of_text(tmp_path, "Ash\tby\tDan Oak\nBirch\tby\tDan Oak\n")
    ash, birch, dan = range(3)
    assert graph.ids_of_alias("White Tree") == ()  # a graph without aliases has none
    rows = [(dan, "Big Ö"), (birch, "Ash"), (birch, "White Tree"), (ash, "white tree"), (ash, "White tree")]
    table = pa.table([pa.array(column) for column in zip(*rows, strict=True)], names=["entity_id", "alias"])
    pq.write_table(table.cast(schemas.ALIASES), tmp_path / "graph" / "aliases.parquet")
    graph = open_graph(tmp_path / "graph")
    walk = SearchGraph(graph, graph, None, 3, False)

    def named(name: str, any_case: bool) -> list[int]:
        return walk.entities_named("q", name, any_case=any_case).tolist()

    assert named("Dan Oak", False) == named("DAN OAK", True) == [dan]
    assert named("dan oak", False) == named("White Tree", False) == []
    assert named("big ö", True) == [dan]
    assert named("white tree", True) == [ash, birch]
    assert named("ash", True) == [ash]  # somebody's name: its alias does not count
    assert named("nobody", True) == []
    said = match_answers(["White Tree", "nobody"], {}, walk)  # what a model says is looked up in the same way
    assert (said.entities, said.unmatched) == ((ash,), ("nobody",))
