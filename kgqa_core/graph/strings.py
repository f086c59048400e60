"""The sorted indexes by which labels and names are found in their files, and digests of triples by label."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kgqa_core.graph.csr import U64, Ints, StringTable, open_strings, read_only, sorted_distinct, write_array_header

SHARED_NAMES = "select count(*) from (select name from entity group by name having count(*) > 1)"  # schemas.ENTITIES
FNV_START, FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a, 64 bits
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)  # the finaliser of splitmix64
LANES = np.array([0x9E3779B97F4A7C15, 0xD1B54A32D192ED03], dtype=np.uint64)  # a start for each of the two sums


def write_string_indexes(entities: Path, folder: Path) -> None:
    """Write what lookups by label, name and case-folded name need, from a Parquet file of schemas.ENTITIES.

    These are ``{label,name}_{data,offsets}.npy``, and the rows in byte order of names and of case-folded names, equal
    ones in order of id.
    """
    for stem in ("label", "name", "folded"):
        _write_strings(entities, folder, stem)
    for stem in ("name", "folded"):
        _write_order(folder, stem)
    for what in ("data", "offsets"):
        (folder / f"folded_{what}.npy").unlink()


def _write_strings(entities: Path, folder: Path, stem: str) -> None:
    """Write a column as ``<stem>_data.npy`` and ``<stem>_offsets.npy``, a row group at a time."""

    def read() -> Iterator[pa.LargeStringArray]:
        column = "label" if stem == "label" else "name"
        with pq.ParquetFile(entities) as file:
            for group in range(file.num_row_groups):
                for chunk in file.read_row_group(group, columns=[column])[column].chunks:
                    yield (fold(chunk) if stem == "folded" else chunk).cast(pa.large_string())

    num_bytes = sum(pc.sum(pc.binary_length(strings)).as_py() or 0 for strings in read())
    ends = [np.zeros(1, np.int64)]
    with (folder / f"{stem}_data.npy").open("wb") as stream:
        write_array_header(stream, np.dtype(np.uint8), num_bytes)
        for strings in read():
            data, offsets = string_buffers(strings)
            stream.write(data.data)
            ends.append(offsets[1:] + ends[-1][-1])
    np.save(folder / f"{stem}_offsets.npy", np.concatenate(ends), allow_pickle=False)


def _write_order(folder: Path, stem: str) -> None:
    """Write the rows in byte order of what ``_write_strings`` wrote."""
    table = open_strings(folder, stem)
    buffers = [None, pa.py_buffer(table.offsets), pa.py_buffer(table.data)]
    strings = pa.Array.from_buffers(pa.large_string(), len(table), buffers)
    order = pc.array_sort_indices(strings).to_numpy().astype(np.int32)  # stable
    np.save(folder / f"{stem}_order.npy", order, allow_pickle=False)


def string_buffers(strings: pa.LargeStringArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the bytes (uint8) and the offsets (int64 [n+1], from 0) of an array without nulls, read-only."""
    _, where, values = strings.buffers()
    if not len(strings) or values is None:
        return read_only(np.zeros(0, np.uint8)), read_only(np.zeros(len(strings) + 1, np.int64))
    offsets = np.frombuffer(where, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    data = np.frombuffer(values, np.uint8)[offsets[0] : offsets[-1]]
    return read_only(data), read_only(offsets - offsets[0] if offsets[0] else offsets)


def fold(names: pa.Array) -> pa.Array:
    """Return ``str.casefold`` of each name, as large strings; only names that are not ASCII pass through Python."""
    folded = pc.ascii_lower(names.cast(pa.large_string()))
    other = pc.invert(pc.string_is_ascii(names))
    mended = pa.array([name.casefold() for name in names.filter(other).to_pylist()], pa.large_string())
    return pc.replace_with_mask(folded, other, mended)


def hash_strings(strings: StringTable, which: Ints, known: U64 | None = None) -> U64:
    """Return a hash of the UTF-8 of each of the strings ``which`` [n]: FNV-1a, finished as in splitmix64.

    ``known``: what was hashed before, by string, 0 where it was not; of many strings only pages in use take memory.
    """
    known = np.zeros(len(strings), dtype=np.uint64) if known is None else known
    new = sorted_distinct(which[known[which] == 0])
    lengths = strings.offsets[new + 1] - strings.offsets[new]
    longest_first = np.argsort(-lengths, kind="stable")
    new, lengths = new[longest_first], lengths[longest_first]
    starts, hashes = strings.offsets[new], np.full(len(new), FNV_START)
    longer = np.searchsorted(-lengths, -np.arange(lengths.max(initial=0)))  # how many strings have a byte there
    for at, count in enumerate(longer.tolist()):
        hashes[:count] = (hashes[:count] ^ strings.data[starts[:count] + at]) * FNV_PRIME
    known[new] = _mix(hashes)
    return known[which]


def digest_triples(heads: U64, relations: U64, tails: U64, owner: Ints, num_owners: int) -> list[str]:
    """Return a digest of each owner's triples, 32 hexadecimal digits: the same whatever their ids and their order.

    Every triple becomes two numbers, mixed from the hashes of its three labels; the sums of them, modulo 2^64, are the
    digest. It tells builds apart; it is no protection against somebody who wants two sets to agree.

    ``heads``, ``relations``, ``tails``: [E] label hashes (``hash_strings``); of every owner no triple twice. ``owner``:
    [E] 0..num_owners-1; of one without a triple the digest is 0.
    """
    sums = np.zeros((2, num_owners), dtype=np.uint64)
    for lane, start in enumerate(LANES):
        np.add.at(sums[lane], owner, _mix(_mix(_mix(heads + start) + relations) + tails))
    return [f"{first:016x}{second:016x}" for first, second in sums.T.tolist()]


def _mix(bits: U64) -> U64:
    bits = (bits ^ (bits >> np.uint64(30))) * MIX_1
    bits = (bits ^ (bits >> np.uint64(27))) * MIX_2
    return bits ^ (bits >> np.uint64(31))
