"""Reading triple files: what is a row, what is rejected, and line numbers that hold however a file is cut."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kgqa_core import schemas
from kgqa_core.config_base import GRAPH_FORMATS, GraphSection, Layout
from kgqa_core.errors import ConfigError, InputError
from kgqa_core.graph.formats import PLAIN, TRIPLE_COLUMNS, GraphFormat, list_chunks, open_format
from kgqa_core.graph.header import guess_columns
from kgqa_core.graph.input_files import collect_rejects, magic_of

Row = tuple[str, ...]
Rejected = tuple[int, str]  # line, reason


def parse(
    path: Path, format: str, chunk_bytes: int = 2**20, layout: Layout = PLAIN
) -> tuple[list[Row], list[Rejected]]:
    """Rows and rejects of a file that is read in chunks of ``chunk_bytes``."""
    with TemporaryDirectory() as parts:
        chunks = list_chunks(
            path, format=format, columns=TRIPLE_COLUMNS, parts=Path(parts), chunk_bytes=chunk_bytes, layout=layout
        )
        reports = [open_format(format).parse(chunk) for chunk in chunks]
        rows = [
            tuple(row[name] for name in TRIPLE_COLUMNS)
            for r in reports
            for row in pq.read_table(r.chunk.part).to_pylist()
        ]
        rejects = [(row["line"], row["reason"]) for table in collect_rejects([reports]) for row in table.to_pylist()]
    return rows, rejects


@pytest.mark.parametrize(
    ("format", "data", "rows"),
    [
        ("wikimovies", "a|r|b\n", [("a", "r", "b")]),
        ("wikimovies", "a|r|b", [("a", "r", "b")]),  # no line end after the last line
        ("wikimovies", "a|r|b\r\nc|r|d\r\n", [("a", "r", "b"), ("c", "r", "d")]),
        ("wikimovies", "\ufeffa|r|b\n", [("a", "r", "b")]),  # byte order mark
        ("wikimovies", "a|r|b\n\n\nc|r|d\n\n", [("a", "r", "b"), ("c", "r", "d")]),
        ("wikimovies", "Amélie|r|日本\n", [("Amélie", "r", "日本")]),
        ("wikimovies", "a\u2028b|r|c\x0cd\n", [("a\u2028b", "r", "c\x0cd")]),  # line ends to Python, not to us
        ("tsv", "head\trelation\ttail\na\tr\tb\n", [("a", "r", "b")]),
        ("tsv", "subject\trelation\tb\n", [("subject", "relation", "b")]),  # only the exact header is one
        ("wikimovies", "head|relation|tail\na|r|b\n", [("a", "r", "b")]),
        ("tsv", 'a "quoted"\tr\tb,c\n', [('a "quoted"', "r", "b,c")]),
        ("csv", 'head,relation,tail\n"a, b",r,"say ""hi"""\n', [("a, b", "r", 'say "hi"')]),
        ("csv", '"head","relation","tail"\na,r,b\n', [("a", "r", "b")]),
    ],
)
def test_rows_are_read(tmp_path: Path, format: str, data: str, rows: list[Row]) -> None:
    path = tmp_path / "kb"
    path.write_bytes(data.encode())
    assert parse(path, format) == (rows, [])


@pytest.mark.parametrize(
    ("format", "data", "layout", "rows"),
    [
        ("csv", "subject,predicate,object\na,r,b\n", {"header": True}, [("a", "r", "b")]),
        ("tsv", "Head\tRelation\tTail\n\na\tr\tb\n", {"header": True}, [("a", "r", "b")]),
        ("tsv", "Head\tRelation\tTail\n", {"header": False}, [("Head", "Relation", "Tail")]),
        ("tsv", "head\trelation\ttail\n", {"header": False}, [("head", "relation", "tail")]),
        ("csv", "from,to,type,weight\na,b,r,7\n", {"columns": ("from", "type", "to")}, [("a", "r", "b")]),
        ("csv", 'to,"a, b",type\nb,a,r\n', {"columns": ("a, b", "type", "to")}, [("a", "r", "b")]),
        ("csv", "7,b,r,a\n8,c,r,a\n", {"columns": (4, 3, 2)}, [("a", "r", "b"), ("a", "r", "c")]),
        ("csv", "w,b,r,a\n8,c,r,a\n", {"columns": (4, 3, 2), "header": True}, [("a", "r", "c")]),
        ("csv", 'a;r;"b;c"\n', {"delimiter": ";"}, [("a", "r", "b;c")]),
        ("tsv", "a r b\n", {"delimiter": " "}, [("a", "r", "b")]),
    ],
)
@pytest.mark.parametrize("chunk_bytes", [1, 2**20])
def test_rows_are_read_as_the_layout_says(
    tmp_path: Path, format: str, data: str, layout: dict[str, Any], rows: list[Row], chunk_bytes: int
) -> None:
    path = tmp_path / "kb"
    path.write_text(data, encoding="utf-8")
    assert parse(path, format, chunk_bytes, GraphSection(format=format, path=path, **layout)) == (rows, [])


@pytest.mark.parametrize(
    ("format", "line", "advice"),
    [
        ("csv", "subject,predicate,object", "header: true (it names"),
        ("csv", "\ufeffSubject,Predicate,Object", "header: true (it names"),
        ("tsv", "\nHead\tRelation\tTail", "kb:2 looks like a header"),
        ("wikimovies", "Head|Relation|Tail", "or header: false (it is a triple)"),
        ("csv", "sep=;\nhead;relation;tail", "kb: its first line, sep=;, is for spreadsheets. Remove it"),
        ("csv", "# of 1954\nhead,relation,tail", "kb: its columns are named in line 2. Remove the lines before it"),
        ("tsv", "arg1\trel\targ2", "header: true (it names"),
        ("csv", "source,target,relation", "columns: [source, relation, target] (it names"),
        ("csv", ":START_ID,:END_ID,:TYPE", "columns: [:START_ID, :TYPE, :END_ID] (it names"),
        ("csv", "entity,attribute,value", "header: true (it names"),
        ("csv", "Subject,Verb,Object", "header: true (it names"),
        ("csv", "source,target,label", "columns: [source, label, target] (it names"),
        ("tsv", "headEntity\trelationName\ttailEntity", "header: true (it names"),
        ("csv", "id,head_id,rel_type,tail_id", "columns: [head_id, rel_type, tail_id] (it names"),
        ("csv", "entity,entity_id,relation,entity,entity_id", "header: true, columns: [1, 3, 4] (it names"),
        ("csv", "id,name,relation,id,name", "header: true, columns: [2, 3, 5] (it names"),
    ],
)
def test_what_looks_like_a_header_is_asked_about(tmp_path: Path, format: str, line: str, advice: str) -> None:
    path = tmp_path / "kb"
    path.write_text(f"{line}\n", encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(advice)):
        parse(path, format)
    if line.startswith("\n"):
        with pytest.raises(InputError, match="its columns are named in line 2"):
            parse(path, format, layout=Layout(header=True))
    if "columns: " in advice:  # in another order: to say that it is a header is not enough
        with pytest.raises(InputError, match=re.escape(advice)):
            parse(path, format, layout=Layout(header=True))


def test_ids_and_names_around_a_relation_are_a_header() -> None:
    names = ["Name", "ID", "type", "Name", "ID"]
    assert (guess_columns(names), guess_columns(names, ids=True)) == ((0, 2, 3), (1, 2, 4))
    assert guess_columns(["a", "r", "a"]) is None  # a triple


def test_results_of_sparql_as_tsv_are_no_plain_text(tmp_path: Path) -> None:
    path = tmp_path / "kb"
    path.write_text('?s\t?p\t?o\n<a:b>\t<a:c>\t"Ada"@en\n', encoding="utf-8")
    for layout in (PLAIN, Layout(header=True)):
        with pytest.raises(InputError, match=r"results of SPARQL as TSV.* Ask for CSV"):
            parse(path, "tsv", layout=layout)
    assert parse(path, "tsv", layout=Layout(header=False))[0][0] == ("?s", "?p", "?o")


def test_an_empty_column_behind_the_last_separator_is_named_and_can_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "kb.csv"
    path.write_text("a,r,b,\nc,r,d,\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"kb.csv:1: an empty last column.*columns: \[1, 2, 3\]"):
        parse(path, "csv")
    assert parse(path, "csv", layout=Layout(columns=(1, 2, 3))) == ([("a", "r", "b"), ("c", "r", "d")], [])
    path.write_text("a,r,b,\nc,r,d\n", encoding="utf-8")  # of one line it is a fault
    assert parse(path, "csv") == ([("c", "r", "d")], [(1, "wrong number of fields")])


def test_columns_of_parquet_have_any_name(tmp_path: Path) -> None:
    path = tmp_path / "kb.parquet"
    pq.write_table(pa.table({"o": ["b"], "s": ["a"], "p": ["r"]}), path)
    for columns in (("s", "p", "o"), (2, 3, 1)):
        assert parse(path, "parquet", layout=Layout(columns=columns)) == ([("a", "r", "b")], [])
    with pytest.raises(InputError, match=r"no column 'x'; the columns are \['o', 's', 'p'\]. Say which hold head"):
        parse(path, "parquet", layout=Layout(columns=("s", "x", "o")))


def test_a_name_of_several_columns_means_none_of_them(tmp_path: Path) -> None:
    path = tmp_path / "kb.tsv"
    path.write_text("id\tlabel\trel\tid\tlabel\nq1\ta\tr\tq2\tb\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"kb.tsv: several columns are called 'id'.* \[1, 3, 2\]"):
        parse(path, "tsv", layout=Layout(columns=("id", "rel", "label")))  # the second of each were taken
    assert parse(path, "tsv", layout=Layout(header=True, columns=(1, 3, 4))) == ([("q1", "r", "q2")], [])


@pytest.mark.parametrize(
    "wrong",
    [
        {"columns": ("a", "b")},
        {"columns": ("a", "b", "a")},
        {"columns": ("a", "b", 3)},
        {"columns": (1, 2, 0)},
        {"columns": ("a", "b", "c"), "header": False},
        {"delimiter": ""},
        {"delimiter": "||"},
        {"delimiter": "x"},
        {"delimiter": '"'},
        {"format": "nsm", "columns": (1, 2, 3)},
        {"format": "parquet", "delimiter": ","},
        {"format": "parquet", "header": True},
    ],
)
def test_a_layout_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"column|delimiter|greater"):
        GraphSection(**{"format": "csv", "path": Path("x"), **wrong})


@pytest.mark.parametrize(
    ("format", "line", "reason"),
    [
        ("wikimovies", b"a|r", "wrong number of fields"),
        ("wikimovies", b"a|r|b|c", "wrong number of fields"),
        ("wikimovies", b"a||b", "empty field"),
        ("tsv", b"a\tr\t  ", "empty field"),
        ("tsv", b"caf\xe9\tr\tb", "not UTF-8"),
        ("csv", b'"a,r,b', "malformed quotes"),  # a field that goes on in the next line
        ("csv", b"a,r", "wrong number of fields"),
        ("tsv", b"\xef\xbb\xbfa\tr\tb", "byte order mark inside the file"),  # files that were put one behind the other
    ],
)
def test_a_bad_line_is_rejected_with_its_line_number(tmp_path: Path, format: str, line: bytes, reason: str) -> None:
    separator = {"wikimovies": b"|", "tsv": b"\t", "csv": b","}[format]
    good = separator.join([b"a", b"r", b"b"])
    path = tmp_path / "kb"
    path.write_bytes(b"\n".join([good, good, line, good, b""]))
    rows, rejects = parse(path, format)
    assert rows == [("a", "r", "b")] * 3
    assert rejects == [(3, reason)]


lines = st.lists(
    st.one_of(
        st.sampled_from([b"a|r|b", b"c|r|a", "é|r|ü".encode(), b"", b"|r|b", b"a|r", b"a|r|b|c", b"\xff|r|b", b"  "]),
        st.binary(max_size=7).filter(lambda line: b"\n" not in line and not line.endswith(b"\r")),
    ),
    max_size=13,
)


def slow_parse(data: bytes, separator: str = "|") -> tuple[list[Row], list[Rejected]]:
    """The oracle: the whole file at once, line by line."""
    rows, rejects = [], []
    pieces = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for number, piece in enumerate(pieces, 1):
        try:
            fields = tuple(piece.decode().split(separator))
        except UnicodeDecodeError:
            rejects.append((number, "not UTF-8"))
            continue
        if piece.startswith(b"\xef\xbb\xbf"):
            rejects.append((number, "byte order mark inside the file"))
            continue
        if not piece.decode().strip():
            continue
        if len(fields) != 3:
            rejects.append((number, "truncated last line" if number == len(pieces) else "wrong number of fields"))
        elif any(not field.strip() for field in fields):
            rejects.append((number, "empty field"))
        else:
            rows.append(fields)
    return rows, rejects


@settings(max_examples=60)
@given(lines=lines, end=st.sampled_from([b"", b"\n"]), chunk_bytes=st.integers(1, 29))
def test_cutting_a_file_into_chunks_changes_nothing(lines: list[bytes], end: bytes, chunk_bytes: int) -> None:
    data = b"\n".join(lines) + end
    assume(magic_of(data) is None)  # what is packed is refused
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kb"
        path.write_bytes(data)
        assert parse(path, "wikimovies", chunk_bytes) == slow_parse(data)


clean = st.text(
    st.sampled_from(["a", "é", " ", "\t", "|", '"', "'", "\r", "\0", "\x1c", "\x85", "\u2028", "\\", "\ufeff"])
)


@pytest.mark.slow
@settings(max_examples=200)
@given(rows=st.lists(st.tuples(clean, clean, clean), max_size=5), end=st.sampled_from(["", "\n", "\r\n"]))
def test_a_file_read_at_once_is_read_as_line_by_line(rows: list[Row], end: str) -> None:
    data = ("\n".join("|".join(fields) for fields in rows) + end).encode().replace(b"\r\n", b"\n")
    assume(b"\0" not in data[:16])  # which looks like UTF-16
    for line in data.decode().split("\n"):  # of too many fields some are refused, with their cause
        assume(line.count("|") < 3 or ("\r" not in line and line.rpartition("|")[2].strip()))
    written = data.replace(b"\n", b"\r\n") if end == "\r\n" else data
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kb"
        path.write_bytes(written)
        found, rejects = parse(path, "wikimovies")
        wanted = slow_parse(b"\n".join(line.removesuffix(b"\r") for line in written.split(b"\n")))
        assert (found, rejects) == wanted


def test_parquet_rows_of_any_plain_type_are_read_as_text(tmp_path: Path) -> None:
    path = tmp_path / "kb.parquet"
    columns = {"tail": [1954, 7, None, 11], "head": ["a", "b", "c", " "], "relation": ["r"] * 4, "extra": [0] * 4}
    pq.write_table(pa.table(columns), path, row_group_size=3)
    for chunk_bytes in (1, 2**20):
        rows, rejects = parse(path, "parquet", chunk_bytes)
        assert rows == [("a", "r", "1954"), ("b", "r", "7")]
        assert rejects == [(3, "empty field"), (4, "empty field")]


def test_numbers_with_a_point_are_whole_where_they_can_be_and_none_where_missing(tmp_path: Path) -> None:
    path, nan = tmp_path / "kb.parquet", float("nan")
    tails = pa.array([1954.0, 12345678901.0, 76561198000000000.0, 0.5, nan, None, -1e11, 1e300])
    pq.write_table(pa.table({"head": list("abcdefgh"), "relation": ["r"] * 8, "tail": tails}), path)
    rows, rejects = parse(path, "parquet")
    assert [tail for _, _, tail in rows] == [
        "1954", "12345678901", "76561198000000000", "0.5", "-100000000000", "1e+300",
    ]  # fmt: skip
    assert rejects == [(5, "empty field"), (6, "empty field")]  # as a table with gaps has them
    tails = pa.array(map(Decimal, ("1954", "0", "1E10", "-10.5", "1.5E-9")), pa.decimal128(38, 10))  # as databases do
    pq.write_table(pa.table({"head": list("abcde"), "relation": ["r"] * 5, "tail": tails}), path)
    rows, _ = parse(path, "parquet")
    assert [tail for _, _, tail in rows] == ["1954", "0", "10000000000", "-10.5000000000", "1.5E-9"]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_a_time_is_the_same_in_all_units_and_midnight_without_a_zone_is_the_day(tmp_path: Path, unit: str) -> None:
    path, day = tmp_path / "kb.parquet", datetime(1815, 12, 10)
    times = [day, day.replace(hour=9), day.replace(microsecond=50_000)]
    for zone, behind in (
        (None, ["", " 09:00:00", " 00:00:00.05"]),
        ("UTC", [" 00:00:00Z", " 09:00:00Z", " 00:00:00.05Z"]),
    ):
        tails = pa.array(times, pa.timestamp(unit, zone))
        pq.write_table(pa.table({"head": list("abc"), "relation": ["r"] * 3, "tail": tails}), path)
        rows, _ = parse(path, "parquet")
        assert [tail for _, _, tail in rows] == [f"1815-12-10{one}" for one in behind]


@pytest.mark.slow
def test_a_parquet_file_without_rows_has_none(tmp_path: Path) -> None:
    """In a process of its own: pyarrow ends it where a function is given no chunk at all."""
    columns = dict.fromkeys(TRIPLE_COLUMNS, pa.array([], pa.string())) | {"tail": pa.array([], pa.float64())}
    pq.write_table(pa.table(columns), path := tmp_path / "part-00000.parquet")
    code = f"from tests.graph.test_formats import *; assert parse(Path({str(path)!r}), 'parquet') == ([], [])"
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", code], check=True, env=here)


def test_a_file_that_is_not_as_its_format_says_is_named(tmp_path: Path) -> None:
    path = tmp_path / "kb.parquet"
    pq.write_table(pa.table({"head": ["a"], "predicate": ["r"], "tail": ["b"]}), path)
    with pytest.raises(InputError, match=r"no column 'relation'; the columns are \['head', 'predicate', 'tail'\]"):
        parse(path, "parquet")
    broken = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(bytes(4) + b"\1\0\0\0"), pa.py_buffer(b"\xff")])
    pq.write_table(pa.table({"head": broken, "relation": ["r"], "tail": ["b"]}), path)  # text that is no UTF-8
    with pytest.raises(InputError, match="columns must hold text, numbers or dates"):
        parse(path, "parquet")
    path.write_text("a|r|b\n", encoding="utf-8")
    with pytest.raises(InputError, match="no readable Parquet file"):
        parse(path, "parquet")


@pytest.mark.parametrize("name", GRAPH_FORMATS)
def test_every_format_of_the_table_is_one(name: str) -> None:
    assert isinstance(open_format(name), GraphFormat) and open_format(name).example


def test_an_unknown_format_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no graph format is called 'tsw'; legal are wikimovies, .*'tsv'"):
        open_format("tsw")


TOY = """
from kgqa_core.graph.formats import format_of_lines

FORMAT = format_of_lines("head;relation;tail", ";")
"""
USE = """
from pathlib import Path
from kgqa_core.config_file import read_config
from kgqa_core.graph.build import build_graph

graph = read_config(Path("my.yaml")).dataset.graph
print(build_graph(graph.path, format=graph.format, out_dir=Path("out"), max_reject_ratio=0.5).rejects)
"""
RUN = """
dataset: {name: n, source: files, graph: {format: toy, path: kb}, questions: {format: jsonl, path: q}}
encoder: {kind: hash}
explorer: {steps: 1, edge_budget: 1, epochs: 1}
"""


def test_a_format_of_your_own_is_a_file_and_a_line(tmp_path: Path) -> None:
    """In a copy of the package, as a newcomer would: files touched: 2."""
    package = tmp_path / "kgqa_core"
    shutil.copytree(Path(schemas.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "graph" / "toy.py").write_text(TOY, encoding="utf-8")
    config = package / "config_base.py"
    table = "GRAPH_FORMATS = {\n"
    line = '    "toy": "kgqa_core.graph.toy:FORMAT",\n'
    text = config.read_text("utf-8")
    assert table in text
    config.write_text(text.replace(table, table + line), "utf-8")
    (tmp_path / "kb").write_text("a;r;b\nc;r\nd;s;e\n", encoding="utf-8")
    (tmp_path / "my.yaml").write_text(RUN, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "KGQA_HOME": str(tmp_path / "home")}
    run = subprocess.run(
        [sys.executable, "-c", USE], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "{'wrong number of fields': 1}"
