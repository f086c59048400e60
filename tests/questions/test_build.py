"""Building a questions artifact: splits, rejects, doubts, and the same bytes every time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kgqa_core import schemas
from kgqa_core.config_base import QuestionSection
from kgqa_core.errors import ArtifactError, InputError, LinkError
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.build import QuestionReport, build_questions, read_questions, read_topics
from kgqa_core.questions.link import link_question, split_of
from tests.conftest import write_jsonl
from tests.loading import graph_of_text, load_question_file, searched
from tests.nsm import write_nsm
from tests.questions.freebase_files import cwq_question, webqsp_parse, webqsp_question, write_json, write_webqsp

Build = Callable[..., QuestionReport]

GOOD = {"question": "Who directed Vertigo?", "answers": ["Alfred Hitchcock"]}


@pytest.fixture
def build(tmp_path: Path, films: KnowledgeGraph) -> Build:
    """Build JSONL questions into ``tmp_path/out`` unless told otherwise."""

    def build_here(path: Path | None, out_dir: Path = tmp_path / "out", **section: Any) -> QuestionReport:
        asked = QuestionSection(format="jsonl", path=path, **section)
        return build_questions(asked, search=searched(films, 2), out_dir=out_dir)

    return build_here


def rows(count: int, prefix: str) -> list[dict[str, Any]]:
    return [
        GOOD | {"id": f"{prefix}{number}", "question": f"{number}: who directed Vertigo?"} for number in range(count)
    ]


def test_a_folder_with_three_files_is_read_back_as_it_was(tmp_path: Path, films: KnowledgeGraph, build: Build) -> None:
    chain = ["directed_by"]
    tricky = {"question": "Is [REC] by Grace Kelly?", "topics": ["[REC]"], "claim": "p2", "verdict": False}
    write_jsonl(tmp_path / "qa" / "train.jsonl", [GOOD | {"chain": chain}, *rows(6, "t"), tricky])
    write_jsonl(tmp_path / "qa" / "dev.jsonl", rows(3, "d"))
    write_jsonl(tmp_path / "qa" / "test.jsonl", rows(2, "e"))
    report = build(tmp_path / "qa")
    assert (report.num_questions, report.num_rejects) == (13, 0)
    assert report.per_split == {"train": 8, "dev": 3, "test": 2}
    loaded, _ = load_question_file(tmp_path / "qa" / "train.jsonl", format="jsonl", graph=films, split="train")
    assert read_questions(tmp_path / "out", "train") == loaded
    splits = ["train"] * 8 + ["dev"] * 3 + ["test"] * 2
    assert [question.split for question in read_questions(tmp_path / "out")] == splits
    assert pq.read_schema(tmp_path / "out" / "questions.parquet") == schemas.QUESTIONS
    assert pq.read_schema(tmp_path / "out" / "rejects.parquet") == schemas.REJECTS
    lint = json.loads((tmp_path / "out" / "lint.json").read_text(encoding="utf-8"))
    assert lint["max_steps"] == 2
    assert lint["coverage"][0] == {
        "hops": None, "split": "train", "num_questions": 6, "any_gold": 100.0, "all_golds": 100.0,
    }  # fmt: skip


def test_a_rebuild_is_byte_identical(tmp_path: Path, build: Build) -> None:
    path = write_jsonl(tmp_path / "own.jsonl", [*rows(29, "q"), {"bad": 1}])
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        build(path, out_dir=folder, max_reject_ratio=0.1)
    first, second = ({file.name: file.read_bytes() for file in folder.iterdir()} for folder in folders)
    assert first == second
    assert sorted(first) == ["coverage.parquet", "lint.json", "missing.parquet", "questions.parquet", "rejects.parquet"]


def test_one_file_is_split_by_hash_and_repeats_stay_together(tmp_path: Path, build: Build) -> None:
    repeated = [row | {"id": f"again-{row['id']}"} for row in rows(211, "q")]
    build(write_jsonl(tmp_path / "own.jsonl", rows(211, "q") + repeated))
    split = {question.id: question.split for question in read_questions(tmp_path / "out")}
    assert all(split[f"q{number}"] == split[f"again-q{number}"] for number in range(211))
    sizes = Counter(split.values())
    assert set(sizes) == {"train", "dev", "test"}
    build(write_jsonl(tmp_path / "own.jsonl", rows(97, "q")))
    assert all(question.split == split[question.id] for question in read_questions(tmp_path / "out"))


def test_neither_the_graph_nor_other_questions_move_one_between_splits(tmp_path: Path) -> None:
    """A name that the graph learns masks a text otherwise, and one that it loses rejects a question."""
    asked = [{"question": f"who directed film {n}?", "topics": [f"f{n}"], "answers": ["p"]} for n in range(150)]
    asked += [row | {"id": f"q{n}"} for n, row in enumerate(asked)][::-1]
    path, splits = write_jsonl(tmp_path / "own.jsonl", asked), []
    section = QuestionSection(format="jsonl", path=path, max_reject_ratio=0.1)
    for number, names in enumerate(("".join(f"f{n}\tfilm {n}\n" for n in range(150)), "")):
        folder = tmp_path / str(number)
        graph = graph_of_text(folder, "".join(f"f{n}\tdirected_by\tp\n" for n in range(150) if n % 20 != number), names)
        build_questions(section, search=searched(graph, 1), out_dir=folder / "out")
        splits.append({one.id: one.split for one in read_questions(folder / "out")})
    both = splits[0].keys() & splits[1].keys()
    assert len(both) >= 260
    assert {id: splits[0][id] for id in both} == {id: splits[1][id] for id in both}


def test_rejects_of_files_of_one_name_are_kept_apart(tmp_path: Path, build: Build) -> None:
    """Line 2 of one cannot be used; line 2 of the other asks for what the graph has not, as a few may."""
    unknown = {"question": "Who directed Psycho?", "topics": ["Psycho"], "answers": ["Psycho"]}
    files = {split: tmp_path / split / "own.jsonl" for split in ("train", "test")}
    write_jsonl(files["train"], [GOOD, {"question": 1}])
    write_jsonl(files["test"], [GOOD, unknown])
    with pytest.raises(InputError, match=r"1 of 4 rows rejected .*\n  train/own.jsonl:2: no answers given"):
        build(None, files=files, max_missing_ratio=0.5)
    build(None, files=files, max_reject_ratio=0.5)
    rejects = pq.read_table(tmp_path / "out" / "rejects.parquet").to_pylist()
    assert [(one["file"], one["line"]) for one in rejects] == [("train/own.jsonl", 2), ("test/own.jsonl", 2)]


def test_the_hash_splits_eighty_ten_ten() -> None:
    sizes = Counter(split_of(f"f{number}") for number in range(10_007))
    assert sizes["train"] == pytest.approx(8_006, abs=150)
    assert sizes["dev"] == pytest.approx(1_001, abs=100)
    assert sizes["test"] == pytest.approx(1_001, abs=100)


@pytest.mark.parametrize("num_rows", [3, 5, 11])
def test_a_short_file_leaves_no_split_empty(tmp_path: Path, build: Build, num_rows: int) -> None:
    report = build(write_jsonl(tmp_path / "own.jsonl", rows(num_rows, "q") + rows(num_rows, "again")))
    assert set(report.per_split) == {"train", "dev", "test"}
    split = {question.id: question.split for question in read_questions(tmp_path / "out")}
    assert all(split[f"q{number}"] == split[f"again{number}"] for number in range(num_rows))


def test_fewer_questions_than_splits_are_refused(tmp_path: Path, build: Build) -> None:
    with pytest.raises(InputError, match=r"at least 3 different questions.*has 2.*dataset\.questions\.files"):
        build(write_jsonl(tmp_path / "own.jsonl", rows(2, "q")))


@pytest.mark.parametrize("name", ["dev", "valid", "validation"])
def test_the_dev_file_may_be_called_as_others_call_it(tmp_path: Path, build: Build, name: str) -> None:
    for split, num in (("train", 5), (name, 3)):
        write_jsonl(tmp_path / "qa" / f"{split}.jsonl", rows(num, split))
    assert build(tmp_path / "qa").per_split == {"train": 5, "dev": 3}


def test_files_may_be_named_one_by_one(tmp_path: Path, build: Build) -> None:
    files = {
        "test": write_jsonl(tmp_path / "later.jsonl", rows(2, "e")),
        "train": write_jsonl(tmp_path / "earlier.jsonl", rows(3, "t")),
    }
    assert build(None, files=files).per_split == {"train": 3, "test": 2}


def test_too_many_rejects_stop_the_build_and_name_what_is_near(tmp_path: Path, build: Build) -> None:
    bad = [GOOD | {"topics": ["Vertiga"]}, GOOD | {"answers": ["Alfred Hitchkock"]}, {"question": "Vertigo?"}]
    path = write_jsonl(tmp_path / "own.jsonl", [*rows(4, "q"), *bad])
    with pytest.raises(InputError) as stopped:
        build(path)
    message = str(stopped.value)
    reasons = ["5: no topic in the graph:", "6: no answer in the graph:", "7: no answers given:"]
    near = ["nearest to 'Vertiga': 'Vertigo'", "nearest to 'Alfred Hitchkock': 'Alfred Hitchcock'"]
    more = ["3 of 7 rows rejected (42.9 %, allowed 0.1 %)", "--set dataset.questions.max_reject_ratio=0.429", *near]
    assert all(part in message for part in [*more, *(f"own.jsonl:{reason}" for reason in reasons)])
    assert not (tmp_path / "out").exists()
    report = build(path, max_reject_ratio=0.429)
    assert report.num_rejects == 3
    rejects = pq.read_table(tmp_path / "out" / "rejects.parquet").to_pylist()
    reasons = ["no topic in the graph", "no answer in the graph", "no answers given"]
    assert [(reject["line"], reject["reason"]) for reject in rejects] == list(zip((5, 6, 7), reasons, strict=True))


def test_a_file_of_which_no_line_can_be_used_is_asked_about_whatever_may_be_rejected(
    tmp_path: Path, build: Build
) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text("question,answers\nWho?,f1\n", encoding="utf-8")
    for allowed in (0.001, 1):
        with pytest.raises(InputError, match="none of 2 rows can be used") as stopped:
            build(path, max_reject_ratio=allowed)
        assert "own.jsonl:1: not JSON: 'question,answers'" in str(stopped.value)
        assert "max_reject_ratio" not in str(stopped.value)  # nothing would be left
        assert "dataset.questions says it is? docs/own-data.md" in str(stopped.value)
        assert 'such as {"question": "Who is it?", "answers": ["a name"]}' in str(stopped.value)


def test_where_the_graph_knows_no_name_of_a_file_its_names_are_in_doubt_and_not_the_format(
    tmp_path: Path, build: Build
) -> None:
    path = write_jsonl(tmp_path / "own.jsonl", [GOOD | {"topics": ["Q1"]}, {"question": "Who?", "answers": ["f1"]}])
    with pytest.raises(
        InputError, match=r"(?s)none of 2 rows can be used.*The graph calls things otherwise"
    ) as stopped:
        build(path)
    assert "Is the file what" not in str(stopped.value)


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("key", ["", "questions"])
def test_a_json_list_is_told_how_to_become_lines(tmp_path: Path, build: Build, indent: int | None, key: str) -> None:
    path, asked = tmp_path / "own.json", [{"question": "Who?", "answers": ["f1"]}]
    path.write_text(json.dumps({key: asked} if key else asked, indent=indent), encoding="utf-8")
    with pytest.raises(InputError, match=rf"Is own.json one JSON list\? .*jq -c '\.{key}\[\]'"):
        build(path, max_reject_ratio=1)


def test_answers_that_are_objects_are_no_list_of_questions(tmp_path: Path, build: Build) -> None:
    path = write_jsonl(tmp_path / "own.jsonl", [{"answers": [{"text": "f1"}], "question": "Who?"}])
    with pytest.raises(InputError, match="field answers") as stopped:
        build(path)
    assert "jq" not in str(stopped.value)


@pytest.mark.parametrize(
    ("text", "held", "spelt"),
    [
        ("Where is Z\u00fcrich?", "Zu\u0308rich", r"'Zu\\u0308rich'"),
        ("Where is Zu\u0308rich?", "Z\u00fcrich", r"'Z\\xfcrich'"),
        ("Where is New York?", "New\u00a0York", r"'New\\xa0York'"),
        ("Where is Zurich?", "Z\u00fcrich", "'Z\u00fcrich'"),
    ],
)
def test_a_name_that_only_looks_like_one_is_spelt(tmp_path: Path, text: str, held: str, spelt: str) -> None:
    graph = graph_of_text(tmp_path, f"{held}\tin\tEurope\n")
    path = write_jsonl(tmp_path / "own.jsonl", [{"question": text, "answers": ["Europe"]}])
    section = QuestionSection(format="jsonl", path=path)
    with pytest.raises(InputError, match=f"nearest to .*{spelt}"):
        build_questions(section, search=searched(graph, 1), out_dir=tmp_path / "out")
    with pytest.raises(LinkError, match=f"Nearest names .*{spelt}"):
        link_question(text, graph)


def test_golds_that_the_graph_lacks_are_listed_and_a_few_stop_nothing(tmp_path: Path, build: Build) -> None:
    bad = [
        GOOD | {"id": "none", "answers": ["Nobody", "Nobody"]},  # twice, and listed once
        GOOD | {"id": "some", "answers": ["Nobody", "Alfred Hitchcock"], "topics": ["Vertigo", "Vertiga"]},
        {"id": "claims", "question": "Vertigo?", "claim": "Psycho", "verdict": False},
    ]
    path = write_jsonl(tmp_path / "own.jsonl", [*rows(199, "q"), *bad])
    report = build(path)
    assert (report.num_rejects, report.num_missing) == (2, 4)
    missing = [tuple(row.values()) for row in pq.read_table(tmp_path / "out" / "missing.parquet").to_pylist()]
    listed = [("none", "answer", "Nobody"), ("some", "topic", "Vertiga"), ("some", "answer", "Nobody")]
    assert missing == [*listed, ("claims", "claim", "Psycho")]
    with pytest.raises(InputError, match=r"2 of 202 rows rejected .*\n.*own.jsonl:200: no answer in the graph"):
        build(path, max_missing_ratio=0.009)
    with pytest.raises(InputError, match=r"1 of 203 rows rejected .*\n.*own.jsonl:203: no answers given"):
        build(write_jsonl(tmp_path / "own.jsonl", [*rows(199, "q"), *bad, {"question": "Vertigo?"}]))


def test_doubts_of_usable_lines_are_counted(tmp_path: Path, build: Build) -> None:
    doubtful = [
        GOOD | {"id": "partial", "answers": ["Alfred Hitchcock", "Nobody"]},
        GOOD | {"id": "twice", "answers": ["Alfred Hitchcock", "Alfred Hitchcock"]},
        {"id": "shared", "question": "Which films came out in 1954?", "answers": ["Rear Window"]},
        {"id": "absent", "question": "Who made it?", "topics": ["f2"], "answers": ["p1"]},
        GOOD | {"id": "chained", "chain": ["made_by"]},
    ]
    write_jsonl(tmp_path / "qa" / "train.jsonl", doubtful)
    report = build(tmp_path / "qa")
    assert report.num_rejects == 0
    found = {finding.kind: finding for finding in report.lint.findings}
    assert found["partial_gold"].examples == ("partial",)
    assert found["unknown_entity"].examples == ("partial: Nobody",)
    assert found["duplicate_gold"].examples == ("twice",)
    assert found["shared_name_used"].examples == ("shared: Rear Window",)
    assert found["topic_not_in_text"].examples == ("absent",)
    assert found["unknown_chain_relation"].examples == ("chained: made_by",)
    assert found["shared_name"].split == ""
    assert found["partial_gold"].split == "train"


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_file_without_questions_is_refused(tmp_path: Path, build: Build, content: str) -> None:
    (tmp_path / "own.jsonl").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match="the files hold no question"):
        build(tmp_path / "own.jsonl")


def test_a_path_without_question_files_says_what_is_expected(tmp_path: Path, build: Build) -> None:
    (tmp_path / "training.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(
        InputError, match=r"folder with train\.jsonl, dev\.jsonl, test\.jsonl; did you mean .*training\.jsonl"
    ):
        build(tmp_path)
    with pytest.raises(InputError, match=r"trainin\.jsonl is neither .*; did you mean 'training\.jsonl'"):
        build(tmp_path / "trainin.jsonl")
    with pytest.raises(InputError, match=r"train\.jsonl does not exist"):
        build(None, files={"train": tmp_path / "train.jsonl"})


def test_a_folder_that_holds_no_questions_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="Build them again: kgqa build"):
        read_questions(tmp_path)


# Topics without a graph


def test_topics_of_any_format_are_read_without_a_graph(tmp_path: Path) -> None:
    both = webqsp_question("q1", "who?", webqsp_parse("m.b", None, ["m.2"]), webqsp_parse("m.a", None, ["m.1", "m.2"]))
    none = [webqsp_question("q2", "what?", webqsp_parse(None, None, [])), webqsp_question("q3", "when?")]
    write_webqsp(tmp_path / "WebQSP.train.json", [both])
    write_webqsp(tmp_path / "WebQSP.test.json", none)
    assert read_topics(QuestionSection(format="webqsp", path=tmp_path)) == ["m.a", "m.b"]
    sparql = "SELECT ?x WHERE { FILTER (?x != ns:m.b_1) ns:m.b_1 ns:people.person.parents ?x . ?x ns:r ns:g.11b . }"
    path = write_json(tmp_path / "cwq.json", [cwq_question("c1", "who?", sparql, ["m.2"])])
    assert read_topics(QuestionSection(format="cwq", files={"dev": path})) == ["g.11b", "m.b_1"]
    nsm = QuestionSection(format="nsm", path=write_nsm(tmp_path / "dev.jsonl"))
    assert read_topics(nsm) == ["m.ann", "m.jazz", "m.rock", "m.zoe"]
    (tmp_path / "1-hop").mkdir()
    for split in ("train", "dev", "test"):
        (tmp_path / f"1-hop/qa_{split}.txt").write_text(f"who directed [Film {split}]\tAnn|Bob\n")
    assert read_topics(QuestionSection(format="metaqa", path=tmp_path)) == ["Film dev", "Film test", "Film train"]
    (tmp_path / "rog").mkdir()
    rows = [{"question": "where?", "q_entity": ["Ada"], "a_entity": ["London"], "answer": ["London"], "graph": []}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rog/test-00000-of-00001.parquet")
    assert read_topics(QuestionSection(format="rog", path=tmp_path / "rog")) == ["Ada"]


def test_too_many_bad_questions_stop_reading_topics(tmp_path: Path) -> None:
    good = webqsp_question("q1", "who?", webqsp_parse("m.a", None, ["m.1"]))
    path = write_webqsp(tmp_path / "all.json", [good, {"QuestionId": "q2"}])
    with pytest.raises(InputError, match=r"1 of 2 rows rejected.*\n.*all\.json:2: field Parses"):
        read_topics(QuestionSection(format="webqsp", path=path))
    assert read_topics(QuestionSection(format="webqsp", path=path, max_reject_ratio=0.5)) == ["m.a"]
    with pytest.raises(InputError, match="hold no question"):
        read_topics(QuestionSection(format="webqsp", path=write_webqsp(tmp_path / "none.json", [])))
