"""Gzipped triples and names; dumps as streams: the blocks are the same however the text is packed."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgqa_core.config_base import Layout, QuestionSection
from kgqa_core.errors import InputError
from kgqa_core.graph import input_files
from kgqa_core.graph.build import BuildLimits, build_graph
from kgqa_core.graph.input_files import read_blocks
from kgqa_core.questions.build import read_topics

TSV = "".join(f"a{n}\tr\tb{n % 5}\n" for n in range(97)) + "bad\n"


def test_gzipped_triples_and_names_give_the_same_graph(tmp_path: Path) -> None:
    (tmp_path / "kb.tsv").write_text(TSV)
    (tmp_path / "names.tsv").write_text("a1\tAnn\n")
    for name in ("kb.tsv", "names.tsv"):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    for number, end in enumerate(("", ".gz")):
        files = {"path": tmp_path / f"kb.tsv{end}", "names": tmp_path / f"names.tsv{end}"}
        limits = BuildLimits(chunk_bytes=101)
        build_graph(**files, format="tsv", out_dir=tmp_path / str(number), max_reject_ratio=0.1, limits=limits)
    first, second = ({path.name: path.read_bytes() for path in (tmp_path / n).iterdir()} for n in ("0", "1"))
    assert first == second
    (reject,) = pq.read_table(tmp_path / "1/rejects.parquet").to_pylist()
    assert (reject["file"], reject["line"]) == ("kb.tsv", 98)


def test_a_truncated_gzip_is_an_error_and_question_files_are_to_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "kb.csv.gz").write_bytes(gzip.compress(TSV.encode())[:-5])
    with pytest.raises(InputError, match=r"kb.csv.gz is truncated.* Was the file copied whole"):
        build_graph(tmp_path / "kb.csv.gz", format="csv", out_dir=tmp_path / "graph")
    (tmp_path / "dev.jsonl.gz").touch()
    with pytest.raises(InputError, match=r"not read from a gzip. Unpack it: gunzip --keep dev.jsonl.gz"):
        build_graph(tmp_path / "dev.jsonl.gz", format="nsm", out_dir=tmp_path / "graph")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("gzip", gzip.compress(TSV.encode())),
        ("bzip2", bz2.compress(TSV.encode())),
        ("xz", lzma.compress(TSV.encode())),
        ("UTF-16", TSV.encode("utf-16")),
    ],
)
def test_packed_lines_are_called_what_they_are(tmp_path: Path, name: str, data: bytes) -> None:
    for path in (tmp_path / "kb.tsv", tmp_path / "train.jsonl"):
        path.write_bytes(data)
    with pytest.raises(InputError, match=rf"kb.tsv is {name}. Repack it as plain UTF-8"):
        build_graph(tmp_path / "kb.tsv", format="tsv", out_dir=tmp_path / "graph")
    with pytest.raises(InputError, match=rf"train.jsonl is {name}. Repack it as plain UTF-8"):
        read_topics(QuestionSection(format="jsonl", path=tmp_path / "train.jsonl"))


def test_lines_in_another_encoding_are_told_how_to_become_utf_8(tmp_path: Path) -> None:
    for text in ("Zürich\tin\tEurope\n", "Zürich\tin\tEurope\nParis\tin\tEurope\n"):
        (tmp_path / "kb.tsv").write_bytes(text.encode("cp1252"))
        with pytest.raises(InputError, match=r"not UTF-8(?s:.*)iconv -f WINDOWS-1252 -t UTF-8 old > new"):
            build_graph(tmp_path / "kb.tsv", format="tsv", out_dir=tmp_path / "graph")


def test_lines_with_more_columns_are_told_the_setting(tmp_path: Path) -> None:
    (tmp_path / "kb.tsv").write_text("a\tr\tb\t0.9\n" * 2, encoding="utf-8")
    with pytest.raises(InputError, match=r"wrong number of fields(?s:.*)dataset\.graph\.columns says"):
        build_graph(tmp_path / "kb.tsv", format="tsv", out_dir=tmp_path / "graph")
    (tmp_path / "triples.tsv").write_text("a\tr\tb\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"kb\.tsv:1: wrong number of fields(?s:.*)names have two"):
        build_graph(tmp_path / "triples.tsv", format="tsv", names=tmp_path / "kb.tsv", out_dir=tmp_path / "graph")


def test_parts_of_which_one_lacks_the_header_are_refused_not_cut_short(tmp_path: Path) -> None:
    """As ``split`` cuts a file: of the other parts the first triple would be taken for the header."""
    paths = [tmp_path / "a.tsv", tmp_path / "b.tsv", tmp_path / "c.tsv"]
    for path, text in zip(paths, ("s\tp\to\na\tr\tb\n", "", "c\tr\td\n"), strict=True):
        path.write_text(text, encoding="utf-8")
    how = {"format": "tsv", "out_dir": tmp_path / "graph"}
    with pytest.raises(InputError, match=r"c\.tsv: its first line is not the header of .*a\.tsv"):
        build_graph(paths, layout=Layout(header=True), **how)
    paths[2].write_text("s\tp\to\nc\tr\td\n", encoding="utf-8")
    assert build_graph(paths, layout=Layout(header=True), **how).num_triples == 2


# Dumps

TEXT = b"".join(b"line %d %s\n" % (number, b"x" * (number * 7 % 90)) for number in range(300))


def blocks_of(path: Path, block_bytes: int, skip: int = 0) -> list[bytes]:
    return [text for text, _ in read_blocks(path, block_bytes, skip)]


def cut(text: bytes, block_bytes: int) -> list[bytes]:
    """Cut a text into blocks of as many whole lines as there is room for."""
    blocks = []
    while text:
        size = block_bytes
        while b"\n" not in text[:size] and size < len(text):
            size += block_bytes
        end = text.rfind(b"\n", 0, size) + 1 or len(text)
        blocks.append(text[:end])
        text = text[end:]
    return blocks


PLAIN_BLOCKS, PACKED = cut(TEXT, 512), gzip.compress(TEXT)


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 64), st.booleans())
@settings(max_examples=50, deadline=None)
def test_blocks_are_whole_lines_and_are_found_again_from_any_of_them(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], block_bytes: int, ended: bool
) -> None:
    text = b"".join(b"y" * length + b"\n" for length in lengths)
    text = (text if ended else text.removesuffix(b"\n")) or b"\n"
    path = tmp_path_factory.getbasetemp() / "lines.nt"
    path.write_bytes(text)
    blocks = blocks_of(path, block_bytes)
    assert blocks == cut(text, block_bytes)
    for number in range(len(blocks) + 1):
        assert blocks_of(path, block_bytes, sum(map(len, blocks[:number]))) == blocks[number:]


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
    assert blocks_of(tmp_path / "dump", 512) == PLAIN_BLOCKS
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbf" + TEXT)  # a byte order mark is white space
    assert blocks_of(tmp_path / "marked", 1 << 20) == [b"   " + TEXT]


def test_a_truncated_gzip_is_never_an_end(tmp_path: Path) -> None:
    whole = gzip.compress(TEXT[:3000]) + gzip.compress(TEXT[3000:])
    path = tmp_path / "dump.nt.gz"
    second = whole.index(b"\x1f\x8b\x08", 4)
    for size in {*range(2, 30), *range(second - 10, second), *range(second + 2, len(whole), 17), len(whole) - 1}:
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=rf"dump.nt.gz is truncated.* of {size}\."):
            blocks_of(path, 512)


FLIPPED = [
    bytes(byte ^ 0x55 * (at % len(PACKED) == place) for place, byte in enumerate(PACKED)) for at in (40, 100, -6, -2)
]


@pytest.mark.parametrize("packed", [*FLIPPED, PACKED + b"<a> <b> <c> .\n"])
def test_a_damaged_gzip_is_told_as_is_text_behind_one(tmp_path: Path, packed: bytes) -> None:
    (tmp_path / "dump.nt.gz").write_bytes(packed)
    with pytest.raises(InputError, match=r"is (damaged|truncated).*Nothing of it is kept"):
        blocks_of(tmp_path / "dump.nt.gz", 512)


@pytest.mark.parametrize(
    ("start", "what"),
    [(b"", "is empty"), (b"BZh9", "is bzip2"), (b"PK\x03\x04", "is zip"), (None, r"dump: cannot be opened")],
)
def test_what_is_no_dump_is_refused(tmp_path: Path, start: bytes | None, what: str) -> None:
    if start is not None:
        (tmp_path / "dump").write_bytes(start)
    with pytest.raises(InputError, match=what):
        blocks_of(tmp_path / "dump", 512)


def test_a_line_without_end_stops_before_memory_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_files, "MAX_LINE_BYTES", 10_000)
    (tmp_path / "dump").write_bytes(b"a\n" + b"x" * 50_000)
    with pytest.raises(InputError, match="longer than 10000 bytes"):
        blocks_of(tmp_path / "dump", 512)


def test_a_gzip_of_one_endless_line_is_refused_before_it_is_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_files, "MAX_LINE_BYTES", 10_000)
    (tmp_path / "kb.tsv.gz").write_bytes(gzip.compress(b"a\tr\tb\n" + bytes(50_000)))
    with pytest.raises(InputError, match="longer than 10000 bytes"):
        build_graph(
            path=tmp_path / "kb.tsv.gz",
            names=None,
            format="tsv",
            out_dir=tmp_path / "graph",
            max_reject_ratio=1.0,
            limits=BuildLimits(chunk_bytes=101),
        )
