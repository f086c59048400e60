"""Which nodes the topics reach in k hops, by semi-joins of the frontier with the coded parts, both directions.

A pass reads head and tail of every triple and looks both up in the set of the frontier's codes: about 0.05 CPU s per
million triples, of which decoding Parquet is half, and no pass can do without it. Its result is one
sorted file of distinct codes per part; the nodes that are new become the frontier of the next hop. Where CVTs do not
count, the CVTs among them are walked at once, in passes of their own, until no new CVT is reached: a pass more for each
CVT in a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kgqa_core.graph.closure.files import save_array
from kgqa_core.graph.closure.hubs import CappedWalk
from kgqa_core.graph.closure.options import NEVER, ClosureLimits, ClosureOptions
from kgqa_core.graph.closure.parts import Part, Parts, batches, column
from kgqa_core.graph.closure.tables import I8, I64, GrowingSet, isin, other_ends, set_of
from kgqa_core.graph.csr import open_array, sorted_distinct


@dataclass(frozen=True, slots=True)
class JoinTask:
    """A file whose rows meet a set of codes."""

    path: Path
    table: Path  # .npy: the set
    out: Path  # .npy: distinct codes, ascending
    batch_rows: int


@dataclass(frozen=True, slots=True)
class Reached:
    """The nodes of a closure; three arrays [N], in no order that means anything."""

    codes: I64
    level: I8  # the hop that reached the node first; 0 for topics
    leave: I8  # the hop that walks the node's triples, NEVER where none does
    passes: tuple[int, ...]  # over the dump, per hop from 1


def reach_part(task: JoinTask) -> Path:
    """Write the distinct nodes that the triples of one part lead to from the frontier, and that are not in it."""
    table = open_array(task.table)
    found = [
        sorted_distinct(other_ends(table, column(batch, "head"), column(batch, "tail")))
        for batch in batches(task.path, ["head", "tail"], task.batch_rows)
    ]
    return _write_distinct(found, task.out)


def named_part(task: JoinTask) -> Path:
    """Write which codes of the set have a row in one part of names."""
    table = open_array(task.table)
    found = []
    for batch in batches(task.path, ["entity"], task.batch_rows):
        codes = column(batch, "entity")
        found.append(sorted_distinct(codes[isin(table, codes)]))
    return _write_distinct(found, task.out)


def nodes_of_part(task: JoinTask) -> Path:
    """Write the distinct nodes of one part (the set is not used)."""
    found = [
        sorted_distinct(np.concatenate([column(batch, "head"), column(batch, "tail")]))
        for batch in batches(task.path, ["head", "tail"], task.batch_rows)
    ]
    return _write_distinct(found, task.out)


def present_part(task: JoinTask) -> Path:
    """Write which codes of the set are an end of a triple of one part."""
    table = open_array(task.table)
    found = []
    for batch in batches(task.path, ["head", "tail"], task.batch_rows):
        for name in ("head", "tail"):
            codes = column(batch, name)
            found.append(sorted_distinct(codes[isin(table, codes)]))
    return _write_distinct(found, task.out)


def _write_distinct(found: list[I64], out: Path) -> Path:
    codes = sorted_distinct(np.concatenate([*found, np.empty(0, np.int64)]))
    save_array(out, codes)
    return out


class Walker:
    """Passes over the parts of some dumps."""

    def __init__(self, parts: Parts, work: Path, options: ClosureOptions, limits: ClosureLimits) -> None:
        self.parts, self.work, self.options, self.limits = parts, work, options, limits
        self.triple_paths = [part.path for part in parts.triples]
        self._passes = 0
        self.capped = None if options.hub_cap is None else CappedWalk(parts, work, options.hub_cap, limits)

    def join(self, function: Callable[[JoinTask], Path], paths: Sequence[Path], codes: I64) -> Iterator[I64]:
        """Yield what each file's task found with the set of ``codes``."""
        self._passes += 1
        table = self.work / f"set-{self._passes:03d}.npy"
        save_array(table, set_of(codes))
        tasks = [
            JoinTask(path, table, self.work / f"found-{self._passes:03d}-{order:05d}.npy", self.limits.batch_rows)
            for order, path in enumerate(paths)
        ]
        for out in self.limits.map_tasks(function, tasks):
            yield np.load(out, allow_pickle=False)
            out.unlink()
        table.unlink()

    def kept_parts(self) -> tuple[Part, ...]:
        """Return the parts that hold the closure's triples, among others; under a cap they hold nothing else."""
        return self.parts.triples if self.capped is None else tuple(self.capped.kept)

    def present(self, codes: I64) -> I64:
        """Return those of ``codes`` that are an end of a triple, ascending."""
        return _union(self.join(present_part, self.triple_paths, codes))

    def everything(self) -> I64:
        """Return every node of every triple, ascending."""
        tasks = [
            JoinTask(path, self.work, self.work / f"nodes-{number:05d}.npy", self.limits.batch_rows)
            for number, path in enumerate(self.triple_paths)
        ]
        return merge_distinct(list(self.limits.map_tasks(nodes_of_part, tasks)), self.limits.batch_rows)

    def cvts(self, codes: I64) -> I64:
        """Return the CVTs among ``codes``: MIDs without a row in the names, whatever its language."""
        mids = np.sort(codes[codes > 0])
        named = GrowingSet()
        for found in self.join(named_part, self.parts.names, mids) if len(mids) else ():
            named.add(found)
        return mids[~isin(named.table, mids)]

    def reach(self, frontier: I64, hop: int) -> Iterator[I64]:
        """Yield nodes that the triples of the frontier lead to, as often as files of them do."""
        if self.capped is not None:
            return self.capped.reach(frontier, hop)
        return self.join(reach_part, self.triple_paths, frontier)

    def walk(self, topics: I64) -> Reached:
        """Return what the topics reach. Topics that no triple has must not be among them."""
        assert self.options.hops is not None
        known = GrowingSet()
        known.add(topics)
        frontier, found, passes = topics, [], []
        for hop in range(1, self.options.hops + 1):
            found.append((frontier, hop - 1, hop))
            waiting = [topics[:0]]  # reached, and left by the next hop
            leaving, num_passes = frontier, 0
            while len(leaving):
                new = np.concatenate([topics[:0], *(known.add(codes) for codes in self.reach(leaving, hop))])
                num_passes += 1
                leaving = topics[:0] if self.options.cvt_is_hop else self.cvts(new)
                waiting.append(new[~isin(set_of(leaving), new)])
                found.append((leaving, hop, hop))
            frontier = np.concatenate(waiting)
            passes.append(num_passes)
        found.append((frontier, self.options.hops, NEVER))
        sizes = [len(codes) for codes, _, _ in found]
        return Reached(
            np.concatenate([codes for codes, _, _ in found]),
            np.repeat(np.array([level for _, level, _ in found], np.int8), sizes),
            np.repeat(np.array([leave for _, _, leave in found], np.int8), sizes),
            tuple(passes),
        )


def merge_distinct(paths: Sequence[Path], most: int) -> I64:
    """Return the union of ``.npy`` files of ascending codes, ascending; about ``most`` codes are sorted at a time.

    The borders between the codes that are sorted together are codes of the files, evenly spaced.
    """
    files = [open_array(path) for path in paths]
    step = max(1, most // (4 * max(len(files), 1)))
    borders = np.sort(np.concatenate([np.empty(0, np.int64), *(codes[::step] for codes in files)]))
    borders = sorted_distinct(borders[:: max(1, most // (2 * step))])
    merged = []
    starts = [0] * len(files)
    for border in [*borders[1:].tolist(), None]:
        ends = [len(codes) if border is None else int(np.searchsorted(codes, border)) for codes in files]
        pieces = [codes[start:end] for codes, start, end in zip(files, starts, ends, strict=True)]
        merged.append(sorted_distinct(np.concatenate(pieces)))
        starts = ends
    return np.concatenate(merged)


def _union(found: Iterator[I64]) -> I64:
    whole = GrowingSet()
    for codes in found:
        whole.add(codes)
    return np.sort(whole.table[whole.table != 0])
