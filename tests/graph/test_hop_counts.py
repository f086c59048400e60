"""Hop counts: against a search by hand on random multigraphs, and many searches at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.graph.shortest import hops_to_many
from tests.graph.test_follow import NUM_RELATIONS, GraphOf, Triples, multigraphs, slow_neighbors, walks


def slow_hops(triples: Triples, topics: list[int], answer: int, max_hops: int, reenter: bool) -> int:
    here, seen = set(topics), set()
    for hop in range(1, max_hops + 1):
        here = {
            end
            for start in here
            for relation in range(2 * NUM_RELATIONS)
            for end in slow_neighbors(triples, start, relation)
        }
        here = (here if reenter else here - set(topics)) - seen
        seen |= here
        if answer in here:
            return hop
    return -1


@given(walks(), st.integers(1, 4))
def test_shortest_hops_agree_with_a_search_by_hand(
    graph_of: GraphOf, walk: tuple[Triples, list[int], list[int], bool], max_hops: int
) -> None:
    triples, topics, _, reenter = walk
    graph = graph_of(triples, more=2)
    answers = list(range(graph.num_entities))
    hops = hops_to_answers(graph, topics, answers, max_hops=max_hops, reenter_topic=reenter)
    assert hops.tolist() == [slow_hops(triples, topics, answer, max_hops, reenter) for answer in answers]


def test_many_searches_at_once_do_not_mix(graph_of: GraphOf) -> None:
    """A ring of 71: more searches than lanes, each with its own distances."""
    ring = graph_of([(entity, 0, (entity + 1) % 71) for entity in range(71)])
    assert ring.num_entities > LANES
    searches = [([start], [(start + 2) % 71, (start - 3) % 71, start]) for start in range(71)]
    assert [hops.tolist() for hops in hops_to_many(ring, searches, max_hops=3)] == [[2, 3, -1]] * 71
    assert hops_to_many(ring, [], max_hops=3) == []


@given(multigraphs, st.lists(st.lists(st.integers(0, 10), max_size=3), max_size=2 * LANES), st.booleans())
def test_searches_are_independent(graph_of: GraphOf, triples: Triples, starts: list[list[int]], reenter: bool) -> None:
    """Also without a topic, and whatever else is searched with them."""
    graph = graph_of(triples, more=11)
    searches = [(topics, list(range(11))) for topics in starts]
    together = hops_to_many(graph, searches, max_hops=4, reenter_topic=reenter)
    for (topics, answers), hops in zip(searches, together, strict=True):
        alone = hops_to_answers(graph, topics, answers, max_hops=4, reenter_topic=reenter)
        assert hops.tolist() == alone.tolist()


def test_the_topic_is_not_entered_again_unless_allowed(graph_of: GraphOf) -> None:
    films_of_a_director = graph_of([(0, 0, 3), (1, 0, 3), (2, 0, 3)])
    assert hops_to_answers(films_of_a_director, [1], [1, 2], max_hops=2).tolist() == [-1, 2]
    assert hops_to_answers(films_of_a_director, [1], [1, 2], max_hops=2, reenter_topic=True).tolist() == [2, 2]
