"""Build the subgraphs of all questions of NSM files or RoG rows: see ``subgraphs`` for what is written.

Chunks of lines are packed one by one, in this process or by workers that see the same folders, each into a small graph
of rows of its own; these are then written behind one another. Memory stays flat, whatever the files hold.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kgqa_core.disk import written_whole
from kgqa_core.errors import ArtifactError, shorten
from kgqa_core.graph.chunks import list_chunks
from kgqa_core.graph.csr import Ints
from kgqa_core.graph.formats import TRIPLE_COLUMNS, Chunk, require_file
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.nsm import LabelledTriple, NsmLine, default_id, read_nsm_chunk, read_tuples
from kgqa_core.graph.rog import read_rog_chunk
from kgqa_core.graph.subgraph_pack import Block, Listed, SubgraphReport, join_blocks, pack_block, write_report
from kgqa_core.graph.subgraphs import RELATIONS_FILE


@dataclass(frozen=True, slots=True)
class Packed:
    """One chunk, packed. Its arrays lie in ``folder``, numbered from 0 on."""

    folder: Path
    num_lines: int
    usable: list[tuple[int, str | None]]  # line number inside the chunk, and the id that the line gives


PackChunks = Callable[[Callable[[Chunk], Packed], Iterable[Chunk]], Iterable[Packed]]


def build_subgraphs(
    files: Sequence[Path],
    *,
    graph: KnowledgeGraph,
    out_dir: Path,
    format: Literal["nsm", "rog"] = "nsm",
    map_chunks: PackChunks = map,
    chunk_bytes: int = 8 * 2**20,
) -> SubgraphReport:
    """Build the subgraphs of all usable lines of ``files`` in ``out_dir``.

    Lines that cannot be used have none; they are among the rejects of the graph, which was built of the same files.
    ``map_chunks``: how chunks of about ``chunk_bytes`` are mapped; ``fan_out.fan_out`` gives one over Dask. Raises
    InputError where a file is missing, ArtifactError where a label is not in the graph.
    """
    parts = out_dir / "parts"
    shutil.rmtree(parts, ignore_errors=True)
    packed: list[Packed] = []
    ids: list[str] = []
    try:
        for number, path in enumerate(files):
            require_file(path, what="question file")
            folder = parts / str(number)
            folder.mkdir(parents=True)
            chunks = list_chunks(path, format=format, columns=TRIPLE_COLUMNS, parts=folder, chunk_bytes=chunk_bytes)
            found = list(map_chunks(partial(pack_chunk, graph_folder=graph.folder), chunks))
            ids += name_lines(found, path)
            packed += found
        shutil.copyfile(graph.folder / RELATIONS_FILE, out_dir / RELATIONS_FILE)
        report = join_blocks([chunk.folder for chunk in packed], ids, out_dir)
        write_report(report, out_dir)
        return report
    finally:
        shutil.rmtree(parts, ignore_errors=True)


def name_lines(chunks: Iterable[Packed], path: Path) -> list[str]:
    """Return the question ids of one file's chunks, in order; line numbers are those of the file."""
    ids: list[str] = []
    before = 0
    for chunk in chunks:
        ids += [given or default_id(path, before + number) for number, given in chunk.usable]
        before += chunk.num_lines
    return ids


def pack_chunk(chunk: Chunk, *, graph_folder: Path) -> Packed:
    """Pack the subgraphs of one chunk into a folder beside ``chunk.part``."""
    usable, num_lines, _, _ = read_rog_chunk(chunk) if chunk.format == "rog" else read_nsm_chunk(chunk)
    folder = chunk.part.with_suffix("")
    with written_whole(folder) as partial:
        partial.mkdir()
        pack_block(_number([line for _, line in usable], _read_vocabulary(graph_folder)), graph_folder, partial)
    return Packed(folder, num_lines, [(number, line.id) for number, line in usable])


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The labels of a graph, by id."""

    entities: pa.Array
    relations: pa.Array  # labels, then those of given inverses, whose triples are turned round
    relation_id: Ints  # [len(relations)]
    num_relations: int


@lru_cache(maxsize=1)
def _read_vocabulary(graph_folder: Path) -> Vocabulary:
    entities = pq.read_table(graph_folder / "entities.parquet", columns=["label"])["label"].combine_chunks()
    table = pq.read_table(graph_folder / RELATIONS_FILE)
    inverse = table.filter(pc.is_valid(table["inverse"]))
    labels = pa.concat_arrays([table["label"].combine_chunks(), inverse["inverse"].combine_chunks()])
    ids = np.concatenate([table["relation_id"].to_numpy(), inverse["relation_id"].to_numpy()])
    return Vocabulary(entities, labels, ids, table.num_rows)


def number_labels(labels: Sequence[str], vocabulary: pa.Array) -> Ints:
    """Return the place of each label; ArtifactError where one is not there."""
    found = pc.index_in(pa.array(labels, pa.string()), value_set=vocabulary)
    if found.null_count:
        label = labels[pc.index(pc.is_null(found), True).as_py()]
        raise ArtifactError(
            f"the graph does not know {shorten(label)} of a subgraph: build it again, of the same files"
        )
    places: Ints = found.to_numpy().astype(np.int64)
    return places


def _number(lines: Sequence[NsmLine], vocabulary: Vocabulary) -> Block:
    """Return the subgraphs of these lines in ids."""
    owner, heads, relations, tails = _number_triples([read_tuples(line.subgraph)[0] for line in lines], vocabulary)
    topics = _number_listed([line.topics for line in lines], vocabulary)
    answers = _number_listed([line.answers for line in lines], vocabulary)
    return Block(len(lines), owner, heads, relations, tails, topics, answers)


def _number_triples(
    triples_of: Sequence[Sequence[LabelledTriple]], vocabulary: Vocabulary
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return (place of the line, head, relation, tail) of all triples."""
    owner = _owners(triples_of)
    heads, relations, tails = zip(*chain.from_iterable(triples_of), strict=True) if len(owner) else ((), (), ())
    entities = number_labels([*heads, *tails], vocabulary.entities)
    given = number_labels(relations, vocabulary.relations)
    turned = given >= vocabulary.num_relations
    first, second = entities[: len(owner)], entities[len(owner) :]
    return owner, np.where(turned, second, first), vocabulary.relation_id[given], np.where(turned, first, second)


def _number_listed(labels_of: Sequence[Sequence[str]], vocabulary: Vocabulary) -> Listed:
    """Return (place of the line, entity) of all labels."""
    return Listed(_owners(labels_of), number_labels(list(chain.from_iterable(labels_of)), vocabulary.entities))


def _owners(groups: Sequence[Sequence[object]]) -> Ints:
    return np.repeat(np.arange(len(groups)), np.array([len(group) for group in groups], dtype=np.int64))
