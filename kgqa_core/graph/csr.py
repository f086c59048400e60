"""The arrays of a graph on disk: the grouped CSR, from an entity to its groups to the entities reached; and strings.

    group_ptr      int64 [N+1]   entity e owns groups group_ptr[e]..group_ptr[e+1]
    group_relation int32 [G]     relation (0..2R-1) of each group, ascending inside an entity
    edge_ptr       int64 [G+1]   group g owns edges edge_ptr[g]..edge_ptr[g+1]
    edge_tail      int32 [2E]    the entity reached, ascending inside a group

Every triple stands in it twice: under its head with relation r, under its tail with relation r + R.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kgqa_core.config_file import home_folder
from kgqa_core.errors import ConfigError

Ints = NDArray[np.integer[Any]]
I8 = NDArray[np.int8]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
U64 = NDArray[np.uint64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
CsrArrays = tuple[Ints, Ints, Ints, Ints]  # as compiled code takes a Csr
Number = TypeVar("Number", bound=np.integer[Any])
F = TypeVar("F", bound=Callable[..., Any])
CHECKED, CHECKED_BLOCKS = 2**20, 16  # values that are looked at together when an array is opened; places in a large one
NUMBA_FILE = ".numba_config.yaml"  # settings that numba would read, and obey, in whatever folder is the current one
SHARED_NAMES = "select count(*) from (select name from entity group by name having count(*) > 1)"  # schemas.ENTITIES
FNV_START, FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a, 64 bits
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)  # the finaliser of splitmix64
LANES = np.array([0x9E3779B97F4A7C15, 0xD1B54A32D192ED03], dtype=np.uint64)  # a start for each of the two sums


def compiled(function: F, **options: Any) -> F:
    """Compile a function with numba when it is first called; the machine code is kept for later processes."""
    made: F = _import_numba().njit(cache=True, nogil=True, **options)(function)
    return made


@cache
def _import_numba() -> Any:
    """Import numba, its settings the environment's alone, its cache, which it unpickles, where only we can write.

    That is NUMBA_CACHE_DIR, else beside the code; where that is read-only, in KGQA_HOME, or for this process alone.
    """
    if Path(NUMBA_FILE).exists():
        raise ConfigError(f"{Path(NUMBA_FILE).absolute()} tells numba what to run. Remove it or work in another folder")
    if not (os.environ.get("NUMBA_CACHE_DIR") or os.access(Path(__file__).parents[1] / "explorer", os.W_OK)):
        folder = home_folder() / "cache" / "numba"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            is_ours = folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 0o022
        except OSError:
            is_ours = False
        if not (is_ours and os.access(folder, os.W_OK)):
            folder = Path(tempfile.mkdtemp(prefix="kgqa-numba-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ["NUMBA_CACHE_DIR"] = str(folder)
    import numba

    numba.core.config._config_fname = os.devnull  # it would look again whenever it compiles
    # Numba runs this function, in Python, for each array that a kernel returns. So a signal that came meanwhile is
    # handled inside, and Ctrl-C became a SystemError. A cache in C lets it be handled after the kernel.
    numba.core.serialize._numba_unpickle = cache(numba.core.serialize._numba_unpickle)
    return numba


class Csr(NamedTuple):
    """The four arrays described above, in memory or memory-mapped."""

    group_ptr: Ints
    group_relation: Ints
    edge_ptr: Ints
    edge_tail: Ints


def build_csr(heads: Ints, relations: Ints, tails: Ints, *, num_entities: int, num_relations: int) -> Csr:
    """Build the CSR of distinct triples that are sorted by (head, relation, tail); three arrays [E]."""
    # The triples come sorted by head, so a stable sort by (tail, relation) leaves the heads ascending in a group.
    order = np.argsort(tails.astype(np.int64) * num_relations + relations, kind="stable")
    owner = np.concatenate([heads, tails[order]], dtype=np.int32)
    relation = np.concatenate([relations, relations[order] + num_relations], dtype=np.int32)
    edge_tail = np.concatenate([tails, heads[order]], dtype=np.int32)
    merged = np.argsort(owner, kind="stable")  # of two ascending halves: quick, and forward edges stand first
    return group_edges(owner[merged], relation[merged], edge_tail[merged], num_entities)


def group_edges(owners: Ints, relations: Ints, tails: Ints, num_entities: int) -> Csr:
    """Return the CSR of edges in both directions that are sorted by (owner, relation, tail); three arrays [2E]."""
    starts_group = np.append(True, (owners[1:] != owners[:-1]) | (relations[1:] != relations[:-1]))
    starts = np.flatnonzero(starts_group[: len(owners)])  # none where there is no triple
    return Csr(
        group_ptr=read_only(np.append(0, np.cumsum(np.bincount(owners[starts], minlength=num_entities)))),
        group_relation=read_only(relations[starts]),
        edge_ptr=read_only(np.append(starts, len(owners)).astype(np.int64)),
        edge_tail=read_only(tails),
    )


def counts_before(counts: Ints) -> Ints:
    """Return the sum of all counts before each."""
    return np.cumsum(counts) - counts


def write_csr(csr: Csr, folder: Path) -> None:
    """Write each array as ``<name>.npy``."""
    for name, array in csr._asdict().items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)


def join_csrs(folders: Sequence[Path], first_tails: Ints, out_dir: Path) -> None:
    """Write what ``write_csr`` wrote of entities that follow one another as one CSR, holding one array at a time.

    ``first_tails`` [number of folders]: the entity that each counts its tails from.
    """
    no_shift = np.zeros(len(folders), np.int64)
    num_groups, num_edges = (count_values(folders, name) for name in ("group_relation", "edge_tail"))
    join_arrays(folders, "group_ptr", counts_before(num_groups), out_dir)
    join_arrays(folders, "group_relation", no_shift, out_dir)
    join_arrays(folders, "edge_ptr", counts_before(num_edges), out_dir)
    join_arrays(folders, "edge_tail", first_tails, out_dir)


def join_arrays(folders: Sequence[Path], name: str, shifts: Ints, out_dir: Path) -> None:
    """Write an array of each folder behind that of the one before, its values shifted; pointers begin with one 0."""
    skip = int(name.endswith("_ptr"))
    dtype = np.dtype(np.int64 if skip else np.int32)
    with (out_dir / f"{name}.npy").open("wb") as stream:
        write_array_header(stream, dtype, skip + int((count_values(folders, name) - skip).sum()))
        stream.write(np.zeros(skip, dtype).data)
        for folder, shift in zip(folders, shifts, strict=True):
            stream.write((open_array(folder / f"{name}.npy")[skip:] + dtype.type(shift)).data)


def count_values(folders: Sequence[Path], name: str) -> I64:
    """Return how many values an array has in each folder."""
    return np.array([len(open_array(folder / f"{name}.npy")) for folder in folders], np.int64)


def open_csr(folder: Path, num_entities: int, num_relations: int, num_triples: int) -> Csr:
    """Memory-map what ``write_csr`` wrote; OSError or ValueError, with the file, where one is missing or damaged.

    All values of a small array are looked at, of a large one those of some blocks: compiled code walks the arrays
    without looking where they lead.
    """
    csr = Csr(*(open_array(folder / f"{name}.npy") for name in Csr._fields))
    num_groups, num_edges = len(csr.group_relation), 2 * num_triples
    sizes = (num_entities + 1, num_groups, num_groups + 1, num_edges)
    ends = (num_groups + 1, 2 * num_relations, num_edges + 1, num_entities)  # one past the largest legal value
    for name, array, size, end in zip(Csr._fields, csr, sizes, ends, strict=True):
        is_pointer = name.endswith("_ptr")
        sound = array.shape == (size,) and array.dtype == (np.int64 if is_pointer else np.int32)
        if sound and is_pointer:
            sound = array[0] == 0 and array[-1] == end - 1
        step = max(CHECKED, len(array) // CHECKED_BLOCKS)
        for start in range(0, len(array) if sound else 0, step):
            block = array[start : start + CHECKED + 1]
            sound &= bool(block.min() >= 0 and block.max() < end and not (is_pointer and (np.diff(block) < 0).any()))
        if not sound:
            raise ValueError(f"{name}.npy is no index of this graph: a value, or its size, is out of range")
    return csr


def open_array(path: Path) -> NDArray[Any]:
    """Memory-map one ``.npy`` file, read-only, as a plain array (np.memmap's slices are slow to make)."""
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def write_array_header(stream: BinaryIO, dtype: np.dtype[Any], length: int) -> None:
    """Begin a ``.npy`` file of one dimension whose values are written after it, piece by piece."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(stream, header)


def read_only(array: NDArray[Number]) -> NDArray[Number]:
    """Return a view that cannot be written to, as arrays from disk are: code compiled for those serves it too."""
    view = array.view()
    view.flags.writeable = False
    return view


def expand_ranges(starts: Ints, ends: Ints) -> NDArray[np.int64]:
    """Return starts[0]..ends[0]-1, starts[1]..ends[1]-1, ... as one array of indices."""
    counts = ends - starts
    return np.repeat(starts - counts_before(counts), counts) + np.arange(int(counts.sum()))


def sorted_distinct(values: NDArray[Number]) -> NDArray[Number]:
    """Return the distinct values, ascending. Sort and mask: np.unique is far slower on large arrays."""
    ordered = np.sort(values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def shared_sorted(one: NDArray[Number], other: NDArray[Number]) -> NDArray[Number]:
    """Return what two ascending arrays of distinct values share; the shorter is looked up in the longer."""
    few, many = (one, other) if len(one) <= len(other) else (other, one)
    if not len(many):
        return few
    places = np.minimum(np.searchsorted(many, few), len(many) - 1)
    shared: NDArray[Number] = few[many[places] == few]
    return shared


# ------ Strings, and looking them up by binary search: one look-up reads a few dozen bytes, never all names.


def open_strings(folder: Path, stem: str) -> pa.LargeStringArray:
    """Memory-map what ``write_string_indexes`` wrote."""
    offsets, data = (open_array(folder / f"{stem}_{what}.npy") for what in ("offsets", "data"))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, buffers)


def open_bytes(folder: Path, stem: str) -> Callable[[int], bytes]:
    """Return what gives the UTF-8 of one of ``open_strings``: many times a look-up, so no object of Arrow is made."""
    data, offsets = string_buffers(open_strings(folder, stem))
    return lambda row: data[offsets[row] : offsets[row + 1]].tobytes()


class SortedIndex:
    """Ids in byte order of ``key``: found by binary search."""

    def __init__(self, key: Callable[[int], bytes], ids: Sequence[int] | Ints) -> None:
        """Keep ``key`` (row -> its key, ascending) and the id of each row."""
        self.key, self.ids = key, ids
        # The first row whose key is not below what is wanted; kept, as texts share most of their words.
        self.first = lru_cache(maxsize=2**16)(partial(bisect_left, range(len(ids)), key=key))

    def ids_of(self, text: str) -> tuple[int, ...]:
        """Return the ids, ascending, whose key is the UTF-8 of ``text``; a lone surrogate (of a shell) has none."""
        wanted = text.encode("utf-8", "surrogatepass")
        start = end = self.first(wanted)
        while end < len(self.ids) and self.key(end) == wanted:
            end += 1
        return tuple(sorted(map(int, self.ids[start:end])))

    def starts_with(self, row: int, prefix: bytes) -> bool:
        """Does the key of ``row`` (one past the last included) start with ``prefix``?"""
        return row < len(self.ids) and self.key(row).startswith(prefix)


def write_string_indexes(entities: Path, folder: Path) -> None:
    """Write what lookups by label, name and case-folded name need, from a Parquet file of schemas.ENTITIES.

    These are ``{label,name}_{data,offsets}.npy``, and the rows in byte order of names and of case-folded names, equal
    ones in order of id.
    """
    for stem in ("label", "name", "folded"):
        _write_strings(entities, folder, stem)
    for stem in ("name", "folded"):
        order = pc.array_sort_indices(open_strings(folder, stem))  # stable
        np.save(folder / f"{stem}_order.npy", order.to_numpy().astype(np.int32), allow_pickle=False)
    for what in ("data", "offsets"):
        (folder / f"folded_{what}.npy").unlink()


def _write_strings(entities: Path, folder: Path, stem: str) -> None:
    """Write a column as ``<stem>_data.npy`` and ``<stem>_offsets.npy``, a batch of rows at a time."""
    ends = [np.zeros(1, np.int64)]
    with pq.ParquetFile(entities) as file, (folder / f"{stem}_data.npy").open("wb") as stream:
        write_array_header(stream, np.dtype(np.uint8), 0)
        for batch in file.iter_batches(columns=["label" if stem == "label" else "name"]):
            strings = fold(batch.column(0)) if stem == "folded" else batch.column(0).cast(pa.large_string())
            data, offsets = string_buffers(strings)
            stream.write(data.data)
            ends.append(offsets[1:] + ends[-1][-1])
        stream.seek(0)  # numpy's headers are of one length, whatever they say of the array's
        write_array_header(stream, np.dtype(np.uint8), int(ends[-1][-1]))
    np.save(folder / f"{stem}_offsets.npy", np.concatenate(ends), allow_pickle=False)


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


def hash_strings(strings: pa.LargeStringArray, which: Ints, known: U64 | None = None) -> U64:
    """Return a hash of the UTF-8 of each of the strings ``which`` [n]: FNV-1a, finished as in splitmix64.

    ``known``: what was hashed before, by string, 0 where it was not; of many strings only pages in use take memory.
    """
    known = np.zeros(len(strings), dtype=np.uint64) if known is None else known
    new = sorted_distinct(which[known[which] == 0])
    data, offsets = string_buffers(strings)
    lengths = offsets[new + 1] - offsets[new]
    longest_first = np.argsort(-lengths, kind="stable")
    new, lengths = new[longest_first], lengths[longest_first]
    starts, hashes = offsets[new], np.full(len(new), FNV_START)
    longer = np.searchsorted(-lengths, -np.arange(lengths.max(initial=0)))  # how many strings have a byte there
    for at, count in enumerate(longer.tolist()):
        hashes[:count] = (hashes[:count] ^ data[starts[:count] + at]) * FNV_PRIME
    known[new] = mix_bits(hashes)
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
        np.add.at(sums[lane], owner, mix_bits(mix_bits(mix_bits(heads + start) + relations) + tails))
    return [f"{first:016x}{second:016x}" for first, second in sums.T.tolist()]


def mix_bits(bits: U64) -> U64:
    """Return each number [n] as the finaliser of splitmix64 mixes it (Steele et al. 2014)."""
    bits = (bits ^ (bits >> np.uint64(30))) * MIX_1
    bits = (bits ^ (bits >> np.uint64(27))) * MIX_2
    return bits ^ (bits >> np.uint64(31))
