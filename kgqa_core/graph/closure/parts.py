"""The coded parts of dump folders (schemas.DUMP_*): their files, relations numbered, rows in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kgqa_core.errors import ArtifactError, InputError
from kgqa_core.graph.closure.files import save_array
from kgqa_core.graph.closure.tables import I32


@dataclass(frozen=True, slots=True)
class Part:
    """One file of coded triples and what its relation numbers mean."""

    path: Path
    relations: Path  # .npy int32: number in the dump -> number over all dumps
    hop: bool = False  # does it have a column that says which hop walked the triple?


@dataclass(frozen=True, slots=True)
class Parts:
    """All files of some dumps, in order."""

    triples: tuple[Part, ...]
    types: tuple[Path, ...]
    names: tuple[Path, ...]
    texts: tuple[Path, ...]
    relations: tuple[str, ...]  # labels of all relations of all dumps, in byte order


def list_parts(dumps: Sequence[Path], work: Path) -> Parts:
    """List the parts of ``dumps`` and number their relations in byte order of the labels.

    Raises:
        InputError: no dump, or none with a triple.
        ArtifactError: a folder that holds no coded parts.
    """
    tables = [_read_relations(dump) for dump in dumps]
    labels = sorted({label for table in tables for label in table["label"].to_pylist()}, key=str.encode)
    number_of = {label: number for number, label in enumerate(labels)}
    triples: list[Part] = []
    for order, (dump, table) in enumerate(zip(dumps, tables, strict=True)):
        numbers = np.full(1 + max(table["relation"].to_pylist(), default=-1), -1, np.int32)
        numbers[table["relation"].to_numpy()] = [number_of[label] for label in table["label"].to_pylist()]
        place = work / f"relations-{order:04d}.npy"
        save_array(place, numbers)
        triples += [Part(path, place) for path in _files([dump], "triples")]
    if not any(pq.read_metadata(part.path).num_rows for part in triples):
        shown = ", ".join(str(dump) for dump in dumps) or "no folder given"
        raise InputError(
            f"dump: {shown}: no triple was kept. Were all relations taken for noise, or is it another dump?"
        )
    return Parts(tuple(triples), _files(dumps, "types"), _files(dumps, "names"), _files(dumps, "texts"), tuple(labels))


def _files(dumps: Sequence[Path], kind: str) -> tuple[Path, ...]:
    return tuple(path for dump in dumps for path in sorted(dump.glob(f"{kind}-*.parquet")))


def _read_relations(dump: Path) -> pa.Table:
    try:
        return pq.read_table(dump / "relations.parquet", columns=["relation", "label"])
    except (OSError, pa.ArrowInvalid) as error:
        raise ArtifactError(
            f"{dump} holds no coded parts of a dump ({error}). Build it again: kgqa build CONF"
        ) from error


def batches(path: Path, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file, at most ``rows`` at a time; one thread, the tasks are what runs at once."""
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(rows, columns=list(columns), use_threads=False)


def column(batch: pa.RecordBatch, name: str) -> NDArray[Any]:
    """Return a column without nulls, no copy made."""
    values: NDArray[Any] = batch[name].to_numpy(zero_copy_only=True)
    return values


def relations_of(part: Part, batch: pa.RecordBatch, numbers: I32) -> I32:
    """Return the numbers over all dumps of a batch's relations; ``numbers`` is what ``part.relations`` holds.

    Raises:
        ArtifactError: a relation that relations.parquet of the dump does not list.
    """
    given = column(batch, "relation")
    known = (given >= 0) & (given < len(numbers))
    found: I32 = numbers[np.where(known, given, 0)] if len(numbers) else given
    known &= found >= 0
    if not known.all():
        raise ArtifactError(
            f"{part.path} has a relation {given[~known][0]} that relations.parquet beside it does not list. "
            "Build the dump again"
        )
    return found
