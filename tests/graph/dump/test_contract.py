"""The contract of the N-Triples paths: compiled, the regular expression, and a process that has no numba."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kgqa_core.graph.dump import codes, parse
from kgqa_core.graph.dump.codes import code_of, label_of
from kgqa_core.graph.dump.filters import DumpOptions
from kgqa_core.graph.dump.ntriples import parse_line
from kgqa_core.graph.dump.parse import parse_dump
from tests.graph.dump import lines
from tests.graph.dump.conftest import SMALL

ALL_KINDS = lines.WELL_FORMED | lines.MALFORMED
PLAIN: list[tuple[str, bytes]] = [  # every kind of line; the order mixes them
    pair
    for pairs in zip(
        *[[(kind, one) for _ in range(25) for one in ones][:25] for kind, ones in ALL_KINDS.items()],
        strict=True,
    )
    for pair in pairs
]
TEXT = b"\n".join(one for _, one in PLAIN) + b"\n" + lines.TRUNCATED


def parse_compiled(dump: Path, out: Path, options: DumpOptions, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    assert codes.has_numba()
    return asdict(parse_dump(dump, out, options=options))


def parse_by_regex(dump: Path, out: Path, options: DumpOptions, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    with monkeypatch.context() as patched:
        patched.setattr(parse, "has_numba", lambda: False)
        return asdict(parse_dump(dump, out, options=options))


def parse_without_numba(
    dump: Path, out: Path, options: DumpOptions, monkeypatch: pytest.MonkeyPatch
) -> dict[str, object]:
    code = (
        "import json, sys; from pathlib import Path; from kgqa_core.graph.dump.parse import DumpOptions, parse_dump\n"
        "given = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(sys.argv[3]).items()}\n"
        "options = DumpOptions(**given)\n"
        "parse_dump(Path(sys.argv[1]), Path(sys.argv[2]), options=options)\n"
        "assert 'numba' not in sys.modules"
    )
    environment = {**os.environ, "KGQA_NO_NUMBA": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    arguments = [str(dump), str(out), json.dumps(asdict(options))]
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, env=environment)
    return dict(json.loads((out / "dump.json").read_text(encoding="utf-8")))


PATHS = [parse_compiled, parse_by_regex, parse_without_numba]


def rejects_of(folder: Path) -> list[tuple[int, str]]:
    table = pq.read_table(folder / "rejects.parquet")
    return list(zip(table["line"].to_pylist(), table["reason"].to_pylist(), strict=True))


def read(folder: Path, kind: str) -> list[dict[str, object]]:
    return [row for part in sorted(folder.glob(f"{kind}-*.parquet")) for row in pq.read_table(part).to_pylist()]


@pytest.fixture(scope="module", params=PATHS, ids=lambda path: path.__name__)
def parsed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, dict[str, object]]]:
    folder = tmp_path_factory.mktemp("contract")
    (folder / "dump.nt").write_bytes(TEXT)
    (folder / "out").mkdir()
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield folder / "out", request.param(folder / "dump.nt", folder / "out", SMALL, monkeypatch)


def test_every_malformed_line_is_rejected_with_its_number_and_reason(parsed: tuple[Path, dict[str, object]]) -> None:
    expected = [(number, kind) for number, (kind, _) in enumerate(PLAIN, 1) if kind in lines.MALFORMED]
    assert rejects_of(parsed[0]) == [*expected, (len(PLAIN) + 1, "truncated last line")]


def test_every_line_is_counted_once(parsed: tuple[Path, dict[str, object]]) -> None:
    report = parsed[1]
    kinds = [kind for kind, _ in PLAIN]
    malformed = sum(kind in lines.MALFORMED for kind in kinds) + 1
    assert report["lines"] == {kind: kinds.count(kind) for kind in lines.WELL_FORMED} | {"malformed": malformed}
    assert report["num_lines"] == len(PLAIN) + 1
    assert report["plain_bytes"] == len(TEXT)


def test_what_is_kept_is_what_the_lines_say(parsed: tuple[Path, dict[str, object]]) -> None:
    folder = parsed[0]
    statements = {kind: [parse_line(one) for of, one in PLAIN if of == kind] for kind in lines.WELL_FORMED}
    texts = {row["code"]: row["text"] for row in read(folder, "texts")}
    relations = pq.read_table(folder / "relations.parquet").to_pylist()

    def label(code: int) -> str:
        text = label_of(code) if code > 0 else texts[code]
        assert code_of(text) == code
        return text

    found = [
        (label(row["head"]), relations[row["relation"]]["label"], label(row["tail"])) for row in read(folder, "triples")
    ]
    prefix = len(lines.NS)
    assert found == [
        (s.subject, s.relation[prefix:] if s.relation != "x:y" else "x:y", s.object) for s in statements["triple"]
    ]
    assert [(label(row["entity"]), label(row["type"])) for row in read(folder, "types")] == [
        (s.subject, s.object) for s in statements["type"]
    ]
    names = read(folder, "names")
    for kind, use in enumerate(("name", "alias")):
        assert [(label(row["entity"]), row["name"]) for row in names if row["kind"] == kind] == [
            (s.subject, s.object) for s in statements[use]
        ]
    foreign = {(label(row["entity"]), row["name"]) for row in names if row["kind"] == 2}
    assert foreign <= {("m.0bcd1", None), ("people.person", None)} and foreign


def test_all_paths_write_the_same_bytes(tmp_path: Path, small: DumpOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = tmp_path / "dump.nt"
    dump.write_bytes(TEXT)
    written = []
    for path in PATHS:
        out = tmp_path / path.__name__
        out.mkdir()
        path(dump, out, small, monkeypatch)
        written.append({file.name: file.read_bytes() for file in out.iterdir()})
    assert written[0] == written[1] == written[2]
    assert len(written[0]) > 8  # several parts


@pytest.mark.realdata
@pytest.mark.skipif("KGQA_DATA" not in os.environ, reason="KGQA_DATA names no folder with freebase/")
def test_real_lines_are_the_same_by_all_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    for path in PATHS[:2]:
        out = tmp_path / path.__name__
        out.mkdir()
        report = path(Path(os.environ["KGQA_DATA"]) / "freebase" / "sample.nt.gz", out, DumpOptions(), monkeypatch)
        assert report["num_lines"] == 93207 and report["rejects"] == {}
        assert report["lines"]["triple"] == 76794  # type: ignore[index]
        written.append({file.name: file.read_bytes() for file in out.iterdir()})
    assert written[0] == written[1]
