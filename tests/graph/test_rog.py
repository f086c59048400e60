"""RoG rows: graph, subgraphs and questions out of the same rows, whether in Parquet or in JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kgqa_core.config_base import QuestionSection
from kgqa_core.errors import InputError
from kgqa_core.graph.build import BuildLimits, GraphReport, build_graph
from kgqa_core.graph.formats import TRIPLE_COLUMNS, list_chunks
from kgqa_core.graph.kg import open_graph
from kgqa_core.graph.nsm import parquet_rows
from kgqa_core.graph.search_graph import open_subgraphs
from kgqa_core.graph.subgraph_build import build_subgraphs
from kgqa_core.questions.build import build_questions, read_questions
from kgqa_core.questions.formats import list_files
from tests.loading import searched

Row = dict[str, Any]


def row(
    id: str | None, question: str, topics: list[str], linked: list[str], graph: list[list[str]], **more: Any
) -> Row:
    return {
        "id": id,
        "question": question,
        "answer": linked,
        "q_entity": topics,
        "a_entity": linked,
        "graph": graph,
        "choices": [],
        **more,
    }


BORN = ["Ada", "people.person.born_in", "London"]
ROWS = [
    row("q1", "where was ada born", ["Ada"], ["London"], [BORN, ["London", "in", "England"], BORN]),
    row("q2", "when was ada born", ["Ada"], [], [["Ada", "people.person.sibling", "Bob"]], answer=["1815-12-10"]),
    row("q3", "who was born in london", ["London"], ["Ada"], [BORN]),
    row(None, "what is nothing", ["Zed"], ["Nobody"], []),
]


def write_rows(path: Path, rows: list[Row], *, row_group_size: int = 2) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=row_group_size)
    else:
        path.write_text("".join(f"{json.dumps(one)}\n" for one in rows))
    return path


def build(path: Path, out: Path, **more: Any) -> GraphReport:
    return build_graph(path, format="rog", out_dir=out, **more)


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_rows_become_a_graph_subgraphs_and_questions(tmp_path: Path, suffix: str) -> None:
    path = write_rows(tmp_path / f"test.{suffix}", ROWS)
    report = build(path, tmp_path / "graph")
    assert (report.num_triples, report.num_rows, report.num_rejects) == (3, 5, 0)
    graph = open_graph(tmp_path / "graph")
    assert graph.entity_labels == ["1815-12-10", "Ada", "Bob", "England", "London", "Nobody", "Zed"]

    made = build_subgraphs([path], graph=graph, out_dir=tmp_path, format="rog")
    assert (made.num_subgraphs, made.num_with_answer, made.num_empty, made.largest) == (4, 2, 1, 2)
    found = build_questions(
        QuestionSection(format="rog", files={"test": path}),
        search=searched(graph, 2, subgraphs=open_subgraphs(tmp_path)),
        out_dir=tmp_path / "questions",
    )
    assert found.per_split == {"test": 4}
    questions = read_questions(tmp_path / "questions")
    assert [question.id for question in questions] == ["q1", "q2", "q3", "test-4"]
    assert [[graph.label_of(answer) for answer in question.answers] for question in questions] == [
        ["London"],
        ["1815-12-10"],  # from ``answer``: a_entity is empty
        ["Ada"],
        ["Nobody"],
    ]
    assert [row.num_any for row in found.lint.reach] == [0, 2, 2]


def test_parquet_and_json_lines_give_the_same_graph_whatever_the_chunks(tmp_path: Path) -> None:
    rows = [row(f"q{n}", "who?", [f"t{n}"], ["a"], [[f"t{n}", "r", f"x{n % 7}"], ["a", "s", "b"]]) for n in range(97)]
    build(write_rows(tmp_path / "all.jsonl", rows), tmp_path / "lines")
    parquet = write_rows(tmp_path / "all.parquet", rows, row_group_size=41)
    for name, chunk_bytes in (("one", 2**20), ("many", 300)):
        build(parquet, tmp_path / name, limits=BuildLimits(chunk_bytes=chunk_bytes))
        for file in ("entities.parquet", "relations.parquet", "edge_tail.npy"):
            assert (tmp_path / name / file).read_bytes() == (tmp_path / "lines" / file).read_bytes()


def test_chunks_of_parquet_are_runs_of_rows_of_one_row_group(tmp_path: Path) -> None:
    rows = [row(f"q{n}", f"who {n}?", [], [], [["a", "r", "b"]]) for n in range(97)]
    path = write_rows(tmp_path / "all.parquet", rows, row_group_size=41)
    chunks = list(list_chunks(path, format="rog", columns=TRIPLE_COLUMNS, parts=tmp_path, chunk_bytes=300))
    assert len(chunks) > 5
    assert [chunk.start for chunk in chunks[1:]] == [chunk.end for chunk in chunks[:-1]]
    assert (chunks[0].start, chunks[-1].end) == (0, 97)
    assert {41, 82} <= {chunk.end for chunk in chunks}
    read = [one["id"] for chunk in chunks for one in parquet_rows(path, chunk.start, chunk.end)]
    assert read == [one["id"] for one in rows]


BAD: list[tuple[Any, str]] = [
    ([], "not a JSON object"),
    ({**ROWS[0], "question": " "}, "no question text"),
    ({**ROWS[0], "graph": None}, "field graph: not a list of triples"),
    ({**ROWS[0], "q_entity": [1]}, "field q_entity: not a list of names"),
    ({**ROWS[0], "a_entity": 1, "answer": None}, "fields a_entity and answer: not lists of names"),
    ({**ROWS[0], "graph": [["a", "r"], BORN]}, "wrong number of fields"),  # the triple alone
    ({**ROWS[0], "graph": [["a", "r", ""]]}, "empty field"),
    ({**ROWS[0], "graph": [[1, 2, 3]]}, "tuple of numbers, not of labels"),
]


def test_bad_rows_are_rejects_with_their_line(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "test.jsonl", [ROWS[0], *(bad for bad, _ in BAD)])
    path.write_text(path.read_text() + '{"question": "cut off')
    report = build(path, tmp_path / "graph", max_reject_ratio=1.0)
    rejects = pq.read_table(tmp_path / "graph/rejects.parquet").to_pylist()
    expected = [(line, reason) for line, (_, reason) in enumerate(BAD, 2)]
    assert [(reject["line"], reject["reason"]) for reject in rejects] == [*expected, (10, "truncated last line")]
    assert report.num_triples == 2


def test_bad_parquet_rows_are_rejects_with_their_row(tmp_path: Path) -> None:
    rows = [*ROWS[:3], {**ROWS[0], "question": None}, {**ROWS[0], "graph": [["a", "r", None]]}]
    path = write_rows(tmp_path / "test.parquet", rows)
    build(path, tmp_path / "graph", max_reject_ratio=1.0, limits=BuildLimits(chunk_bytes=1))
    rejects = pq.read_table(tmp_path / "graph/rejects.parquet").to_pylist()
    assert [(reject["line"], reject["reason"]) for reject in rejects] == [(4, "no question text"), (5, "empty field")]


def test_parquet_of_something_else_is_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"question": ["who?"]}), tmp_path / "other.parquet")
    with pytest.raises(InputError, match="no column 'q_entity'; the columns are"):
        build(tmp_path / "other.parquet", tmp_path / "graph")


def test_the_files_of_a_hub_folder_are_found_by_split(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    names = ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet", "validation-00000-of-00001.parquet"]
    for name in names:
        (tmp_path / "data" / name).touch()
    found = [(file.path.name, file.split) for file in list_files(QuestionSection(format="rog", path=tmp_path))]
    assert found == [(names[0], "train"), (names[1], "train"), (names[2], "dev")]
    with pytest.raises(InputError, match=r"neither a file nor a folder with train.jsonl, dev.jsonl, test.jsonl"):
        list_files(QuestionSection(format="rog", path=tmp_path / "data" / "none"))
