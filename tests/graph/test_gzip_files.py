"""Own triples and names may be gzipped; the text is unpacked for the build alone."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kgqa_core.errors import InputError
from kgqa_core.graph.build import BuildLimits, build_graph

TSV = "".join(f"a{n}\tr\tb{n % 5}\n" for n in range(97)) + "bad\n"


def test_gzipped_triples_and_names_give_the_same_graph(tmp_path: Path) -> None:
    (tmp_path / "kb.tsv").write_text(TSV)
    (tmp_path / "names.tsv").write_text("a1\tAnn\n")
    for name in ("kb.tsv", "names.tsv"):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    for number, end in enumerate(("", ".gz")):
        build_graph(
            tmp_path / f"kb.tsv{end}",
            format="tsv",
            out_dir=tmp_path / str(number),
            names=tmp_path / f"names.tsv{end}",
            max_reject_ratio=0.1,
            limits=BuildLimits(chunk_bytes=101),
        )
    first, second = ({path.name: path.read_bytes() for path in (tmp_path / n).iterdir()} for n in ("0", "1"))
    assert first == second
    (reject,) = pq.read_table(tmp_path / "1/rejects.parquet").to_pylist()
    assert (reject["file"], reject["line"]) == ("kb.tsv", 98)


def test_a_truncated_gzip_is_an_error_and_question_files_are_to_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "kb.csv.gz").write_bytes(gzip.compress(TSV.encode())[:-5])
    with pytest.raises(InputError, match=r"kb.csv.gz: the gzip is truncated. Was the file copied whole"):
        build_graph(tmp_path / "kb.csv.gz", format="csv", out_dir=tmp_path / "graph")
    (tmp_path / "dev.jsonl.gz").touch()
    with pytest.raises(InputError, match=r"not read from a gzip. Unpack it: gunzip --keep dev.jsonl.gz"):
        build_graph(tmp_path / "dev.jsonl.gz", format="nsm", out_dir=tmp_path / "graph")
