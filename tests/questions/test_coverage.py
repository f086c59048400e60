"""Coverage counts all questions, also those that nothing can answer, step by step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from kgqa_core.questions.build import QuestionReport
from tests.questions.freebase_files import webqsp_parse, webqsp_question, write_webqsp

Build = Callable[..., QuestionReport]


def test_coverage_says_what_is_within_each_number_of_steps(tmp_path: Path, build_family: Build) -> None:
    step = webqsp_parse("m.ann", None, ["m.bob"])
    two = webqsp_parse("m.ann", None, ["m.eve", "value:1971-10-13"])
    partly = webqsp_parse("m.ann", None, ["m.bob", "m.lost"])
    itself = webqsp_parse("m.ann", None, ["m.ann"])
    asked = [
        webqsp_question(f"q{n}", f"who {n}?", *parses)
        for n, parses in enumerate([[step], [two], [partly], [itself], [webqsp_parse("m.gone", None, ["m.bob"])], []])
    ]
    write_webqsp(tmp_path / "WebQSP.test.json", asked)
    report = build_family("webqsp")
    rows = pq.read_table(tmp_path / "questions/coverage.parquet").to_pylist()
    common = {"split": "test", "num_questions": 6, "num_with_topic": 4, "num_with_answer": 5}
    assert rows == [
        {**common, "steps": 0, "num_any": 1, "num_all": 1},
        {**common, "steps": 1, "num_any": 4, "num_all": 2},
        {**common, "steps": 2, "num_any": 4, "num_all": 3},
    ]
    (names,) = report.lint.names
    assert (names.num_topics, names.num_topics_named) == (1, 1)
    assert (names.num_answers, names.num_answers_named) == (4, 3)  # m.eve has no name; a date is its own
