"""What shapes a closure, how it works, and what it found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kgqa_core.errors import ConfigError

MapTasks = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
MAX_HOPS = 30  # a hop is written into five bits of an edge
NEVER = 127  # the hop of a node that no hop leaves


@dataclass(frozen=True, slots=True)
class ClosureOptions:
    """What is in the graph and how it is cut into files: all of it changes bytes."""

    hops: int | None = 2  # None: every triple of the dumps, whatever the topics
    cvt_is_hop: bool = True  # False: a CVT (a MID without a name in any language) is left within the hop it is reached
    hub_cap: int | None = None  # at most so many triples of a (head, relation) or (relation, tail) group; None: all
    shard_rows: int = 4 * 2**20  # triples per shard, about; a head's triples are never parted

    def __post_init__(self) -> None:
        if self.hops is not None and not 1 <= self.hops <= MAX_HOPS:
            raise ConfigError(f"hops: {self.hops} is not between 1 and {MAX_HOPS}; for the whole dump leave it empty")
        if self.hub_cap is not None and self.hops is None:
            raise ConfigError(
                f"hub_cap: {self.hub_cap} needs hops: without them nothing is walked, all triples are kept"
            )
        if self.hub_cap is not None and self.hub_cap < 1:
            raise ConfigError(f"hub_cap: {self.hub_cap} would keep no triple; at least 1, or empty for no cap")
        if self.shard_rows < 1:
            raise ConfigError(f"shard_rows: {self.shard_rows} is not a number of triples above 0")


@dataclass(frozen=True, slots=True)
class ClosureLimits:
    """How a closure works. None of it changes a byte of the result."""

    map_tasks: MapTasks = map  # how shard-sized tasks are mapped; ``fan_out.fan_out`` gives one over Dask
    memory_bytes: int = 2 * 2**30  # that one process should stay below; sets how many rows it holds at a time
    temp_directory: Path | None = None  # for runs on their way to a bucket; None: inside the output folder

    @property
    def batch_rows(self) -> int:
        """Triples that a task holds at a time: with its sorted copies about 150 bytes each."""
        return max(1, min(2**22, self.memory_bytes // 2**10))


@dataclass(frozen=True, slots=True)
class HopCount:
    """What one hop added."""

    hop: int  # 0: the topics
    num_entities: int  # first reached by this hop
    num_triples: int  # distinct, first walked by this hop
    num_passes: int  # over the dump: one, and one more for each CVT in a row


@dataclass(frozen=True, slots=True)
class ClosureReport:
    """What a closure found. All but the counts per relation is written to closure.json."""

    num_entities: int
    num_relations: int
    num_triples: int  # distinct
    num_duplicates: int  # repeats dropped, within a dump file and across; under a cap, for each end that was left
    num_topics: int  # distinct topics asked for
    num_topics_missing: int  # in no triple of the dumps; listed in topics.parquet
    num_hubs: int  # groups that were capped; listed in hubs.parquet
    num_named: int  # entities with a name in the wanted language
    num_several_names: int  # of those, entities with more than one: the first in byte order is shown
    num_shared_names: int  # names that several entities have
    num_aliases: int  # rows of aliases.parquet
    num_types: int  # rows of types.parquet
    num_collisions: int  # labels dropped because another label has the same code; listed in rejects.parquet
    kinds: dict[str, int] = field(default_factory=dict)  # ENTITIES.kind -> entities
    hops: tuple[HopCount, ...] = ()  # none where every triple is kept
    triples_per_relation: dict[str, int] = field(default_factory=dict)
