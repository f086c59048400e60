"""Entities by name, before there is a graph: names and aliases count, in the wanted language, and MIDs are no names."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core import schemas
from kgqa_core.graph.dump.codes import code_of
from kgqa_core.graph.dump.names import labels_named

NAMES = [
    [("m.0c1", 0, "Ann"), ("m.0d2", 1, "Ann"), ("m.0f7", 2, None)],
    [("m.0b1", 0, "Ann"), ("m.0b1", 1, "Annie"), ("m.0g9", 0, "m.0c1")],
]


def write_names(folder: Path) -> list[Path]:
    dumps = []
    for number, rows in enumerate(NAMES):
        dumps.append(folder / str(number))
        dumps[-1].mkdir()
        columns = [[code_of(label) for label, _, _ in rows], *([row[place] for row in rows] for place in (1, 2))]
        pq.write_table(pa.table(columns, schema=schemas.DUMP_NAMES), dumps[-1] / "names-00000.parquet")
    return dumps


def test_all_who_bear_a_name_or_an_alias_are_found_in_all_files(tmp_path: Path) -> None:
    found = labels_named(
        ["Ann", "Annie", "Nobody", "m.0c1"], write_names(tmp_path), memory_limit="100MB", temp_directory=tmp_path
    )
    assert found == {"Ann": ["m.0b1", "m.0c1", "m.0d2"], "Annie": ["m.0b1"]}


def test_where_all_are_mids_no_name_is_read(tmp_path: Path) -> None:
    (tmp_path / "names-00000.parquet").write_text("would fail if it were read")
    assert labels_named(["m.0c1"], [tmp_path], memory_limit="100MB", temp_directory=tmp_path) == {}
