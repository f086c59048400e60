"""The worked example of docs/own-data.md works as it stands, and its table of reasons is complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kgqa_core.config_base import FileDataset
from kgqa_core.config_file import read_config
from kgqa_core.graph import formats, input_files, nsm
from kgqa_core.graph.build import build_graph
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.questions import formats as question_formats
from kgqa_core.questions import link
from kgqa_core.questions.build import QuestionReport, build_questions, read_questions
from kgqa_core.types import Question
from tests.loading import searched

DOC = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text(encoding="utf-8")


@pytest.fixture
def built(tmp_path: Path) -> tuple[KnowledgeGraph, QuestionReport, dict[str, Question]]:
    """Write the files that the document shows, then build what its run file says."""
    for name, text in re.findall(r"^`([\w./]+)`:\n\n```\w+\n(.*?)^```$", DOC, re.MULTILINE | re.DOTALL):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    config = read_config(tmp_path / "my.yaml")
    dataset = config.dataset
    assert isinstance(dataset, FileDataset)
    build_graph(dataset.graph.path, format=dataset.graph.format, out_dir=tmp_path / "graph")
    graph = open_graph(tmp_path / "graph")
    report = build_questions(
        dataset.questions,
        search=searched(graph, config.explorer.steps, reenter_topic=dataset.reenter_topic),
        out_dir=tmp_path / "linked",
    )
    return graph, report, {question.id: question for question in read_questions(tmp_path / "linked")}


def test_the_worked_example_works(built: tuple[KnowledgeGraph, QuestionReport, dict[str, Question]]) -> None:
    graph, report, questions = built
    assert (graph.num_triples, graph.num_relations) == (6, 5)
    assert report.per_split == {"train": 4, "dev": 1, "test": 2}
    assert report.num_rejects == 0
    assert report.lint.findings == ()
    assert all((row.any_gold, row.all_golds) == (100, 100) for row in report.lint.coverage)
    assert questions["q3"].masked == "What did the colleague of [topic] design?"
    assert questions["q5"].topics == graph.ids_of_name("Analytical Engine")
    assert questions["q7"].masked == "Did [claim] design the [topic]?"


def test_every_question_that_it_asks_of_the_example_names_an_entity(
    built: tuple[KnowledgeGraph, QuestionReport, dict[str, Question]],
) -> None:
    asked = re.findall(r'^kgqa ask my\.yaml "(.*?)"', DOC, re.MULTILINE)
    assert len(asked) > 1 and all(link.link_question(one, built[0]).topics for one in asked)


def test_every_reason_is_in_the_table() -> None:
    reasons = [input_files.NOT_UTF8, input_files.TRUNCATED, formats.WRONG_FIELDS, formats.EMPTY_FIELD]
    reasons += [formats.BAD_QUOTES, formats.NOT_JSON, link.DUPLICATE_ID, link.NO_ANSWER, link.NO_TOPIC, link.NO_MENTION]
    reasons += [formats.MARK_INSIDE, question_formats.KEY_TWICE, question_formats.MADE, link.NO_CLAIM]
    reasons += [link.SHARED_CLAIM, nsm.NO_QUESTION, nsm.NO_SUBGRAPH, nsm.NUMBERED]
    assert [reason for reason in reasons if f"`{reason}`" not in DOC] == []


def test_the_example_in_conf_is_the_one_of_the_document() -> None:
    example = Path(__file__).parents[2] / "conf" / "own-graph-example"
    shown = dict(re.findall(r"^`([\w./]+)`:\n\n```\w+\n(.*?)^```$", DOC, re.MULTILINE | re.DOTALL))
    shown.pop("my.yaml")
    assert shown == {name: (example / name).read_text(encoding="utf-8") for name in shown}
    assert len(list(example.rglob("*.*"))) == len(shown)
