"""NSM and GraftNet files as graphs: what a line may look like, what is rejected, and which entities there are."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.errors import InputError
from kgqa_core.graph.build import BuildLimits, build_graph
from kgqa_core.graph.kg import open_graph
from kgqa_core.graph.nsm import (
    BAD_ANSWER,
    BAD_TOPIC,
    NO_QUESTION,
    NO_SUBGRAPH,
    NUMBERED,
    QuestionLine,
    parse_line,
    parse_nsm,
    read_label,
    read_tuples,
)
from tests.nsm import ROWS, line, read_neighbours, write_nsm

Contents = Callable[[Path], dict[str, bytes]]


def parsed(row: dict[str, Any]) -> QuestionLine:
    found = parse_nsm(row)
    assert isinstance(found, QuestionLine), found
    return found


# Lines


def test_a_line_of_labels_is_read() -> None:
    read = parsed(ROWS[0])
    assert (read.id, read.question, read.topics, read.answers) == ("q1", ROWS[0]["question"], ("m.ann",), ("m.bob",))
    assert read.names == {"m.bob": "Bob"}
    assert read_tuples(read.subgraph) == ([tuple(triple) for triple in ROWS[0]["subgraph"]["tuples"]], [])


def test_a_line_of_objects_says_the_same_and_its_texts_are_names() -> None:
    """GraftNet: entities have ``kb_id``, relations ``rel_id``; the text is a name where it is not the label again."""
    row = {
        "question": "who is the brother of ann",
        "entities": [{"kb_id": "m.ann", "text": "Ann"}],
        "answers": [{"kb_id": "m.bob", "text": "Bob"}, {"kb_id": None, "text": "1971"}],
        "passages": [],
        "subgraph": {
            "entities": [{"kb_id": "m.s1", "text": "m.s1"}, {"kb_id": "m.bob", "text": "Robert"}],
            "tuples": [[{"kb_id": "m.ann", "text": "Ann"}, {"rel_id": "sibling", "text": "x"}, {"text": "m.s1"}]],
        },
    }
    read = parsed(row)
    assert (read.id, read.topics, read.answers) == (None, ("m.ann",), ("m.bob", "1971"))
    assert read.names == {"m.ann": "Ann", "m.bob": "Robert"}  # of two texts the first in the line
    assert read_tuples(read.subgraph) == ([("m.ann", "sibling", "m.s1")], [])


def test_a_topic_may_be_a_place_in_the_subgraphs_entities() -> None:
    row = ROWS[0]
    places = row["subgraph"]["entities"]
    assert parsed({**row, "entities": [places.index("m.ann")]}).topics == ("m.ann",)
    assert parse_nsm({**row, "entities": [len(places)]}) == BAD_TOPIC
    assert parse_nsm({**row, "entities": [-1]}) == BAD_TOPIC


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"question": " "}, NO_QUESTION),
        ({"question": None}, NO_QUESTION),
        ({"subgraph": None}, NO_SUBGRAPH),
        ({"subgraph": {"entities": []}}, NO_SUBGRAPH),
        ({"entities": "m.ann"}, BAD_TOPIC),
        ({"entities": [None]}, BAD_TOPIC),
        ({"entities": [True]}, BAD_TOPIC),
        ({"answers": None}, BAD_ANSWER),
        ({"answers": [{"kb_id": None, "text": ""}]}, BAD_ANSWER),
        ({"answers": [7]}, BAD_ANSWER),
    ],
)
def test_a_line_that_cannot_be_used_says_why(change: dict[str, Any], reason: str) -> None:
    assert parse_nsm({**ROWS[0], **change}) == reason


@pytest.mark.parametrize("text", ["{", "[1, 2]", "7", '{"question": "\\ud800"}', "", "{'id': 1}"])
def test_what_is_no_json_object_is_rejected(text: str) -> None:
    assert parse_line(text, parse_nsm) in ("not JSON", "not a JSON object")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([1, 2, 3], NUMBERED),
        (["m.ann", 2, "m.bob"], NUMBERED),
        (["m.ann", "likes"], "wrong number of fields"),
        ("m.ann likes m.bob", "wrong number of fields"),
        (["m.ann", "likes", " "], "empty field"),
        (["m.ann", {}, "m.bob"], "empty field"),
    ],
)
def test_a_bad_tuple_is_left_out_with_its_reason(value: Any, reason: str) -> None:
    good = ["m.ann", "likes", "m.rock"]
    assert read_tuples([value, good]) == ([tuple(good)], [(reason, json.dumps(value))])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kb_id", "text", "tuples"]), inner),
    max_leaves=7,
)


@given(st.dictionaries(st.sampled_from(["id", "question", "entities", "answers", "subgraph"]), json_values))
def test_no_json_object_ends_in_an_error(row: dict[str, Any]) -> None:
    read = parse_nsm(row)
    if isinstance(read, QuestionLine):
        triples, faults = read_tuples(read.subgraph)
        assert len(triples) + len(faults) == len(read.subgraph)
        assert all(read_label(label) == label for label in (*read.topics, *read.answers))


# Numbers for labels, as published sets have them


def numbered(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """Return rows with numbers for labels, the entities and the relations by number."""
    tuples = [triple for row in rows for triple in row["subgraph"]["tuples"]]
    listed = [label for row in rows for label in (*row["entities"], *row["subgraph"]["entities"])]
    entities = sorted({*listed, *(end for head, _, tail in tuples for end in (head, tail))}, reverse=True)
    relations = sorted({relation for _, relation, _ in tuples}, reverse=True)
    entity, relation_id = ({label: number for number, label in enumerate(labels)} for labels in (entities, relations))

    def spelled(row: dict[str, Any]) -> dict[str, Any]:
        subgraph = {
            "entities": [entity[label] for label in row["subgraph"]["entities"]],
            "tuples": [[entity[h], relation_id[r], entity[t]] for h, r, t in row["subgraph"]["tuples"]],
        }
        return {**row, "entities": [entity[label] for label in row["entities"]], "subgraph": subgraph}

    return [spelled(row) for row in rows], entities, relations


def test_numbers_are_lines_of_the_files_beside(tmp_path: Path, contents: Contents) -> None:
    build_graph(write_nsm(tmp_path / "dev.jsonl"), format="nsm", out_dir=tmp_path / "labels")
    in_numbers, entities, relations = numbered(ROWS)
    folder = tmp_path / "numbered"
    folder.mkdir()
    (folder / "entities.txt").write_text("\n".join(entities) + "\n", encoding="utf-8")
    (folder / "relations.txt").write_text("\n".join(relations) + "\n", encoding="utf-8")
    build_graph(write_nsm(folder / "dev.jsonl", in_numbers), format="nsm", out_dir=tmp_path / "numbers")
    assert contents(tmp_path / "numbers") == contents(tmp_path / "labels")
    (folder / "entities.txt").write_text("\n".join(entities) + "\n", encoding="utf-8-sig")  # as Windows begins a file
    build_graph(folder / "dev.jsonl", format="nsm", out_dir=tmp_path / "marked")
    assert contents(tmp_path / "marked") == contents(tmp_path / "labels")
    (folder / "relations.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(InputError, match=r"relations\.txt: not UTF-8 in line 1"):
        build_graph(folder / "dev.jsonl", format="nsm", out_dir=tmp_path / "latin")


def test_a_number_that_stands_for_nothing_is_rejected(tmp_path: Path) -> None:
    vocabulary = (["m.ann", "m.bob"], ["likes"])
    row = {**ROWS[0], "entities": [1], "subgraph": {"tuples": [[0, 0, 1], [0, 1, 1], [0, 0, 2], [-1, 0, 0]]}}
    read = parse_nsm(row, vocabulary)
    assert isinstance(read, QuestionLine)
    assert read.topics == ("m.bob",)
    triples, faults = read_tuples(read.subgraph)
    assert triples == [("m.ann", "likes", "m.bob")]
    assert [reason for reason, _ in faults] == [NUMBERED] * 3
    assert parse_nsm({**row, "entities": [2]}, vocabulary) == BAD_TOPIC


# Graphs


def test_the_graph_is_the_distinct_triples_of_all_subgraphs(tmp_path: Path) -> None:
    report = build_graph(write_nsm(tmp_path / "dev.jsonl"), format="nsm", out_dir=tmp_path / "g")
    graph = open_graph(tmp_path / "g")
    triples = [tuple(triple) for row in ROWS for triple in row["subgraph"]["tuples"]]
    assert (report.num_triples, report.num_duplicates) == (len(set(triples)), len(triples) - len(set(triples)))
    labels, relations = graph.entity_labels, graph.relation_names
    found = {
        (labels[entity], relation_label): {labels[other] for other in reached}
        for entity in range(graph.num_entities)
        for relation, relation_label in enumerate([*relations, *(f"~{label}" for label in relations)])
        if len(reached := graph.neighbors(entity, relation))
    }
    assert found == read_neighbours(triples)


def test_topics_and_answers_are_entities_also_without_a_triple(tmp_path: Path) -> None:
    rows = [*ROWS, line("q9", "of whom", ["m.lone"], ["1999"], [["m.ann", "likes", "m.rock"]])]
    rows[-1]["subgraph"]["entities"].append("m.unused")  # named by the subgraph, in no tuple: nobody asks for it
    build_graph(write_nsm(tmp_path / "dev.jsonl", rows), format="nsm", out_dir=tmp_path / "g")
    graph = open_graph(tmp_path / "g")
    without_triple = np.flatnonzero(np.diff(graph.group_ptr) == 0).tolist()
    assert [graph.label_of(entity) for entity in without_triple] == ["1971-10-13", "1999", "m.lone", "m.zoe"]
    assert "m.unused" not in graph.entity_labels


def test_texts_are_names_unless_a_names_file_says_otherwise(tmp_path: Path) -> None:
    path = write_nsm(tmp_path / "dev.jsonl")
    (tmp_path / "names.tsv").write_text("m.bob\tRobert\nm.ann\tAnn\n", encoding="utf-8")
    report = build_graph(path, format="nsm", out_dir=tmp_path / "g", names=tmp_path / "names.tsv")
    graph = open_graph(tmp_path / "g")
    named = {label: name for label, name in zip(graph.entity_labels, graph.entity_names, strict=True) if label != name}
    assert named == {"m.ann": "Ann", "m.bob": "Robert", "m.cat": "Cat", "m.jazz": "Jazz"}
    assert report.num_named == 4


def test_several_files_are_one_graph_however_they_are_cut(tmp_path: Path, contents: Contents) -> None:
    whole = write_nsm(tmp_path / "all.jsonl")
    parts = [write_nsm(tmp_path / "train.jsonl", ROWS[:5]), write_nsm(tmp_path / "dev.jsonl", ROWS[5:])]
    build_graph(whole, format="nsm", out_dir=tmp_path / "one")
    build_graph(whole, format="nsm", out_dir=tmp_path / "cut", limits=BuildLimits(chunk_bytes=211))
    build_graph(parts, format="nsm", out_dir=tmp_path / "two")
    assert contents(tmp_path / "one") == contents(tmp_path / "cut") == contents(tmp_path / "two")


def test_rejects_keep_the_number_of_their_line(tmp_path: Path) -> None:
    broken = {**ROWS[0], "subgraph": {"tuples": [["m.ann", "likes"], ["m.ann", "likes", "m.rock"], [1, 2, 3]]}}
    rows: list[Any] = [ROWS[0], "", broken, "{", {**ROWS[1], "question": ""}, *ROWS[2:]]
    path = write_nsm(tmp_path / "dev.jsonl", rows)
    path.write_bytes(path.read_bytes() + b"caf\xe9\n" + b'{"id": "q')
    report = build_graph(
        path, format="nsm", out_dir=tmp_path / "g", max_reject_ratio=0.5, limits=BuildLimits(chunk_bytes=307)
    )
    rejects = [tuple(row.values())[:3] for row in pq.read_table(tmp_path / "g" / "rejects.parquet").to_pylist()]
    last = len(rows) + 2
    assert rejects == [
        ("dev.jsonl", 3, NUMBERED),
        ("dev.jsonl", 3, "wrong number of fields"),
        ("dev.jsonl", 4, "not JSON"),
        ("dev.jsonl", 5, NO_QUESTION),
        ("dev.jsonl", last - 1, "not UTF-8"),
        ("dev.jsonl", last, "truncated last line"),
    ]
    assert report.num_rejects == len(rejects)
    assert report.num_blank == 1


@pytest.mark.realdata
@pytest.mark.skipif("KGQA_DATA" not in os.environ, reason="KGQA_DATA names no folder with freebase/")
def test_the_webqsp_dev_file_is_read_whole(tmp_path: Path) -> None:
    path = Path(os.environ["KGQA_DATA"]) / "freebase" / "webqsp_dev_nsm.jsonl"
    report = build_graph(path, format="nsm", out_dir=tmp_path)
    assert (report.num_triples, report.num_relations, report.num_rejects) == (30_186, 718, 0)
    graph = open_graph(tmp_path)
    assert np.count_nonzero(np.diff(graph.group_ptr)) == 23_968
