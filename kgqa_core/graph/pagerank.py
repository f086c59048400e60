"""Pruning subgraphs to the entities of highest personalised PageRank, many questions at once.

As prior work prepares WebQSP and ComplexWebQuestions: from the topics of a question, a walk over its k-hop subgraph
returns to them with probability 0.8 at every step, and the best entities are kept with the triples among them: 500 in
GraftNet (Sun et al. 2018, released code: preprocessing/step4_extract_subgraphs.py), 2,000 in NSM (He et al. 2021,
released code: preprocessing/Freebase/util/ppr_util.py). Both sum the series up to 20 terms and stop where a term adds
less than 1e-5, which at 0.8 is after 8, and drop what scores less than 1e-6. As NSM: every triple weighs the same in
both directions and topics weigh alike; GraftNet weighs relations by how near they are to the question's words.

A score is a sum in a fixed order over the edges of its own question, so it has the same bits in any batch.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array, csr_array

from kgqa_core.graph.csr import Ints, sorted_distinct
from kgqa_core.graph.subgraph_pack import Block

RESTART = 0.8
NUM_STEPS = 8
MIN_SCORE = 1e-6
NSM_ENTITIES = 2000

Floats = npt.NDArray[np.float64]


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
    return replace(
        block,
        owner=block.owner[stays],
        heads=block.heads[stays],
        relations=block.relations[stays],
        tails=block.tails[stays],
    )


def personal_rank(
    heads: Ints, tails: Ints, seeds: Floats, *, restart: float = RESTART, num_steps: int = NUM_STEPS
) -> Floats:
    """Return the personalised PageRank of nodes 0..N-1.

    Args:
        heads: [E] of each triple; several between two nodes weigh more.
        tails: [E].
        seeds: [N] where a walk starts; they sum to one per question.
        restart: probability of going back to the seeds.
        num_steps: how many steps are summed.
    """
    ends = (np.concatenate([heads, tails]), np.concatenate([tails, heads]))
    links = csr_array(coo_array((np.ones(2 * len(heads)), ends), shape=(len(seeds), len(seeds))))
    degree = np.bincount(ends[0], minlength=len(seeds))
    share = np.divide(1 - restart, degree, out=np.zeros(len(seeds)), where=degree > 0)
    walking = restart * seeds
    rank = walking.copy()
    for _ in range(num_steps):
        walking = links @ (walking * share)  # links are symmetric: what arrives at a node comes from its neighbours
        rank += walking
    return rank


def choose_best(rank: Floats, question: Ints, most: int) -> npt.NDArray[np.bool_]:
    """Return which nodes are among the ``most`` of highest rank of their question (ascending); ties by place."""
    order = np.lexsort((-rank, question))
    first = np.searchsorted(question, question[order])  # of each node's question
    chosen = np.zeros(len(rank), dtype=np.bool_)
    chosen[order] = (np.arange(len(rank)) - first < most) & (rank[order] >= MIN_SCORE)
    return chosen
