"""A plan can be written exactly if following it in the graph ends somewhere."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgqa_core.graph.csr import build_csr
from kgqa_core.graph.follow import follow_path
from kgqa_core.graph.kg import KnowledgeGraph, to_relations
from kgqa_core.instructions.plan import PathConstraints, RelationConstraint, parse_plans
from kgqa_core.lm.types import Constraint

LABELS = ["film", "film.film<SEP>"]  # one begins another; one holds what plans are written with
triples = st.sets(st.tuples(st.integers(0, 6), st.integers(0, 1), st.integers(0, 6)), min_size=1, max_size=14)


def make_graph(triples: Iterable[tuple[int, int, int]]) -> KnowledgeGraph:
    """A graph of 7 entities and 2 relations in memory."""
    heads, relations, tails = np.array(sorted(triples), dtype=np.int32).T
    csr = build_csr(heads, relations, tails, num_entities=7, num_relations=2)
    arrays = (csr.group_ptr, csr.group_relation, csr.edge_ptr, csr.edge_tail)
    graph = KnowledgeGraph(Path(), 7, 2, len(heads), *arrays)
    vars(graph)["relation_labels"] = LABELS
    return graph


def all_texts(constraint: Constraint, pieces: tuple[str, ...] = ()) -> list[str]:
    options = constraint.next_pieces(pieces)
    assert not any(a != b and a.startswith(b) for a in options for b in options)
    ended = ["".join(pieces)] if constraint.may_end(pieces) else []
    return ended + [text for piece in options for text in all_texts(constraint, (*pieces, piece))]


@settings(max_examples=50)
@given(triples=triples, topics=st.sets(st.integers(0, 6), min_size=1, max_size=2), reenter=st.booleans())
def test_the_plans_that_can_be_written_are_those_that_lead_somewhere(
    triples: set[tuple[int, int, int]], topics: set[int], reenter: bool
) -> None:
    graph = make_graph(triples)
    space = PathConstraints(graph, max_hops=3, reenter_topic=reenter)
    texts = all_texts(space.around(list(topics)))
    written = [to_relations(graph, plan) for plan in (parse_plans(text)[0] for text in texts)]
    every = [path for hops in (1, 2, 3) for path in product(range(4), repeat=hops)]
    exist = {path for path in every if len(follow_path(graph, sorted(topics), path, reenter_topic=reenter))}
    assert len(written) == len(set(written)) == len(texts)
    assert set(written) == exist


def test_no_step_is_offered_after_which_the_plan_could_not_end_in_time() -> None:
    """From 0 one step leads to 1, whose only edges lead back: the plan ends there."""
    around = PathConstraints(make_graph([(0, 0, 1), (1, 1, 0)]), max_hops=3).around([0])
    assert all_texts(around) == ["<PATH>film</PATH>", "<PATH>^film.film\\u{3c}SEP></PATH>"]


def test_around_a_topic_without_triples_nothing_can_be_written() -> None:
    around = PathConstraints(make_graph([(0, 0, 1)])).around([5])
    assert around.next_pieces(()) == () and not around.may_end(())
    assert PathConstraints(make_graph([(0, 0, 1)])).around([]).next_pieces(()) == ()


def test_questions_that_share_topics_share_what_was_worked_out() -> None:
    space = PathConstraints(make_graph([(0, 0, 1), (1, 1, 2)]))
    assert space.around([1, 0]) is space.around([0, 1, 1])


def test_keys_tell_topics_settings_and_graphs_apart(tmp_path: Path) -> None:
    graph, other = make_graph([(0, 0, 1)]), make_graph([(0, 1, 1)])
    spaces = [PathConstraints(graph), PathConstraints(graph, max_hops=2), PathConstraints(other)]
    spaces.append(PathConstraints(graph, reenter_topic=True))
    keys = {space.around([topic]).key for space in spaces for topic in (0, 1)}
    assert len(keys) == 8
    assert PathConstraints(make_graph([(0, 0, 1)])).around([0]).key in keys


@pytest.mark.parametrize("max_hops", [1, 2])
def test_without_a_graph_known_relations_are_all_that_is_asked(max_hops: int) -> None:
    texts = all_texts(RelationConstraint(["film", "^film", "film.film"], max_hops=max_hops))
    plans = [parse_plans(text)[0] for text in texts]
    steps = ("film", "^film", "film.film")
    assert sorted(map(str, plans)) == sorted(str(p) for n in range(1, max_hops + 1) for p in product(steps, repeat=n))
    assert RelationConstraint([]).next_pieces(()) == ()
