"""k-hop subgraphs: the kernel walks what a plain breadth-first search over sets of triples walks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kgqa_core.errors import InputError
from kgqa_core.graph.expand import Expander, Expansion, match_relations
from kgqa_core.graph.kg import KnowledgeGraph

Triple = tuple[int, int, int]
GraphOf = Callable[..., KnowledgeGraph]

NUM_ENTITIES, NUM_RELATIONS = 11, 3


def walk_plainly(
    triples: set[Triple], topics: Sequence[int], walk: SimpleNamespace
) -> tuple[dict[int, int], set[Triple]]:
    """Return entity -> hop that first reached it, and the triples walked, without a limit of triples."""
    cap = len(triples) if walk.cap is None else walk.cap
    hop_of = dict.fromkeys(topics, 0)
    walked: set[Triple] = set()

    def leave(entity: int, hop: int) -> None:
        for relation in range(NUM_RELATIONS):
            if walk.left_out is not None and walk.left_out[relation]:
                continue
            forward = sorted(t for h, r, t in triples if (h, r) == (entity, relation))[:cap]
            backward = sorted(h for h, r, t in triples if (r, t) == (relation, entity))[:cap]
            walked.update((entity, relation, tail) for tail in forward)
            walked.update((head, relation, entity) for head in backward)
            for other in (*forward, *backward):
                if other not in hop_of:
                    hop_of[other] = hop
                    if walk.is_cvt is not None and walk.is_cvt[other]:
                        leave(other, hop)

    for hop in range(1, walk.hops + 1):
        for entity in [entity for entity, reached in hop_of.items() if reached == hop - 1]:
            if hop == 1 or walk.is_cvt is None or not walk.is_cvt[entity]:
                leave(entity, hop)
    return hop_of, walked


def hops_of(found: Expansion) -> dict[int, int]:
    """Return entity -> the hop that first reached it."""
    hops = np.repeat(np.arange(len(found.hop_ptr) - 1), np.diff(found.hop_ptr))
    return dict(zip(found.entity.tolist(), hops.tolist(), strict=True))


def triples_of(expander: Expander, found: Expansion) -> list[Triple]:
    return list(zip(*(column.tolist() for column in expander.walked_triples(found)), strict=True))


entities = st.integers(0, NUM_ENTITIES - 1)
worlds = st.sets(st.tuples(entities, st.integers(0, NUM_RELATIONS - 1), entities), min_size=1, max_size=37)
masks = st.none() | st.lists(st.booleans(), min_size=NUM_RELATIONS, max_size=NUM_RELATIONS).map(np.array)
cvts = st.none() | st.lists(st.booleans(), min_size=NUM_ENTITIES, max_size=NUM_ENTITIES).map(np.array)
walks = st.builds(
    SimpleNamespace, hops=st.integers(0, 4), cap=st.none() | st.integers(1, 3), left_out=masks, is_cvt=cvts
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(worlds, st.lists(st.lists(entities, max_size=3), min_size=1, max_size=3), walks)
def test_a_walk_is_a_plain_breadth_first_search(
    graph_of: GraphOf, triples: set[Triple], asked: list[list[int]], walk: SimpleNamespace
) -> None:
    # An isolated last entity and a last relation make every world the same size.
    graph = graph_of({*triples, (NUM_ENTITIES, NUM_RELATIONS - 1, NUM_ENTITIES)})
    if walk.is_cvt is not None:
        walk = SimpleNamespace(**{**vars(walk), "is_cvt": np.append(walk.is_cvt, False)})
    expander = Expander(graph, **vars(walk))
    for topics in asked:  # one after another: nothing may be left of the question before
        found = expander.expand(topics)
        hop_of, walked = walk_plainly(triples, topics, walk)
        assert hops_of(found) == hop_of
        assert sorted(triples_of(expander, found)) == sorted(walked)  # as lists: none twice


# A hub with two relations: 0 leads to 1..5, 1 to 6.
HUB = {*((0, 0, tail) for tail in range(1, 6)), (0, 1, 6), (6, 0, 7), (8, 1, 7)}


def test_a_cap_keeps_every_relation_and_the_first_tails_by_id(graph_of: GraphOf) -> None:
    expander = Expander(graph_of(HUB), hops=1, cap=2)
    found = expander.expand([0])
    assert hops_of(found) == {0: 0, 1: 1, 2: 1, 6: 1}
    assert (found.num_walked, found.num_capped, found.stopped) == (3, 1, False)
    assert sorted(triples_of(expander, found)) == [(0, 0, 1), (0, 0, 2), (0, 1, 6)]


def test_relations_are_left_out_by_label_or_by_the_start_of_one(graph_of: GraphOf) -> None:
    labels = ["common.topic.image", "film.film.country", "film.film.country_of"]
    mask, unused = match_relations(labels, ["common.", "film.film.country", "film.fi", "music."])
    assert mask.tolist() == [True, True, False]
    assert unused == ["film.fi", "music."]


def test_a_limit_of_triples_ends_the_walk_and_says_so(graph_of: GraphOf) -> None:
    graph = graph_of(HUB)
    within, beyond = (Expander(graph, hops=3, max_triples=limit).expand([0]) for limit in (99, 6))
    assert (within.stopped, beyond.stopped) == (False, True)
    assert beyond.left.tolist() == [0]  # 6 triples; nobody else is left


def test_a_graph_without_triples_has_its_topics(graph_of: GraphOf) -> None:
    full = graph_of([(0, 0, 1)])
    empty = KnowledgeGraph(
        Path(), 2, 1, 0, np.zeros(3, np.int64), full.edge_tail[:0], np.zeros(1, np.int64), full.edge_tail[:0]
    )
    assert hops_of(Expander(empty).expand([1])) == {1: 0}


@pytest.mark.parametrize(
    ("options", "message"),
    [({"hops": -1}, "hops is -1"), ({"cap": 0}, "cap is 0"), ({"max_triples": 0}, "max_triples")],
)
def test_impossible_walks_are_refused(graph_of: GraphOf, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Expander(graph_of(HUB), **options)
    with pytest.raises(InputError, match="entity ids go from 0 to 8"):
        Expander(graph_of(HUB)).expand([3, 9])
