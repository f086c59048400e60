"""A Freebase dump (N-Triples, gzip or plain) to Parquet parts of labels, in one pass and flat memory.

The bytes written depend on the dump and the options alone: blocks and parts are cut by plain text, and one writer takes
their rows in the order of the file. A part is what a number of blocks holds. Finished parts wait in a journal folder,
each with a record of what was counted in it. After a kill the text before the first missing part is inflated again, but
not parsed again.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core import schemas
from kgqa_core.artifacts import write_json
from kgqa_core.errors import InputError
from kgqa_core.graph.dump_rows import OUTCOMES, TABLES, USES, DumpOptions, Rows, column, read_rows, strings
from kgqa_core.graph.input_files import NUM_SHOWN, BlockReader, too_many_rejects, write_rejects
from kgqa_core.types import Reject

REPORT = "dump.json"
OWNER = "parse.json"  # in the journal: whose it is
REJECTS = "rejects"
GROUP_ROWS = {kind: 2**19 for kind in TABLES} | {REJECTS: 2**14}  # rows of a row group, about
_log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]  # bytes of the file read, of how many
Counts = dict[str, Counter[str]]
"""What was counted in a part, by kind: ``text`` (lines, bytes), ``lines`` by outcome, ``rejects`` by reason, ``rows``
by table, ``relations`` (well-formed lines by label), ``files`` (bytes by name)."""


@dataclass(frozen=True, slots=True)
class DumpReport:
    """What became of every line of a dump."""

    file: str
    file_bytes: int
    plain_bytes: int
    num_lines: int
    lines: dict[str, int]  # outcome (dump_rows.OUTCOMES) -> lines; they add up to num_lines
    rejects: dict[str, int]  # reason -> malformed lines
    rows: dict[str, int]  # triples, types, names -> rows written
    num_relations: int
    num_parts: int


def parse_dump(
    path: Path,
    out_dir: Path,
    *,
    options: DumpOptions | None = None,
    threads: int = 1,
    journal: Path | None = None,
    progress: Progress | None = None,
) -> DumpReport:
    """Write what is kept of a dump to ``out_dir``.

    Args:
        path: N-Triples, as gzip of any number of members or plain.
        out_dir: an existing folder that receives ``triples-``, ``types-`` and ``names-NNNNN.parquet``,
            ``relations.parquet``, ``rejects.parquet`` and ``dump.json``.
        options: what is kept.
        threads: that parse; with 1 everything happens in the caller's thread.
        journal: folder in which finished parts wait and from which a later call goes on; None: none is kept.
        progress: called after each block.

    Raises:
        InputError: the file is missing, truncated, damaged or no N-Triples, too many lines are malformed, or no triple
            is kept. Nothing is left then.
        OSError: the disk is full; the journal is left.
    """
    options = options or DumpOptions()
    parse = _Parse(path, options, journal or out_dir / ".parts")
    try:
        with BlockReader(path, options.block_bytes) as reader:
            for rows in _read(reader, parse.total["text"]["bytes"], options, threads):
                parse.take(rows)
                if progress:
                    progress(reader.file_position, reader.file_bytes)
            parse.finish_part()
            report = parse.report(reader)
        parse.publish(out_dir, report)
    except BaseException as problem:
        parse.abort()
        if journal is None or isinstance(problem, InputError):
            shutil.rmtree(parse.folder, ignore_errors=True)
        raise
    if journal is None:
        shutil.rmtree(parse.folder)
    return report


def _read(reader: BlockReader, skip: int, options: DumpOptions, threads: int) -> Iterator[Rows]:
    """Yield the rows of the blocks in order."""
    if threads <= 1:
        yield from (read_rows(text, options) for text in reader.blocks(skip))
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Rows]] = deque()
        for text in reader.blocks(skip):
            waiting.append(pool.submit(read_rows, text, options))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        yield from (future.result() for future in waiting)


class _Parse:
    """The parts of a dump: those that the journal holds, and the one that is being written."""

    def __init__(self, path: Path, options: DumpOptions, folder: Path) -> None:
        self.path, self.options, self.folder = path, options, folder
        self.total, self.num_parts = new_counts(), 0
        owner = {"options": asdict(options), "file": path.name, "bytes": path.stat().st_size if path.exists() else 0}
        if _read_json(folder / OWNER) == json.loads(json.dumps(owner)):
            while counts := self._finished_part():
                self._add(counts)
            _log.info("%s: going on behind %d finished parts", path.name, self.num_parts)
        else:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            write_json(folder / OWNER, owner)
        self.part, self.num_blocks, self.writers = new_counts(), 0, dict[str, _Writer]()

    def _finished_part(self) -> Counts | None:
        found = _read_json(self.folder / f"part-{self.num_parts:05d}.json")
        whole = found and all(_size(self.folder / name) == size for name, size in found["files"].items())
        return {kind: Counter(counts) for kind, counts in found.items()} if found and whole else None

    def _add(self, counts: Counts) -> None:
        for kind, counted in counts.items():
            self.total[kind].update(counted)
        self.num_parts += 1

    def take(self, rows: Rows) -> None:
        """Write the rows of the next block."""
        if not self.writers:
            kinds = {**TABLES, REJECTS: schemas.REJECTS}
            self.writers = {
                kind: _Writer(self.folder / f"{kind}-{self.num_parts:05d}.parquet", schema, GROUP_ROWS[kind])
                for kind, schema in kinds.items()
            }
        lines_before = self.total["text"]["lines"] + self.part["text"]["lines"]
        part, rejects = self.part, rows.rejects
        part["text"].update(lines=rows.num_lines, bytes=rows.num_bytes)
        part["lines"].update(rows.lines)
        part["rejects"].update(reason for _, reason, _ in rejects)
        part["relations"].update(rows.relation_lines)
        for kind, table in rows.tables:
            self.writers[kind].add(table)
            part["rows"][kind] += table.num_rows
        if rejects:
            numbers = column(np.array([line + lines_before for line, _, _ in rejects], np.int64))
            reasons, texts = strings([reason for _, reason, _ in rejects]), strings([text for _, _, text in rejects])
            columns = [strings([self.path.name] * len(rejects)), numbers, reasons, texts]
            self.writers[REJECTS].add(pa.table(columns, schema=schemas.REJECTS))
        self.num_blocks += 1
        if self.num_blocks == self.options.blocks_per_part:
            self.finish_part()

    def finish_part(self) -> None:
        """Close the part's files, note it in the journal, and stop where too much of the file so far is malformed."""
        if self.writers:
            self.part["files"].update({writer.path.name: writer.close() for writer in self.writers.values()})
            write_json(self.folder / f"part-{self.num_parts:05d}.json", self.part)
            self._add(self.part)
            self.part, self.num_blocks, self.writers = new_counts(), 0, {}
        num_rejects = self.total["lines"]["malformed"]
        num_rows = self.total["text"]["lines"] - self.total["lines"]["blank"]
        if num_rejects > self.options.max_reject_ratio * num_rows:
            raise too_many_rejects(
                [
                    Reject(**row)
                    for table in islice(self._rejects(), 1)
                    for row in table.slice(0, NUM_SHOWN).to_pylist()
                ],
                num_rejects=num_rejects,
                num_rows=num_rows,
                max_ratio=self.options.max_reject_ratio,
                key="dataset.graph.max_reject_ratio",
            )

    def _rejects(self) -> Iterator[pa.Table]:
        for number in range(self.num_parts):
            with pq.ParquetFile(self.folder / f"{REJECTS}-{number:05d}.parquet") as file:
                for group in range(file.num_row_groups):
                    yield file.read_row_group(group).cast(schemas.REJECTS)

    def abort(self) -> None:
        """Remove the files of the part that was being written."""
        for writer in self.writers.values():
            writer.abort()

    def report(self, reader: BlockReader) -> DumpReport:
        """Return what became of the lines; InputError where no triple was kept."""
        total = self.total
        lines = {outcome: total["lines"][outcome] for outcome in OUTCOMES}
        if not total["rows"]["triples"]:
            counts = ", ".join(f"{count} {outcome}" for outcome, count in lines.items() if count)
            raise InputError(
                f"{self.path}: no triple is kept of {total['text']['lines']} lines ({counts or 'none'}). "
                f"Is it a dump of Freebase, and does the list of noise relations leave anything?"
            )
        return DumpReport(
            file=self.path.name,
            file_bytes=reader.file_bytes,
            plain_bytes=reader.plain_bytes,
            num_lines=total["text"]["lines"],
            lines=lines,
            rejects=dict(sorted(total["rejects"].items())),
            rows=dict(sorted(total["rows"].items())),
            num_relations=len(total["relations"]),
            num_parts=self.num_parts,
        )

    def publish(self, out_dir: Path, report: DumpReport) -> None:
        """Put the finished parts and the tables of the whole dump into ``out_dir``; the journal keeps its parts."""
        labels = sorted(self.total["relations"], key=str.encode)
        uses = strings([USES[self.options.use_of(label)] for label in labels])
        num_lines = column(np.array([self.total["relations"][label] for label in labels], np.int64))
        relations = pa.table([strings(labels), uses, num_lines], schema=schemas.DUMP_RELATIONS)
        pq.write_table(relations, out_dir / "relations.parquet", compression="zstd")
        write_rejects(self._rejects(), out_dir / "rejects.parquet")
        for name in sorted(name for name in self.total["files"] if not name.startswith(REJECTS)):
            (out_dir / name).unlink(missing_ok=True)
            try:
                os.link(self.folder / name, out_dir / name)
            except OSError:  # a file system without links
                shutil.copyfile(self.folder / name, out_dir / name)
        write_json(out_dir / REPORT, asdict(report))


class _Writer:
    """Writes one file of a part, under a temporary name until ``close``.

    Row groups end with a block, so their size depends on the dump alone.
    """

    def __init__(self, path: Path, schema: pa.Schema, group_rows: int) -> None:
        self.path, self._group_rows = path, group_rows
        self._temporary = path.with_name(f".{path.name}.tmp")
        self._tables: list[pa.Table] = []
        self._writer = pq.ParquetWriter(self._temporary, schema, compression="zstd", compression_level=1)

    def add(self, table: pa.Table) -> None:
        self._tables.append(table)
        if sum(table.num_rows for table in self._tables) >= self._group_rows:
            self._flush()

    def _flush(self) -> None:
        whole = pa.concat_tables(self._tables) if self._tables else None
        if whole:
            self._writer.write_table(whole, row_group_size=whole.num_rows)
        self._tables = []

    def close(self) -> int:
        """Finish, sync and rename the file; return its bytes."""
        self._flush()
        self._writer.close()
        with self._temporary.open("rb") as file:
            os.fsync(file.fileno())
        self._temporary.replace(self.path)
        return self.path.stat().st_size

    def abort(self) -> None:
        self._tables = []
        self._writer.close()
        self._temporary.unlink(missing_ok=True)


def new_counts() -> Counts:
    """Return empty counts."""
    return {kind: Counter() for kind in ("text", "lines", "rejects", "rows", "relations", "files")}


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError):
        return None


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1
