"""From coded parts to a graph folder: what the topics' k-hop closure holds, and nothing else.

Codes first, ids late: a walk over coded parts finds the nodes, only then are they numbered, and one more pass turns
their triples into edges in runs, which are sorted bucket by bucket. Memory holds the codes of the closure (a table of
up to 20 bytes per entity) and a batch of triples, whatever the size of the dump.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core import schemas
from kgqa_core.errors import InputError
from kgqa_core.graph.build import GraphReport, write_facts
from kgqa_core.graph.closure.entities import write_entity_files
from kgqa_core.graph.closure.hubs import write_hubs
from kgqa_core.graph.closure.ids import Nodes, number_closure
from kgqa_core.graph.closure.options import ClosureLimits, ClosureOptions, ClosureReport, HopCount
from kgqa_core.graph.closure.parts import Parts, list_parts
from kgqa_core.graph.closure.tables import I64
from kgqa_core.graph.closure.triples import write_triple_files
from kgqa_core.graph.closure.walk import Reached, Walker
from kgqa_core.graph.dump.codes import codes_of
from kgqa_core.graph.rejects import rejects_table, write_rejects

DEFAULT_OPTIONS, DEFAULT_LIMITS = ClosureOptions(), ClosureLimits()


def build_from_dump(
    dumps: Sequence[Path],
    topics: Sequence[str],
    out_dir: Path,
    *,
    options: ClosureOptions = DEFAULT_OPTIONS,
    limits: ClosureLimits = DEFAULT_LIMITS,
) -> ClosureReport:
    """Write the graph of the topics' closure to ``out_dir``, a folder that ``open_graph`` opens.

    Args:
        dumps: folders of coded parts (schemas.DUMP_*), one per dump file.
        topics: labels of the topic entities.
        out_dir: gets the graph, and closure.json, hubs.parquet, topics.parquet, aliases.parquet, types.parquet.
        options: what is in the graph.
        limits: how it is built.

    Raises:
        InputError: the dumps hold no triple, or none of the topics.
        ArtifactError: a folder holds no coded parts.
    """
    work = (limits.temp_directory or out_dir) / "closure.work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    out_dir.mkdir(parents=True, exist_ok=True)
    try:
        parts = list_parts(dumps, work)
        labels = sorted(set(topics), key=str.encode)
        codes = codes_of(labels)
        walker = Walker(parts, work, options, limits)
        reached = _reach(walker, labels, codes)
        return _write_graph(parts, reached, labels, codes, walker, out_dir)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _reach(walker: Walker, labels: Sequence[str], topics: I64) -> Reached:
    """Return the nodes of the closure."""
    if walker.options.hops is None:
        codes = walker.everything()
        return Reached(codes, np.zeros(len(codes), np.int8), np.ones(len(codes), np.int8), ())
    present = walker.present(topics)
    if not len(present):
        shown = ", ".join(labels[:5]) or "none given"
        raise InputError(
            f"topics: none of {len(labels)} ({shown}) is in a triple of the dump. Are they labels as the dump has "
            'them, such as "m.0abc"?'
        )
    return walker.walk(present)


def _write_graph(
    parts: Parts, reached: Reached, labels: Sequence[str], topics: I64, walker: Walker, out_dir: Path
) -> ClosureReport:
    options, limits, work = walker.options, walker.limits, walker.work
    nodes = number_closure(parts, reached, work, limits)
    num_entities = nodes.num_entities
    num_topics = _write_topics(labels, topics, nodes, out_dir)
    triples = write_triple_files(walker.kept_parts(), parts.relations, num_entities, work, out_dir, options, limits)
    entities = write_entity_files(parts, num_entities, work, out_dir, limits)
    write_rejects([rejects_table(nodes.collisions)], out_dir / "rejects.parquet")
    capped = walker.capped
    num_duplicates = triples.num_rows - triples.num_triples if capped is None else capped.num_repeats
    reached_at = np.bincount(reached.level, minlength=len(reached.passes) + 1).tolist()
    passes = (0, *reached.passes)
    hops = [HopCount(hop, reached_at[hop], triples.per_hop[hop], passes[hop]) for hop in range(len(passes))]
    report = ClosureReport(
        num_entities=num_entities,
        num_relations=len(triples.per_relation),
        num_triples=triples.num_triples,
        num_duplicates=num_duplicates,
        num_topics=len(labels),
        num_topics_missing=len(labels) - num_topics,
        num_hubs=_write_hubs(walker, nodes, out_dir),
        num_named=entities.num_named,
        num_several_names=entities.num_several_names,
        num_shared_names=entities.num_shared_names,
        num_aliases=entities.num_aliases,
        num_types=entities.num_types,
        num_collisions=len(nodes.collisions),
        kinds=entities.kinds,
        hops=tuple(hops) if options.hops is not None else (),
        triples_per_relation=triples.per_relation,
    )
    _write_reports(report, triples.num_rows, out_dir)
    return report


def _write_topics(labels: Sequence[str], topics: I64, nodes: Nodes, out_dir: Path) -> int:
    """Write schemas.REACHED_TOPICS; return how many of the topics have an entity."""
    ids = nodes.ids_of(topics)
    column = pa.array(ids, pa.int32(), mask=ids < 0)
    table = pa.table([pa.array(labels, pa.string()), column], schema=schemas.REACHED_TOPICS)
    pq.write_table(table, out_dir / "topics.parquet", compression="zstd")
    return int((ids >= 0).sum())


def _write_hubs(walker: Walker, nodes: Nodes, out_dir: Path) -> int:
    """Write schemas.HUBS; return how many groups were capped."""
    hubs = walker.capped.hubs if walker.capped else []
    codes = np.concatenate([np.empty(0, np.int64), *(rows[:, 0] for rows in hubs)])
    ids = nodes.ids_of(codes)
    write_hubs(hubs, nodes.labels_of(ids), ids, walker.parts.relations, out_dir / "hubs.parquet")
    return len(codes)


def _write_reports(report: ClosureReport, num_rows: int, out_dir: Path) -> None:
    graph = GraphReport(
        num_entities=report.num_entities,
        num_relations=report.num_relations,
        num_triples=report.num_triples,
        num_duplicates=report.num_duplicates,
        num_rows=num_rows,
        num_blank=0,
        num_named=report.num_named,
        num_shared_names=report.num_shared_names,
        rejects={"another label has its code": report.num_collisions} if report.num_collisions else {},
        triples_per_relation=report.triples_per_relation,
        kinds=report.kinds,
    )
    for name, value in (("graph", graph), ("closure", report)):
        write_facts(value, out_dir / f"{name}.json")
