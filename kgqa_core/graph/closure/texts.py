"""Labels of the nodes that are no MIDs: their codes are hashes, their texts stand in the texts parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from kgqa_core.artifacts import written_whole
from kgqa_core.errors import ArtifactError
from kgqa_core.graph.closure.files import save_array
from kgqa_core.graph.closure.options import ClosureLimits
from kgqa_core.graph.closure.parts import batches, column
from kgqa_core.graph.closure.tables import I64, isin, set_of
from kgqa_core.graph.csr import open_array
from kgqa_core.graph.string_sort import U8, compare
from kgqa_core.graph.strings import string_buffers
from kgqa_core.types import Reject

TEXTS = pa.schema([("code", pa.int64()), ("text", pa.large_string()), ("row", pa.int64())])
EMPTY = pa.array([], pa.large_string())


@dataclass(frozen=True, slots=True)
class TextTask:
    """One part of texts."""

    path: Path
    table: Path  # .npy: the set of wanted codes
    out: Path  # Arrow file of TEXTS
    batch_rows: int


@dataclass(frozen=True, slots=True)
class Texts:
    """The wanted texts, one per code; codes ascend."""

    codes: I64
    texts: pa.LargeStringArray
    collisions: tuple[Reject, ...]  # other texts of these codes


def wanted_texts(task: TextTask) -> Path:
    """Write the rows of one part whose code is wanted."""
    table = open_array(task.table)
    before = 0
    with (
        written_whole(task.out) as out,
        pa.OSFile(str(out), "wb") as stream,
        pa.ipc.new_file(stream, TEXTS) as writer,
    ):
        for batch in batches(task.path, ["code", "text"], task.batch_rows):
            kept = np.flatnonzero(isin(table, column(batch, "code")))
            if len(kept):
                found = batch.take(pa.array(kept))
                columns = [found["code"], found["text"].cast(pa.large_string()), pa.array(kept + before)]
                writer.write_batch(pa.record_batch(columns, schema=TEXTS))
            before += batch.num_rows
    return task.out


def join_texts(found: Sequence[Path], sources: Sequence[Path], wanted: I64) -> Texts:
    """Return one text for each wanted code; of several the first in byte order, the others as rejects.

    Args:
        found: files of ``wanted_texts``.
        sources: the parts that they come from.
        wanted: codes, distinct and ascending.

    Raises:
        ArtifactError: a code without a text.
    """
    tables = [pa.ipc.open_file(pa.memory_map(str(path))).read_all() for path in found]
    num_rows = np.array([table.num_rows for table in tables], np.int64)
    table = pa.concat_tables([TEXTS.empty_table(), *tables]).combine_chunks()
    codes, texts = table["code"].to_numpy(), pa.concat_arrays([EMPTY, *table["text"].chunks])
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.append(True, codes[order][1:] != codes[order][:-1])[: len(order)])
    present = codes[order[starts]]
    if len(present) != len(wanted):
        missing = int(np.setdiff1d(wanted, present)[0])
        raise ArtifactError(
            f"the texts parts of the dump lack the labels of {len(wanted) - len(present)} nodes that its triples have "
            f"(the first: code {missing}). Build the dump again"
        )
    best, differ = first_texts(np.append(starts, len(order)), order, *string_buffers(texts))
    rejects: list[Reject] = []
    for run in np.flatnonzero(differ):
        rows = order[starts[run] : starts[run + 1] if run + 1 < len(starts) else None]
        others = {texts[row].as_py(): row for row in reversed(rows)}
        kept = texts[best[run]].as_py()
        for text in sorted(set(others) - {kept}, key=str.encode):
            part = int(np.searchsorted(np.cumsum(num_rows), others[text], side="right"))
            line = int(table["row"][others[text]].as_py()) + 1
            rejects.append(Reject(_shown(sources[part]), line, f"same code as {kept!r}"[:500], text[:500]))
    return Texts(present, texts.take(pa.array(best)), tuple(rejects))


def _shown(part: Path) -> str:
    return f"{part.parent.name}/{part.name}"


@njit(cache=True, nogil=True)
def first_texts(starts: I64, order: I64, data: U8, offsets: I64) -> tuple[I64, npt.NDArray[np.bool_]]:
    """Return, of each run order[starts[i]:starts[i+1]], the row of the first text, and whether texts differ."""
    best, differ = np.empty(len(starts) - 1, np.int64), np.zeros(len(starts) - 1, np.bool_)
    for run in range(len(best)):
        best[run] = order[starts[run]]
        for at in range(starts[run] + 1, starts[run + 1]):
            side = compare(data, offsets, order[at], best[run])
            differ[run] |= side != 0
            if side < 0:
                best[run] = order[at]
    return best, differ


def find_texts(parts: Sequence[Path], wanted: I64, work: Path, limits: ClosureLimits) -> Texts:
    """Look the texts of ``wanted`` codes (distinct, ascending) up in all parts; see ``join_texts``."""
    table = work / "wanted.npy"
    save_array(table, set_of(wanted))
    tasks = [
        TextTask(path, table, work / f"texts-{number:05d}.arrow", limits.batch_rows)
        for number, path in enumerate(parts)
    ]
    found = join_texts(list(limits.map_tasks(wanted_texts, tasks)), parts, wanted)
    for task in tasks:
        task.out.unlink()
    table.unlink()
    return found
