"""A subgraph per question: every block says what a plain reading of its line says, and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kgqa_core import schemas
from kgqa_core.errors import ArtifactError, InputError
from kgqa_core.graph.build import build_graph
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.graph.search_graph import Subgraphs, open_subgraphs
from kgqa_core.graph.subgraph_build import SubgraphReport, build_subgraphs
from kgqa_core.types import Prediction, Question, Step
from tests.nsm import ROWS, Neighbours, line, read_neighbours, write_nsm

Contents = Callable[[Path], dict[str, bytes]]


def build(
    folder: Path, rows: Sequence[dict[str, Any] | str] = ROWS, inverse_suffix: str | None = None, **options: Any
) -> tuple[KnowledgeGraph, Subgraphs]:
    """Build graph and subgraphs of one file."""
    path = write_nsm(folder / "dev.jsonl", rows)
    build_graph(path, format="nsm", out_dir=folder / "graph", max_reject_ratio=1.0, inverse_suffix=inverse_suffix)
    graph = open_graph(folder / "graph")
    (folder / "subgraphs").mkdir()
    build_subgraphs([path], graph=graph, out_dir=folder / "subgraphs", **options)
    return graph, open_subgraphs(folder / "subgraphs")


def neighbours_in_block(graph: KnowledgeGraph, subgraphs: Subgraphs, question_id: str) -> Neighbours:
    """Return what a question's block says, in labels; no edge may leave it."""
    block = subgraphs.block_of[question_id]
    rows = range(int(subgraphs.block_ptr[block]), int(subgraphs.block_ptr[block + 1]))
    labels, relations = graph.entity_labels, subgraphs.graph.relation_names
    names = [*relations, *(f"~{label}" for label in relations)]
    found: Neighbours = {}
    for row in rows:
        first, last = subgraphs.graph.group_ptr[row : row + 2]
        for relation in subgraphs.graph.group_relation[first:last].tolist():
            reached = subgraphs.graph.neighbors(row, relation).tolist()
            assert all(other in rows for other in reached)
            found[labels[subgraphs.entity[row]], names[relation]] = {labels[subgraphs.entity[one]] for one in reached}
    return found


def entities_of(graph: KnowledgeGraph, subgraphs: Subgraphs, question_id: str) -> list[str]:
    block = subgraphs.block_of[question_id]
    entity = subgraphs.entity[subgraphs.block_ptr[block] : subgraphs.block_ptr[block + 1]]
    return [graph.label_of(int(one)) for one in entity]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[KnowledgeGraph, Subgraphs]:
    return build(tmp_path_factory.mktemp("built"))


labels = st.sampled_from([f"m.{letter}" for letter in "abcde"])
lines = st.builds(
    lambda topics, answers, tuples: line("", "what", topics, answers, tuples),
    st.lists(labels, max_size=2),
    st.lists(labels, max_size=2),
    st.lists(st.tuples(labels, st.sampled_from("rst"), labels).map(list), max_size=7),
)


@settings(max_examples=7, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(lines, min_size=1, max_size=7), st.integers(1, 999))
def test_random_blocks_are_plain_readings_too(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], chunk_bytes: int
) -> None:
    rows = [line("always", "what", ["m.a"], ["m.b"], [["m.a", "r", "m.b"]]), *rows]
    graph, subgraphs = build(tmp_path_factory.mktemp("random"), rows, chunk_bytes=chunk_bytes)
    for number, row in enumerate(rows, 1):
        question_id = row["id"] or f"dev-{number}"
        tuples = row["subgraph"]["tuples"]
        assert neighbours_in_block(graph, subgraphs, question_id) == read_neighbours(tuples)
        expected = {*(part for h, _, t in tuples for part in (h, t)), *row["entities"]}
        expected |= {answer["kb_id"] for answer in row["answers"]}
        assert entities_of(graph, subgraphs, question_id) == sorted(expected)


def test_the_report_says_how_many_subgraphs_hold_an_answer(built: tuple[KnowledgeGraph, Subgraphs]) -> None:
    folder = built[1].graph.folder
    report = SubgraphReport(**json.loads((folder / "subgraphs.json").read_text(encoding="utf-8")))
    assert report == SubgraphReport(
        num_subgraphs=8, num_with_answer=5, num_empty=1, num_rows=21, num_triples=10, largest=3
    )
    blocks = pq.read_table(folder / "blocks.parquet")
    assert blocks.schema == schemas.SUBGRAPHS
    assert blocks["question_id"].to_pylist() == [row["id"] for row in ROWS]
    assert blocks["holds_answer"].to_pylist() == [True, True, False, True, False, True, False, True]
    assert blocks["num_triples"].to_pylist() == [3, 1, 1, 2, 1, 1, 0, 1]  # the repeat in q8 is one


def test_the_bytes_are_the_same_however_the_files_are_cut(tmp_path: Path, contents: Contents) -> None:
    folders = []
    for name, chunk_bytes in (("whole", 2**20), ("again", 2**20), ("cut", 97)):
        (tmp_path / name).mkdir()
        folders.append(build(tmp_path / name, chunk_bytes=chunk_bytes)[1].graph.folder)
    assert contents(folders[0]) == contents(folders[1]) == contents(folders[2])


def test_lines_without_id_are_named_by_file_and_line_also_after_a_cut(tmp_path: Path) -> None:
    rows: list[Any] = [{key: value for key, value in row.items() if key != "id"} for row in ROWS]
    _, subgraphs = build(tmp_path, ["", "{", *rows], chunk_bytes=151)
    assert list(subgraphs.block_of) == [f"dev-{number}" for number in range(len(ROWS) + 2, 2, -1)]


def test_of_two_lines_with_one_id_the_first_counts(tmp_path: Path) -> None:
    graph, subgraphs = build(tmp_path, [ROWS[0], {**ROWS[1], "id": "q1"}])
    assert neighbours_in_block(graph, subgraphs, "q1") == read_neighbours(ROWS[0]["subgraph"]["tuples"])


def test_given_inverses_are_turned_round_as_in_the_graph(tmp_path: Path) -> None:
    rows = [line("q1", "what", ["m.a"], ["m.b"], [["m.b", "r_inv", "m.a"], ["m.a", "r", "m.c"]])]
    graph, subgraphs = build(tmp_path, rows, inverse_suffix="_inv")
    assert neighbours_in_block(graph, subgraphs, "q1") == read_neighbours([("m.a", "r", "m.b"), ("m.a", "r", "m.c")])
    assert subgraphs.graph.inverse_labels == ["r_inv"]


# Questions in, predictions out


def question(graph: KnowledgeGraph, row: dict[str, Any]) -> Question:
    def ids(values: list[str]) -> tuple[int, ...]:
        return tuple(sorted(graph.entity_labels.index(value) for value in values))

    answers = [answer["kb_id"] for answer in row["answers"]]
    return Question(row["id"], "", "", ids(row["entities"]), ids(answers), "test")


def test_a_question_becomes_rows_of_its_block_and_its_prediction_entities(
    built: tuple[KnowledgeGraph, Subgraphs],
) -> None:
    graph, subgraphs = built
    for row in ROWS:
        asked = question(graph, row)
        inside = subgraphs.to_rows(replace(asked, claim=asked.answers[0] if asked.answers else None))
        assert tuple(subgraphs.entity[list(inside.topics)]) == asked.topics
        assert tuple(subgraphs.entity[list(inside.answers)]) == asked.answers
        assert inside.claim == (inside.answers[0] if inside.answers else None)
        rows = (*inside.answers, *inside.topics)
        steps = (Step(inside.topics[0], 1, inside.answers[0], reverse=True),) if len(rows) > 1 and inside.topics else ()
        made = Prediction(row["id"], rows, (0.5,) * len(rows), inside.answers, (steps,), covered=True)
        found = subgraphs.to_entities(made)
        assert (found.candidates, found.answers) == ((*asked.answers, *asked.topics), asked.answers)
        assert (found.scores, found.covered) == (made.scores, True)
        if steps and asked.answers:
            assert found.paths == ((Step(asked.topics[0], 1, asked.answers[0], reverse=True),),)


def test_a_question_without_a_subgraph_is_told_so(built: tuple[KnowledgeGraph, Subgraphs]) -> None:
    graph, subgraphs = built
    with pytest.raises(InputError, match="question 'asked' has no subgraph"):
        subgraphs.to_rows(replace(question(graph, ROWS[0]), id="asked"))
    elsewhere = graph.entity_labels.index("m.zoe")
    for entity in (elsewhere, graph.num_entities - 1, 0):
        with pytest.raises(InputError, match=rf"question 'q1': entity {entity} is not in the question's subgraph"):
            subgraphs.to_rows(replace(question(graph, ROWS[0]), topics=(entity,)))


# What can be wrong


def test_the_graph_of_other_files_is_refused(tmp_path: Path) -> None:
    graph, _ = build(tmp_path, ROWS[:1])
    with pytest.raises(ArtifactError, match=r"the graph does not know 'm\.cat' of a subgraph: build it again"):
        build_subgraphs([write_nsm(tmp_path / "all.jsonl")], graph=graph, out_dir=tmp_path)
    assert not (tmp_path / "parts").exists()
    with pytest.raises(InputError, match=r"question file: .*none\.jsonl does not exist"):
        build_subgraphs([tmp_path / "none.jsonl"], graph=graph, out_dir=tmp_path)


def test_a_folder_that_holds_no_subgraphs_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="holds no usable subgraphs"):
        open_subgraphs(tmp_path)
    _, subgraphs = build(tmp_path)
    damaged = subgraphs.graph.folder / "entity.npy"
    damaged.write_bytes(damaged.read_bytes()[:40])
    with pytest.raises(ArtifactError, match="Build them again: kgqa build"):
        open_subgraphs(subgraphs.graph.folder)


def test_a_file_of_empty_subgraphs_has_blocks_without_an_edge(tmp_path: Path) -> None:
    graph, _ = build(tmp_path)
    empty = write_nsm(tmp_path / "empty.jsonl", [ROWS[6]])
    report = build_subgraphs([empty], graph=graph, out_dir=tmp_path)
    assert (report.num_subgraphs, report.num_empty, report.num_triples, report.largest) == (1, 1, 0, 0)
    assert neighbours_in_block(graph, open_subgraphs(tmp_path), "q7") == {}
    write_nsm(tmp_path / "none.jsonl", ["{"])
    assert build_subgraphs([tmp_path / "none.jsonl"], graph=graph, out_dir=tmp_path).num_subgraphs == 0
    assert open_subgraphs(tmp_path).block_of == {}


@pytest.mark.realdata
@pytest.mark.skipif("KGQA_DATA" not in os.environ, reason="KGQA_DATA names no folder with freebase/")
def test_53_of_250_subgraphs_of_the_webqsp_dev_file_hold_an_answer(tmp_path: Path) -> None:
    path = Path(os.environ["KGQA_DATA"]) / "freebase" / "webqsp_dev_nsm.jsonl"
    build_graph(path, format="nsm", out_dir=tmp_path / "graph")
    graph = open_graph(tmp_path / "graph")
    report = build_subgraphs([path], graph=graph, out_dir=tmp_path)
    assert (report.num_subgraphs, report.num_with_answer, report.num_empty) == (250, 53, 5)
    subgraphs = open_subgraphs(tmp_path)
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines()):
        if number % 23 == 0:  # reading by hand is slow
            row = json.loads(text)
            assert neighbours_in_block(graph, subgraphs, row["id"]) == read_neighbours(row["subgraph"]["tuples"])
