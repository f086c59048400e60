"""Parsing whole dumps: any number of threads, interrupted anywhere, or refused."""

from __future__ import annotations

import errno
import gzip
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kgqa_core.errors import InputError
from kgqa_core.graph.dump import DumpReport, parse_dump
from kgqa_core.graph.dump_rows import DumpOptions, Statement, literal_label, parse_line
from kgqa_core.profiles import FREEBASE, label_of_iri
from tests.graph import dump_lines as lines

KINDS = lines.WELL_FORMED | lines.MALFORMED
SMALL = DumpOptions(block_bytes=512, blocks_per_part=12, max_reject_ratio=1.0)  # many blocks and parts in a few lines
EVERY_LINE: list[tuple[str, bytes]] = [  # every kind of line; the order mixes them
    pair
    for pairs in zip(
        *[[(kind, one) for _ in range(25) for one in ones][:25] for kind, ones in KINDS.items()], strict=True
    )
    for pair in pairs
]
Contents = dict[str, bytes]


def contents(folder: Path) -> Contents:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def parse(dump: Path, out: Path, options: DumpOptions = SMALL, *, journal: Path | None = None, **more: Any) -> Contents:
    """Parse a dump into an empty folder, and return its files."""
    out.mkdir(exist_ok=True)
    for file in out.iterdir():  # as the artifact store does
        file.unlink()
    parse_dump(dump, out, journal=journal or out.with_suffix(".journal"), options=options, **more)
    return contents(out)


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DumpReport]:
    """A dump of lines of every kind, the last one cut off."""
    folder = tmp_path_factory.mktemp("kinds")
    (folder / "dump.nt").write_bytes(b"\n".join(one for _, one in EVERY_LINE) + b"\n" + lines.TRUNCATED)
    (folder / "out").mkdir()
    return folder / "out", parse_dump(folder / "dump.nt", folder / "out", journal=folder / "journal", options=SMALL)


def test_every_malformed_line_is_rejected_with_its_number_reason_and_text(parsed: tuple[Path, DumpReport]) -> None:
    rows = pq.read_table(parsed[0] / "rejects.parquet").to_pylist()
    expected = [(number, kind) for number, (kind, _) in enumerate(EVERY_LINE, 1) if kind in lines.MALFORMED]
    assert [(row["line"], row["reason"]) for row in rows] == [*expected, (len(EVERY_LINE) + 1, "truncated last line")]
    for row, (number, _) in zip(rows, expected, strict=False):
        assert row["file"] == "dump.nt"
        assert row["text"] == EVERY_LINE[number - 1][1].decode(errors="replace")[:500]


def test_every_line_is_counted_once(parsed: tuple[Path, DumpReport]) -> None:
    folder, report = parsed
    kinds = [kind for kind, _ in EVERY_LINE]
    malformed = sum(kind in lines.MALFORMED for kind in kinds) + 1
    assert report.lines == {kind: kinds.count(kind) for kind in lines.WELL_FORMED} | {"malformed": malformed}
    assert report.num_lines == len(EVERY_LINE) + 1
    assert report.plain_bytes == len(b"\n".join(one for _, one in EVERY_LINE) + b"\n" + lines.TRUNCATED)
    assert report.num_parts > 2
    rows = {row["label"]: row for row in pq.read_table(folder / "relations.parquet").to_pylist()}
    assert list(rows) == sorted(rows, key=str.encode) and len(rows) == report.num_relations
    assert sum(row["num_lines"] for row in rows.values()) == report.num_lines - kinds.count("blank") - malformed
    uses = {"type.object.name": "name", "common.topic.alias": "alias", "type.object.type": "type", "key/en": "noise"}
    uses |= {"common.topic.description": "noise", "people.person.parents": "triple"}
    assert {label: rows[label]["use"] for label in uses} == uses


def test_what_is_kept_is_what_the_lines_say(parsed: tuple[Path, DumpReport]) -> None:
    expected: dict[str, Counter[tuple[object, ...]]] = {kind: Counter() for kind in lines.WELL_FORMED}
    for kind, one in EVERY_LINE:
        read = parse_line(one)
        if kind in ("triple", "type", "name", "alias"):
            assert isinstance(read, Statement)
            tail = read.object if read.is_literal else label_of_iri(read.object)
            if read.is_literal and kind not in ("name", "alias"):
                tail = literal_label(tail, read.datatype, read.language)
            middle = {"triple": [label_of_iri(read.relation)], "name": [0], "alias": [1]}.get(kind, [])
            expected[kind][label_of_iri(read.subject), *middle, tail] += 1
    found = {
        kind: Counter(
            tuple(row.values())
            for part in parsed[0].glob(f"{kind}-*.parquet")
            for row in pq.read_table(part).to_pylist()
        )
        for kind in ("triples", "types", "names")
    }
    assert found["triples"] == expected["triple"]
    assert found["types"] == expected["type"]
    named = Counter({row: count for row, count in found["names"].items() if row[1] != 2})
    assert named == expected["name"] + expected["alias"]
    assert {row for row in found["names"] if row[1] == 2} == {("m.0bcd1", 2, None), ("people.person", 2, None)}


@pytest.mark.realdata
@pytest.mark.skipif("KGQA_DATA" not in os.environ, reason="KGQA_DATA names no folder with freebase/")
def test_real_lines(tmp_path: Path) -> None:
    sample = Path(os.environ["KGQA_DATA"]) / "freebase" / "sample.nt.gz"
    report = parse_dump(sample, tmp_path, journal=tmp_path / "journal")
    assert (report.num_lines, report.rejects) == (93207, {})
    assert [report.lines[kind] for kind in ("triple", "name", "type", "noise")] == [76794, 13422, 1524, 1467]


def write_dump(path: Path, num_lines: int) -> Path:
    """Write a gzip of lines of every kind, and of relations that come up one after the other."""
    draw = random.Random(0)
    kinds = list(KINDS.values())
    text = []
    for number in range(num_lines):
        if number % 3 == 0:
            relation = f"<{lines.NS}film.film.r{draw.randrange(number // 3 + 1)}>"
            text.append(lines.line(f"<{lines.NS}m.0{number}>", relation, f'"{draw.randrange(20)}"'))
        else:
            text.append(draw.choice(draw.choice(kinds)))
    path.write_bytes(gzip.compress(b"\n".join(text), 1))
    return path


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dump(tmp_path_factory.mktemp("dump") / "dump.nt.gz", 600)


@pytest.fixture(scope="module")
def expected(dump: Path, tmp_path_factory: pytest.TempPathFactory) -> Contents:
    return parse(dump, tmp_path_factory.mktemp("expected"))


@pytest.mark.parametrize("threads", [2, 7])
def test_threads_do_not_change_a_byte_and_leave_no_rubble(
    dump: Path, tmp_path: Path, expected: Contents, threads: int
) -> None:
    assert parse(dump, tmp_path, threads=threads) == expected
    kinds = {name.split("-")[0] for name in expected}
    assert kinds == {"triples", "types", "names", "relations.parquet", "rejects.parquet", "dump.json"}


class Stop(Exception):
    pass


@pytest.mark.parametrize("threads", [1, 2])
def test_a_stopped_parse_goes_on_from_its_journal(dump: Path, tmp_path: Path, expected: Contents, threads: int) -> None:
    out, journal = tmp_path / "out", tmp_path / "journal"
    whole: list[int] = []
    parse(dump, out, progress=lambda done, size: whole.append(done))
    taken = []
    for stop_after in (30, 3, 50, 10**9):
        left = iter(range(stop_after))

        def count(done: int, size: int, left: object = left) -> None:
            taken.append(done)
            if next(left, None) is None:  # type: ignore[call-overload]
                raise Stop

        try:
            parse(dump, out, threads=threads, journal=journal, progress=count)
        except Stop:
            assert not any(out.iterdir())
    assert contents(out) == expected
    # Only unfinished parts were taken again.
    assert len(whole) < len(taken) < len(whole) + 3 * (SMALL.blocks_per_part + 1)


def test_a_journal_of_other_options_or_with_a_damaged_part_changes_no_byte(
    dump: Path, tmp_path: Path, expected: Contents
) -> None:
    out, journal = tmp_path / "out", tmp_path / "journal"
    other = parse(dump, out, DumpOptions(replace(FREEBASE, language=("de",)), max_reject_ratio=1), journal=journal)
    assert parse(dump, out, journal=journal) == expected != other
    for damage in (lambda file: file.unlink(), lambda file: file.write_bytes(b"")):
        damage(journal / "names-00001.parquet")
        assert parse(dump, out, journal=journal) == expected


KILLED = """
import sys
from pathlib import Path
from kgqa_core.graph.dump import DumpOptions, parse_dump
options = DumpOptions(block_bytes=512, blocks_per_part=12, max_reject_ratio=1.0)
parse_dump(Path(sys.argv[1]), Path(sys.argv[2]), options=options, threads=2, journal=Path(sys.argv[3]))
"""


@pytest.mark.slow
def test_killed_at_any_time_the_end_is_the_same(tmp_path: Path) -> None:
    dump, out, journal = write_dump(tmp_path / "dump.nt.gz", 3000), tmp_path / "out", tmp_path / "journal"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    kills = 0
    for wait in (0.0, 0.1, 0.3, 0.05, 60.0):
        out.mkdir(exist_ok=True)
        for file in out.iterdir():
            file.unlink()
        before = len(list(journal.glob("part-*.json")))
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(dump), str(out), str(journal)], env=environment)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline and wait < 60:
            if len(list(journal.glob("part-*.json"))) > before:  # it is at work
                time.sleep(wait)
                break
            time.sleep(0.01)
        if wait < 60 and process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait(120)
    assert kills >= 2
    assert process.returncode == 0
    assert not list(journal.glob(".*"))
    assert contents(out) == parse(dump, tmp_path / "expected")


def test_a_truncated_stream_leaves_nothing(dump: Path, tmp_path: Path) -> None:
    cut, out, journal = tmp_path / "cut.nt.gz", tmp_path / "out", tmp_path / "journal"
    packed = dump.read_bytes()
    for size in (20, len(packed) // 2, len(packed) - 1):
        cut.write_bytes(packed[:size])
        with pytest.raises(InputError, match=r"cut\.nt\.gz is truncated"):
            parse(cut, out, threads=2, journal=journal)
        assert not any(out.iterdir())
        assert not journal.exists()


def test_too_many_malformed_lines_stop_a_parse_early(dump: Path, tmp_path: Path) -> None:
    options = DumpOptions(block_bytes=512, blocks_per_part=4, max_reject_ratio=0.01)
    read = []
    with pytest.raises(InputError, match=r"rows rejected .*allowed 1 %") as caught:
        parse(dump, tmp_path, options, progress=lambda done, size: read.append(done))
    assert str(caught.value).count("dump.nt.gz:") == 5
    assert len(read) <= options.blocks_per_part + 1
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("text", [b"\n\n", b"# nothing\n", b"", lines.WELL_FORMED["noise"][0]])
def test_a_dump_that_leaves_no_triple_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "dump.nt.gz").write_bytes(gzip.compress(text))
    with pytest.raises(InputError, match="no triple is kept of"):
        parse(tmp_path / "dump.nt.gz", tmp_path / "out")
    assert not any((tmp_path / "out").iterdir())


def test_a_full_disk_leaves_the_finished_parts(
    dump: Path, tmp_path: Path, expected: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, journal = tmp_path / "out", tmp_path / "journal"
    sync, left = os.fsync, iter(range(17))

    def fill(descriptor: int) -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fill)
    with pytest.raises(OSError, match="No space left"):
        parse(dump, out, journal=journal)
    assert len(list(journal.glob("part-*.json"))) == 3
    monkeypatch.undo()
    assert parse(dump, out, journal=journal) == expected


@pytest.mark.parametrize(("as_triples", "expected"), [(False, 1), (True, 3)])
def test_types_are_triples_where_they_should_be(tmp_path: Path, as_triples: bool, expected: int) -> None:
    (tmp_path / "dump.nt").write_bytes(b"\n".join(lines.WELL_FORMED["type"] + lines.WELL_FORMED["triple"][:1]))
    options = DumpOptions(replace(FREEBASE, keep_types=as_triples))
    report = parse_dump(tmp_path / "dump.nt", tmp_path, journal=tmp_path / "journal", options=options)
    assert report.rows == {"names": 0, "triples": expected, "types": 2}


def test_another_language(tmp_path: Path) -> None:
    (tmp_path / "dump.nt").write_bytes(b"\n".join(one for kind in KINDS.values() for one in kind))
    parse_dump(
        tmp_path / "dump.nt",
        tmp_path,
        journal=tmp_path / "journal",
        options=DumpOptions(replace(FREEBASE, language=("zh-Hant",)), max_reject_ratio=1),
    )
    names = pq.read_table(tmp_path / "names-00000.parquet").to_pylist()
    assert [row["name"] for row in names if row["kind"] == 0] == ["no language", "again"]


def test_a_parse_starts_quickly(dump: Path, tmp_path: Path) -> None:
    """What takes long to import stays out, pandas above all: pyarrow takes it in to convert lists and arrays."""
    code = f"{KILLED}\nassert not {{'pandas', 'duckdb', 'torch', 'pydantic'}} & set(sys.modules), sorted(sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    arguments = [str(dump), str(tmp_path), str(tmp_path / "journal")]
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, env=environment)
