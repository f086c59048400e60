"""All of WorldCup2014, where it is at hand (environment variable KGQA_DATA)."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from kgqa_core.graph.build import build_graph
from kgqa_core.graph.kg import open_graph
from kgqa_core.graph.shards import InverseCounts
from kgqa_core.questions.build import build_questions
from kgqa_core.questions.formats import QuestionSource
from kgqa_core.questions.store import read_questions

pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif("KGQA_DATA" not in os.environ, reason="KGQA_DATA names no folder with wc2014/kb.txt"),
]


def test_every_question_is_linked_kept_once_and_answered_by_its_gold_path(tmp_path: Path) -> None:
    data = Path(os.environ["KGQA_DATA"]) / "wc2014"
    made = build_graph(data / "kb.txt", format="tsv", out_dir=tmp_path / "graph", inverse_suffix="_inverse")
    assert (made.num_rows, made.num_duplicates) == (6_482, 0)
    assert (made.num_entities, made.num_relations, made.num_triples) == (1_127, 6, 3_977)
    both = {"plays_in_club": 736, "plays_for_country": 736, "plays_position": 736, "is_in_country": 297}
    assert made.inverses == {label: InverseCounts(f"{label}_inverse", count, 0, 0) for label, count in both.items()}

    graph = open_graph(tmp_path / "graph")
    splits = {}
    for hops, num_lines, num_distinct in (((1,), 6_482, 4_725), ((2,), 1_472, 855), ((1, 2), 7_954, 5_580)):
        source = QuestionSource("wc2014", data, hops=hops)
        report = build_questions(source, graph=graph, max_steps=2, reenter_topic=False, out_dir=tmp_path / "q")
        assert (report.num_questions, report.num_rejects) == (num_distinct, 0)
        found = Counter({finding.kind: 0 for finding in report.lint.findings})
        for finding in report.lint.findings:
            found[finding.kind] += finding.count
        assert found == {"repeated_question": num_lines - num_distinct}  # and no gold that its path does not give
        assert all(row.all_golds == 100 for row in report.lint.coverage)
        questions = read_questions(tmp_path / "q")
        assert all(question.chain is not None and len(question.topics) == 1 for question in questions)
        assert len({question.text for question in questions}) == num_distinct
        splits[hops] = {question.id: question.split for question in questions}
        sizes = Counter(splits[hops].values())
        assert sizes["train"] == pytest.approx(0.8 * num_distinct, rel=0.03)
        assert sizes["test"] == pytest.approx(0.1 * num_distinct, rel=0.2)
    assert splits[1, 2] == splits[1,] | splits[2,]
