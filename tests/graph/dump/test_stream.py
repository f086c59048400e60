"""Dumps as streams: every way to pack the same text gives the same blocks, and damage is never taken for an end."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgqa_core.errors import InputError
from kgqa_core.graph.dump import stream
from kgqa_core.graph.dump.stream import LINE_END, PADDING, DumpStream

TEXT = b"".join(b"line %d %s\n" % (number, b"x" * (number * 7 % 90)) for number in range(300))


def blocks_of(path: Path, block_bytes: int, first: int = 0) -> dict[int, bytes]:
    found = {}
    with DumpStream(path, block_bytes) as dump:
        for block in dump.blocks(first):
            assert block.data[block.size] == LINE_END
            assert len(block.data) >= block.size + PADDING
            found[block.number] = bytes(block.data[: block.size])
            dump.recycle(block)
    return found


def expected_blocks(text: bytes, block_bytes: int) -> dict[int, bytes]:
    """Put every line into the block of its first byte, the slow way."""
    found: dict[int, bytes] = {}
    at = 0
    for line in text.splitlines(keepends=True):
        number = at // block_bytes
        found[number] = found.get(number, b"") + line
        at += len(line)
    return found


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 64), st.booleans())
@settings(max_examples=50, deadline=None)
def test_a_block_holds_the_lines_that_begin_in_its_slice(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], block_bytes: int, ended: bool
) -> None:
    text = b"".join(b"y" * length + b"\n" for length in lengths)
    text = text if ended else text.removesuffix(b"\n")
    path = tmp_path_factory.getbasetemp() / "lines.nt"
    path.write_bytes(text or b"\n")
    expected = expected_blocks(text or b"\n", block_bytes)
    found = blocks_of(path, block_bytes)
    assert {number: block for number, block in found.items() if block} == expected
    for first in range(max(expected) + 3):
        later = {number: block for number, block in expected.items() if number >= first}
        assert {number: block for number, block in blocks_of(path, block_bytes, first).items() if block} == later


@pytest.mark.parametrize(
    "packed",
    [
        TEXT,
        gzip.compress(TEXT),
        b"".join(gzip.compress(TEXT[at : at + 1000]) for at in range(0, len(TEXT), 1000)),
        gzip.compress(b"") + gzip.compress(TEXT) + gzip.compress(b""),
        gzip.compress(TEXT) + b"\0" * 100,  # as tape and block devices pad
    ],
    ids=["plain", "gzip", "many members", "empty members", "padded"],
)
def test_packing_does_not_matter(tmp_path: Path, packed: bytes) -> None:
    (tmp_path / "dump").write_bytes(packed)
    assert blocks_of(tmp_path / "dump", 512) == expected_blocks(TEXT, 512)


def test_a_byte_order_mark_is_white_space(tmp_path: Path) -> None:
    (tmp_path / "dump").write_bytes(b"\xef\xbb\xbf" + TEXT)
    assert blocks_of(tmp_path / "dump", 1 << 20)[0] == b"   " + TEXT


def test_a_truncated_gzip_is_never_an_end(tmp_path: Path) -> None:
    whole = gzip.compress(TEXT[:3000]) + gzip.compress(TEXT[3000:])
    path = tmp_path / "dump.nt.gz"
    second = whole.index(b"\x1f\x8b\x08", 4)
    for size in {*range(2, 30), *range(second - 10, second), *range(second + 2, len(whole), 17), len(whole) - 1}:
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=rf"dump.nt.gz is truncated.* of {size} "):
            blocks_of(path, 512)


@pytest.mark.parametrize("at", [40, 100, -6, -2])
def test_a_damaged_gzip_is_told(tmp_path: Path, at: int) -> None:
    packed = bytearray(gzip.compress(TEXT))
    packed[at] ^= 0x55
    (tmp_path / "dump.nt.gz").write_bytes(packed)
    with pytest.raises(InputError, match=r"is (damaged|truncated).*Nothing of it is kept"):
        blocks_of(tmp_path / "dump.nt.gz", 512)


def test_text_behind_a_gzip_stream_is_damage(tmp_path: Path) -> None:
    (tmp_path / "dump.nt.gz").write_bytes(gzip.compress(TEXT) + b"<a> <b> <c> .\n")
    with pytest.raises(InputError, match="is damaged"):
        blocks_of(tmp_path / "dump.nt.gz", 512)


@pytest.mark.parametrize(("start", "what"), [(b"", "is empty"), (b"BZh9", "is bzip2"), (b"PK\x03\x04", "is zip")])
def test_what_is_no_dump_is_refused(tmp_path: Path, start: bytes, what: str) -> None:
    (tmp_path / "dump").write_bytes(start)
    with pytest.raises(InputError, match=what):
        DumpStream(tmp_path / "dump", 512)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.gz: cannot be opened"):
        DumpStream(tmp_path / "nowhere.gz", 512)


def test_a_line_without_end_stops_before_memory_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_LINE_BYTES", 10_000)
    (tmp_path / "dump").write_bytes(b"a\n" + b"x" * 50_000)
    with pytest.raises(InputError, match="longer than 10000 bytes"):
        blocks_of(tmp_path / "dump", 512)
