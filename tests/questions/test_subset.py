"""Using other questions than the files hold: training samples, wordings that only test asks, the splits of papers."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.config_base import QuestionSection
from kgqa_core.errors import InputError
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.build import (
    QuestionReport,
    SubsetReport,
    build_questions,
    plan_variant,
    read_questions,
    take_gate,
    take_subset,
)
from kgqa_core.types import SPLITS, Question, Split
from tests.conftest import write_jsonl
from tests.loading import searched
from tests.questions.freebase_files import cwq_question, webqsp_parse, webqsp_question, write_json, write_webqsp

Build = Callable[..., QuestionReport]

TEMPLATES = [("who directed [topic]", (0,)), ("director of [topic]", (0,)), ("films by [topic]", (1,))]
TEMPLATES += [(f"wording {number} of [topic]", (2, 3)) for number in range(7)]


def asked(num_topics: int = 11) -> list[Question]:
    """Every template about every topic; of eleven topics nine train, one is dev, one test."""
    splits: list[Split] = ["train"] * (num_topics - 2) + ["dev", "test"]
    return [
        Question(f"{masked}-{topic}", masked, masked, (topic,), (99,), splits[topic], len(chain), chain)
        for topic in range(num_topics)
        for masked, chain in TEMPLATES
    ]


def subset(questions: list[Question], **section: Any) -> tuple[list[Question], SubsetReport | None]:
    return take_subset(questions, QuestionSection(format="jsonl", path=Path("."), **section))


def masked_of(questions: list[Question], split: Split) -> set[str]:
    return {question.masked for question in questions if question.split == split}


# The gate's questions


def test_the_gate_takes_its_share_of_all_but_test_and_keeps_it_whatever_comes() -> None:
    questions = [replace(one, id=f"q{place:04x}", text=f"text {place}") for place, one in enumerate(asked(101))]
    held = {one.id for one in take_gate(questions, 0.2) if one.split == "gate"}
    assert 0.17 < len(held) / len(questions) < 0.23
    assert not any(one.id in held for one in questions if one.split == "test")
    moved = [replace(one, split="train") if one.split == "dev" else one for one in questions[::-3]]
    assert {one.id for one in take_gate(moved, 0.2) if one.split == "gate"} == held & {one.id for one in moved}
    assert held < {one.id for one in take_gate(questions, 0.3) if one.split == "gate"}
    assert take_gate(questions, 0.0) == questions


def test_where_ids_count_lines_the_text_says_who_is_held() -> None:
    questions = [replace(one, id=f"train-{place}", text=f"text {place}") for place, one in enumerate(asked(31))]
    renumbered = [replace(one, id=f"train-{place + 7}") for place, one in enumerate(questions)]
    held, again = (
        [one.text for one in take_gate(rows, 0.3) if one.split == "gate"] for rows in (questions, renumbered)
    )
    assert held == again != []


def test_a_text_that_comes_twice_is_held_twice_or_taught_twice() -> None:
    """Under ids of their own, half of a pair would be taught and the other half would judge."""
    once = [replace(one, id=f"q{place}a", text=f"text {place}") for place, one in enumerate(asked(101))]
    both = take_gate([*once, *(replace(one, id=one.id.replace("a", "b")) for one in once)], 0.2)
    held, taught = (
        {one.text for one in both if (one.split == "gate") == is_held and one.split != "test"}
        for is_held in (True, False)
    )
    assert held
    assert not held & taught


# A part of the training questions


def test_a_sample_leaves_dev_and_test_alone_keeps_the_order_and_lies_inside_a_larger_one() -> None:
    questions = asked()
    kept, report = subset(questions, train_size=17)
    assert report is not None
    assert report.num_before == {"train": 90, "dev": 10, "test": 10}
    assert report.num_left == {"train": 17, "dev": 10, "test": 10}
    assert [question for question in questions if question in kept] == kept
    assert set(kept) < set(subset(questions, train_size=31)[0])
    assert subset(questions, train_size=17, draw=1)[0] != kept
    both = {"train_size": 17, "hold_out_templates": 0.3, "draw": 5}  # the order of the files does not matter
    assert subset(questions, **both)[0] == subset(questions[::-1], **both)[0][::-1]


def test_more_than_there_is_is_refused() -> None:
    assert subset(asked(), train_size=90)[0] == asked()
    with pytest.raises(InputError, match=r"train_size is 91, but there are only 90"):
        subset(asked(), train_size=91)
    with pytest.raises(InputError, match=r"only 63 training"):  # of the 7 templates of 10 that are left
        subset(asked(), train_size=90, hold_out_templates=0.3)


# Wordings that only the test split asks


def test_every_chain_keeps_a_wording_in_training_whatever_the_draw() -> None:
    held = set()
    for draw in range(5):
        kept, report = subset(asked(), hold_out_templates=0.9, draw=draw)
        assert {question.chain for question in kept if question.split == "train"} == {(0,), (1,), (2, 3)}
        assert report is not None
        assert (report.num_masked_held_out, report.num_held_out_wanted) == (7, 9)
        assert "films by [topic]" not in masked_of(kept, "test")
        held.add(frozenset(masked_of(kept, "test")))
    assert len(held) > 1


def test_without_chains_the_hops_are_the_type() -> None:
    questions = [replace(question, chain=None) for question in asked()]
    kept, report = subset(questions, hold_out_templates=0.9)
    assert report.num_masked_held_out == 8
    assert {question.hops for question in kept if question.split == "train"} == {1, 2}


def test_a_share_that_empties_a_split_is_refused() -> None:
    with pytest.raises(InputError, match=r"hold_out_templates = 0\.01 leaves no test question: there are 10 distinct"):
        subset(asked(), hold_out_templates=0.01)


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 3), st.sampled_from(get_args(Split))), min_size=1, max_size=60
    ),
    st.floats(0.05, 0.95),
    st.integers(0, 3),
)
def test_whatever_is_asked_the_split_is_clean(rows: list[tuple[int, int, Split]], share: float, draw: int) -> None:
    """Wordings may have several chains, chains may be missing in training, splits may be empty."""
    questions = [
        Question(f"q{number}", f"w{wording}", f"w{wording}", (0,), (1,), split, 1, (chain,))
        for number, (wording, chain, split) in enumerate(rows)
    ]
    try:
        kept, report = subset(questions, hold_out_templates=share, draw=draw)
    except InputError:
        return
    held = masked_of(kept, "test")
    seen = masked_of(kept, "train") | masked_of(kept, "dev")
    assert not held & seen
    assert len(held) <= report.num_masked_held_out <= report.num_held_out_wanted
    trained: dict[Any, int] = defaultdict(int)
    for question in kept:
        trained[question.chain] += question.split == "train"
    assert all(trained[question.chain] for question in kept if question.split == "test")


# In the questions artifact


def test_the_artifact_says_what_was_left_out(tmp_path: Path, films: KnowledgeGraph) -> None:
    for split in SPLITS:
        rows = [
            {"question": f"{wording} Vertigo?", "answers": ["Alfred Hitchcock"], "id": f"{split}-{number}"}
            for number, wording in enumerate(["Who made", "Who directed", "Who shot", "Director of", "Maker of"])
        ]
        write_jsonl(tmp_path / "qa" / f"{split}.jsonl", rows)
    source: dict[str, Any] = {"format": "jsonl", "path": tmp_path / "qa"}
    common: dict[str, Any] = {"search": searched(films, 1)}
    build_questions(QuestionSection(**source), out_dir=tmp_path / "all", **common)
    assert not (tmp_path / "all" / "subset.json").exists()
    report = build_questions(
        QuestionSection(**source, train_size=2, hold_out_templates=0.2, draw=1), out_dir=tmp_path / "some", **common
    )
    assert report.per_split == {"train": 2, "dev": 4, "test": 1}
    assert len(read_questions(tmp_path / "some")) == report.num_questions == 7
    assert json.loads((tmp_path / "some" / "subset.json").read_text(encoding="utf-8")) == {
        "draw": 1,
        "num_masked": 5,
        "num_masked_held_out": 1,
        "num_held_out_wanted": 1,
        "num_before": {"train": 5, "dev": 5, "test": 5},
        "num_left": {"train": 2, "dev": 4, "test": 1},
    }


# The splits of papers


def write_splits(folder: Path, num_train: int = 40) -> list[str]:
    """Write a train file whose questions 3 and 5 have no answer, and a test file where question 1 has none."""
    parse = webqsp_parse("m.01n", ["people.person.parents"], ["m.02b"])
    train = [webqsp_question(f"WebQTrn-{n}", f"who {n}?", *([] if n in (3, 5) else [parse])) for n in range(num_train)]
    test = [webqsp_question(f"WebQTest-{n}", f"what {n}?", *([] if n == 1 else [parse])) for n in range(3)]
    write_webqsp(folder / "WebQSP.train.json", train)
    write_webqsp(folder / "WebQSP.test.json", test)
    return [question["QuestionId"] for question in train]


def test_etd_draws_dev_questions_and_rog_drops_those_without_an_answer(tmp_path: Path, build_family: Build) -> None:
    ids = write_splits(tmp_path)
    assert build_family("webqsp", variant="etd").per_split == {"train": 36, "dev": 4, "test": 3}
    drawn = json.loads((tmp_path / "questions/variant.json").read_text())
    assert set(drawn["dev_ids"]) <= set(ids)
    assert (drawn["dev"], drawn["dropped"]) == ("drawn by hash of the ids", [])
    assert drawn["num_before"] == {"train": 40, "dev": 0, "test": 3}
    dev = read_questions(tmp_path / "questions", "dev")
    assert sorted(question.id for question in dev) == drawn["dev_ids"]

    report = build_family("webqsp", variant="rog")
    left = json.loads((tmp_path / "questions/variant.json").read_text())
    assert left["dev_ids"] == drawn["dev_ids"]  # the same draw
    assert sorted(dropped["id"] for dropped in left["dropped"]) == ["WebQTest-1", "WebQTrn-3", "WebQTrn-5"]
    assert {dropped["reason"] for dropped in left["dropped"]} == {"the file gives no answer"}
    assert sum(report.per_split.values()) == 40 and report.per_split["test"] == 2
    assert left["num_left"] == report.per_split
    doubts = {(finding.kind, finding.split): finding.count for finding in report.lint.findings}
    assert doubts["dropped_by_variant", "test"] == 1
    assert "no_gold" not in {kind for kind, _ in doubts}


def test_dev_questions_may_be_listed(tmp_path: Path, build_family: Build) -> None:
    write_splits(tmp_path)
    (tmp_path / "dev.jsonl").write_text('WebQTrn-7\n\n{"id": "WebQTrn-9", "question": "who 9?"}\n')
    build_family("webqsp", variant="etd", dev_ids=tmp_path / "dev.jsonl")
    variant = json.loads((tmp_path / "questions" / "variant.json").read_text())
    assert (variant["dev_ids"], variant["dev"]) == (["WebQTrn-7", "WebQTrn-9"], "listed in dev.jsonl")
    for text, message in (
        ("WebQTest-0\n", "1 of its 1 ids are no training question's, 'WebQTest-0' first"),
        ('{"id": 3}\n', r"dev.jsonl:1: neither an id nor an object with one: .*id.*3"),
        ("q1\n{\n", r"dev.jsonl:2: neither an id nor an object with one: '{'"),
    ):
        (tmp_path / "dev.jsonl").write_text(text)
        with pytest.raises(InputError, match=message):
            build_family("webqsp", variant="etd", dev_ids=tmp_path / "dev.jsonl")


def test_a_dev_file_is_the_dev_split_and_a_single_file_has_no_variant(tmp_path: Path, build_family: Build) -> None:
    for split, count in (("train", 20), ("dev", 2), ("test", 2)):
        items = [cwq_question(f"{split}-{n}", f"who {n}?", "ns:m.01n", ["m.02b"]) for n in range(count)]
        write_json(tmp_path / f"ComplexWebQuestions_{split}.json", items)
    answered = [cwq_question("answered", "who?", "ns:m.01n", ["m.02b"])]
    write_json(tmp_path / "ComplexWebQuestions_test_wans.json", answered)
    report = build_family("cwq", variant="etd")
    assert report.per_split == {"train": 20, "dev": 2, "test": 1}  # of the test files the one with answers
    assert json.loads((tmp_path / "questions" / "variant.json").read_text())["dev"] == "their own file"
    with pytest.raises(InputError, match="variant 'rog' needs a file per split"):
        path = tmp_path / "ComplexWebQuestions_train.json"
        plan_variant(QuestionSection(format="cwq", path=path, variant="rog"))
