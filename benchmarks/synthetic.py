"""Synthetic graphs of any size with Freebase-like skew, and questions whose answers come from random relation chains.

Entities have types; a relation leads from one type to another. Types, relations, heads and, most of all, tails are
drawn with power-law popularity: most entities have a few edges, and a few hubs a large share of all. Seeded: the same
arguments give the same bytes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from benchmarks.freebase.vocabulary import zipf
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.types import Question, RelationPath

TRIPLES_PER_ENTITY = 10  # Freebase around WebQSP: 14, around CWQ less (EtD Table 7)
HEAD_SKEW, TAIL_SKEW = 2.0, 4.0  # rank = size * uniform^skew: 1 is uniform; degrees fall with exponent 1 + s / (s - 1)
MAX_FRONTIER, MAX_ANSWERS = 2_000, 100  # a chain that passes more is no question anybody asks
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Triples:
    """Triples by number, repeats included."""

    head: Ints
    relation: Ints
    tail: Ints


def draw_triples(count: int, *, num_relations: int = 300, seed: int = 0) -> Triples:
    """Draw triples; a few in a hundred repeat others.

    Args:
        count: rows to draw.
        num_relations: R; there is a type of entities for every six.
        seed: of everything drawn.
    """
    generator = np.random.default_rng(seed)
    num_types = max(2, num_relations // 6)
    sizes = np.maximum(1, count / TRIPLES_PER_ENTITY * zipf(num_types)).astype(np.int64)
    first = np.concatenate([[0], np.cumsum(sizes)])
    by_size = sizes / sizes.sum()
    domain = generator.choice(num_types, num_relations, p=by_size)
    range_ = generator.choice(num_types, num_relations, p=by_size)
    # A relation is as frequent as its rank says and as its domain is large: small types do not get endless edges.
    frequency = zipf(num_relations) * by_size[domain]
    relation = generator.choice(num_relations, count, p=frequency / frequency.sum())
    head = _entities(first, sizes, domain[relation], generator.random(count) ** HEAD_SKEW)
    tail = _entities(first, sizes, range_[relation], generator.random(count) ** TAIL_SKEW)
    return Triples(head, relation, tail)


def write_triples(triples: Triples, path: Path) -> None:
    """Write a TSV file: entities as machine ids (m.123), relations as words (see ``relation_label``)."""
    relations = pa.array([relation_label(number) for number in range(int(triples.relation.max()) + 1)])
    columns = [_labels(triples.head), relations.take(pa.array(triples.relation)), _labels(triples.tail)]
    options = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    csv.write_csv(pa.table(columns, names=["head", "relation", "tail"]), path, options)


def relation_label(number: int) -> str:
    """Return made-up words for a relation, each number its own."""
    syllables = [consonant + vowel for consonant in "bdfgklmnprstv" for vowel in "aeiou"]
    random_ = random.Random(number)
    words = ("".join(random_.choices(syllables, k=3)) for _ in range(2))
    return f"{'.'.join(words)}.{syllables[number % 65]}{syllables[number // 65 % 65]}"


def draw_questions(
    graph: KnowledgeGraph, *, num_chains: int, per_chain: int, hops: int, seed: int = 0
) -> list[Question]:
    """Draw questions: random relation chains, and topics from which each leads somewhere.

    Args:
        graph: the graph to ask about.
        num_chains: distinct chains, each with one masked text.
        per_chain: questions per chain; fewer where it starts at fewer entities.
        hops: relations per chain.
        seed: of everything drawn.
    """
    generator = random.Random(seed)
    chains: dict[RelationPath, list[Question]] = {}
    while len(chains) < num_chains:
        chain = _walk(graph, hops, generator)
        if chain is None or chain in chains:
            continue
        groups = np.flatnonzero(graph.group_relation == chain[0])
        starts = np.searchsorted(graph.group_ptr, groups, side="right") - 1
        topics = generator.sample(starts.tolist(), min(len(starts), 3 * per_chain))
        chains[chain] = _ask(graph, chain, topics, per_chain)
    return [question for asked in chains.values() for question in asked]


def follow(graph: KnowledgeGraph, topic: int, chain: RelationPath) -> Ints | None:
    """Return the entities that a chain ends at, the topic never re-entered; None where it spreads too far."""
    frontier = np.array([topic])
    for relation in chain:
        reached = [graph.neighbors(int(entity), relation) for entity in frontier]
        frontier = np.unique(np.concatenate(reached)).astype(np.int64) if reached else frontier
        frontier = frontier[frontier != topic]
        if len(frontier) > MAX_FRONTIER:
            return None
    return frontier


def _ask(graph: KnowledgeGraph, chain: RelationPath, topics: Sequence[int], count: int) -> list[Question]:
    words = " then ".join(graph.relation_text(relation) for relation in chain)
    masked = f"what is the {words} of [topic]"
    questions: list[Question] = []
    for topic in topics:
        answers = follow(graph, topic, chain)
        if answers is not None and 0 < len(answers) <= MAX_ANSWERS:
            id = f"{'-'.join(map(str, chain))}/{topic}"
            questions.append(
                Question(id, masked, masked, (topic,), tuple(answers.tolist()), "train", len(chain), chain)
            )
        if len(questions) == count:
            break
    return questions


def _walk(graph: KnowledgeGraph, hops: int, generator: random.Random) -> RelationPath | None:
    """Return the relations of a random walk from a random entity, None where it would turn straight back."""
    entity, chain = generator.randrange(graph.num_entities), list[int]()
    for _ in range(hops):
        group = generator.randrange(int(graph.group_ptr[entity]), int(graph.group_ptr[entity + 1]))
        relation = int(graph.group_relation[group])
        if chain and abs(relation - chain[-1]) == graph.num_relations:
            return None
        chain.append(relation)
        entity = int(graph.edge_tail[generator.randrange(int(graph.edge_ptr[group]), int(graph.edge_ptr[group + 1]))])
    return tuple(chain)


def _entities(first: Ints, sizes: Ints, of_type: Ints, place: npt.NDArray[np.float64]) -> Ints:
    return first[of_type] + (sizes[of_type] * place).astype(np.int64)


def _labels(entities: Ints) -> pa.Array:
    return pc.binary_join_element_wise("m.", pa.array(entities).cast(pa.string()), "")
