"""The graph of rows in which every question has its subgraph (``search_graph``): packed block by block, then joined.

A block is a run of questions, small enough for memory, packed into a folder of its own; joining writes the blocks'
arrays behind one another, each shifted by what lies before it, and holds one array of one block at a time.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kgqa_core import schemas
from kgqa_core.artifacts import written_whole
from kgqa_core.errors import ArtifactError, InputError, shorten
from kgqa_core.graph.csr import Bools, Ints, build_csr, counts_before, open_array, sorted_distinct, write_csr
from kgqa_core.graph.formats import TRIPLE_COLUMNS, Chunk, list_chunks, open_format, require_file
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.nsm import QuestionLine, default_id, read_chunk, read_tuples
from kgqa_core.graph.search_graph import BLOCKS_FILE, FACTS_FILE, RELATIONS_FILE
from kgqa_core.graph.strings import U64, StringTable, digest_triples, hash_strings, open_strings, string_buffers

Value = TypeVar("Value")
MAX_ROWS = 2**31 - 1  # rows are int32


@dataclass(frozen=True, slots=True)
class SubgraphReport:
    """What a build found. Written to subgraphs.json as it is."""

    num_subgraphs: int
    num_with_answer: int  # subgraphs with an answer in a triple: no other question can be answered
    num_empty: int  # subgraphs without a triple
    num_rows: int  # entities of all subgraphs, one that is in several counted in each
    num_triples: int  # of all subgraphs, distinct in each
    largest: int  # triples of the largest one
    # of those cut from a graph:
    num_stopped: int = 0  # subgraphs that ``max_triples`` ended
    num_capped: int = 0  # groups of which only the first were walked
    unused_filters: list[str] = field(default_factory=list)  # relations to be left out that there are none of


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """Entities by question: parallel arrays."""

    owner: Ints  # place of the question in its block
    entity: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The subgraphs of some questions, in entities; triples in any order, and maybe some twice."""

    num_questions: int
    owner: Ints  # [E] place of the question
    heads: Ints  # [E]
    relations: Ints  # [E] 0..R-1
    tails: Ints  # [E]
    topics: Listed
    answers: Listed
    claims: Listed | None = None  # of true/false questions
    num_capped: Ints | None = None  # [num_questions] groups walked in part, where they were cut from a graph
    stopped: Bools | None = None  # [num_questions] did ``max_triples`` end the walk?


@dataclass(frozen=True, slots=True, eq=False)
class PackedTriples:
    """The distinct triples of a block, sorted by question, head, relation and tail."""

    owner: Ints
    heads: Ints
    relations: Ints
    tails: Ints


def pack_block(block: Block, graph_folder: Path, folder: Path) -> PackedTriples:
    """Write a block's CSR over rows, the entity of each row, and the facts of each subgraph to ``folder``."""
    labels, known, relation_hashes = _read_labels(graph_folder)
    num_entities, num_relations = len(labels), len(relation_hashes)
    head_key, tail_key = block.owner * num_entities + block.heads, block.owner * num_entities + block.tails
    answer_key = block.answers.owner * num_entities + block.answers.entity
    listed = [block.topics] if block.claims is None else [block.topics, block.claims]
    asked_keys = [each.owner * num_entities + each.entity for each in listed]
    rows = sorted_distinct(np.concatenate([head_key, tail_key, *asked_keys, answer_key]))
    heads, relations, tails = _sort_distinct(
        np.searchsorted(rows, head_key), block.relations, np.searchsorted(rows, tail_key), len(rows), num_relations
    )
    csr = build_csr(heads, relations, tails, num_entities=len(rows), num_relations=num_relations)
    write_csr(csr, folder)
    question, entity = np.divmod(rows, num_entities)
    np.save(folder / "entity.npy", entity.astype(np.int32), allow_pickle=False)

    hashes = hash_strings(labels, entity, known)
    owner = question[heads]
    digests = digest_triples(hashes[heads], relation_hashes[relations], hashes[tails], owner, block.num_questions)
    reachable = np.diff(csr.group_ptr)[np.searchsorted(rows, answer_key)] > 0
    columns = [
        np.bincount(question, minlength=block.num_questions),
        np.bincount(owner, minlength=block.num_questions),
        np.bincount(block.answers.owner[reachable], minlength=block.num_questions) > 0,
        pa.array(digests, pa.string()),
        pa.nulls(block.num_questions) if block.num_capped is None else block.num_capped,
        pa.nulls(block.num_questions) if block.stopped is None else block.stopped,
    ]
    pq.write_table(pa.table(columns, schema=pa.schema(list(schemas.SUBGRAPHS)[1:])), folder / BLOCKS_FILE)
    return PackedTriples(owner, entity[heads], relations, entity[tails])


@lru_cache(maxsize=1)
def _read_labels(graph_folder: Path) -> tuple[StringTable, U64, U64]:
    """Return the labels of the entities, memory-mapped, a table for their hashes, and the hashes of the relations'."""
    relations = pq.read_table(graph_folder / RELATIONS_FILE, columns=["label"])["label"].combine_chunks()
    table = StringTable(*string_buffers(relations.cast(pa.large_string())))
    labels = open_strings(graph_folder, "label")
    return labels, np.zeros(len(labels), dtype=np.uint64), hash_strings(table, np.arange(len(relations)))


def _sort_distinct(
    heads: Ints, relations: Ints, tails: Ints, num_rows: int, num_relations: int
) -> tuple[Ints, Ints, Ints]:
    """Return the distinct triples, sorted by head, relation and tail."""
    if num_rows * num_rows * num_relations < 2**63:  # one sort of one number is several times quicker
        keys = sorted_distinct((heads.astype(np.int64) * num_relations + relations) * num_rows + tails)
        pair, tails = np.divmod(keys, max(1, num_rows))
        heads, relations = np.divmod(pair, max(1, num_relations))
        return heads, relations, tails
    order = np.lexsort((tails, relations, heads))
    columns = (heads[order], relations[order], tails[order])
    is_new = np.ones(len(order), dtype=bool)
    is_new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    heads, relations, tails = (column[is_new] for column in columns)
    return heads, relations, tails


def join_blocks(folders: Sequence[Path], ids: Sequence[str], out_dir: Path) -> SubgraphReport:
    """Write the graphs of ``folders`` behind one another; ``ids`` are those of all their questions, in order."""
    num_rows, num_groups, num_edges = (
        np.array([len(open_array(folder / f"{name}.npy")) for folder in folders], dtype=np.int64)
        for name in ("entity", "group_relation", "edge_tail")
    )
    if num_rows.sum() > MAX_ROWS:
        raise InputError(
            f"the subgraphs hold {num_rows.sum()} entities in all, more than the {MAX_ROWS} that a run can take: "
            "name fewer question files, or cut smaller subgraphs"
        )
    nothing = np.zeros(len(folders), dtype=np.int64)
    for name, shifts, dtype in (
        ("entity", nothing, np.int32),
        ("group_relation", nothing, np.int32),
        ("edge_tail", counts_before(num_rows), np.int32),
        ("group_ptr", counts_before(num_groups), np.int64),
        ("edge_ptr", counts_before(num_edges), np.int64),
    ):
        pieces = [folder / f"{name}.npy" for folder in folders]
        _write_joined(pieces, shifts, out_dir / f"{name}.npy", dtype=dtype, pointers=name.endswith("_ptr"))
    tables = [pq.read_table(folder / BLOCKS_FILE) for folder in folders]
    blocks = pa.concat_tables([schemas.SUBGRAPHS.empty_table().drop_columns("question_id"), *tables])
    blocks = blocks.add_column(0, schemas.SUBGRAPHS.field(0), pa.array(ids, pa.string()))
    pq.write_table(blocks, out_dir / BLOCKS_FILE, compression="zstd")
    block_ptr = np.concatenate([[0], np.cumsum(blocks["num_entities"].to_numpy())]).astype(np.int64)
    np.save(out_dir / "block_ptr.npy", block_ptr, allow_pickle=False)
    num_triples = blocks["num_triples"].to_numpy()
    return SubgraphReport(
        num_subgraphs=blocks.num_rows,
        num_with_answer=int(blocks["holds_answer"].to_numpy().sum()),
        num_empty=int((num_triples == 0).sum()),
        num_rows=int(block_ptr[-1]),
        num_triples=int(num_triples.sum()),
        largest=int(num_triples.max(initial=0)),
        num_stopped=pc.sum(blocks["stopped"]).as_py() or 0,
        num_capped=pc.sum(blocks["num_capped"]).as_py() or 0,
    )


def write_report(report: SubgraphReport, out_dir: Path) -> None:
    """Write subgraphs.json: last, as opening reads it first."""
    (out_dir / FACTS_FILE).write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")


def _write_joined(pieces: Sequence[Path], shifts: Ints, path: Path, *, dtype: type, pointers: bool) -> None:
    """Write arrays behind one another; of pointers each has a first 0, of which one is kept."""
    skip = int(pointers)
    total = skip + sum(len(open_array(piece)) - skip for piece in pieces)
    joined = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(total,))
    joined[:skip] = 0
    at = skip
    for place, shift in zip(pieces, shifts, strict=True):
        piece = open_array(place)
        end = at + len(piece) - skip
        joined[at:end] = piece[skip:] + shift
        at = end
    joined.flush()


# ------ Build the subgraphs of all questions of NSM files or RoG rows: see ``search_graph`` for what is written.


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
    format: str = "nsm",
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
    read = open_format(chunk.format).read or read_chunk
    usable, _, num_lines, _ = read(chunk)
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


def _number(lines: Sequence[QuestionLine], vocabulary: Vocabulary) -> Block:
    """Return the subgraphs of these lines in ids."""
    owner, triples = flatten([read_tuples(line.subgraph)[0] for line in lines])
    heads, relations, tails = zip(*triples, strict=True) if triples else ((), (), ())
    entities = number_labels([*heads, *tails], vocabulary.entities)
    given = number_labels(relations, vocabulary.relations)
    turned = given >= vocabulary.num_relations
    first, second = entities[: len(owner)], entities[len(owner) :]
    topics, answers = (
        Listed(place, number_labels(labels, vocabulary.entities))
        for place, labels in (flatten([line.topics for line in lines]), flatten([line.answers for line in lines]))
    )
    return Block(
        num_questions=len(lines),
        owner=owner,
        heads=np.where(turned, second, first),
        relations=vocabulary.relation_id[given],
        tails=np.where(turned, first, second),
        topics=topics,
        answers=answers,
    )


def flatten(groups: Sequence[Sequence[Value]]) -> tuple[Ints, list[Value]]:
    """Return the place of its group for each value, and all values."""
    return np.repeat(np.arange(len(groups)), [len(group) for group in groups]), list(chain.from_iterable(groups))
