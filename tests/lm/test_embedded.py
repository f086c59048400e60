"""The embedded model is a transformers folder like any other, made of the graph's relations and the questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from kgqa_core.errors import ConfigError, InputError
from kgqa_core.lm.embedded import EmbeddedReport, draw_chances, find_frames, make_embedded, read_distinct
from kgqa_core.lm.local import open_local
from kgqa_core.lm.tune_data import Tokens
from kgqa_core.lm.types import EmbeddedLmSection, Prompt
from kgqa_core.schemas import INSTRUCTIONS

FRAME = "Give a chain of relations.\n\nQuestion: "
PLANS = {
    "who directed [topic]": "<PATH>directed_by</PATH>",
    "which films did [topic] direct": "<PATH>^directed_by</PATH>",
    "who is in films by the director of [topic]": "<PATH>directed_by<SEP>^directed_by<SEP>starred_actors</PATH>",
    "when was [topic] released": "<PATH>release_year</PATH>",
    "name the year of [topic]": "<PATH>release_year</PATH>",
}
STEPS = ["directed_by", "^directed_by", "starred_actors", "^starred_actors", "release_year", "^release_year"]
MARKERS = ["<PATH>", "<SEP>", "</PATH>"]


def tiny(**changed: Any) -> EmbeddedLmSection:
    shape = {"width": 24, "layers": 2, "heads": 2, "vocabulary": 331, "steps": 60, "batch_size": 7}
    return EmbeddedLmSection(**{"kind": "embedded", "learning_rate": 1e-2, **shape, **changed})


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each question of PLANS asked thrice; one has another plan once."""
    rows = [(question, plan, 1.0) for question, plan in PLANS.items() for _ in range(3)]
    rows.append(("who directed [topic]", "<PATH>^starred_actors</PATH>", 0.5))
    same = {"instruction": "plan", "split": "train", "system": ""}
    table = [
        {**same, "question_id": str(number), "prompt": FRAME + question, "target": plan, "weight": weight}
        for number, (question, plan, weight) in enumerate(rows)
    ]
    path = tmp_path_factory.mktemp("embedded") / "instructions.parquet"
    pq.write_table(pa.Table.from_pylist(table, schema=INSTRUCTIONS), path)
    return path


@pytest.fixture(scope="module")
def made(examples: Path, tmp_path_factory: pytest.TempPathFactory) -> EmbeddedReport:
    out = tmp_path_factory.mktemp("embedded") / "model"
    return make_embedded([examples], tiny(), out, steps=STEPS, markers=MARKERS, names=["Ada Lovelace", "Vertigo"])


@pytest.fixture(scope="module")
def tokenizer(made: EmbeddedReport) -> Any:
    return AutoTokenizer.from_pretrained(made.folder)


def test_it_is_opened_as_any_other_model_and_has_learned(made: EmbeddedReport) -> None:
    model = open_local(made.folder)
    texts = model.generate([Prompt(FRAME + question) for question in PLANS])
    assert [given.text for (given,) in texts] == list(PLANS.values())
    assert len(made.losses) == 60 and made.losses[-1] < made.losses[0] / 5
    assert sum(one.numel() for one in model.model.parameters()) == made.num_parameters and model.model.config.use_cache
    assert {path.suffix for path in made.folder.iterdir()} <= {".safetensors", ".json"}  # nothing is pickled


def test_a_plan_is_a_token_per_step_and_marker_and_the_frame_of_prompts_is_one(tokenizer: Any) -> None:
    plan = "<PATH>directed_by<SEP>^directed_by</PATH>"
    assert tokenizer.tokenize(plan) == ["<PATH>", "directed_by", "<SEP>", "^directed_by", "</PATH>"]
    assert tokenizer.tokenize(FRAME + "who directed [topic]")[0] == FRAME.rstrip(" ")


@settings(max_examples=40)
@given(text=st.text(max_size=60))
def test_any_text_survives_its_tokens(tokenizer: Any, text: str) -> None:
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    if not any(special in text for special in tokenizer.all_special_tokens):
        assert tokenizer.decode(tokens, clean_up_tokenization_spaces=False) == text


def test_spelled_relations_need_no_tokens_of_their_own(examples: Path, tmp_path: Path) -> None:
    made = make_embedded([examples], tiny(relations="pieces", steps=1), tmp_path / "model", steps=STEPS)
    assert "directed_by" not in AutoTokenizer.from_pretrained(made.folder).get_added_vocab()


def test_the_same_data_and_seed_give_the_same_bytes_and_torch_is_left_as_it_was(examples: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        make_embedded([examples], tiny(steps=3, seed=seed), tmp_path / name, steps=STEPS, markers=MARKERS)
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b != c
    assert (tmp_path / "a" / "tokenizer.json").read_bytes() == (tmp_path / "c" / "tokenizer.json").read_bytes()
    assert torch.equal(torch.random.get_rng_state(), before) and torch.get_num_threads() == threads


def test_equal_examples_are_read_once_with_the_weight_of_all(examples: Path) -> None:
    rows = read_distinct([examples])
    assert len(rows) == len(PLANS) + 1
    assert {(row["target"], row["weight"]) for row in rows if row["prompt"] == FRAME + "who directed [topic]"} == {
        ("<PATH>directed_by</PATH>", 3.0),
        ("<PATH>^starred_actors</PATH>", 0.5),
    }


def test_frames_end_where_words_do() -> None:
    texts = ["Tell me: who sang it? Answer now", "Tell me: what is it? Answer now"]
    assert find_frames(["Tell me, please: " + text for text in texts]) == [
        "Tell me, please: Tell me:",
        " it? Answer now",
    ]
    assert find_frames(["all alike, word by word"] * 2) == [] and find_frames(["a", "b"]) == []


def test_a_prompt_is_drawn_by_its_weight_flattened_and_its_targets_by_theirs() -> None:
    stream, starts, weights = np.array([1, 3, 1, 4, 2, 5], np.int32), np.array([0, 2, 4, 6]), np.array([6.0, 3.0, 1.0])
    zeros = np.zeros(3, np.int16)
    data = Tokens(stream, starts, np.ones(3, np.int32), weights.astype(np.float32), zeros, zeros > 0, ("taught",), {})
    assert draw_chances(data, 1.0) == pytest.approx([0.6, 0.3, 0.1])
    assert draw_chances(data, 0.5) == pytest.approx([0.5, 0.25, 0.25])
    assert draw_chances(data, 0.0) == pytest.approx([1 / 3, 1 / 6, 1 / 2])


def test_what_cannot_be_made_says_why(examples: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no example of reason to train on; there are: plan"):
        make_embedded([examples], tiny(train_on=("reason",)), tmp_path / "model")
    with pytest.raises(ConfigError, match="no room for 258 bytes and ends and 6 relations; give at least 601"):
        markers = [f"<{number}>" for number in range(336)]
        make_embedded([examples], tiny(), tmp_path / "model", steps=STEPS, markers=markers)
    with pytest.raises(InputError, match="context of 3 tokens"):
        make_embedded([examples], tiny().model_copy(update={"context": 3}), tmp_path / "model")
    with pytest.raises(InputError, match="cannot be read"):
        make_embedded([tmp_path / "none.parquet"], tiny(), tmp_path / "model")
    assert not (tmp_path / "model").exists()
