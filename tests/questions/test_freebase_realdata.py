"""The WebQSP dev questions and the Freebase sample, where they are at hand (environment variable KGQA_DATA)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kgqa_core.graph.build import build_graph
from kgqa_core.graph.kg import open_graph
from kgqa_core.graph.subgraph_build import build_subgraphs
from kgqa_core.graph.subgraphs import open_subgraphs
from kgqa_core.questions.build import build_questions, read_topics
from kgqa_core.questions.formats import QuestionSource

pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif("KGQA_DATA" not in os.environ, reason="KGQA_DATA names no folder with freebase/sample.nt.gz"),
]


@pytest.fixture(scope="module")
def freebase() -> Path:
    return Path(os.environ["KGQA_DATA"]) / "freebase"


def test_topics_are_read_without_a_graph(freebase: Path) -> None:
    found = read_topics(QuestionSource("nsm", freebase / "webqsp_dev_nsm.jsonl"))
    assert (found.all.num_questions, found.all.num_without_topic, found.all.num_without_answer) == (250, 1, 4)
    assert (len(found.topics), len(found.answers), found.num_rejects) == (230, 2902, 0)


def test_coverage_is_that_of_the_subgraphs(freebase: Path, tmp_path: Path) -> None:
    path = freebase / "webqsp_dev_nsm.jsonl"
    build_graph(path, format="nsm", out_dir=tmp_path / "graph")
    graph = open_graph(tmp_path / "graph")
    build_subgraphs([path], graph=graph, out_dir=tmp_path)
    report = build_questions(
        QuestionSource("nsm", files={"dev": path}),
        graph=graph,
        max_steps=3,
        reenter_topic=False,
        out_dir=tmp_path / "questions",
        subgraphs=open_subgraphs(tmp_path),
    )
    rows = report.lint.reach
    assert {(row.num_questions, row.num_with_topic, row.num_with_answer) for row in rows} == {(250, 249, 53)}
    assert [row.num_any for row in rows] == sorted(row.num_any for row in rows)
    assert rows[-1].num_any <= 53


def test_the_sample_is_sound_rdf(freebase: Path, tmp_path: Path) -> None:
    report = build_graph(freebase / "sample.nt.gz", format="rdf", out_dir=tmp_path)
    # Literals that differ in language or datatype alone are one node.
    assert (report.num_rows, report.num_triples) == (93_207, 93_184)
    assert (report.num_rejects, report.num_blank) == (0, 0)
