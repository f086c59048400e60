"""Using fewer questions: training samples, and wordings that only the test split asks."""

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

from kgqa_core.errors import InputError
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.build import build_questions
from kgqa_core.questions.formats import QuestionSource
from kgqa_core.questions.store import read_questions
from kgqa_core.questions.subset import Subset, take_subset
from kgqa_core.types import SPLITS, Question, Split

Write = Callable[[Path, list[dict[str, Any]]], Path]

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


def masked_of(questions: list[Question], split: Split) -> set[str]:
    return {question.masked for question in questions if question.split == split}


# A part of the training questions


def test_a_sample_leaves_dev_and_test_alone_and_keeps_the_order() -> None:
    questions = asked()
    kept, report = take_subset(questions, Subset(train_size=17))
    assert report.num_before == {"train": 90, "dev": 10, "test": 10}
    assert report.num_left == {"train": 17, "dev": 10, "test": 10}
    assert [question for question in questions if question in kept] == kept


def test_a_smaller_sample_lies_inside_a_larger_one_of_the_same_draw() -> None:
    small, large = (set(take_subset(asked(), Subset(train_size=size))[0]) for size in (13, 31))
    assert small < large
    other = set(take_subset(asked(), Subset(train_size=13, draw=1))[0])
    assert other != small


def test_the_order_of_the_files_does_not_matter() -> None:
    subset = Subset(train_size=17, hold_out_templates=0.3, draw=5)
    forward, backward = take_subset(asked(), subset)[0], take_subset(asked()[::-1], subset)[0]
    assert forward == backward[::-1]


def test_more_than_there_is_is_refused() -> None:
    assert take_subset(asked(), Subset(train_size=90))[0] == asked()
    with pytest.raises(InputError, match=r"train_size is 91, but there are only 90"):
        take_subset(asked(), Subset(train_size=91))
    with pytest.raises(InputError, match=r"only 63 training"):  # of the 7 templates of 10 that are left
        take_subset(asked(), Subset(train_size=90, hold_out_templates=0.3))


# Wordings that only the test split asks


def test_held_out_wordings_are_all_that_test_asks_and_nobody_else_does() -> None:
    kept, report = take_subset(asked(), Subset(hold_out_templates=0.3))
    held = masked_of(kept, "test")
    assert (report.num_masked, report.num_masked_held_out, report.num_held_out_wanted) == (10, 3, 3)
    assert len(held) == 3
    assert not held & (masked_of(kept, "train") | masked_of(kept, "dev"))
    assert report.num_left == {"train": 9 * 7, "dev": 7, "test": 3}


@pytest.mark.parametrize("draw", range(5))
def test_every_chain_keeps_a_wording_in_training(draw: int) -> None:
    kept, report = take_subset(asked(), Subset(hold_out_templates=0.9, draw=draw))
    assert {question.chain for question in kept if question.split == "train"} == {(0,), (1,), (2, 3)}
    assert (report.num_masked_held_out, report.num_held_out_wanted) == (7, 9)
    assert "films by [topic]" not in masked_of(kept, "test")


def test_without_chains_the_hops_are_the_type() -> None:
    questions = [replace(question, chain=None) for question in asked()]
    kept, report = take_subset(questions, Subset(hold_out_templates=0.9))
    assert report.num_masked_held_out == 8
    assert {question.hops for question in kept if question.split == "train"} == {1, 2}


def test_other_draws_hold_out_other_wordings() -> None:
    held = {frozenset(masked_of(take_subset(asked(), Subset(None, 0.2, draw))[0], "test")) for draw in range(5)}
    assert len(held) > 1


def test_a_share_that_empties_a_split_is_refused() -> None:
    with pytest.raises(InputError, match=r"hold_out_templates = 0\.01 leaves no test question: there are 10 distinct"):
        take_subset(asked(), Subset(hold_out_templates=0.01))


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
        kept, report = take_subset(questions, Subset(hold_out_templates=share, draw=draw))
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


def test_the_artifact_says_what_was_left_out(tmp_path: Path, films: KnowledgeGraph, write_jsonl: Write) -> None:
    for split in SPLITS:
        rows = [
            {"question": f"{wording} Vertigo?", "answers": ["Alfred Hitchcock"], "id": f"{split}-{number}"}
            for number, wording in enumerate(["Who made", "Who directed", "Who shot", "Director of", "Maker of"])
        ]
        write_jsonl(tmp_path / "qa" / f"{split}.jsonl", rows)
    source, common = QuestionSource("jsonl", tmp_path / "qa"), {"graph": films, "max_steps": 1, "reenter_topic": False}
    build_questions(source, out_dir=tmp_path / "all", **common)
    assert not (tmp_path / "all" / "subset.json").exists()
    report = build_questions(source, out_dir=tmp_path / "some", subset=Subset(2, 0.2, 1), **common)
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
