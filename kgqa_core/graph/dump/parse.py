"""A Freebase dump (N-Triples, gzip or plain) to coded Parquet parts, in one pass and flat memory.

One thread inflates, others scan, this one writes in the order of the file. The bytes written depend on the dump and the
options alone: parts are cut by plain text, and relations are numbered in the order in which the file names them.

Finished parts wait in a journal folder. After a kill the stream is inflated again, but they are not scanned again.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core import schemas
from kgqa_core.artifacts import write_json
from kgqa_core.errors import InputError
from kgqa_core.graph.dump.codes import has_numba
from kgqa_core.graph.dump.filters import USES, DumpOptions
from kgqa_core.graph.dump.journal import Journal, PartRecord
from kgqa_core.graph.dump.parts import PartWriter, column_of, publish, strings_of
from kgqa_core.graph.dump.rows import BLANK, MALFORMED, OUTCOMES, RegexScanner, Rows
from kgqa_core.graph.dump.stream import Block, DumpStream
from kgqa_core.graph.rejects import NUM_SHOWN, too_many_rejects, write_rejects
from kgqa_core.types import Reject

REPORT = "dump.json"
_log = logging.getLogger(__name__)

Scanner = RegexScanner
Scanned = tuple[Scanner, Rows, Block]
Progress = Callable[[int, int], None]  # bytes of the file read, of how many


@dataclass(frozen=True, slots=True)
class DumpReport:
    """What became of every line of a dump."""

    file: str
    file_bytes: int
    plain_bytes: int
    num_lines: int
    lines: dict[str, int]  # outcome (rows.OUTCOMES) -> lines; they add up to num_lines
    rejects: dict[str, int]  # reason -> malformed lines
    rows: dict[str, int]  # triples, types, names, texts -> rows written
    num_relations: int
    num_parts: int


def new_scanner(options: DumpOptions) -> Scanner:
    """Return a scanner of blocks: compiled where numba is there (see codes.has_numba), else plain Python."""
    if has_numba():
        from kgqa_core.graph.dump.scan import CompiledScanner

        return CompiledScanner(options)
    return RegexScanner(options)


def parse_dump(
    path: Path,
    out_dir: Path,
    *,
    options: DumpOptions | None = None,
    threads: int = 1,
    journal: Path | None = None,
    progress: Progress | None = None,
) -> DumpReport:
    """Write the coded parts of a dump to ``out_dir``.

    Args:
        path: N-Triples, as gzip of any number of members or plain.
        out_dir: an existing folder that receives ``triples-``, ``types-``, ``names-`` and ``texts-NNNNN.parquet``,
            ``relations.parquet``, ``rejects.parquet`` and ``dump.json``.
        options: what is kept.
        threads: that scan; with 1 everything happens in the caller's thread.
        journal: folder in which finished parts wait and from which a later call goes on; None: none is kept.
        progress: called after each block.

    Raises:
        InputError: the file is missing, truncated, damaged or no N-Triples, too many lines are malformed, or no triple
            is kept. Nothing is left then.
        OSError: the disk is full; the journal is left.
    """
    options = options or DumpOptions()
    kept = Journal(journal or out_dir / ".parts", asdict(options), path)
    run = _Run(path, options, kept)
    try:
        with DumpStream(path, options.block_bytes) as stream:
            first = len(kept.parts) * options.blocks_per_part
            for scanner, rows, block in _scan(stream, first, options, threads):
                run.take(scanner, rows, block.number)
                stream.recycle(block)
                if progress:
                    progress(stream.file_position, stream.file_bytes)
            run.finish_part()
            report = run.report(stream)
        run.check_kept(report)
        run.publish(out_dir, report)
    except BaseException as problem:
        run.abort()
        if journal is None or isinstance(problem, InputError):
            kept.remove()
        raise
    if journal is None:
        kept.remove()
    return report


def _scan(stream: DumpStream, first: int, options: DumpOptions, threads: int) -> Iterator[Scanned]:
    """Yield the rows of the blocks in order, scanned by ``threads`` threads and inflated by one more."""
    blocks = stream.blocks(first)
    if threads <= 1:
        scanner = new_scanner(options)
        for block in blocks:
            yield scanner, scanner.scan(block), block
        return
    own = threading.local()  # a scanner numbers relations as it meets them: one per thread, its blocks in order

    def scan(block: Block) -> Scanned:
        if not hasattr(own, "scanner"):
            own.scanner = new_scanner(options)
        return own.scanner, own.scanner.scan(block), block

    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(threads) as scanners:
        coming = reader.submit(next, blocks, None)
        waiting: deque[Future[Scanned]] = deque()
        while (following := coming.result()) is not None:
            coming = reader.submit(next, blocks, None)
            waiting.append(scanners.submit(scan, following))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class _Run:
    """Parts as they are written, and all that is counted."""

    def __init__(self, path: Path, options: DumpOptions, journal: Journal) -> None:
        self.path, self.options, self.journal = path, options, journal
        self.labels: list[str] = []  # of relations by id
        self.ids: dict[str, int] = {}
        self.total = PartRecord()
        self.first_rejects: list[Reject] = []
        for record in journal.parts:
            self._add_labels(record.relations)
            self.total.add(record)
        self.part = PartRecord()
        self.writer: PartWriter | None = None
        self._ids_of: dict[int, np.ndarray] = {}  # id of a scanner -> its relation numbers to ids

    def take(self, scanner: Scanner, rows: Rows, block_number: int) -> None:
        """Write the rows of the next block."""
        number = block_number // self.options.blocks_per_part
        if number != len(self.journal.parts):
            self.finish_part()
        if self.writer is None:
            self.writer = PartWriter(self.journal.folder, len(self.journal.parts))
        ids = self._relation_ids(scanner, rows)
        lines_before = self.total.num_lines + self.part.num_lines
        rejects = [Reject(self.path.name, lines_before + r.line, r.reason, r.text) for r in rows.rejects]
        self.first_rejects += rejects[: NUM_SHOWN - len(self.first_rejects)]
        written = self.writer.write(rows, ids[rows.buffers.relation], rejects)
        part = self.part
        part.num_lines += rows.num_lines
        part.plain_bytes += rows.size
        part.lines.update({OUTCOMES[i]: int(count) for i, count in enumerate(rows.counts)})
        part.rejects.update(reject.reason for reject in rejects)
        part.rows.update(written)
        if len(part.relation_lines) < len(self.labels):
            part.relation_lines = np.concatenate([part.relation_lines, np.zeros(len(self.labels), np.int64)])
        part.relation_lines[ids] += rows.buffers.relation_lines

    def _relation_ids(self, scanner: Scanner, rows: Rows) -> np.ndarray:
        """Return the ids of the scanner's relation numbers.

        Numbers without an id yet were first met in this block, in this order: a scanner takes blocks in order.
        """
        ids = self._ids_of.get(id(scanner), np.empty(0, np.int32))
        if len(ids) < rows.num_relations:
            labels = scanner.relations[len(ids) : rows.num_relations]
            self.part.relations += self._add_labels(labels)
            ids = np.concatenate([ids, np.array([self.ids[label] for label in labels], np.int32)])
            self._ids_of[id(scanner)] = ids
        return ids

    def _add_labels(self, labels: list[str]) -> list[str]:
        new = [label for label in labels if label not in self.ids]
        for label in new:
            self.ids[label] = len(self.labels)
            self.labels.append(label)
        return new

    def finish_part(self) -> None:
        """Close the part's files, note it in the journal, and stop where too much of the file so far is malformed."""
        if self.writer is not None:
            self.part.files = {path.name: path.stat().st_size for path in self.writer.close()}
            self.journal.add(self.part)
            self.total.add(self.part)
            self.part, self.writer = PartRecord(), None
        num_rejects = self.total.lines[OUTCOMES[MALFORMED]]
        num_rows = self.total.num_lines - self.total.lines[OUTCOMES[BLANK]]
        if num_rejects > self.options.max_reject_ratio * num_rows:
            raise too_many_rejects(
                self.first_rejects or self.journal.first_rejects(NUM_SHOWN),
                num_rejects=num_rejects,
                num_rows=num_rows,
                max_ratio=self.options.max_reject_ratio,
                key="dataset.graph.max_reject_ratio",
            )

    def abort(self) -> None:
        """Remove the files of the part that was being written."""
        if self.writer is not None:
            self.writer.abort()

    def report(self, stream: DumpStream) -> DumpReport:
        """Return what became of the lines."""
        return DumpReport(
            file=self.path.name,
            file_bytes=stream.file_bytes,
            plain_bytes=stream.plain_bytes,
            num_lines=self.total.num_lines,
            lines={outcome: self.total.lines[outcome] for outcome in OUTCOMES},
            rejects=dict(sorted(self.total.rejects.items())),
            rows=dict(sorted(self.total.rows.items())),
            num_relations=len(self.labels),
            num_parts=len(self.journal.parts),
        )

    def check_kept(self, report: DumpReport) -> None:
        """Raise InputError where nothing was kept."""
        if not report.rows.get("triples"):
            counts = ", ".join(f"{count} {outcome}" for outcome, count in report.lines.items() if count)
            raise InputError(
                f"{self.path}: no triple is kept of {report.num_lines} lines ({counts or 'none'}). "
                f"Is it a dump of Freebase, and does the list of noise relations leave anything?"
            )

    def publish(self, out_dir: Path, report: DumpReport) -> None:
        """Put the finished parts and the tables of the whole dump into ``out_dir``; the journal keeps its parts."""
        uses = [USES[self.options.use_of(label)] for label in self.labels]
        numbers = np.arange(len(self.labels), dtype=np.int32)
        lines = self.total.relation_lines[: len(self.labels)]
        columns = [column_of(numbers), strings_of(self.labels), strings_of(uses), column_of(lines)]
        _write(pa.table(columns, schema=schemas.DUMP_RELATIONS), out_dir / "relations.parquet")
        temporary = out_dir / ".rejects.parquet.tmp"
        write_rejects(self.journal.read_rejects(), temporary)
        publish(temporary, out_dir / "rejects.parquet")
        for file in self.journal.part_files():
            target = out_dir / file.name
            target.unlink(missing_ok=True)
            try:
                os.link(file, target)
            except OSError:  # a file system without links
                shutil.copyfile(file, target)
        write_json(out_dir / REPORT, asdict(report))


def _write(table: pa.Table, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    pq.write_table(table, temporary, compression="zstd")
    publish(temporary, path)
