"""What the entities are called: names, aliases and types by semi-joins, merged by ranges of entity ids."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kgqa_core import schemas
from kgqa_core.graph.closure.files import read_arrow, save_array, write_arrow
from kgqa_core.graph.closure.parts import batches, column
from kgqa_core.graph.closure.tables import I8, I32, I64, numbers_of
from kgqa_core.graph.closure.texts import EMPTY, first_texts
from kgqa_core.graph.csr import open_array, sorted_distinct
from kgqa_core.graph.dump.codes import labels_of
from kgqa_core.graph.string_sort import sort_strings
from kgqa_core.graph.strings import fold, string_buffers

NAME, ALIAS, FOREIGN = 0, 1, 2  # DUMP_NAMES.kind
NO_NAME = " (no name)"  # shown after the label of a MID that has none
KINDS = ("entity", "cvt", "foreign", "literal")
FOUND = pa.schema([("entity_id", pa.int32()), ("kind", pa.int8()), ("name", pa.large_string())])
TYPES_FOUND = pa.schema([("entity_id", pa.int32()), ("type", pa.int64())])


@dataclass(frozen=True, slots=True)
class NameTask:
    """One part of names or types."""

    path: Path
    work: Path  # holds codes.npy and numbers.npy
    out: Path  # Arrow file of FOUND or TYPES_FOUND, sorted by entity_id
    batch_rows: int


def find_names(task: NameTask) -> Path:
    """Write the rows of one part of names whose entity is in the closure."""
    return _find(task, ["entity", "kind", "name"], FOUND)


def find_types(task: NameTask) -> Path:
    """Write the rows of one part of types whose entity is in the closure."""
    return _find(task, ["entity", "type"], TYPES_FOUND)


def _find(task: NameTask, names: list[str], schema: pa.Schema) -> Path:
    codes, table = (open_array(task.work / f"{name}.npy") for name in ("codes", "numbers"))
    found = [schema.empty_table()]
    for batch in batches(task.path, names, task.batch_rows):
        ids = numbers_of(table, codes, column(batch, "entity"))
        kept = np.flatnonzero(ids >= 0)
        rest = batch.select(names[1:]).take(pa.array(kept))
        columns = [ids[kept], *(rest[name].cast(schema.field(name).type) for name in names[1:])]
        found.append(pa.table(columns, schema=schema))
    whole = pa.concat_tables(found)
    order = np.argsort(whole["entity_id"].to_numpy(), kind="stable")
    write_arrow(whole.take(pa.array(order)), task.out)
    return task.out


def distinct_types(task: NameTask) -> Path:
    """Write the distinct type codes of one part of types."""
    found = [np.empty(0, np.int64)]
    found += [pc.unique(batch["type"]).to_numpy() for batch in batches(task.path, ["type"], task.batch_rows)]
    save_array(task.out, np.unique(np.concatenate(found)))
    return task.out


def slice_of(path: Path, low: int, high: int) -> pa.Table:
    """Return the rows of entities ``low`` to ``high`` - 1 from a sorted Arrow file, memory-mapped."""
    table = read_arrow(path)
    if not table.num_rows:
        return table
    ids = table["entity_id"].to_numpy()
    first, last = np.searchsorted(ids, [low, high])
    return table.slice(int(first), int(last - first))


@dataclass(frozen=True, slots=True)
class EntityTask:
    """A range of entities: what is known of them becomes rows."""

    low: int
    high: int
    work: Path  # holds codes.npy, text_ids.npy, texts.arrow, type_codes.npy, type_ranks.npy and type_labels.arrow
    names: tuple[Path, ...]  # files of ``find_names``
    types: tuple[Path, ...]  # files of ``find_types``
    stem: Path  # -> <stem>-entities.arrow, <stem>-aliases.arrow, <stem>-types.arrow


@dataclass(frozen=True, slots=True)
class EntityCounts:
    """What was counted of a range of entities."""

    stem: Path
    num_named: int
    num_several_names: int
    num_aliases: int
    num_types: int
    kinds: tuple[int, ...]  # in order of KINDS

    def file(self, what: str) -> Path:
        """Return where the entities, aliases or types are."""
        return Path(f"{self.stem}-{what}.arrow")


def describe_entities(task: EntityTask) -> EntityCounts:
    """Write label, name, kind, aliases and types of a range of entities."""
    codes = open_array(task.work / "codes.npy")[task.low : task.high]
    found = pa.concat_tables([FOUND.empty_table(), *(slice_of(path, task.low, task.high) for path in task.names)])
    rows, kinds = found["entity_id"].to_numpy() - task.low, found["kind"].to_numpy()
    labels = _labels(task, codes)
    named, chosen, num_several = _choose_names(found["name"], rows, kinds, len(codes))
    nameless = pc.binary_join_element_wise(labels, *(pa.scalar(text, pa.large_string()) for text in (NO_NAME, "")))
    names = pc.if_else(pa.array(codes > 0), nameless, labels)
    names = pc.replace_with_mask(names, pa.array(named), chosen)
    kind = np.where(codes < 0, KINDS.index("literal"), KINDS.index("cvt"))
    kind[rows[kinds == FOREIGN]] = KINDS.index("foreign")
    kind[rows[kinds != FOREIGN]] = KINDS.index("entity")
    kind_names = pa.array(KINDS, pa.string()).take(pa.array(kind))
    aliases = _aliases(found.filter(pa.array(kinds == ALIAS)))
    types = _types(task)
    entities = pa.table({"label": labels, "name": names, "kind": kind_names, "folded": fold(names)})
    for table, what in ((entities, "entities"), (aliases, "aliases"), (types, "types")):
        write_arrow(table, Path(f"{task.stem}-{what}.arrow"))
    counts = np.bincount(kind, minlength=len(KINDS)).tolist()
    return EntityCounts(task.stem, int(named.sum()), num_several, aliases.num_rows, types.num_rows, tuple(counts))


def _labels(task: EntityTask, codes: I64) -> pa.LargeStringArray:
    first, last = np.searchsorted(open_array(task.work / "text_ids.npy"), [task.low, task.high])
    texts = read_arrow(task.work / "texts.arrow")["text"].slice(int(first), int(last - first))
    return pc.replace_with_mask(labels_of(codes), pa.array(codes < 0), pa.concat_arrays([EMPTY, *texts.chunks]))


def _choose_names(
    names: pa.ChunkedArray, rows: I32, kinds: I8, num_rows: int
) -> tuple[npt.NDArray[np.bool_], pa.LargeStringArray, int]:
    """Return which entities have a name, these names (of several the first in byte order), how many have several."""
    given = np.flatnonzero(kinds == NAME)
    names = pa.concat_arrays([EMPTY, *names.take(pa.array(given)).chunks])
    order = np.argsort(rows[given], kind="stable")
    ordered = rows[given][order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(order)])
    best, differ = first_texts(np.append(starts, len(order)), order, *string_buffers(names))
    named = np.zeros(num_rows, np.bool_)
    named[ordered[starts]] = True
    return named, names.take(pa.array(best)), int(differ.sum())


def _aliases(found: pa.Table) -> pa.Table:
    """Return the distinct aliases, by entity and then in byte order."""
    ids, names = found["entity_id"].to_numpy(), pa.concat_arrays([EMPTY, *found["name"].chunks])
    order = sort_strings(*string_buffers(names))
    order = order[np.argsort(ids[order], kind="stable")]
    ids, names = ids[order], names.take(pa.array(order))
    repeat = pc.equal(names.slice(1), names.slice(0, max(len(names) - 1, 0))).to_numpy(zero_copy_only=False)
    kept = np.append(True, ~repeat | (ids[1:] != ids[:-1]))[: len(ids)]
    return pa.table([ids[kept], names.filter(pa.array(kept)).cast(pa.string())], schema=schemas.ALIASES)


def _types(task: EntityTask) -> pa.Table:
    """Return the distinct types, by entity and then in byte order of labels."""
    codes, ranks = open_array(task.work / "type_codes.npy"), open_array(task.work / "type_ranks.npy")
    found = [TYPES_FOUND.empty_table(), *(slice_of(path, task.low, task.high) for path in task.types)]
    table = pa.concat_tables(found)
    rank = ranks[np.searchsorted(codes, table["type"].to_numpy())]
    packed = sorted_distinct(table["entity_id"].to_numpy().astype(np.int64) << 32 | rank)
    labels = read_arrow(task.work / "type_labels.arrow")["text"]
    columns = [(packed >> 32).astype(np.int32), labels.take(pa.array(packed & (2**32 - 1))).cast(pa.string())]
    return pa.table(columns, schema=schemas.TYPES)
