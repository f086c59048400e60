"""MetaQA, WorldCup2014 and the Freebase sample, where they are at hand (environment variable KGQA_DATA)."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from kgqa_core.config_base import QuestionSection
from kgqa_core.graph.build import build_graph
from kgqa_core.graph.follow import follow_layers, reasoning_paths
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.graph.search_graph import open_subgraphs
from kgqa_core.graph.subgraph_build import build_subgraphs
from kgqa_core.questions.build import QuestionReport, build_questions, read_questions, read_topics
from kgqa_core.questions.link_names import NameIndex
from kgqa_core.questions.link_text import TextLinker, link_topics
from kgqa_core.types import Question
from tests.loading import build_rdf, searched

pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif("KGQA_DATA" not in os.environ, reason="KGQA_DATA names no folder with the real data"),
]
Built = tuple[KnowledgeGraph, QuestionReport, list[Question]]


@pytest.fixture(scope="module")
def metaqa(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Graph, report and questions of the whole dataset."""
    folder, data = tmp_path_factory.mktemp("metaqa"), Path(os.environ["KGQA_DATA"]) / "metaqa"
    build_graph(data / "kb.txt", format="wikimovies", out_dir=folder / "graph")
    graph = open_graph(folder / "graph")
    source = QuestionSection(format="metaqa", path=data)
    report = build_questions(source, search=searched(graph, 3), out_dir=folder / "questions")
    return graph, report, read_questions(folder / "questions")


def test_every_question_is_linked(metaqa: Built) -> None:
    _, report, questions = metaqa
    assert (report.num_questions, report.num_rejects) == (33_138 + 3_000 + 3_000, 0)
    sizes = Counter((question.hops, question.split) for question in questions)
    assert [sizes[hops, "train"] for hops in (1, 2, 3)] == [7_992, 12_872, 12_274]
    assert all(sizes[hops, split] == 1_000 for hops in (1, 2, 3) for split in ("dev", "test"))
    assert all(len(question.topics) == 1 and question.answers for question in questions)
    assert all(question.chain is not None and len(question.chain) == question.hops for question in questions)
    assert len({question.masked for question in questions}) == 518


def test_three_steps_reach_every_gold_of_three_hops(metaqa: Built) -> None:
    rows = {(row.hops, row.split): row for row in metaqa[1].lint.coverage}
    assert len(rows) == 9
    assert all(row.any_gold == 100 for row in rows.values())
    assert rows[3, "test"].all_golds == 100


def test_the_gold_chain_gives_exactly_the_golds_with_the_topic_masked(metaqa: Built) -> None:
    graph, _, questions = metaqa
    sample = [question for question in questions if question.hops == 3 and question.split == "test"][::5]
    assert len(sample) == 200
    chains = [(question, question.chain or ()) for question in sample]
    assert all(tuple(follow_layers(graph, q.topics, chain)[-1].tolist()) == q.answers for q, chain in chains)
    free = [tuple(follow_layers(graph, q.topics, c, reenter_topic=True)[-1].tolist()) == q.answers for q, c in chains]
    assert sum(free) < 150
    for question, chain in chains:
        steps = next(reasoning_paths(graph, question.topics, chain, ends=question.answers[:1]), None)
        assert steps is not None
        assert len(steps) == 3


@pytest.mark.slow
def test_topics_are_found_in_the_text_alone(metaqa: Built) -> None:
    graph, _, questions = metaqa
    train, test = ([one for one in questions if one.split == split] for split in ("train", "test"))
    linked = link_topics(test, TextLinker(NameIndex(graph), train))
    right = [one.topics == found.topics for one, found in zip(test, linked, strict=True)]
    assert sum(right) == 2998  # of 3,000: 99.93 %


def test_every_question_of_wc2014_is_linked_kept_once_and_answered_by_its_gold_path(tmp_path: Path) -> None:
    data = Path(os.environ["KGQA_DATA"]) / "wc2014"
    made = build_graph(data / "kb.txt", format="tsv", out_dir=tmp_path / "graph", inverse_suffix="_inverse")
    assert (made.num_rows, made.num_duplicates) == (6_482, 0)
    assert (made.num_entities, made.num_relations, made.num_triples) == (1_127, 6, 3_977)
    both = {"plays_in_club": 736, "plays_for_country": 736, "plays_position": 736, "is_in_country": 297}
    none = {"num_only_forward": 0, "num_only_inverse": 0}
    assert made.inverses == {one: {"label": f"{one}_inverse", "num_both": num, **none} for one, num in both.items()}

    graph = open_graph(tmp_path / "graph")
    splits = {}
    for hops, num_lines, num_distinct in (((1,), 6_482, 4_725), ((2,), 1_472, 855), ((1, 2), 7_954, 5_580)):
        section = QuestionSection(format="wc2014", path=data, hops=hops)
        report = build_questions(section, search=searched(graph, 2), out_dir=tmp_path / "q")
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


@pytest.fixture(scope="module")
def freebase() -> Path:
    return Path(os.environ["KGQA_DATA"]) / "freebase"


def test_topics_are_read_without_a_graph(freebase: Path) -> None:
    section = QuestionSection(format="nsm", path=freebase / "webqsp_dev_nsm.jsonl")
    assert len(read_topics(section)) == 230


def test_coverage_is_that_of_the_subgraphs(freebase: Path, tmp_path: Path) -> None:
    path = freebase / "webqsp_dev_nsm.jsonl"
    build_graph(path, format="nsm", out_dir=tmp_path / "graph")
    graph = open_graph(tmp_path / "graph")
    build_subgraphs([path], graph=graph, out_dir=tmp_path)
    report = build_questions(
        QuestionSection(format="nsm", files={"dev": path}),
        search=searched(graph, 3, subgraphs=open_subgraphs(tmp_path)),
        out_dir=tmp_path / "questions",
    )
    rows = report.lint.reach
    assert {(row.num_questions, row.num_with_topic, row.num_with_answer) for row in rows} == {(250, 249, 53)}
    assert [row.num_any for row in rows] == sorted(row.num_any for row in rows)
    assert rows[-1].num_any <= 53


def test_the_sample_is_sound_rdf(freebase: Path, tmp_path: Path) -> None:
    parsed, report = build_rdf(freebase / "sample.nt.gz", tmp_path)
    # Literals that differ in language or datatype alone are apart.
    assert (parsed.rows["triples"], report.num_triples) == (93_207, 93_207)
    assert (parsed.lines["malformed"], parsed.lines["blank"]) == (0, 0)
