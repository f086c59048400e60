"""Personalised PageRank: the scores of a dense computation, and the same bits in any batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.graph.subgraph_build import Block, Listed
from kgqa_core.graph.subgraph_cut import MIN_SCORE, choose_best, personal_rank, prune_block

NUM_NODES = 7
nodes = st.integers(0, NUM_NODES - 1)
worlds = st.lists(st.tuples(nodes, st.just(0), nodes), unique=True, min_size=1, max_size=17)


def rank_densely(triples: list[tuple[int, int, int]], topics: list[int]) -> np.ndarray:
    """Return the stationary distribution of the walk with restarts, by solving for it; walks end where no edge is."""
    links = np.zeros((NUM_NODES, NUM_NODES))
    for head, _, tail in triples:
        links[head, tail] += 1
        links[tail, head] += 1
    degree = links.sum(axis=1, keepdims=True)
    step = np.divide(links, degree, out=np.zeros_like(links), where=degree > 0)
    seeds = np.bincount(topics, minlength=NUM_NODES) / len(topics)
    return 0.8 * np.linalg.solve(np.eye(NUM_NODES) - 0.2 * step.T, seeds)


def block_of(questions: list[tuple[list[tuple[int, int, int]], list[int]]]) -> Block:
    """Return a block of (triples, topics)."""
    rows = [(place, *triple) for place, (triples, _) in enumerate(questions) for triple in triples]
    owner, heads, relations, tails = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    listed = [(place, topic) for place, (_, topics) in enumerate(questions) for topic in topics]
    topics = Listed(*np.array(listed, dtype=np.int64).reshape(-1, 2).T)
    return Block(len(questions), owner, heads, relations, tails, topics, Listed(owner[:0], owner[:0]))


def triples_of(block: Block, place: int) -> list[tuple[int, int, int]]:
    mine = block.owner == place
    columns = (block.heads[mine].tolist(), block.relations[mine].tolist(), block.tails[mine].tolist())
    return list(zip(*columns, strict=True))


@given(worlds, st.lists(nodes, unique=True, min_size=1, max_size=3))
def test_scores_are_those_of_a_dense_computation(triples: list[tuple[int, int, int]], topics: list[int]) -> None:
    heads, _, tails = np.array(triples).T
    seeds = np.bincount(topics, minlength=NUM_NODES) / len(topics)
    # What eight steps leave out is 0.2 ** 9 of all.
    assert personal_rank(heads, tails, seeds) == pytest.approx(rank_densely(triples, topics), abs=1e-6)


@given(st.lists(st.tuples(worlds, st.lists(nodes, unique=True, max_size=2)), min_size=1, max_size=3), st.integers(1, 5))
def test_a_question_keeps_the_same_in_any_batch(
    questions: list[tuple[list[tuple[int, int, int]], list[int]]], most: int
) -> None:
    together = prune_block(block_of(questions), most)
    for place, question in enumerate(questions):
        assert triples_of(together, place) == triples_of(prune_block(block_of([question]), most), 0)


def test_the_nearest_stay_with_the_triples_among_them() -> None:
    chain = [(0, 0, 1), (1, 0, 2), (2, 0, 3), (1, 1, 3), (4, 0, 4)]
    assert triples_of(prune_block(block_of([(chain, [0])]), 2), 0) == [(0, 0, 1)]
    assert triples_of(prune_block(block_of([(chain, [0])]), 4), 0) == chain[:4]
    assert triples_of(prune_block(block_of([(chain, [0])]), 5), 0) == chain[:4]  # nothing leads to 4


def test_of_equal_scores_the_lower_ids_stay_and_nothing_else_counts_as_found() -> None:
    rank, question = np.array([0.5, 0.2, 0.2, 0.9, MIN_SCORE / 2]), np.array([0, 0, 0, 1, 1])
    assert choose_best(rank, question, 2).tolist() == [True, True, False, True, False]


def test_a_block_without_triples_stays_as_it_is() -> None:
    empty = block_of([([], [3])])
    assert prune_block(empty, 1) is empty
