"""Files of data that are wrong in 120 ways: an error of three lines that names the file, or counted rejects."""

from __future__ import annotations

import gzip
import json
import time
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kgqa_core.errors import InputError
from kgqa_core.graph.dump import parse_dump
from kgqa_core.graph.dump_rows import DumpOptions, read_rows
from kgqa_core.graph.formats import TRIPLE_COLUMNS, list_chunks, open_format
from kgqa_core.graph.input_files import collect_rejects
from kgqa_core.profiles import PROFILES
from kgqa_core.questions.formats import Fault, QuestionFile
from kgqa_core.questions.formats import open_format as question_format

MARK = b"\xef\xbb\xbf"
REFUSED = "refused"  # an InputError, not a reason of a reject
NT = b"<http://a> <http://b> <http://c> .\n"
# Name of the file, whose suffix says its format; what is in it; how often which reason, or what the error says.
TRIPLES: list[tuple[str, bytes, dict[str, int] | str]] = [
    ("few.tsv", b"a\tr\n", {"wrong number of fields": 1}),
    ("many.tsv", b"a\tr\tb\tc\n", {"wrong number of fields": 1}),
    ("blanks.tsv", b"a r b\n", {"wrong number of fields": 1}),
    ("spaces.tsv", b" \tr\tb\n", {"empty field": 1}),
    ("no-break.tsv", "\u00a0\tr\tb\n".encode(), {"empty field": 1}),
    ("ideographic.tsv", "\u3000\tr\tb\n".encode(), {"empty field": 1}),
    ("empty-head.tsv", b"\tr\tb\n", {"empty field": 1}),
    ("empty-tail.tsv", b"a\tr\t\n", {"empty field": 1}),
    ("latin.tsv", b"caf\xe9\tr\tb\n", {"not UTF-8": 1}),
    ("surrogate.tsv", b"\xed\xa0\x80\tr\tb\n", {"not UTF-8": 1}),
    ("overlong.tsv", b"\xc0\xaf\tr\tb\n", {"not UTF-8": 1}),
    ("utf16.tsv", "a\tr\tb\n".encode("utf-16"), "utf16.tsv is UTF-16"),
    ("utf16-unmarked.tsv", "a\tr\tb\n".encode("utf-16-le"), "utf16-unmarked.tsv is UTF-16"),
    ("utf16-big.csv", "a,r,b\n".encode("utf-16-be"), "utf16-big.csv is UTF-16"),
    ("cut.tsv", b"a\tr\tb\nc\tr", {"truncated last line": 1}),
    ("cut-letter.tsv", b"a\tr\tb\nc\tr\t\xc3", {"not UTF-8": 1}),
    ("joined.tsv", b"a\tr\tb\n" + MARK + b"c\tr\td\n", {"byte order mark inside the file": 1}),
    ("two-marks.tsv", MARK * 2 + b"a\tr\tb\n", {"byte order mark inside the file": 1}),
    ("old-mac.tsv", b"a\tr\tb\rc\tr\td\r", "carriage returns alone"),
    ("html.tsv", b"<html>\n<body>\n", {"wrong number of fields": 2}),
    ("json.tsv", b'{"a": 1}\n', {"wrong number of fields": 1}),
    ("nul.tsv", b"\0\0\0\n", {"wrong number of fields": 1}),
    ("subject.tsv", b"subject\tpredicate\tobject\na\tr\tb\n", "header: true"),
    ("Head.tsv", b"Head\tRelation\tTail\n", "header: true"),
    ("spo.tsv", b"s\tp\to\na\tr\tb\n", "header: true"),
    ("sot.tsv", b"source\ttarget\ttype\n", "columns: [source, type, target]"),
    ("late.tsv", b"\n\nhead\trelation\ttail\n", "named in line 3"),
    ("few.csv", b"a,r\n", {"wrong number of fields": 1}),
    ("many.csv", b"a,r,b,c\n", {"wrong number of fields": 1}),
    ("semicolons.csv", b"a;r;b\n", {"wrong number of fields": 1}),
    ("tabs.csv", b"a\tr\tb\n", {"wrong number of fields": 1}),
    ("open.csv", b'"a,r,b\n', {"malformed quotes": 1}),
    ("inner.csv", b'"a"b,r,c\n', {"malformed quotes": 1}),
    ("break.csv", b'"a\nb",r,c\n', {"malformed quotes": 1}),
    ("empty.csv", b'"",r,c\n', {"empty field": 1}),
    ("long.csv", b'"%b",r\n' % (b"a" * 2**18), {"wrong number of fields": 1}),  # its quotes are sound
    ("latin.csv", b"caf\xe9,r,b\n", {"not UTF-8": 1}),
    ("joined.csv", b'"a",r,b\n' + MARK + b'"a",r,b\n', {"byte order mark inside the file": 1}),
    ("header.csv", b"subject,predicate,object\na,r,b\n", "header: true"),
    ("quoted.csv", b'"Subject","Predicate","Object"\n', "header: true"),
    ("neo4j.csv", b":START_ID,:END_ID,:TYPE\n", "columns: [:START_ID, :TYPE, :END_ID]"),
    ("weights.csv", b"head,relation,tail,weight\na,r,b,1\n", "columns: [head, relation, tail]"),
    ("few.txt", b"a|r\n", {"wrong number of fields": 1}),
    ("double.txt", b"a||b\n", {"empty field": 1}),
    ("header.txt", b"Head|Relation|Tail\n", "header: true"),
    ("cut.csv.gz", gzip.compress(b"a,r,b\n" * 99, mtime=0)[:-9], "truncated"),
    ("sum.csv.gz", gzip.compress(b"a,r,b\n", mtime=0)[:-8] + b"\0" * 8, "damaged"),
    ("flipped.csv.gz", gzip.compress(bytes(range(256)), mtime=0)[:20] + b"\xff" * 99, "truncated"),
    ("plain.csv.gz", b"a,r,b\n", "truncated"),
    ("zlib.csv.gz", zlib.compress(b"a,r,b\n"), "damaged"),
    ("none.csv.gz", b"\x1f\x8b", "truncated"),
    ("behind.csv.gz", gzip.compress(b"a,r,b\n", mtime=0) + b"\n", "or a few bytes that are no gzip"),
    ("text.parquet", b"a\tr\tb\n", "no readable Parquet file"),
    ("nothing.parquet", b"", "no readable Parquet file"),
    ("magic.parquet", b"PAR1", "no readable Parquet file"),
    ("both-magics.parquet", b"PAR1" + b"\0" * 40 + b"PAR1", "no readable Parquet file"),
    ("footer.parquet", b"PAR1" + b"\xff" * 40 + b"\x28\0\0\0PAR1", "no readable Parquet file"),
    ("no-dot.nt", NT[:-2] + b"\n", {"missing final dot": 1}),
    ("literal-head.nt", b'"a" <http://b> <http://c> .\n', {"missing field": 1}),
    ("blank-relation.nt", b"<http://a> _:b <http://c> .\n", {"missing field": 1}),
    ("relative.nt", b"<a> <http://b> <http://c> .\n", {"relative IRI": 1}),
    ("space.nt", b"<http://a b> <http://b> <http://c> .\n", {"bad character in an IRI": 1}),
    ("open.nt", b'<http://a> <http://b> "c .\n', {"unterminated literal": 1}),
    ("escape.nt", b'<http://a> <http://b> "\\x" .\n', {"bad escape": 1}),
    ("lone.nt", b'<http://a> <http://b> "\\ud800" .\n', {"bad escape": 1}),
    ("language.nt", b'<http://a> <http://b> "c"@- .\n', {"bad language tag or datatype": 1}),
    ("type.nt", b'<http://a> <http://b> "c"^^d .\n', {"bad language tag or datatype": 1}),
    ("two.nt", NT[:-1] + NT, {"text after the final dot": 1}),
    ("turtle.nt", b"@prefix : <http://x/> .\n:a :b :c .\n", {"missing field": 2}),
    ("tsv.nt", b"a\tr\tb\n", {"missing field": 1}),
    ("latin.nt", b'<http://a> <http://b> "caf\xe9" .\n', {"not UTF-8": 1}),
    ("cut.nt", NT + b"<http://a> <http", {"truncated last line": 1}),
    ("joined.nt", NT + MARK + NT, {"missing field": 1}),
    (
        "quoted.nt",
        b"<http://a> <http://b> <<( <http://a> <http://b> <http://c> )>> .\n",
        {"a triple inside a triple": 1},
    ),
    ("quoted.ttl", b"@prefix : <http://x/> .\n:a :b :c .\n<< :a :b :c >> :d :e .\n", {"a triple inside a triple": 1}),
    ("prefix.ttl", b"a:b a:c a:d .\n", "not Turtle"),
    ("open.ttl", b"@prefix : <http://x/> .\n:a :b [ :c :d .\n", "not Turtle"),
    ("latin.ttl", b'<http://a> <http://b> "caf\xe9" .\n', "not Turtle"),
    ("open.rdf", b"<rdf:RDF><a>", "not RDF/XML"),
    ("entity.rdf", b"<!DOCTYPE x [<!ENTITY a SYSTEM 'file:///etc/passwd'>]><x>&a;</x>", "not RDF/XML"),
    ("text.rdf", b"hello", "not RDF/XML"),
]
BOMB = b"<!DOCTYPE x [<!ENTITY a 'aaaaaaaaaa'>" + b"".join(
    b"<!ENTITY %c '&%c;&%c;&%c;&%c;&%c;&%c;&%c;&%c;'>" % (now, *[now - 1] * 8) for now in range(ord("b"), ord("m"))
)
TRIPLES.append(("bomb.rdf", BOMB + b"]><x>&l;</x>", "not RDF/XML"))
COLUMNS: dict[str, Any] = {
    "missing": pa.table({"head": ["a"], "relation": ["r"]}),
    "lists": pa.table({"head": [["a"]], "relation": ["r"], "tail": ["b"]}),
    "structs": pa.table({"head": [{"x": 1}], "relation": ["r"], "tail": ["b"]}),
    "twice": pa.table([["a"], ["a"], ["r"], ["b"]], names=["head", "head", "relation", "tail"]),
    "binary": pa.table({"head": [b"\xff"], "relation": ["r"], "tail": ["b"]}),
    "nothing": pa.table({}),
}
ROW: dict[str, Any] = {"question": "Who?", "topics": ["a"], "answers": ["b"]}
ROWS: dict[str, Any] = {
    "list": [1],
    "text": "x",
    "number": 7,
    "null": None,
    "no question": {"answers": ["b"]},
    "empty question": ROW | {"question": ""},
    "number for a question": {**ROW, "question": None},
    "answers as text": ROW | {"answers": "b"},
    "answers as an object": ROW | {"answers": {"b": 1}},
    "null among answers": ROW | {"answers": [None]},
    "an empty answer": ROW | {"answers": [""]},
    "no answers": ROW | {"answers": []},
    "topics as text": ROW | {"topics": "a"},
    "hops of 10^30": ROW | {"hops": 10**30},
    "hops of 400 digits": ROW | {"hops": 10**400},
    "no hops": ROW | {"hops": 0},
    "half a hop": ROW | {"hops": 1.5},
    "hops as text": ROW | {"hops": "many"},
    "a chain as text": ROW | {"chain": "r"},
    "a verdict alone": ROW | {"verdict": True},
    "a claim alone": ROW | {"claim": "b"},
    "a verdict as text": ROW | {"claim": "b", "verdict": "perhaps"},
    "made in a test": ROW | {"made": True},
    "an id as a list": ROW | {"id": []},
}
LINES = {
    "a key twice": b'{"question": "a?", "question": "b?", "answers": ["b"]}',
    "a key twice inside": b'{"question": "a?", "answers": ["b"], "note": {"x": 1, "x": 2}}',
    "no JSON": b'{"question": ',
    "single quotes": b"{'question': 'a?'}",
    "a comment": b"# questions",
    "NaN": b'{"question": NaN}',
    "not UTF-8": b'{"question": "caf\xe9", "answers": ["b"]}',
    "a lone surrogate": b'{"question": "\\ud800", "answers": ["b"]}',
    "a mark": MARK + json.dumps(ROW).encode(),
    "deep": b'{"question": ' + b"[" * 100_000,
    "two objects": b'{"question": "a?"} {"question": "b?"}',
}
DUMP = [
    b"<http://a>\t<http://b>\t<http://c>",
    b"a\tb\tc\t.",
    b'<http://a>\t<http://b>\t"c\t.',
    b"\xff\t.",
    b"<a> <b> <c> .",
]


def parse(path: Path) -> tuple[int, list[str]]:
    """Return the rows and the reasons of the rejects of a file, which is read in small chunks."""
    suffix = path.name.split(".")[1]
    form = {"txt": "wikimovies"}.get(suffix, suffix)
    parts = path.parent / "parts"
    parts.mkdir()
    if suffix in ("nt", "ttl", "rdf"):
        path.write_bytes((NT if suffix == "nt" else b"") + path.read_bytes())  # without a triple it were an error
        options = DumpOptions(PROFILES["rdf"], max_reject_ratio=1.0)
        parsed = parse_dump(path, parts, journal=parts / "journal", options=options)
        return parsed.rows["triples"], [reason for reason, count in parsed.rejects.items() for _ in range(count)]
    chunks = list_chunks(path, format=form, columns=TRIPLE_COLUMNS, parts=parts, chunk_bytes=2**20)
    reports = [open_format(form).parse(chunk) for chunk in chunks]
    rejects = [row["reason"] for table in collect_rejects([reports]) for row in table.to_pylist()]
    return sum(report.num_rows for report in reports), rejects


def assert_short(error: InputError, path: Path, began: float) -> None:
    message = str(error)
    assert path.name.removesuffix(".gz") in message and len(message.splitlines()) <= 3 and len(message) < 1500
    assert error.exit_code == 3 and time.process_time() - began < 5


@pytest.mark.parametrize(("name", "data", "expected"), TRIPLES, ids=[name for name, _, _ in TRIPLES])
def test_a_bad_file_of_triples_is_an_error_or_counted(
    tmp_path: Path, name: str, data: bytes, expected: dict[str, int] | str
) -> None:
    path, began = tmp_path / name, time.process_time()
    path.write_bytes(data)
    if isinstance(expected, str):
        with pytest.raises(InputError) as raised:
            parse(path)
        assert expected in str(raised.value)
        assert_short(raised.value, path, began)
    else:
        _, rejects = parse(path)
        assert {reason: rejects.count(reason) for reason in rejects} == expected


@pytest.mark.parametrize("what", COLUMNS)
def test_a_parquet_file_without_usable_columns_is_named(tmp_path: Path, what: str) -> None:
    path, began = tmp_path / "kb.parquet", time.process_time()
    pq.write_table(COLUMNS[what], path)
    with pytest.raises(InputError) as raised:
        parse(path)
    assert_short(raised.value, path, began)


def test_a_parquet_file_with_a_name_that_is_no_text_is_named(tmp_path: Path) -> None:
    path, began = tmp_path / "kb.parquet", time.process_time()
    pq.write_table(pa.table({"head": ["a"], "relation": ["r"], "tail": ["b"]}), path)
    path.write_bytes(path.read_bytes().replace(b"tail", b"ta\x80l"))
    with pytest.raises(InputError, match="no readable Parquet file") as raised:
        parse(path)
    assert_short(raised.value, path, began)


@pytest.mark.parametrize(
    "line", [*(json.dumps(row).encode() for row in ROWS.values()), *LINES.values()], ids=[*ROWS, *LINES]
)
def test_a_bad_line_of_questions_is_a_reject_with_its_place(tmp_path: Path, line: bytes) -> None:
    path, good = tmp_path / "own.jsonl", json.dumps(ROW).encode()
    path.write_bytes(b"\n".join([good, line, good, b""]))
    read = {number: parsed for number, _, parsed in question_format("jsonl").read(QuestionFile(path, "test"))}
    fault = read.pop(2)
    assert isinstance(fault, Fault) and fault.reason and "\n" not in fault.reason and len(fault.reason) < 200
    assert len(read) == 2 and not any(isinstance(one, Fault) for one in read.values())


@pytest.mark.parametrize("line", DUMP)
def test_a_bad_line_of_a_dump_is_a_reject(line: bytes) -> None:
    good = b"<http://a>\t<http://b>\t<http://c>\t.\n"
    rows = read_rows(good + line + b"\n" + good, DumpOptions())
    assert [number for number, _, _ in rows.rejects] == [2] and rows.counts["lines"]["triple"] == 2


def test_there_are_120_of_them() -> None:
    assert len(TRIPLES) + len(COLUMNS) + len(ROWS) + len(LINES) + len(DUMP) >= 120
