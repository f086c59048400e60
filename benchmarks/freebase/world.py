"""The shape of a made-up Freebase: which nodes there are, of which types, and how many triples start at each.

Everything is arithmetic on numbers, so that any part of a graph of any size is made without the rest:

- Nodes have a *number*, in byte order of their labels (g. before m.), and a *rank* of popularity, a fixed shuffle of
  the numbers. Low ranks are entities, the others are CVT nodes.
- Entity ``rank`` starts the plain triples ``starts(rank) .. starts(rank + 1)`` and owns a range of CVT nodes in the
  same way: both fall as rank ** -1/2. Tails are drawn within a type, and fall as rank ** -3/4.
- Types repeat along the ranks with Zipf shares. A relation leads from a type to a type, or to literals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.freebase.vocabulary import Ints, property_labels, type_labels, zipf

NODES_PER_TRIPLE = 0.12
CVT_SHARE = 0.38  # of the nodes
GIVEN_SHARE = 0.05  # of the nodes whose MID begins with g.
PLAIN_SHARE = 0.762  # of the triples that neither lead to a CVT node nor start at one
FOREIGN_EVERY = 16  # one in so many entities is named in other languages only
NAMELESS_EVERY = 41  # and one in so many not at all
LITERAL_SHARE = 0.2  # of the relations
LITERALS_PER_NODE, MOST_LITERALS = 0.25, 1 << 18
HEAD_SKEW, TAIL_SKEW, RELATION_SKEW = 2, 4, 2  # rank = size * uniform ** skew
TOPIC_TYPE = "common.topic"  # that every named entity has
LONGEST_MID = 8  # characters after "m."
MID_LETTERS = np.frombuffer(b"0123456789_bcdfghjklmnpqrstvwxyz", np.uint8)  # in the order of ASCII
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Schema:
    """Types and relations. Relations of a type are ``first[type] .. first[type + 1]``."""

    types: list[str]  # domain.type: T of entities, those of CVT nodes, common.topic
    relations: list[str]  # labels, domain.type.property
    first: Ints  # (T + 1,)
    range_: Ints  # (R,) the type that a relation leads to, -1: literals
    mediators: Ints  # (T, 2) the relations of an entity type that lead to CVT nodes
    cvt_of: Ints  # (T, 2) the CVT type at the end of each
    slot_types: Ints  # (S,) type of the entities whose rank mod S is the index
    slots: Ints  # (S,) those indices, sorted by type
    first_slot: Ints  # (T + 1,) where a type's begin


class World:
    """A made-up Freebase of about ``num_triples`` kept triples."""

    def __init__(self, num_triples: int, seed: int = 0) -> None:
        if num_triples < 1000:
            raise ValueError(f"a Freebase of {num_triples} triples is too small to have its shape; give 1,000 or more")
        self.seed = seed
        self.num_nodes = int(num_triples * NODES_PER_TRIPLE)
        self.num_cvt = int(self.num_nodes * CVT_SHARE)
        self.num_entities = self.num_nodes - self.num_cvt
        self.num_given = int(self.num_nodes * GIVEN_SHARE)
        self.num_plain = int(num_triples * PLAIN_SHARE)
        self.num_literals = min(MOST_LITERALS, max(64, int(self.num_nodes * LITERALS_PER_NODE)))
        self.schema = _draw_schema(min(4096, 1 << int(math.log2(self.num_entities / 2))), seed)
        self._step = _coprime_near(0.618 * self.num_nodes, self.num_nodes)
        self._back = pow(self._step, -1, self.num_nodes)

    def rank_of(self, number: Ints) -> Ints:
        """Return the ranks of nodes by number."""
        return number * self._step % self.num_nodes

    def number_of(self, rank: Ints) -> Ints:
        """Return the numbers of nodes by rank."""
        return rank * self._back % self.num_nodes

    def type_of(self, rank: Ints) -> Ints:
        """Return the types of entities."""
        return self.schema.slot_types[rank % len(self.schema.slot_types)]

    def num_starting(self, rank: Ints) -> Ints:
        """Return how many plain triples start at entities."""
        return self._starts(rank + 1, self.num_plain) - self._starts(rank, self.num_plain)

    def first_cvt(self, rank: Ints) -> Ints:
        """Return the first of the CVT nodes (0 .. num_cvt) that entities own; the next entity's is the end."""
        return self._starts(rank, self.num_cvt)

    def owner_of(self, cvt: Ints) -> Ints:
        """Return the entities that own CVT nodes."""
        rank = (self.num_entities * (cvt / self.num_cvt) ** HEAD_SKEW).astype(np.int64)
        rank -= self.first_cvt(rank) > cvt  # rounded to the wrong side
        rank += self.first_cvt(rank + 1) <= cvt
        return rank

    def mediator_of(self, cvt: Ints) -> Ints:
        """Return which of its owner's type's two mediators (0, 1) leads to a CVT node."""
        return (self.hash(cvt, 3) & np.uint64(1)).astype(np.int64)

    def draw_tails(self, of_type: Ints, uniform: Floats) -> Ints:
        """Return entities (ranks) of given types, popular ones more often."""
        schema = self.schema
        count = schema.first_slot[of_type + 1] - schema.first_slot[of_type]
        num_slots = len(schema.slots)
        place = (uniform**TAIL_SKEW * (count * (self.num_entities // num_slots))).astype(np.int64)
        slot = schema.slots[schema.first_slot[of_type] + place % count]
        return place // count * num_slots + slot

    def is_foreign(self, rank: Ints) -> npt.NDArray[np.bool_]:
        """Return which entities have a name in other languages only."""
        found: npt.NDArray[np.bool_] = rank % FOREIGN_EVERY == FOREIGN_EVERY - 1
        return found

    def is_nameless(self, rank: Ints) -> npt.NDArray[np.bool_]:
        """Return which entities have no name at all."""
        found: npt.NDArray[np.bool_] = rank % NAMELESS_EVERY == NAMELESS_EVERY - 1
        return found

    def mids(self, number: Ints) -> pa.Array:
        """Return the MIDs of nodes, in the order of the numbers.

        An m. MID begins with 0 and a g. MID with 11, as the real ones. Entities have shorter ones than CVT nodes.
        """
        given = number < self.num_given
        space = np.where(given, 1 << 40, 1 << 35)
        stride = space // np.where(given, max(1, self.num_given), self.num_nodes - self.num_given)
        place = np.where(given, number, number - self.num_given) * stride
        rank, luck = self.rank_of(number), (self.hash(number, 5) >> np.uint64(20)).astype(np.int64)
        shorter = np.where(given, 0, np.where(rank < self.num_entities, 1 + luck % 2, 0))
        for cut in (1, 2):
            shorter = np.where((shorter >= cut) & (stride < 4 << (5 * cut)), cut - 1, shorter)
        unit = np.left_shift(1, 5 * shorter)
        value = -(-place // unit) + luck // 2 % np.maximum(1, stride // unit - 1)
        length = np.where(given, 10, LONGEST_MID - shorter)
        value = np.where(given, value + (0b0000100001 << 40), value)  # a letter is 5 bits; an m. MID's first is 0
        letters = np.full((len(number), 12), ord("."), np.uint8)
        letters[:, 0] = np.where(given, ord("g"), ord("m"))
        for at in range(10):
            letters[:, 2 + at] = MID_LETTERS[np.right_shift(value, 5 * np.maximum(length - 1 - at, 0)) & 31]
        data = letters[np.arange(12) < 2 + length[:, None]]
        offsets = np.append(0, np.cumsum(2 + length)).astype(np.int32)
        return pa.Array.from_buffers(pa.string(), len(number), [None, pa.py_buffer(offsets), pa.py_buffer(data)])

    def hash(self, number: Ints, stream: int) -> npt.NDArray[np.uint64]:
        """Return 64 bits for each number that look random (splitmix64)."""
        bits = number.astype(np.uint64) + np.uint64((self.seed * 1_000_003 + stream) * 0x9E3779B97F4A7C15 % (1 << 64))
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
        return bits ^ (bits >> np.uint64(31))

    def _starts(self, rank: Ints, total: int) -> Ints:
        return np.ceil(total * (rank / self.num_entities) ** (1 / HEAD_SKEW)).astype(np.int64)


def _draw_schema(num_slots: int, seed: int) -> Schema:
    """Draw types and relations; the larger the graph the more, up to 512 + 256 types and several thousand relations."""
    generator = np.random.default_rng([seed, 11])
    num_types = max(2, num_slots // 8)
    num_cvt = max(2, num_types // 2)
    types = [*type_labels(num_types + num_cvt, generator), TOPIC_TYPE]
    cvt_counts = generator.integers(2, 7, num_cvt) + generator.integers(0, 3, num_cvt)  # entities, then literals
    counts = np.concatenate([np.minimum(40, 2 + generator.geometric(0.15, num_types)), cvt_counts])
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    by_size = zipf(num_types)
    range_ = generator.choice(num_types, first[-1], p=by_size).astype(np.int64)
    range_[generator.random(len(range_)) < LITERAL_SHARE] = -1
    range_[first[num_types:-1]] = 0  # a CVT node's first relation leads back to its owner
    relations: list[str] = []
    for label, count in zip(types, counts.tolist(), strict=False):
        relations += property_labels(label, count, generator)
    mediators = (len(relations) + np.arange(2 * num_types)).reshape(-1, 2)
    relations += [f"{label}.{word}" for label in types[:num_types] for word in ("performance_s", "membership_s")]
    cvt_of = num_types + generator.integers(0, num_cvt, (num_types, 2))
    return Schema(types, relations, first, range_, mediators, cvt_of, *_draw_slots(num_types, num_slots, generator))


def _draw_slots(num_types: int, num_slots: int, generator: np.random.Generator) -> tuple[Ints, Ints, Ints]:
    """Give each type its Zipf share of the slots, one at least."""
    counts = np.maximum(1, (zipf(num_types) * (num_slots - num_types)).astype(np.int64))
    counts[0] += num_slots - counts.sum()
    slots = generator.permutation(num_slots).astype(np.int64)
    first = np.concatenate([[0], np.cumsum(counts)])
    slot_types = np.empty(num_slots, np.int64)
    slot_types[slots] = np.repeat(np.arange(num_types), counts)
    return slot_types, slots, first


def _coprime_near(value: float, modulus: int) -> int:
    step = max(1, int(value))
    while math.gcd(step, modulus) != 1:
        step += 1
    return step
