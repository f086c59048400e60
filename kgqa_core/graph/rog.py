"""Rows of RoG (Luo et al. 2024), the form in which WebQSP and CWQ are on the model hubs: Parquet or JSON lines.

    {"id": "WebQTrn-9", "question": "…", "answer": ["London"], "q_entity": ["Ada Lovelace"], "a_entity": ["London"],
     "graph": [["Ada Lovelace", "people.person.place_of_birth", "London"], …]}

Names are the labels here, so entities of one name are one. Answers are ``a_entity``, where that is empty ``answer``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from kgqa_core.graph.formats import NOT_AN_OBJECT, NOT_JSON, Chunk, GraphFormat, RawReject, open_parquet
from kgqa_core.graph.nsm import JSON, NO_QUESTION, NsmLine, cut_lines, parse_nsm_chunk, read_nsm_chunk

NO_GRAPH = "field graph: not a list of triples"
BAD_TOPIC = "field q_entity: not a list of names"
BAD_ANSWER = "fields a_entity and answer: not lists of names"
NEEDED = ("question", "q_entity", "graph")  # of a Parquet file
COLUMNS = ("id", "question", "answer", "q_entity", "a_entity", "graph")
ROWS_AT_ONCE = 64


def parse_line(line: str) -> NsmLine | str:
    """Return what a JSON line says, or why it cannot be used."""
    try:
        return parse_row(JSON.validate_json(line))
    except ValueError:
        return NOT_JSON


def parse_row(row: Any) -> NsmLine | str:
    """Return what a row says, or why it cannot be used; its triples are looked at by ``nsm.read_tuples``."""
    if not isinstance(row, dict):
        return NOT_AN_OBJECT
    text, graph, given_id = row.get("question"), row.get("graph"), row.get("id")
    if not isinstance(text, str) or not text.strip():
        return NO_QUESTION
    if not isinstance(graph, list):
        return NO_GRAPH
    topics, linked, given = (_names(row.get(key)) for key in ("q_entity", "a_entity", "answer"))
    if topics is None:
        return BAD_TOPIC
    if linked is None and given is None:
        return BAD_ANSWER
    return NsmLine(
        id=str(given_id) if isinstance(given_id, str | int) and str(given_id).strip() else None,
        question=text,
        topics=topics,
        answers=linked or given or (),
        names={},
        subgraph=graph,
    )


def _names(values: object) -> tuple[str, ...] | None:
    """Return distinct names, a single one as well; None where it is neither a name nor a list of names."""
    listed = [values] if isinstance(values, str) else values
    if not isinstance(listed, list) or not all(isinstance(value, str) for value in listed):
        return None
    return tuple(dict.fromkeys(value for value in listed if value.strip()))


def read_rog_chunk(chunk: Chunk) -> tuple[list[tuple[int, NsmLine]], int, int, list[RawReject]]:
    """Read a chunk of rows: see ``nsm.ReadChunk``. Rows of Parquet files count as lines, from 1 on."""
    if chunk.path.suffix != ".parquet":
        return read_nsm_chunk(chunk, parse=parse_line)
    usable: list[tuple[int, NsmLine]] = []
    rejects: list[RawReject] = []
    for number, row in enumerate(parquet_rows(chunk.path, chunk.start, chunk.end), 1):
        parsed = parse_row(row)
        if isinstance(parsed, NsmLine):
            usable.append((number, parsed))
        else:
            rejects.append((number, parsed, row_text(row)))
    return usable, chunk.end - chunk.start, 0, rejects


def parquet_rows(path: Path, start: int = 0, end: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows ``start`` to ``end`` of a Parquet file; InputError where it is none."""
    file = open_parquet(path)
    wanted = [name for name in COLUMNS if name in file.schema_arrow.names]
    sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    ends = list(accumulate(sizes))
    end = min(sum(sizes) if end is None else end, sum(sizes))
    groups = [g for g, size in enumerate(sizes) if ends[g] > start and ends[g] - size < end]
    at = ends[groups[0]] - sizes[groups[0]] if groups else 0
    for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, row_groups=groups, columns=wanted):
        first, last = max(start - at, 0), min(end - at, batch.num_rows)
        if first < last:
            yield from batch.slice(first, last - first).to_pylist()
        at += batch.num_rows
        if at >= end:
            return


def row_text(row: object) -> str:
    """Return a row as it is kept among the rejects."""
    return json.dumps(row, ensure_ascii=False, default=str)


def _cut(path: Path, columns: tuple[str, ...], chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut at line ends, or inside row groups: a row with a subgraph may take 100 kB, a group of them a gigabyte."""
    if path.suffix != ".parquet":
        yield from cut_lines(path, columns, chunk_bytes)
        return
    metadata = open_parquet(path, NEEDED).metadata
    start = 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        end = start + group.num_rows
        step = max(1, group.num_rows * chunk_bytes // max(group.total_byte_size, 1))
        yield from ((first, min(first + step, end)) for first in range(start, end, step))
        start = end


FORMAT = GraphFormat(
    '{"question": "…", "q_entity": ["Ada"], "a_entity": ["London"], "graph": [["Ada", "born_in", "London"]]}',
    partial(parse_nsm_chunk, read=read_rog_chunk),
    _cut,
    read=read_rog_chunk,
)
