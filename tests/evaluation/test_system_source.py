"""Who answered, kept in the file."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kgqa_core.errors import InputError
from kgqa_core.evaluation.predictions import ABOUT_KEY, SystemSource, read_system_source

FULL = SystemSource("ab", "rog", 7, "oracle", "model übt", "c0de", "linked", "hard", {"num_plans": 3, "plans": None})


@pytest.mark.parametrize("source", [FULL, SystemSource("ab", "explorer")])
def test_what_was_written_is_read(tmp_path: Path, source: SystemSource) -> None:
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata(source.metadata()), tmp_path / "p.parquet")
    assert read_system_source(tmp_path / "p.parquet") == source


def test_a_table_that_is_no_systems_has_none(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "p.parquet")
    assert read_system_source(tmp_path / "p.parquet") is None


@pytest.mark.parametrize("about", [b"{", b"[]", b'{"graph": "ab"}', b"\xff"])
def test_what_is_damaged_is_refused_by_name(tmp_path: Path, about: bytes) -> None:
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata({ABOUT_KEY: about}), tmp_path / "p.parquet")
    with pytest.raises(InputError, match=r"p\.parquet.*evaluate that system again"):
        read_system_source(tmp_path / "p.parquet")
    (tmp_path / "q.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"q\.parquet.*not readable"):
        read_system_source(tmp_path / "q.parquet")


def test_names_say_what_is_unusual() -> None:
    assert SystemSource("ab", "rog", 0, "lm").name == "rog (seed 0)"
    assert SystemSource("ab", "explorer").name == "explorer alone"
    assert FULL.row == "rog (oracle, linked topics, hard pool)"
    assert FULL.name == "rog (oracle, linked topics, hard pool, seed 7)"
