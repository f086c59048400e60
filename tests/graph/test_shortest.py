"""Shortest relation paths and hop counts: what a search over lists of triples finds, on random multigraphs."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.graph.shortest import PathFinder, hops_to_many
from tests.graph.test_follow import LAST, NUM_RELATIONS, GraphOf, Triples, multigraphs

Path = tuple[int, ...]
entity_sets = st.lists(st.integers(0, LAST), max_size=4)


def step_on(triples: Triples, walks: set[tuple[int, Path]], barred: set[int]) -> set[tuple[int, Path]]:
    """Return every (entity, relation path) that is one step longer."""
    further = set()
    for (here, path), (head, relation, tail) in product(walks, triples):
        further |= {(tail, (*path, relation))} if head == here else set()
        further |= {(head, (*path, relation + NUM_RELATIONS))} if tail == here else set()
    return {(entity, path) for entity, path in further if entity not in barred}


def shortest_plainly(triples: Triples, topics: list[int], gold: int, max_hops: int, reenter: bool) -> list[set[Path]]:
    """Enumerate all walks from each topic, hop by hop, until one arrives at the gold: return the first that do."""
    found: list[set[Path]] = []
    for topic in set(topics):
        walks: set[tuple[int, Path]] = {(topic, ())}
        for _ in range(max_hops):
            walks = step_on(triples, walks, set() if reenter else set(topics))
            if arrived := {path for entity, path in walks if entity == gold}:
                found.append(arrived)
                break
    return found


@given(multigraphs, entity_sets, entity_sets, st.integers(1, 3), st.booleans())
def test_all_shortest_paths_of_every_pair_are_found(
    graph_of: GraphOf, triples: Triples, topics: list[int], golds: list[int], max_hops: int, reenter: bool
) -> None:
    graph = graph_of(triples, more=1)
    finder = PathFinder(graph, max_hops=max_hops, reenter_topic=reenter)
    by_gold = [shortest_plainly(triples, topics, gold, max_hops, reenter) for gold in golds]
    expected = {path for found in by_gold for paths in found for path in paths}
    for _ in range(2):  # the tables are clean again
        found = finder.find(topics, golds)
        assert list(found.paths) == sorted(expected, key=lambda path: (len(path), path)) and not found.capped
    searches = [(topics, [*golds, LAST + 1]), ([], golds), (topics, golds)]
    hops = [min((len(path) for paths in found for path in paths), default=-1) for found in by_gold]
    counted = hops_to_many(graph, searches, max_hops=max_hops, reenter_topic=reenter)
    assert [own.tolist() for own in counted] == [[*hops, -1], [-1] * len(golds), hops]


def test_hubs_are_looked_at_from_either_side(graph_of: GraphOf) -> None:
    """1,000 films of a genre: from one to another, from one to the year of them all, and from genre to year."""
    genre, year, films = 0, 1, range(2, 1002)
    graph = graph_of([(film, relation, end) for film in films for relation, end in ((0, genre), (1, year))])
    finder = PathFinder(graph, max_hops=3)
    assert finder.find([2], [3]).paths == ((0, 2), (1, 3))
    assert finder.find([2], [year]).paths == ((1,),)
    assert finder.find([genre], [year]).paths == ((2, 1),)
    assert finder.find([genre], films).paths == ((2,),)
    searches = [([2], [3, year]), ([genre], [year, *films]), ([2, genre], [year, 3])]
    assert [own.tolist() for own in hops_to_many(graph, searches, max_hops=3)] == [[2, 1], [2] + [1] * 1000, [1, 1]]


def test_too_many_paths_are_cut_and_told(graph_of: GraphOf) -> None:
    graph = graph_of([(0, relation, 1) for relation in range(7)] + [(1, relation, 2) for relation in range(7)])
    assert len(PathFinder(graph, max_hops=2).find([0], [2]).paths) == 49
    found = PathFinder(graph, max_hops=2, max_paths=5).find([0], [2])
    assert found.capped and found.paths == tuple((0, relation) for relation in range(5))
