"""Topics and answers of question files, read without a graph."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kgqa_core.errors import InputError
from kgqa_core.questions.build import SplitTopics, read_topics
from kgqa_core.questions.formats import QuestionSource
from tests.nsm import ROWS, write_nsm
from tests.questions.freebase_files import cwq_question, webqsp_parse, webqsp_question, write_json, write_webqsp


def test_webqsp_names_topics_and_answers_of_all_parses(tmp_path: Path) -> None:
    both = webqsp_question("q1", "who?", webqsp_parse("m.b", None, ["m.2"]), webqsp_parse("m.a", None, ["m.1", "m.2"]))
    write_webqsp(tmp_path / "WebQSP.train.json", [both])
    none = [webqsp_question("q2", "what?", webqsp_parse(None, None, [])), webqsp_question("q3", "when?")]
    date = webqsp_question("q4", "when was b born?", webqsp_parse("m.b", None, ["value:1971-10-13"]))
    write_webqsp(tmp_path / "WebQSP.test.json", [*none, date])
    found = read_topics(QuestionSource("webqsp", tmp_path))
    assert found.all == SplitTopics(("m.a", "m.b"), ("1971-10-13", "m.1", "m.2"), 4, 2, 2)
    assert dict(found.per_split) == {
        "train": SplitTopics(("m.a", "m.b"), ("m.1", "m.2"), 1, 0, 0),
        "test": SplitTopics(("m.b",), ("1971-10-13",), 3, 2, 2),
    }
    assert (found.topics, found.answers, found.num_rejects) == (found.all.topics, found.all.answers, 0)


def test_cwq_names_the_entities_of_its_query(tmp_path: Path) -> None:
    sparql = "SELECT ?x WHERE { FILTER (?x != ns:m.b_1) ns:m.b_1 ns:people.person.parents ?x . ?x ns:r ns:g.11b . }"
    path = write_json(tmp_path / "cwq.json", [cwq_question("c1", "who?", sparql, ["m.2"])])
    found = read_topics(QuestionSource("cwq", files={"dev": path}))
    assert (found.topics, found.answers) == (("g.11b", "m.b_1"), ("m.2",))


def test_nsm_jsonl_and_rog_name_what_their_lines_name(tmp_path: Path) -> None:
    found = read_topics(QuestionSource("nsm", write_nsm(tmp_path / "dev.jsonl")))
    assert found.topics == ("m.ann", "m.jazz", "m.rock", "m.zoe")
    assert (found.all.num_questions, found.all.num_without_topic, found.all.num_without_answer) == (len(ROWS), 1, 1)
    lines = [{"question": "is it?", "topics": ["Ada"], "claim": "London", "verdict": True}]
    (tmp_path / "own.jsonl").write_text("".join(map(json.dumps, lines)))
    own = read_topics(QuestionSource("jsonl", tmp_path / "own.jsonl"))
    assert own.per_split[""] == own.all == SplitTopics(("Ada",), ("London",), 1, 0, 0)
    (tmp_path / "rog").mkdir()
    rows = [{"question": "where?", "q_entity": ["Ada"], "a_entity": ["London"], "answer": ["London"], "graph": []}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rog/test-00000-of-00001.parquet")
    assert read_topics(QuestionSource("rog", tmp_path / "rog")).per_split["test"].topics == ("Ada",)


def test_metaqa_names_what_stands_in_brackets(tmp_path: Path) -> None:
    (tmp_path / "1-hop").mkdir()
    for split in ("train", "dev", "test"):
        (tmp_path / f"1-hop/qa_{split}.txt").write_text(f"who directed [Film {split}]\tAnn|Bob\n")
    found = read_topics(QuestionSource("metaqa", tmp_path))
    assert (found.topics, found.answers) == (("Film dev", "Film test", "Film train"), ("Ann", "Bob"))


def test_too_many_bad_questions_stop_it(tmp_path: Path) -> None:
    good = webqsp_question("q1", "who?", webqsp_parse("m.a", None, ["m.1"]))
    path = write_webqsp(tmp_path / "all.json", [good, {"QuestionId": "q2"}])
    with pytest.raises(InputError, match=r"1 of 2 rows rejected.*\n.*all\.json:2: field Parses"):
        read_topics(QuestionSource("webqsp", path))
    assert read_topics(QuestionSource("webqsp", path, max_reject_ratio=0.5)).num_rejects == 1
    with pytest.raises(InputError, match="hold no question"):
        read_topics(QuestionSource("webqsp", write_webqsp(tmp_path / "none.json", [])))
