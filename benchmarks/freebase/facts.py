"""The triples, types and names of a made-up Freebase, block by block of nodes in byte order of their labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.freebase.vocabulary import NUM_WORDS, Ints
from benchmarks.freebase.world import RELATION_SKEW, World

BLOCK = 8192  # nodes whose random numbers come from one generator
FACTS, NAMES, NOISE, FAULTS = range(4)  # streams of random numbers of a block
ALIAS_SHARE = 0.3
WORD_SHARES = (0.08, 0.5)  # of names of one word, and of at most two; the others have three
NUM_LANGUAGES = 10
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Triples:
    """Triples sorted by the place of their head in the block; a literal's row of the pool is ``-1 - tail``."""

    place: Ints  # of the head: its number is the block's first plus this
    relation: Ints
    tail: Ints  # a node's number, or below 0 a literal


@dataclass(frozen=True, slots=True)
class Names:
    """Names and aliases of a block's nodes as words of a language's vocabulary, 1 to 3 (the rest -1)."""

    place: Ints  # sorted
    language: Ints  # 0: English
    is_alias: Bools
    words: Ints  # (n, 3)


def blocks(world: World) -> Iterator[range]:
    """Yield the ranges of node numbers that are made together."""
    for first in range(0, world.num_nodes, BLOCK):
        yield range(first, min(first + BLOCK, world.num_nodes))


def stream(world: World, block: range, which: int) -> np.random.Generator:
    """Return the generator of one kind of random numbers of a block."""
    return np.random.Generator(np.random.SFC64([world.seed, which, block.start]))


def draw_triples(world: World, block: range) -> Triples:
    """Return the triples that start in a block: plain ones, those to owned CVT nodes, and those of CVT nodes."""
    generator = stream(world, block, FACTS)
    rank = world.rank_of(np.arange(block.start, block.stop))
    entity, cvt = np.flatnonzero(rank < world.num_entities), np.flatnonzero(rank >= world.num_entities)
    parts = (
        _plain(world, entity, rank, generator),
        _mediated(world, entity, rank),
        _of_cvt(world, cvt, rank, generator),
    )
    place = np.concatenate([part.place for part in parts])
    order = np.argsort(place, kind="stable")
    relation = np.concatenate([part.relation for part in parts])
    tail = np.concatenate([part.tail for part in parts])
    return Triples(place[order], relation[order], tail[order])


def draw_names(world: World, block: range) -> Names:
    """Return the names of a block: English for most entities, other languages, aliases; none for CVT nodes."""
    generator = stream(world, block, NAMES)
    rank = world.rank_of(np.arange(block.start, block.stop))
    named = np.flatnonzero((rank < world.num_entities) & ~world.is_nameless(rank))
    foreign = world.is_foreign(rank[named])
    english = named[~foreign]
    # Popular entities are named in every language, others in one more or two.
    counts = np.where(rank[named] < world.num_entities // 50, NUM_LANGUAGES, generator.geometric(0.5, len(named)) - 1)
    counts = np.minimum(NUM_LANGUAGES, np.maximum(counts, foreign))
    others = np.repeat(named, counts)
    language = (generator.integers(0, NUM_LANGUAGES, len(named)).repeat(counts) + run_places(counts)) % NUM_LANGUAGES
    alias = english[generator.random(len(english)) < ALIAS_SHARE]
    place = np.concatenate([english, others, alias])
    spoken = np.concatenate([np.zeros_like(english), 1 + language, np.zeros_like(alias)])
    is_alias = np.arange(len(place)) >= len(english) + len(others)
    words = generator.integers(0, NUM_WORDS, (len(place), 3))
    counts = 1 + np.searchsorted(WORD_SHARES, generator.random(len(place)))
    words[np.arange(3) >= counts[:, None]] = -1
    order = np.argsort(place, kind="stable")
    return Names(place[order], spoken[order], is_alias[order], words[order])


def draw_types(world: World, block: range) -> tuple[Ints, Ints]:
    """Return (place, type) of a block's nodes, sorted by place: an entity has one to three, a CVT node one."""
    rank = world.rank_of(np.arange(block.start, block.stop))
    entity, cvt = np.flatnonzero(rank < world.num_entities), np.flatnonzero(rank >= world.num_entities)
    owned = rank[cvt] - world.num_entities
    own = world.type_of(rank[entity])
    second = entity[rank[entity] % 3 == 0]
    topic = entity[~world.is_nameless(rank[entity])]
    place = np.concatenate([entity, second, topic, cvt])
    common = np.full(len(topic), len(world.schema.types) - 1)
    types = np.concatenate([own, world.type_of(rank[second] + 1), common, cvt_type(world, owned)])
    order = np.argsort(place, kind="stable")
    return place[order], types[order]


def cvt_type(world: World, cvt: Ints) -> Ints:
    """Return the types of CVT nodes."""
    return world.schema.cvt_of[world.type_of(world.owner_of(cvt)), world.mediator_of(cvt)]


def run_places(counts: Ints) -> Ints:
    """Return 0, 1, .. count - 1 for each count, one after the other."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _plain(world: World, entity: Ints, rank: Ints, generator: np.random.Generator) -> Triples:
    schema = world.schema
    place = np.repeat(entity, world.num_starting(rank[entity]))
    type_ = world.type_of(rank[place])
    first = schema.first[type_]
    skewed = generator.random(len(place)) ** RELATION_SKEW
    relation = first + (skewed * (schema.first[type_ + 1] - first)).astype(np.int64)
    return Triples(place, relation, _tails(world, relation, generator))


def _mediated(world: World, entity: Ints, rank: Ints) -> Triples:
    owners = rank[entity]
    first = world.first_cvt(owners)
    counts = world.first_cvt(owners + 1) - first
    place, cvt = np.repeat(entity, counts), np.repeat(first, counts) + run_places(counts)
    relation = world.schema.mediators[world.type_of(rank[place]), world.mediator_of(cvt)]
    return Triples(place, relation, world.number_of(world.num_entities + cvt))


def _of_cvt(world: World, node: Ints, rank: Ints, generator: np.random.Generator) -> Triples:
    schema = world.schema
    cvt = rank[node] - world.num_entities
    type_ = cvt_type(world, cvt)
    counts = schema.first[type_ + 1] - schema.first[type_]
    place, slot = np.repeat(node, counts), run_places(counts)
    relation = np.repeat(schema.first[type_], counts) + slot
    tail = _tails(world, relation, generator)
    back = slot == 0
    tail[back] = world.number_of(world.owner_of(cvt))
    return Triples(place, relation, tail)


def _tails(world: World, relation: Ints, generator: np.random.Generator) -> Ints:
    range_ = world.schema.range_[relation]
    uniform = generator.random(len(relation))
    literal = -1 - (uniform**RELATION_SKEW * world.num_literals).astype(np.int64)
    return np.where(range_ < 0, literal, world.number_of(world.draw_tails(np.maximum(range_, 0), uniform)))
