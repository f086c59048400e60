"""The parts of a dump that are finished: what a killed parse goes on from.

A part is its Parquet files and ``part-NNNNN.json``, which is written after them and lists their sizes. Everything that
the parts after it depend on stands there too: line numbers, relation ids, counts.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core import schemas
from kgqa_core.artifacts import write_json
from kgqa_core.types import Reject

OWNER = "parse.json"  # whose journal it is
REJECTS = "rejects-"  # files of a part that are no part of the artifact: they are united there
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class PartRecord:
    """What is known of a part; with ``add`` of several."""

    num_lines: int = 0
    plain_bytes: int = 0
    lines: Counter[str] = field(default_factory=Counter)  # outcome -> lines
    rejects: Counter[str] = field(default_factory=Counter)  # reason -> lines
    rows: Counter[str] = field(default_factory=Counter)  # table -> rows
    relations: list[str] = field(default_factory=list)  # first met in this part, in order of their ids
    relation_lines: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # by relation id
    files: dict[str, int] = field(default_factory=dict)  # name -> bytes

    def add(self, other: PartRecord) -> None:
        """Add the counts of another part."""
        self.num_lines += other.num_lines
        self.plain_bytes += other.plain_bytes
        self.lines.update(other.lines)
        self.rejects.update(other.rejects)
        self.rows.update(other.rows)
        mine, others = self.relation_lines, other.relation_lines
        self.relation_lines = np.zeros(max(len(mine), len(others)), np.int64)
        self.relation_lines[: len(mine)] += mine
        self.relation_lines[: len(others)] += others


class Journal:
    """The finished parts in a folder. Those of another input or with other options are removed."""

    def __init__(self, folder: Path, options: Mapping[str, Any], path: Path) -> None:
        self.folder = folder
        self.parts: list[PartRecord] = []
        stat = path.stat() if path.exists() else None
        owner = {"options": dict(options), "file": path.name, "bytes": stat.st_size if stat else 0}
        if _read_json(folder / OWNER) == json.loads(json.dumps(owner)):
            while record := self._read(len(self.parts)):
                self.parts.append(record)
            if self.parts:
                _log.info("%s: going on behind %d finished parts", path.name, len(self.parts))
        else:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            write_json(folder / OWNER, owner)

    def add(self, record: PartRecord) -> None:
        """Note the next part, whose files are complete."""
        values = {name.name: getattr(record, name.name) for name in fields(record)}
        write_json(self._record(len(self.parts)), values | {"relation_lines": record.relation_lines.tolist()})
        self.parts.append(record)

    def part_files(self) -> list[Path]:
        """Return the files of the finished parts that belong to the artifact."""
        names = [name for part in self.parts for name in part.files if not name.startswith(REJECTS)]
        return [self.folder / name for name in names]

    def read_rejects(self) -> Iterator[pa.Table]:
        """Yield the rejects of the finished parts, in order."""
        for number in range(len(self.parts)):
            file = pq.ParquetFile(self.folder / f"{REJECTS}{number:05d}.parquet")
            for group in range(file.num_row_groups):
                yield file.read_row_group(group).cast(schemas.REJECTS)

    def first_rejects(self, count: int) -> list[Reject]:
        """Return the first rejects of the finished parts."""
        for table in self.read_rejects():
            return [Reject(**row) for row in table.slice(0, count).to_pylist()]
        return []

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _record(self, number: int) -> Path:
        return self.folder / f"part-{number:05d}.json"

    def _read(self, number: int) -> PartRecord | None:
        found = _read_json(self._record(number))
        if found is None:
            return None
        counts = {name: Counter(found[name]) for name in ("lines", "rejects", "rows")}
        relation_lines = np.array(found["relation_lines"], np.int64)
        record = PartRecord(**{**found, **counts, "relation_lines": relation_lines})
        whole = all(_size(self.folder / name) == size for name, size in record.files.items())
        return record if whole else None


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError):
        return None


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1
