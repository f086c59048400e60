"""Expanding topics, with the compiled walk and with a loop over a dictionary of lists; each in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.child import folder_bytes
from benchmarks.measure import peak_megabytes
from kgqa_core import schemas
from kgqa_core.config_base import SubgraphSection
from kgqa_core.graph.expand import Expander
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.graph.subgraph_cut import QUESTIONS_FILE, cut_subgraphs

Adjacency = dict[int, list[list[int]]]  # head -> the tails of each of its relations


def topic_ids(graph: KnowledgeGraph, topics: Sequence[str]) -> list[int]:
    """Return the entities of those topics that the graph has."""
    found = (graph.ids_of_label(topic) for topic in topics)
    return [entity for entity in found if entity is not None]


def forward_only(graph: KnowledgeGraph) -> KnowledgeGraph:
    """Return the graph with forward edges only, in memory."""
    kept = graph.group_relation < graph.num_relations
    sizes = np.diff(graph.edge_ptr)
    return replace(
        graph,
        group_ptr=np.concatenate([[0], np.cumsum(kept)])[graph.group_ptr],
        group_relation=graph.group_relation[kept],
        edge_ptr=np.concatenate([[0], np.cumsum(sizes[kept])]),
        edge_tail=graph.edge_tail[np.repeat(kept, sizes)],
    )


def expand(graph: str, topics: list[str], hops: int, cap: int, forward: bool) -> dict[str, Any]:
    """Expand each topic with the compiled walk.

    Args:
        graph: folder of the graph.
        topics: labels.
        hops: k.
        cap: tails of one (entity, relation, direction) group.
        forward: forward edges only, of a copy in memory.

    Returns:
        CPU seconds, edges walked and distinct entities over all topics, peak MB.
    """
    opened = open_graph(Path(graph))
    ids = topic_ids(opened, topics)
    expander = Expander(forward_only(opened) if forward else opened, hops=hops, cap=cap)
    for entity in ids[:: max(1, len(ids) // 100)]:
        expander.expand([entity])  # compiled, and pages read in
    started = time.process_time()
    edges = entities = 0
    for entity in ids:
        found = expander.expand([entity])
        edges += found.num_walked
        entities += len(found.entity)
    cpu = time.process_time() - started
    return {"topics": len(ids), "cpu": cpu, "edges": edges, "entities": entities, "peak": peak_megabytes()}


def ship(graph: str, topics: list[str], hops: int, cap: int, out: str) -> dict[str, Any]:
    """Cut each topic's subgraph to Parquet as a build does; return as ``expand`` does, with triples and bytes."""
    opened = open_graph(Path(graph))
    ids = topic_ids(opened, topics)
    for name, some in (("warm", ids[:1]), ("all", ids)):
        folder = Path(out) / name
        folder.mkdir(parents=True)
        pq.write_table(questions_about(some), folder / QUESTIONS_FILE)
        started = time.process_time()
        report = cut_subgraphs(
            folder, graph=opened, cut=SubgraphSection(method="expand", hops=hops, group_cap=cap), out_dir=folder
        )
        cpu = time.process_time() - started
    return {
        "topics": len(ids),
        "cpu": cpu,
        "edges": None,
        "entities": report.num_rows,
        "triples": report.num_triples,
        "bytes": folder_bytes(folder),
        "peak": peak_megabytes(),
    }


def questions_about(topics: Sequence[int]) -> pa.Table:
    """Return a question for each topic, with itself as answer."""
    rows = [
        {"id": f"q{entity}", "text": "?", "masked": "?", "topics": [entity], "answers": [entity], "split": "test"}
        for entity in topics
    ]
    return pa.Table.from_pylist(rows, schema=schemas.QUESTIONS)


def loop(graph: str, topics: list[str], hops: int, cap: int) -> dict[str, Any]:
    """Do the same forwards with plain Python over a dictionary of lists; return as ``expand`` does, and its build."""
    ids = topic_ids(open_graph(Path(graph)), topics)
    started = time.process_time()
    adjacency = read_adjacency(sorted(Path(graph).glob("triples-*.parquet")))
    built = time.process_time() - started
    edges = entities = 0
    started = time.process_time()
    for entity in ids:
        walked, reached = walk(adjacency.get, entity, hops, cap)
        edges += walked
        entities += reached
    cpu = time.process_time() - started
    found = {"topics": len(ids), "cpu": cpu, "edges": edges, "entities": entities}
    return {**found, "build": built, "peak": peak_megabytes()}


def read_adjacency(shards: Sequence[Path]) -> Adjacency:
    """Read shards, which are sorted by head and relation, into a dictionary."""
    adjacency: Adjacency = {}
    for shard in shards:
        table = pq.read_table(shard)
        before, tails = (-1, -1), list[int]()
        columns = (table[name].to_pylist() for name in ("head", "relation", "tail"))
        for head, relation, tail in zip(*columns, strict=True):
            if (head, relation) != before:
                before, tails = (head, relation), []
                adjacency.setdefault(head, []).append(tails)
            tails.append(tail)
    return adjacency


def walk(groups_of: Callable[[int, tuple[()]], Any], topic: int, hops: int, cap: int) -> tuple[int, int]:
    """Return how many edges were walked from a topic, and how many entities reached."""
    seen, frontier, walked = {topic}, [topic], 0
    for _ in range(hops):
        reached = []
        for entity in frontier:
            for tails in groups_of(entity, ()):
                first = tails[:cap]
                walked += len(first)
                for tail in first:
                    if tail not in seen:
                        seen.add(tail)
                        reached.append(tail)
        frontier = reached
    return walked, len(seen)
