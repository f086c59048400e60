"""Cut the subgraph of each question out of a graph: its topics' k-hop neighbourhood, pruned by PageRank where wanted.

Pruning is as prior work prepares WebQSP and ComplexWebQuestions: from the topics of a question, a walk over its k-hop
subgraph returns to them with probability 0.8 at every step, and the best entities are kept with the triples among them:
500 in GraftNet (Sun et al. 2018, released code: preprocessing/step4_extract_subgraphs.py), 2,000 in NSM (He et al.
2021, released code: preprocessing/Freebase/util/ppr_util.py). Both sum the series up to 20 terms and stop where a term
adds less than 1e-5, which at 0.8 is after 8, and drop what scores less than 1e-6. As NSM: every triple weighs the same
in both directions and topics weigh alike; GraftNet weighs relations by how near they are to the question's words.

A score is a sum in a fixed order over the edges of its own question, so it has the same bits in any batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.sparse import coo_array, csr_array

from kgqa_core import schemas
from kgqa_core.artifacts import written_whole
from kgqa_core.config_base import SubgraphSection
from kgqa_core.graph.csr import Bools, Floats, Ints, sorted_distinct
from kgqa_core.graph.expand import Expander, Expansion, match_relations, read_cvts
from kgqa_core.graph.input_files import scratch_folder
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.graph.subgraph_build import Block, Listed, SubgraphReport, flatten, join_blocks, pack_block
from kgqa_core.types import MapTasks

RESTART = 0.8
NUM_STEPS = 8
MIN_SCORE = 1e-6
NSM_ENTITIES = 2000
BUCKET_QUESTIONS = 256
BLOCK_TRIPLES = 1 << 20  # walked triples from which on a block is packed
QUESTIONS_FILE = "questions.parquet"
WRITTEN = schemas.SUBGRAPH_TRIPLES.set(
    0, pa.field("question_id", pa.dictionary(pa.int32(), pa.string()), nullable=False)
)


class Bucket(NamedTuple):
    """A run of questions."""

    number: int
    first: int  # place in questions.parquet
    num_questions: int

    @property
    def name(self) -> str:
        """What a task on it is called."""
        return f"questions {self.first} to {self.first + self.num_questions - 1}"


def cut_subgraphs(
    questions: Path,
    *,
    graph: KnowledgeGraph,
    cut: SubgraphSection,
    out_dir: Path,
    map_buckets: MapTasks = map,
    bucket_questions: int = BUCKET_QUESTIONS,
) -> SubgraphReport:
    """Cut the subgraphs of all questions of an artifact, linked to ``graph``, into ``out_dir``, a bucket at a time."""
    ids = pq.read_table(questions / QUESTIONS_FILE, columns=["id"])["id"].to_pylist()
    starts = range(0, len(ids), bucket_questions)
    buckets = [Bucket(n, at, min(bucket_questions, len(ids) - at)) for n, at in enumerate(starts)]
    with scratch_folder(out_dir / "parts") as parts:
        work = partial(cut_bucket, questions=questions, graph_folder=graph.folder, cut=cut, parts=parts)
        blocks = list(map_buckets(work, buckets))
        for bucket in buckets:
            done = parts / f"{bucket.number:05d}" / "triples.parquet"
            done.replace(out_dir / f"triples-{bucket.number:05d}.parquet")
        unused = match_relations(graph.relation_labels, cut.drop_relations)[1]
        return join_blocks(list(chain.from_iterable(blocks)), ids, graph, out_dir, unused)


def cut_bucket(bucket: Bucket, *, questions: Path, graph_folder: Path, cut: SubgraphSection, parts: Path) -> list[Path]:
    """Cut the subgraphs of one bucket into a folder in ``parts``; return the folders of its blocks."""
    columns = ["id", "topics", "answers", "claim"]
    rows = pq.read_table(questions / QUESTIONS_FILE, columns=columns).slice(bucket.first, bucket.num_questions)
    expander = open_expander(open_graph(graph_folder), cut)
    folder, num_blocks = parts / f"{bucket.number:05d}", 0
    with written_whole(folder) as made:
        made.mkdir()
        # What is written is a dictionary of ids; what is read is a string.
        with pq.ParquetWriter(made / "triples.parquet", WRITTEN, compression="zstd", store_schema=False) as out:
            for block, ids in _cut_blocks(rows.to_pylist(), expander):
                if cut.method == "pagerank":
                    block = prune_block(block, cut.max_entities or NSM_ENTITIES)
                (made / str(num_blocks)).mkdir()
                owner, *triples = pack_block(block, graph_folder, made / str(num_blocks))
                question = pa.DictionaryArray.from_arrays(pa.array(owner, pa.int32()), pa.array(ids, pa.string()))
                columns = [question, *(pa.array(column, pa.int32()) for column in triples)]
                out.write_table(pa.table(columns, schema=WRITTEN))
                num_blocks += 1
    return [folder / str(block) for block in range(num_blocks)]


def open_expander(graph: KnowledgeGraph, cut: SubgraphSection) -> Expander:
    """Return what walks ``graph`` as ``cut`` says."""
    left_out, _ = match_relations(graph.relation_labels, cut.drop_relations)
    masks = {"left_out": left_out, "is_cvt": None if cut.cvt_is_hop else read_cvts(graph)}
    return Expander(graph, hops=cut.hops, cap=cut.group_cap, max_triples=cut.max_triples, **masks)


Cuts = list[tuple[dict[str, Any], Expansion, tuple[Ints, Ints, Ints]]]


def _cut_blocks(rows: Sequence[dict[str, Any]], expander: Expander) -> Iterator[tuple[Block, list[str]]]:
    held: Cuts = []
    for number, row in enumerate(rows, 1):
        found = expander.expand(row["topics"])
        held.append((row, found, expander.walked_triples(found)))
        if number == len(rows) or sum(found.num_walked for _, found, _ in held) >= BLOCK_TRIPLES:
            yield _block_of(held), [row["id"] for row, _, _ in held]
            held = []


def _block_of(held: Cuts) -> Block:
    rows = [row for row, _, _ in held]
    heads, relations, tails = (np.concatenate([triples[at] for _, _, triples in held]) for at in range(3))
    claims = [[] if row["claim"] is None else [row["claim"]] for row in rows]
    asked = {"topics": [row["topics"] for row in rows], "answers": [row["answers"] for row in rows], "claims": claims}
    owned = {name: flatten(groups) for name, groups in asked.items()}
    return Block(
        num_questions=len(held),
        owner=np.repeat(np.arange(len(held)), [len(triples[0]) for _, _, triples in held]),
        heads=heads,
        relations=relations,
        tails=tails,
        num_capped=np.array([found.num_capped for _, found, _ in held]),
        stopped=np.array([found.stopped for _, found, _ in held]),
        **{name: Listed(owner, np.array(ids, dtype=np.int64)) for name, (owner, ids) in owned.items()},
    )


# ------ Pruning.


def prune_block(block: Block, max_entities: int) -> Block:
    """Return the block with, for each question, the triples among the ``max_entities`` entities of highest rank.

    Of equal scores the lower ids stay. Topics, claims and answers that are listed stay listed.
    """
    if not len(block.owner):
        return block
    span = 1 + int(max(block.heads.max(), block.tails.max(), block.topics.entity.max(initial=0)))
    head_key, tail_key = block.owner * span + block.heads, block.owner * span + block.tails
    topic_key = sorted_distinct(block.topics.owner * span + block.topics.entity)
    nodes = sorted_distinct(np.concatenate([head_key, tail_key, topic_key]))
    heads, tails = np.searchsorted(nodes, head_key), np.searchsorted(nodes, tail_key)
    question = nodes // span
    seeds = np.zeros(len(nodes))
    num_topics = np.bincount(topic_key // span, minlength=block.num_questions)
    seeds[np.searchsorted(nodes, topic_key)] = 1 / num_topics[topic_key // span]
    kept = choose_best(personal_rank(heads, tails, seeds), question, max_entities)
    stays = kept[heads] & kept[tails]
    left = {name: getattr(block, name)[stays] for name in ("owner", "heads", "relations", "tails")}
    return replace(block, **left)


def personal_rank(heads: Ints, tails: Ints, seeds: Floats) -> Floats:
    """Return the personalised PageRank of nodes 0..N-1 after ``NUM_STEPS`` terms of the series.

    ``heads`` and ``tails`` [E]: of each triple; several between two nodes weigh more. ``seeds`` [N]: where a walk
    starts, and returns to; they sum to one per question.
    """
    ends = (np.concatenate([heads, tails]), np.concatenate([tails, heads]))
    links = csr_array(coo_array((np.ones(2 * len(heads)), ends), shape=(len(seeds), len(seeds))))
    degree = np.bincount(ends[0], minlength=len(seeds))
    share = np.divide(1 - RESTART, degree, out=np.zeros(len(seeds)), where=degree > 0)
    walking = RESTART * seeds
    rank = walking.copy()
    for _ in range(NUM_STEPS):
        walking = links @ (walking * share)  # links are symmetric: what arrives at a node comes from its neighbours
        rank += walking
    return rank


def choose_best(rank: Floats, question: Ints, most: int) -> Bools:
    """Return which nodes are among the ``most`` of highest rank of their question (ascending); ties by place."""
    order = np.lexsort((-rank, question))
    first = np.searchsorted(question, question[order])  # of each node's question
    chosen = np.zeros(len(rank), dtype=np.bool_)
    chosen[order] = (np.arange(len(rank)) - first < most) & (rank[order] >= MIN_SCORE)
    return chosen
