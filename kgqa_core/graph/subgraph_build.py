"""The graph of rows in which every question has its subgraph (``search_graph``): packed block by block, then joined.

A block is a run of questions, small enough for memory, packed into a folder of its own; joining writes the blocks'
arrays behind one another, each shifted by what lies before it, and holds one array of one block at a time.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kgqa_core import schemas
from kgqa_core.artifacts import written_whole
from kgqa_core.errors import ArtifactError, InputError, shorten
from kgqa_core.graph import csr
from kgqa_core.graph.csr import U64, Bools, Ints, counts_before, sorted_distinct
from kgqa_core.graph.formats import TRIPLE_COLUMNS, Chunk, list_chunks
from kgqa_core.graph.input_files import require_file, scratch_folder
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.nsm import QuestionLine, read_chunk, read_tuples
from kgqa_core.graph.search_graph import BLOCKS_FILE, FACTS_FILE, RELATIONS_FILE
from kgqa_core.types import MapTasks

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


class Listed(NamedTuple):
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


def pack_block(block: Block, graph_folder: Path, folder: Path) -> tuple[Ints, Ints, Ints, Ints]:
    """Write a block's CSR over rows, the entity of each row, and the facts of each subgraph to ``folder``.

    Returns owner, head, relation and tail of the distinct triples, in this order.
    """
    labels, known, relation_hashes = _read_hashed(graph_folder)
    num_entities, num_relations, num = len(labels), len(relation_hashes), block.num_questions
    head_key, tail_key = block.owner * num_entities + block.heads, block.owner * num_entities + block.tails
    listed = [one for one in (block.topics, block.claims, block.answers) if one is not None]
    listed_keys = [owner * num_entities + entity for owner, entity in listed]
    rows = sorted_distinct(np.concatenate([head_key, tail_key, *listed_keys]))
    heads, relations, tails = _sort_distinct(
        np.searchsorted(rows, head_key), block.relations, np.searchsorted(rows, tail_key), len(rows), num_relations
    )
    arrays = csr.build_csr(heads, relations, tails, num_entities=len(rows), num_relations=num_relations)
    csr.write_csr(arrays, folder)
    question, entity = np.divmod(rows, num_entities)
    np.save(folder / "entity.npy", entity.astype(np.int32), allow_pickle=False)
    hashes, owner = csr.hash_strings(labels, entity, known), question[heads]
    digests = csr.digest_triples(hashes[heads], relation_hashes[relations], hashes[tails], owner, num)
    reachable = np.diff(arrays.group_ptr)[np.searchsorted(rows, listed_keys[-1])] > 0
    columns = [
        np.bincount(question, minlength=num),
        np.bincount(owner, minlength=num),
        np.bincount(block.answers.owner[reachable], minlength=num) > 0,
        pa.array(digests, pa.string()),
        pa.nulls(num) if block.num_capped is None else block.num_capped,
        pa.nulls(num) if block.stopped is None else block.stopped,
    ]
    pq.write_table(pa.table(columns, schema=pa.schema(list(schemas.SUBGRAPHS)[1:])), folder / BLOCKS_FILE)
    return owner, entity[heads], relations, entity[tails]


@lru_cache(maxsize=1)
def _read_hashed(graph_folder: Path) -> tuple[pa.LargeStringArray, U64, U64]:
    """Return the labels of the entities, memory-mapped, room for their hashes, and the hashes of the relations'."""
    relations = pq.read_table(graph_folder / RELATIONS_FILE)["label"].combine_chunks().cast(pa.large_string())
    labels = csr.open_strings(graph_folder, "label")
    return labels, np.zeros(len(labels), dtype=np.uint64), csr.hash_strings(relations, np.arange(len(relations)))


def _sort_distinct(heads: Ints, relations: Ints, tails: Ints, num_rows: int, num_relations: int) -> Sequence[Ints]:
    """Return the distinct triples, sorted by head, relation and tail."""
    if num_rows * num_rows * num_relations < 2**63:  # one sort of one number is several times quicker
        keys = sorted_distinct((heads.astype(np.int64) * num_relations + relations) * num_rows + tails)
        pair, tails = np.divmod(keys, max(1, num_rows))
        return *np.divmod(pair, max(1, num_relations)), tails
    triples = np.stack([heads, relations, tails])[:, np.lexsort((tails, relations, heads))]
    return tuple(triples[:, np.append(True, (triples[:, 1:] != triples[:, :-1]).any(axis=0))])


def join_blocks(
    folders: Sequence[Path],
    ids: Sequence[str],
    graph: KnowledgeGraph,
    out_dir: Path,
    unused_filters: Sequence[str] = (),
) -> SubgraphReport:
    """Write the blocks of ``folders`` behind one another; ``ids`` are those of all their questions, in order."""
    num_rows = csr.count_values(folders, "entity")
    if num_rows.sum() > MAX_ROWS:
        raise InputError(
            f"the subgraphs hold {num_rows.sum()} entities in all, more than the {MAX_ROWS} that a run can take: "
            "name fewer question files, or cut smaller subgraphs"
        )
    csr.join_arrays(folders, "entity", 0 * num_rows, out_dir)
    csr.join_csrs(folders, counts_before(num_rows), out_dir)
    tables = [pq.read_table(folder / BLOCKS_FILE) for folder in folders]
    blocks = pa.concat_tables([schemas.SUBGRAPHS.empty_table().drop_columns("question_id"), *tables])
    blocks = blocks.add_column(0, schemas.SUBGRAPHS.field(0), pa.array(ids, pa.string()))
    pq.write_table(blocks, out_dir / BLOCKS_FILE, compression="zstd")
    block_ptr = np.append(0, np.cumsum(blocks["num_entities"].to_numpy())).astype(np.int64)
    np.save(out_dir / "block_ptr.npy", block_ptr, allow_pickle=False)
    num_triples = blocks["num_triples"].to_numpy()
    report = SubgraphReport(
        num_subgraphs=blocks.num_rows,
        num_with_answer=int(blocks["holds_answer"].to_numpy().sum()),
        num_empty=int((num_triples == 0).sum()),
        num_rows=int(block_ptr[-1]),
        num_triples=int(num_triples.sum()),
        largest=int(num_triples.max(initial=0)),
        num_stopped=pc.sum(blocks["stopped"]).as_py() or 0,
        num_capped=pc.sum(blocks["num_capped"]).as_py() or 0,
        unused_filters=list(unused_filters),
    )
    shutil.copyfile(graph.folder / RELATIONS_FILE, out_dir / RELATIONS_FILE)
    # This file is written last and read first: where it is there, the folder is whole.
    (out_dir / FACTS_FILE).write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")
    return report


# ------ The subgraphs that question files bring.


Packed = tuple[Path, int, list[tuple[int, str | None]]]
"""Of one chunk: the folder of its arrays, numbered from 0 on; its number of lines; of each usable one number and id."""


def build_subgraphs(
    files: Sequence[Path],
    stems: Sequence[str] = (),
    *,
    graph: KnowledgeGraph,
    out_dir: Path,
    format: str = "nsm",
    map_chunks: MapTasks = map,
    chunk_bytes: int = 8 * 2**20,
) -> SubgraphReport:
    """Build the subgraphs of all usable lines of ``files`` in ``out_dir``.

    Lines that cannot be used have none; they are among the rejects of the graph, which was built of the same files.
    ``stems``: what the ids of lines without one begin with, by file (``train`` of ``train-17``); empty: its name.
    Chunks are of about ``chunk_bytes``. Raises InputError where a file is missing, ArtifactError where a label is not
    in the graph.
    """
    folders, ids = list[Path](), list[str]()
    with scratch_folder(out_dir / "parts") as parts:
        for number, (path, stem) in enumerate(zip(files, stems or [path.stem for path in files], strict=True)):
            require_file(path, what="question file")
            folder = parts / str(number)
            folder.mkdir(parents=True)
            chunks = list_chunks(path, format=format, columns=TRIPLE_COLUMNS, parts=folder, chunk_bytes=chunk_bytes)
            before = 0
            for packed, num_lines, usable in map_chunks(partial(pack_chunk, graph_folder=graph.folder), chunks):
                folders.append(packed)
                ids += [given or f"{stem}-{before + line}" for line, given in usable]
                before += num_lines
        return join_blocks(folders, ids, graph, out_dir)


def pack_chunk(chunk: Chunk, *, graph_folder: Path) -> Packed:
    """Pack the subgraphs of one chunk into a folder beside ``chunk.part``."""
    usable, _, num_lines, _ = read_chunk(chunk)
    folder = chunk.part.with_suffix("")
    with written_whole(folder) as partial_folder:
        partial_folder.mkdir()
        pack_block(_number([line for _, line in usable], graph_folder), graph_folder, partial_folder)
    return folder, num_lines, [(number, line.id) for number, line in usable]


def _number(lines: Sequence[QuestionLine], graph_folder: Path) -> Block:
    """Return the subgraphs of these lines in ids; triples of given inverses are turned round."""
    known_entities, known_relations, relation_id, num_relations = _read_vocabulary(graph_folder)
    owner, triples = flatten([read_tuples(line.subgraph)[0] for line in lines])
    starts, relations, ends = zip(*triples, strict=True) if triples else ((), (), ())
    first, second = np.split(_places([*starts, *ends], known_entities), 2)
    given = _places(relations, known_relations)
    turned = given >= num_relations
    listed = (flatten([line.topics for line in lines]), flatten([line.answers for line in lines]))
    topics, answers = (Listed(places, _places(labels, known_entities)) for places, labels in listed)
    heads, tails = np.where(turned, second, first), np.where(turned, first, second)
    return Block(len(lines), owner, heads, relation_id[given], tails, topics, answers)


@lru_cache(maxsize=1)
def _read_vocabulary(graph_folder: Path) -> tuple[pa.Array, pa.Array, Ints, int]:
    """Return the labels of entities; those of relations, then of given inverses, and the ids of both; and R."""
    entities = pq.read_table(graph_folder / "entities.parquet", columns=["label"])["label"].combine_chunks()
    table = pq.read_table(graph_folder / RELATIONS_FILE)
    inverse = table.filter(pc.is_valid(table["inverse"]))
    labels = pa.concat_arrays([table["label"].combine_chunks(), inverse["inverse"].combine_chunks()])
    ids = np.concatenate([table["relation_id"].to_numpy(), inverse["relation_id"].to_numpy()])
    return entities, labels, ids, table.num_rows


def _places(labels: Sequence[str], known: pa.Array) -> Ints:
    """Return the place of each label; ArtifactError where one is not there."""
    found = pc.index_in(pa.array(labels, pa.string()), value_set=known)
    if found.null_count:
        label = labels[pc.index(pc.is_null(found), True).as_py()]
        raise ArtifactError(
            f"the graph does not know {shorten(label)} of a subgraph: build it again, of the same files"
        )
    return np.asarray(found.to_numpy(), np.int64)


def flatten(groups: Sequence[Sequence[Value]]) -> tuple[Ints, list[Value]]:
    """Return the place of its group for each value, and all values."""
    return np.repeat(np.arange(len(groups)), [len(group) for group in groups]), list(chain.from_iterable(groups))
