"""Subgraphs cut from a graph: each is its topics' neighbourhood, and the files are the same however they are made."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core import schemas
from kgqa_core.config_base import SubgraphSection
from kgqa_core.graph import subgraph_cut
from kgqa_core.graph.input_files import records_table
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.search_graph import Subgraphs, open_subgraphs
from kgqa_core.graph.subgraph_build import Block, Listed
from kgqa_core.graph.subgraph_cut import MIN_SCORE, choose_best, cut_subgraphs, personal_rank, prune_block
from kgqa_core.types import Question
from tests.loading import graph_of_text

Contents = Callable[[Path], dict[str, bytes]]
Labelled = tuple[str, str, str]

TRIPLES = """\
ann\tlikes\tjazz
ann\tlikes\trock
ann\tlikes\ttango
ann\tborn in\tbergen
bergen\tin\tnorway
bo\tlikes\trock
bo\tborn in\tbergen
cy\tseen by\tann
oslo\tin\tnorway
"""
NEAR_ANN = {
    ("ann", "likes", "jazz"),
    ("ann", "likes", "rock"),
    ("ann", "likes", "tango"),
    ("ann", "born in", "bergen"),
    ("cy", "seen by", "ann"),
}
TWO_STEPS = NEAR_ANN | {("bo", "likes", "rock"), ("bo", "born in", "bergen"), ("bergen", "in", "norway")}


def expand(**settings: Any) -> SubgraphSection:
    return SubgraphSection(**{"method": "expand", **settings})


TWO_HOPS = expand()
ASKED = {"q1": (["ann"], ["rock"]), "q2": (["oslo"], ["norway", "jazz"]), "q3": (["cy", "bo"], ["ann"]), "q4": ([], [])}


@pytest.fixture
def graph(tmp_path: Path) -> KnowledgeGraph:
    return graph_of_text(tmp_path, TRIPLES)


@pytest.fixture
def asked(tmp_path: Path, graph: KnowledgeGraph) -> Path:
    """A questions artifact."""

    def ids(labels: list[str]) -> tuple[int, ...]:
        return tuple(sorted(graph.entity_labels.index(label) for label in labels))

    questions = [Question(id, "?", "?", ids(topics), ids(answers), "test") for id, (topics, answers) in ASKED.items()]
    folder = tmp_path / "questions"
    folder.mkdir()
    pq.write_table(records_table(questions, schemas.QUESTIONS), folder / "questions.parquet")
    return folder


def cut_to(
    folder: Path, graph: KnowledgeGraph, asked: Path, cut: SubgraphSection = TWO_HOPS, **options: Any
) -> Subgraphs:
    folder.mkdir()
    cut_subgraphs(asked, graph=graph, cut=cut, out_dir=folder, **options)
    return open_subgraphs(folder)


def triples_in(folder: Path, graph: KnowledgeGraph) -> dict[str, list[Labelled]]:
    """Return the exported triples of each question by label."""
    found: dict[str, list[Labelled]] = {}
    for path in sorted(folder.glob("triples-*.parquet")):
        for row in pq.read_table(path).to_pylist():
            labels = (graph.entity_labels[row[end]] for end in ("head", "tail"))
            head, tail = labels
            found.setdefault(row["question_id"], []).append((head, graph.relation_names[row["relation"]], tail))
    return found


def triples_in_block(subgraphs: Subgraphs, graph: KnowledgeGraph, question_id: str) -> list[Labelled]:
    """Return the triples of a question in the graph of rows."""
    block, rows = subgraphs.block_of[question_id], subgraphs.graph
    found = []
    for row in range(int(subgraphs.block_ptr[block]), int(subgraphs.block_ptr[block + 1])):
        for relation, label in enumerate(graph.relation_names):
            for tail in rows.neighbors(row, relation):
                ends = (graph.entity_labels[subgraphs.entity[end]] for end in (row, tail))
                head_label, tail_label = ends
                found.append((head_label, label, tail_label))
    return found


def test_a_subgraph_is_the_neighbourhood_of_the_topics(graph: KnowledgeGraph, asked: Path, tmp_path: Path) -> None:
    one = cut_to(tmp_path / "one", graph, asked, expand(hops=1))
    two = cut_to(tmp_path / "two", graph, asked)
    assert set(triples_in_block(one, graph, "q1")) == NEAR_ANN
    assert set(triples_in_block(two, graph, "q1")) == TWO_STEPS
    assert triples_in_block(one, graph, "q4") == []
    report = json.loads((tmp_path / "one/subgraphs.json").read_text())
    assert (report["num_subgraphs"], report["num_with_answer"], report["num_empty"]) == (4, 3, 1)


def test_the_exported_triples_are_those_of_the_blocks(graph: KnowledgeGraph, asked: Path, tmp_path: Path) -> None:
    subgraphs = cut_to(tmp_path / "cut", graph, asked, bucket_questions=3)
    exported = triples_in(tmp_path / "cut", graph)
    for question_id in ASKED:
        inside = triples_in_block(subgraphs, graph, question_id)
        assert exported.get(question_id, []) == sorted(inside)  # none twice, in order of labels
    shards = sorted((tmp_path / "cut").glob("triples-*.parquet"))
    assert [pq.read_metadata(shard).num_rows for shard in shards] == [
        len(exported["q1"] + exported["q2"] + exported["q3"]),
        0,
    ]
    assert pq.read_schema(shards[0]).equals(schemas.SUBGRAPH_TRIPLES)


def test_what_is_cut_follows_the_settings(graph: KnowledgeGraph, asked: Path, tmp_path: Path) -> None:
    def cut(name: str, **settings: Any) -> set[Labelled]:
        return set(triples_in_block(cut_to(tmp_path / name, graph, asked, expand(**settings)), graph, "q1"))

    assert cut("dropped", drop_relations=("likes", "hates")) == {row for row in TWO_STEPS if row[1] != "likes"}
    assert json.loads((tmp_path / "dropped/subgraphs.json").read_text())["unused_filters"] == ["hates"]
    assert cut("capped", hops=1, group_cap=1) == NEAR_ANN - {("ann", "likes", "rock"), ("ann", "likes", "tango")}
    assert cut("stopped", max_triples=5) == NEAR_ANN
    blocks = pq.read_table(tmp_path / "stopped/blocks.parquet").to_pylist()
    assert {row["question_id"]: row["stopped"] for row in blocks} == {"q1": True, "q2": False, "q3": True, "q4": False}
    assert cut("ranked", method="pagerank", max_entities=2) == {("ann", "born in", "bergen")}  # more ways lead there
    assert cut("all ranked", method="pagerank") == TWO_STEPS


def test_cvt_nodes_are_left_in_the_same_hop_where_the_graph_knows_them(
    graph: KnowledgeGraph, asked: Path, tmp_path: Path
) -> None:
    path = graph.folder / "entities.parquet"
    table = pq.read_table(path)
    kinds = ["cvt" if label == "bergen" else "entity" for label in table["label"].to_pylist()]
    kept = [name for name in table.column_names if name != "kind"]
    pq.write_table(table.select(kept).append_column("kind", pa.array(kinds)), path)
    subgraphs = cut_to(tmp_path / "cut", graph, asked, expand(hops=1, cvt_is_hop=False))
    past_bergen = {("bo", "born in", "bergen"), ("bergen", "in", "norway")}
    assert set(triples_in_block(subgraphs, graph, "q1")) == NEAR_ANN | past_bergen


def test_the_bytes_are_the_same_however_the_work_is_cut(
    graph: KnowledgeGraph, asked: Path, tmp_path: Path, contents: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    def backwards(work: Any, buckets: Any) -> list[Any]:
        return [work(bucket) for bucket in reversed(list(buckets))][::-1]

    for method in ("expand", "pagerank"):
        cut = expand(method=method)
        cut_to(tmp_path / f"{method}-one", graph, asked, cut, bucket_questions=2)
        cut_to(tmp_path / f"{method}-two", graph, asked, cut, bucket_questions=2, map_buckets=backwards)
        one, two = contents(tmp_path / f"{method}-one"), contents(tmp_path / f"{method}-two")
        assert one == two
        with monkeypatch.context() as patch:
            patch.setattr(subgraph_cut, "BLOCK_TRIPLES", 1)
            cut_to(tmp_path / f"{method}-three", graph, asked, cut, bucket_questions=3)
        three = contents(tmp_path / f"{method}-three")
        shards = {name for name in one | three if name.startswith("triples-")}
        assert {name: one[name] for name in one.keys() - shards} == {
            name: three[name] for name in three.keys() - shards
        }
        assert triples_in(tmp_path / f"{method}-one", graph) == triples_in(tmp_path / f"{method}-three", graph)


def test_digests_tell_whether_a_subgraph_changed_though_ids_did(
    graph: KnowledgeGraph, asked: Path, tmp_path: Path
) -> None:
    def digests(folder: Path) -> dict[str, str]:
        table = pq.read_table(folder / "blocks.parquet", columns=["question_id", "digest"])
        return dict(zip(*table.to_pydict().values(), strict=True))

    cut_to(tmp_path / "before", graph, asked)
    later = graph_of_text(tmp_path / "later", TRIPLES + "aa\tin\tjazz\n")  # sorted before all: ids move
    table = pq.read_table(asked / "questions.parquet")
    for place, name in enumerate(table.column_names):
        if name in ("topics", "answers"):
            moved = [[entity + 1 for entity in row] for row in table[name].to_pylist()]
            table = table.set_column(place, table.schema.field(name), pa.array(moved, pa.list_(pa.int32())))
    (tmp_path / "later questions").mkdir()
    pq.write_table(table, tmp_path / "later questions/questions.parquet")
    cut_to(tmp_path / "after", later, tmp_path / "later questions")
    before, after = digests(tmp_path / "before"), digests(tmp_path / "after")
    assert {question_id for question_id in ASKED if before[question_id] != after[question_id]} == {"q1"}


# ------ Personalised PageRank: the scores of a dense computation, and the same bits in any batch.


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
