"""The graph that is left where triples are deleted, against the triples that are left; and those of gold paths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.deletion import delete, gold_keys, triple_keys
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.types import Question
from tests.loading import graph_of_text

TRIPLES = [(f"P{one}", "plays_for", f"C{one % 5}") for one in range(21)]
TRIPLES += [(f"C{club}", "lies_in", f"T{club % 3}") for club in range(5)] + [("C0", "twin", "C0"), ("T0", "near", "C0")]


@pytest.fixture
def graph(tmp_path: Path) -> KnowledgeGraph:
    return graph_of_text(tmp_path, "".join("\t".join(one) + "\n" for one in TRIPLES))


def triples_of(graph: KnowledgeGraph, *, backward: bool = False) -> set[tuple[str, str, str]]:
    owner, relation, tail = graph.edges_of(np.arange(graph.num_entities))
    some = (relation >= graph.num_relations) == backward
    edges = zip(owner[some].tolist(), relation[some] % graph.num_relations, tail[some].tolist(), strict=True)
    ends = ((tail, label, head) if backward else (head, label, tail) for head, label, tail in edges)
    return {(graph.label_of(head), graph.relation_names[label], graph.label_of(tail)) for head, label, tail in ends}


def question(graph: KnowledgeGraph, topic: str, chain: tuple[int, ...], *answers: str) -> Question:
    ids = [graph.ids_of_label(label) for label in (topic, *answers)]
    known = [one for one in ids if one is not None]
    return Question("q", "?", "?", (known[0],), tuple(sorted(known[1:])), "test", len(chain), chain)


def test_both_directions_of_a_deleted_triple_are_gone_and_all_else_is_as_it_was(graph: KnowledgeGraph) -> None:
    assert triples_of(delete(graph, "any", 0.0, [])) == set(TRIPLES)
    left = delete(graph, "any", 0.4, [])
    kept = triples_of(left)
    assert kept == triples_of(left, backward=True) < set(TRIPLES)
    assert left.num_triples == len(kept) and 8 <= len(kept) <= 26
    for entity in range(graph.num_entities):  # groups ascend, and none is empty
        own = left.group_relation[left.group_ptr[entity] : left.group_ptr[entity + 1]]
        assert (np.diff(own) > 0).all()
    assert (np.diff(left.edge_ptr) > 0).all()
    assert triples_of(delete(graph, "any", 1.0, [])) == set()


def test_only_facts_on_paths_to_golds_are_on_gold_paths(graph: KnowledgeGraph) -> None:
    """From the player to the club's town; from the town back to players of one of its two clubs."""
    plays, lies = (graph.relation_names.index(label) for label in ("plays_for", "lies_in"))
    back = graph.num_relations
    there = question(graph, "P3", (plays, lies), "T0")
    here = question(graph, "T0", (lies + back, plays + back), *(f"P{one}" for one in range(0, 21, 5)))
    gone = set(TRIPLES) - triples_of(delete(graph, "gold", 1.0, [there]))
    assert gone == {("P3", "plays_for", "C3"), ("C3", "lies_in", "T0")}
    gone = set(TRIPLES) - triples_of(delete(graph, "gold", 1.0, [here]))
    assert gone == {("C0", "lies_in", "T0"), *((f"P{one}", "plays_for", "C0") for one in range(0, 21, 5))}
    assert len(np.concatenate([*gold_keys(graph, [there, here])])) == 8


def test_a_triple_has_one_number(graph: KnowledgeGraph) -> None:
    owner, relation, tail = graph.edges_of(np.arange(graph.num_entities))
    keys = triple_keys(graph, owner, relation, tail)
    assert np.bincount(np.unique(keys, return_inverse=True)[1]).tolist() == [2] * len(TRIPLES)
