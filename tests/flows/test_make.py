"""``kgqa make-questions``: what it draws is right, equal for equal seeds, in words, and never for testing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.cli_make import MOST_ANSWERS, draw_questions, step_words, word
from kgqa_core.config_file import read_config
from kgqa_core.errors import InputError
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.formats import MADE
from tests.conftest import kgqa, write_jsonl
from tests.loading import graph_of_text, load_question_file

TRIPLES = [f"Person {one}\tplays_for\tClub {one % 5}" for one in range(21)]
TRIPLES += [f"Club {club}\tlies_in\tTown {club % 3}" for club in range(5)]


@pytest.fixture
def clubs(tmp_path: Path) -> KnowledgeGraph:
    return graph_of_text(tmp_path, "\n".join(TRIPLES) + "\n")


def test_answers_are_what_the_chain_leads_to_and_topics_none_of_them(clubs: KnowledgeGraph) -> None:
    rows = list(draw_questions(clubs, num=200, hops=2, seed=0))
    kinds = {tuple(row["chain"]) for row in rows}
    assert kinds >= {("plays_for",), ("~plays_for",), ("plays_for", "lies_in"), ("~lies_in", "~plays_for")}
    assert len({(row["topics"][0], tuple(row["chain"])) for row in rows}) == len(rows) < 200  # it holds no more
    for row in rows:
        assert row["hops"] == len(row["chain"]) and row["topics"][0] in row["question"] and row["made"]
        if row["chain"] == ["~lies_in", "~plays_for"]:
            town = int(row["topics"][0].removeprefix("Town "))
            assert set(row["answers"]) == {f"Person {one}" for one in range(21) if one % 5 % 3 == town}
        if row["chain"] == ["plays_for", "~plays_for"]:
            one = int(row["topics"][0].removeprefix("Person "))
            assert set(row["answers"]) == {f"Person {other}" for other in range(one % 5, 21, 5)} - {f"Person {one}"}


def test_equal_seeds_draw_equal_questions_and_others_others(clubs: KnowledgeGraph) -> None:
    first, again, other = (list(draw_questions(clubs, num=13, hops=3, seed=seed)) for seed in (7, 7, 8))
    assert first == again
    assert [row["question"] for row in first] != [row["question"] for row in other]
    assert list(draw_questions(clubs, num=5, hops=3, seed=7)) == first[:5]


def test_a_list_that_nobody_wants_is_no_question(tmp_path: Path) -> None:
    lines = [f"Leaf {one}\ton\tTree" for one in range(MOST_ANSWERS + 1)]
    graph = graph_of_text(tmp_path, "\n".join(lines) + "\n")
    assert {tuple(row["chain"]) for row in draw_questions(graph, num=20, hops=1, seed=0)} == {("on",)}
    loop = graph_of_text(tmp_path / "loop", "A\tis\tA\n")
    with pytest.raises(InputError, match="no relation path of 1 to 2 steps"):
        next(draw_questions(loop, num=1, hops=2, seed=0))


def test_words_are_those_of_relation_names() -> None:
    labels = ("people.person.place_of_birth", "http://x.org/placeOfBirth", "place of birth", "place-of-birth")
    assert {step_words(label) for label in labels} == {"place of birth"}
    texts = {word([("born_in", True), ("wrote", False)], "Rome", np.random.default_rng(seed)) for seed in range(20)}
    assert "what is the wrote of what has the born in Rome" in texts and len(texts) == 4


def test_made_questions_teach_and_never_test(
    clubs: KnowledgeGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KGQA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    arguments = ["make-questions", "kb.tsv", "--num", "40"]
    assert kgqa(*arguments, catch_exceptions=False).stdout == "40 questions in questions\n"
    sizes = {path.name: len(path.read_text().splitlines()) for path in (tmp_path / "questions").iterdir()}
    assert set(sizes) == {"train.jsonl", "dev.jsonl"} and sum(sizes.values()) == 40
    before = (tmp_path / "questions" / "train.jsonl").read_bytes()
    assert "is there already" in kgqa(*arguments).stderr
    kgqa(*arguments, "--out", "again", catch_exceptions=False)
    assert (tmp_path / "again" / "train.jsonl").read_bytes() == before
    (tmp_path / "headed.tsv").write_text("subject\tpredicate\tobject\n" + "\n".join(TRIPLES) + "\n")
    columns = zip(*(line.split("\t") for line in TRIPLES), strict=True)
    (tmp_path / "parts").mkdir()
    table = pa.table(dict(zip(("subject", "predicate", "object"), map(list, columns), strict=True)))
    pq.write_table(table, tmp_path / "parts" / "0.parquet")
    for name in ("headed.tsv", "parts"):  # what kgqa init reads, this reads
        done = kgqa("make-questions", name, "--num", "3", "--out", f"of-{name}")
        assert done.exit_code == 0, done.stderr
    kgqa("init", "kb.tsv", "questions", catch_exceptions=False)
    assert read_config(tmp_path / "my.yaml").evaluation.split == "dev"
    rows = [json.loads(line) for line in before.decode().splitlines()]
    path = write_jsonl(tmp_path / "mixed.jsonl", rows)
    for split, num in (("train", len(rows)), ("test", 0)):
        questions, rejects = load_question_file(path, format="jsonl", graph=clubs, split=split)
        assert (len(questions), {one.reason for one in rejects}) == (num, set() if num else {MADE})


def test_lines_that_cannot_be_used_are_allowed_by_the_option_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KGQA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kb.tsv").write_text("\n".join([*TRIPLES, "Person 1\tplays_for"]) + "\n", encoding="utf-8")
    arguments = ["make-questions", "kb.tsv", "--num", "3"]
    refused = kgqa(*arguments)
    assert refused.exit_code == 3 and "allow more: --max-rejected 0.038" in " ".join(refused.stderr.split())
    done = kgqa(*arguments, "--max-rejected", "0.038")
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize(("option", "setting"), [("--names", "names"), ("--max-rejected", "max_reject_ratio")])
def test_what_a_run_file_says_of_its_graph_is_not_said_again(tmp_path: Path, option: str, setting: str) -> None:
    done = kgqa("make-questions", "my.yaml", option, "0.1", "--out", tmp_path / "made")
    assert done.exit_code == 2 and f"write dataset.graph.{setting} there" in " ".join(done.stderr.split())
