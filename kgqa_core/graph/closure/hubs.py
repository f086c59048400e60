"""Walking under a cap: of each (head, relation) and (relation, tail) group of a node that is left, the lowest codes.

A group's distinct triples are known only once all parts are read. So a pass collects the edges of the frontier in runs
(as ``edges.py`` does, but with codes, since there are no ids yet), sorts them bucket by bucket, cuts the groups and
writes what is kept as coded parts of its own, which take the place of the dump's from there on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from numba import njit

from kgqa_core import schemas
from kgqa_core.artifacts import written_whole
from kgqa_core.graph.closure.edges import FINE, HOP_BITS, OTHER_BITS, RELATION_SHIFT, fine_width
from kgqa_core.graph.closure.files import save_array
from kgqa_core.graph.closure.options import ClosureLimits
from kgqa_core.graph.closure.parts import Part, Parts, batches, column, relations_of
from kgqa_core.graph.closure.sorting import sort_by_owner
from kgqa_core.graph.closure.tables import I32, I64, number_table, numbers_of
from kgqa_core.graph.csr import open_array, sorted_distinct

KEPT = pa.schema([("head", pa.int64()), ("relation", pa.int32()), ("tail", pa.int64()), ("hop", pa.int8())])
Hubs = npt.NDArray[np.int64]  # [groups, 5]: code, relation (backward + R), hop, degree, kept


@dataclass(frozen=True, slots=True)
class CollectTask:
    """One part, and the frontier: ``<stem>-codes.npy`` ascending, ``<stem>-numbers.npy`` their table."""

    part: Part
    frontier: Path
    out: Path  # stem of the runs
    num_relations: int
    batch_rows: int


@dataclass(frozen=True, slots=True)
class CapTask:
    """One range of the frontier."""

    low: int  # first number
    high: int
    fine_low: int
    fine_high: int
    runs: tuple[Path, ...]
    frontier: Path
    out: Path  # stem: -kept.parquet, -reached.npy, -hubs.npy
    num_relations: int
    cap: int
    hop: int


def collect_edges(task: CollectTask) -> list[Path]:
    """Write the edges of the frontier in one part, in runs sorted by range of owners; return the runs' stems."""
    codes, table = (open_array(Path(f"{task.frontier}-{name}.npy")) for name in ("codes", "numbers"))
    relation_numbers, width, runs = open_array(task.part.relations), fine_width(len(codes)), []
    for number, batch in enumerate(batches(task.part.path, ["head", "relation", "tail"], task.batch_rows)):
        heads, tails = column(batch, "head"), column(batch, "tail")
        relations = relations_of(task.part, batch, relation_numbers)
        forward, backward = numbers_of(table, codes, heads), numbers_of(table, codes, tails)
        out, back = forward >= 0, backward >= 0
        owner = np.concatenate([forward[out], backward[back]])
        relation = np.concatenate([relations[out], relations[back] + np.int32(task.num_relations)])
        other = np.concatenate([tails[out], heads[back]])
        if not len(owner):
            continue
        fine = (owner // width).astype(np.uint16)
        order = np.argsort(fine, kind="stable")  # of 16 bits: a radix sort
        stem = Path(f"{task.out}-{number:04d}")
        arrays = {"owner": owner[order], "relation": relation[order], "other": other[order]}
        arrays["counts"] = np.bincount(fine, minlength=FINE)
        for name, array in arrays.items():
            save_array(Path(f"{stem}-{name}.npy"), array)
        runs.append(stem)
    return runs


def cap_groups(task: CapTask) -> int:
    """Cut the groups of one range of the frontier; write what is kept; return how many repeats were dropped."""
    owners, relations, others = (_slice(task, name) for name in ("owner", "relation", "other"))
    distinct = sorted_distinct(others)
    ranks = np.searchsorted(distinct, others)
    keys = relations.astype(np.int64) << RELATION_SHIFT | ranks << HOP_BITS
    start, keys = sort_by_owner(owners, keys, task.low, task.high)
    owner, key, hubs, num_distinct = cut_groups(start, keys, task.low, task.cap)
    codes = open_array(Path(f"{task.frontier}-codes.npy"))
    here, there = codes[owner], distinct[key >> HOP_BITS & (1 << OTHER_BITS) - 1]
    relation = (key >> RELATION_SHIFT).astype(np.int32)
    forward = relation < task.num_relations
    columns = [
        np.where(forward, here, there),
        np.where(forward, relation, relation - np.int32(task.num_relations)),
        np.where(forward, there, here),
        np.full(len(here), task.hop, np.int8),
    ]
    with written_whole(Path(f"{task.out}-kept.parquet")) as out:
        pq.write_table(pa.table(columns, schema=KEPT), out, compression=None, use_dictionary=False)
    save_array(Path(f"{task.out}-reached.npy"), sorted_distinct(there))
    rows = np.stack([codes[hubs[:, 0]], hubs[:, 1], np.full(len(hubs), task.hop), hubs[:, 2], hubs[:, 3]], axis=1)
    save_array(Path(f"{task.out}-hubs.npy"), rows)
    return len(keys) - int(num_distinct)


def _slice(task: CapTask, name: str) -> npt.NDArray[Any]:
    found = []
    for run in task.runs:
        ends = np.append(0, np.cumsum(open_array(Path(f"{run}-counts.npy"))))
        found.append(open_array(Path(f"{run}-{name}.npy"))[ends[task.fine_low] : ends[task.fine_high]])
    return np.concatenate(found)


@njit(cache=True, nogil=True)
def cut_groups(start: I64, keys: I64, low: int, cap: int) -> tuple[I64, I64, I64, int]:
    """Keep the first ``cap`` distinct keys of each (owner, relation).

    Returns:
        owner and key of each kept edge; owner, relation, degree and kept edges of each group that was cut; and how many
        edges were distinct.
    """
    owner, kept = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
    hubs = np.empty((len(keys) // (cap + 1), 4), np.int64)
    num_kept = num_hubs = num_distinct = 0
    for at_owner in range(len(start) - 1):
        at, end = start[at_owner], start[at_owner + 1]
        while at < end:
            relation, degree, last = keys[at] >> RELATION_SHIFT, 0, np.int64(-1)
            while at < end and keys[at] >> RELATION_SHIFT == relation:
                if keys[at] != last:
                    last = keys[at]
                    degree += 1
                    if degree <= cap:
                        owner[num_kept], kept[num_kept] = low + at_owner, last
                        num_kept += 1
                at += 1
            num_distinct += degree
            if degree > cap:
                hubs[num_hubs] = low + at_owner, relation, degree, cap
                num_hubs += 1
    return owner[:num_kept].copy(), kept[:num_kept].copy(), hubs[:num_hubs].copy(), num_distinct


class CappedWalk:
    """Passes under a cap, and what they kept."""

    def __init__(self, parts: Parts, work: Path, cap: int, limits: ClosureLimits) -> None:
        self.parts, self.work, self.cap, self.limits = parts, work, cap, limits
        self.kept: list[Part] = []
        self.hubs: list[Hubs] = []
        self.num_repeats = 0
        self._identity = work / "relations-kept.npy"
        save_array(self._identity, np.arange(len(parts.relations), dtype=np.int32))
        self._passes = 0

    def reach(self, frontier: I64, hop: int) -> Iterator[I64]:
        """Yield, range by range of the frontier, the nodes that its kept triples lead to."""
        self._passes += 1
        stem = self.work / f"capped-{self._passes:03d}"
        codes = np.sort(frontier)
        save_array(Path(f"{stem}-codes.npy"), codes)
        save_array(Path(f"{stem}-numbers.npy"), number_table(codes))
        relations, rows = len(self.parts.relations), self.limits.batch_rows
        collected = [
            CollectTask(part, stem, Path(f"{stem}-{number:05d}"), relations, rows)
            for number, part in enumerate(self.parts.triples)
        ]
        runs = tuple(run for found in self.limits.map_tasks(collect_edges, collected) for run in found)
        tasks = [
            CapTask(*ends, runs, stem, Path(f"{stem}-range-{number:05d}"), relations, self.cap, hop)
            for number, ends in enumerate(_ranges(runs, len(codes), 2 * rows))
        ]
        for task, repeats in zip(tasks, self.limits.map_tasks(cap_groups, tasks), strict=True):
            self.num_repeats += repeats
            self.kept.append(Part(Path(f"{task.out}-kept.parquet"), self._identity, hop=True))
            self.hubs.append(np.load(f"{task.out}-hubs.npy", allow_pickle=False))
            yield np.load(f"{task.out}-reached.npy", allow_pickle=False)
        for run in runs:
            for name in ("owner", "relation", "other", "counts"):
                Path(f"{run}-{name}.npy").unlink()


def _ranges(runs: Sequence[Path], num_codes: int, most: int) -> list[tuple[int, int, int, int]]:
    """Cut the frontier where the edges add up to ``most``; nothing that is kept depends on where."""
    counts = np.zeros(FINE, np.int64)
    for run in runs:
        counts += np.load(f"{run}-counts.npy", allow_pickle=False)
    width = fine_width(num_codes)
    ranges, low = [], 0
    while low < -(-num_codes // width):
        high = low + 1
        while high < -(-num_codes // width) and counts[low : high + 1].sum() <= most:
            high += 1
        if counts[low:high].any():
            ranges.append((low * width, min(high * width, num_codes), low, high))
        low = high
    return ranges


def write_hubs(hubs: Sequence[Hubs], labels: pa.Array, ids: I32, relations: Sequence[str], out: Path) -> None:
    """Write schemas.HUBS in order of entities, relations and directions.

    Args:
        hubs: of ``CappedWalk``.
        labels: of the rows of all hubs.
        ids: entity ids of the same.
        relations: labels of all relations.
        out: the file.
    """
    rows = np.concatenate([*hubs, np.empty((0, 5), np.int64)])
    relation, backward = rows[:, 1] % len(relations), rows[:, 1] >= len(relations)
    order = np.lexsort((backward, relation, ids))
    columns = [
        labels.cast(pa.string()).take(pa.array(order)),
        pa.array([relations[number] for number in relation[order]], pa.string()),
        pa.array(np.where(backward[order], "backward", "forward").tolist(), pa.string()),
        rows[order, 2].astype(np.int32),
        rows[order, 3],
        rows[order, 4],
    ]
    pq.write_table(pa.table(columns, schema=schemas.HUBS), out, compression="zstd")
