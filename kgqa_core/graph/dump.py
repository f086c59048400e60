"""RDF (N-Triples, gzip or plain, or what is rewritten as such) to Parquet parts of labels, in flat memory.

The bytes written depend on the dump and the options alone: blocks and parts are cut by plain text, and one writer takes
their rows in the order of the file. A part is what a number of blocks holds. Finished parts wait in a journal folder,
each with a record of what was counted in it. After a kill the text before the first missing part is inflated again, but
not parsed again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core import schemas
from kgqa_core.artifacts import read_note, sync, write_json, written_whole
from kgqa_core.errors import InputError
from kgqa_core.graph.dump_rows import OUTCOMES, TABLES, USES, Counts, DumpOptions, Rows, column, read_rows, strings
from kgqa_core.graph.input_files import check_rejects, read_blocks, syntax_of, write_rejects

KINDS = {**TABLES, "rejects": schemas.REJECTS}  # files of a part
GROUP_ROWS = {kind: 2**19 for kind in TABLES} | {"rejects": 2**14}  # rows of a row group, about

Progress = Callable[[int, int], None]  # bytes of the file read, of how many


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
    journal: Path,
    options: DumpOptions | None = None,
    threads: int = 1,
    progress: Progress | None = None,
) -> DumpReport:
    """Write what is kept of a dump to ``out_dir``.

    This existing folder receives ``triples-``, ``types-`` and ``names-NNNNN.parquet``, ``relations.parquet``,
    ``rejects.parquet`` and ``dump.json``. The dump is N-Triples, unless its suffix is another of ``SYNTAXES``, plain or
    as gzip of any number of members.
    ``journal``: folder in which finished parts wait and from which a later call goes on; it stays there.

    Raises InputError where the file is missing, truncated, damaged or no N-Triples, too many lines are malformed, or no
    triple is kept: nothing is left then. OSError where the disk is full: the journal is left.
    """
    options = replace(options or DumpOptions(), is_quads=syntax_of(path) == ".nq")
    try:
        total, num_parts = _open_journal(path, options, journal)
        blocks = _read(path, options, total["text"]["bytes"], threads, progress)
        while True:
            check_rejects(
                _rejects(num_parts, journal),
                num_rejects=total["lines"]["malformed"],
                num_rows=total["text"]["lines"] - total["lines"]["blank"],
                max_ratio=options.max_reject_ratio,
            )
            counts = _write_part(path, blocks, journal, num_parts, total["text"]["lines"], options.blocks_per_part)
            if counts is None:
                break
            _add(total, counts)
            num_parts += 1
        return _publish(path, total, num_parts, journal, out_dir, options)
    except InputError:
        shutil.rmtree(journal, ignore_errors=True)
        raise


def _open_journal(path: Path, options: DumpOptions, folder: Path) -> tuple[Counts, int]:
    """Return what the finished parts of a journal hold, and how many they are; one of something else is emptied."""
    total, num_parts = defaultdict[str, Counter[str]](Counter), 0
    owner = {"options": asdict(options), "file": path.name, "bytes": path.stat().st_size if path.exists() else 0}
    if read_note(folder / "parse.json") != json.loads(json.dumps(owner)):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_json(folder / "parse.json", owner)
    for rubble in folder.glob(".*.partial"):  # of a killed parse
        rubble.unlink()
    sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
    while counts := read_note(folder / f"part-{num_parts:05d}.json"):
        if not counts["files"].items() <= sizes.items():
            break
        _add(total, counts)
        num_parts += 1
    return total, num_parts


def _add(total: Counts, counts: Mapping[str, Any]) -> None:
    for kind, counted in counts.items():
        total[kind].update(counted)


def _rejects(num_parts: int, folder: Path) -> Iterator[pa.Table]:
    for number in range(num_parts):
        with pq.ParquetFile(folder / f"rejects-{number:05d}.parquet") as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group).cast(schemas.REJECTS)


def _read(path: Path, options: DumpOptions, skip: int, threads: int, progress: Progress | None) -> Iterator[Rows]:
    """Yield the rows of the blocks behind byte ``skip`` of the text, in order."""
    blocks, waiting = read_blocks(path, options.block_bytes, skip), deque[tuple[Future[Rows], int]]()
    with ThreadPoolExecutor(threads) as pool:
        while True:
            wanted = threads + (threads > 1) - len(waiting)  # one is read while all are at work
            waiting.extend((pool.submit(read_rows, text, options), at) for text, at in islice(blocks, wanted))
            if not waiting:
                return
            future, at = waiting.popleft()
            yield future.result()
            if progress:
                progress(at, path.stat().st_size)


@contextmanager
def _open_part(path: Path, schema: pa.Schema, group_rows: int) -> Iterator[Callable[[pa.Table], None]]:
    """Yield what adds a block's rows to a file; row groups end with a block, so they depend on the dump alone."""
    held: list[pa.Table] = []

    def add(table: pa.Table) -> None:
        held.append(table)
        num_rows = sum(one.num_rows for one in held)
        if num_rows >= group_rows:
            writer.write_table(pa.concat_tables(held), row_group_size=num_rows)
            held.clear()

    with written_whole(path) as partial:
        with pq.ParquetWriter(partial, schema, compression="zstd", compression_level=1) as writer:
            yield add
            if any(one.num_rows for one in held):
                writer.write_table(pa.concat_tables(held))
        sync(partial)


def _write_part(
    path: Path, blocks: Iterator[Rows], folder: Path, number: int, lines_before: int, num_blocks: int
) -> Counts | None:
    """Write the rows of the next blocks, and note them in the journal; return what was counted, None at the end."""
    first = next(blocks, None)
    if first is None:
        return None
    counts, files = Counts(Counter), {kind: folder / f"{kind}-{number:05d}.parquet" for kind in KINDS}
    with ExitStack() as stack:
        add = {
            kind: stack.enter_context(_open_part(file, KINDS[kind], GROUP_ROWS[kind])) for kind, file in files.items()
        }
        for rows in chain([first], islice(blocks, num_blocks - 1)):
            if rows.rejects:
                lines, reasons, texts = zip(*rows.rejects, strict=True)
                numbers = column(np.array(lines, np.int64) + lines_before + counts["text"]["lines"])
                columns = [strings([path.name] * len(lines)), numbers, strings(reasons), strings(texts)]
                add["rejects"](pa.table(columns, schema=schemas.REJECTS))
                counts["rejects"].update(reasons)
            for kind, table in rows.tables:
                add[kind](table)
                counts["rows"][kind] += table.num_rows
            _add(counts, rows.counts)
    counts["files"].update({file.name: file.stat().st_size for file in files.values()})
    write_json(folder / f"part-{number:05d}.json", counts)
    return counts


def _publish(
    path: Path, total: Counts, num_parts: int, folder: Path, out_dir: Path, options: DumpOptions
) -> DumpReport:
    """Put the finished parts and the tables of the whole dump into ``out_dir``; the journal keeps its parts."""
    lines = {outcome: total["lines"][outcome] for outcome in OUTCOMES}
    if not any(total["rows"].values()):  # a file may hold names alone, beside others with the triples
        counts = ", ".join(f"{count} {outcome}" for outcome, count in lines.items() if count)
        raise InputError(
            f"{path}: no triple is kept of {total['text']['lines']} lines ({counts or 'none'}). "
            "A line should look like <http://x.org/a> <http://x.org/r> <http://x.org/b> . Is its format right?"
        )
    labels = sorted(total["relations"], key=str.encode)
    uses = strings([USES[options.use_of(label)] for label in labels])
    num_lines = column(np.array([total["relations"][label] for label in labels], np.int64))
    relations = pa.table([strings(labels), uses, num_lines], schema=schemas.DUMP_RELATIONS)
    pq.write_table(relations, out_dir / "relations.parquet", compression="zstd")
    write_rejects(_rejects(num_parts, folder), out_dir / "rejects.parquet")
    for name in sorted(name for name in total["files"] if not name.startswith("rejects")):
        (out_dir / name).unlink(missing_ok=True)
        try:
            os.link(folder / name, out_dir / name)
        except OSError:  # a file system without links
            shutil.copyfile(folder / name, out_dir / name)
    report = DumpReport(
        file=path.name,
        file_bytes=path.stat().st_size,
        plain_bytes=total["text"]["bytes"],
        num_lines=total["text"]["lines"],
        lines=lines,
        rejects=dict(sorted(total["rejects"].items())),
        rows=dict(sorted(total["rows"].items())),
        num_relations=len(labels),
        num_parts=num_parts,
    )
    write_json(out_dir / "dump.json", asdict(report))
    return report
