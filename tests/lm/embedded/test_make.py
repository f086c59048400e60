"""The embedded model is a transformers folder like any other, made of the graph's relations and the questions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from kgqa_core.errors import ConfigError, InputError
from kgqa_core.lm.embedded.examples import find_frames, read_distinct
from kgqa_core.lm.embedded.make import EmbeddedReport, make_embedded
from kgqa_core.lm.embedded.settings import EmbeddedSettings
from kgqa_core.lm.embedded.train import Encoded, batch_loss, draw_chances
from kgqa_core.lm.local import open_local
from kgqa_core.lm.types import Prompt
from tests.lm.embedded.conftest import FRAME, MARKERS, PLANS, STEPS, TINY


@pytest.fixture(scope="module")
def tokenizer(made: EmbeddedReport) -> Any:
    return AutoTokenizer.from_pretrained(made.folder)


def test_it_is_opened_as_any_other_model_and_has_learned(made: EmbeddedReport) -> None:
    model = open_local(made.folder)
    texts = model.generate([Prompt(FRAME + question) for question in PLANS])
    assert [given.text for (given,) in texts] == list(PLANS.values())
    assert made.losses[-1] < made.losses[0] / 5


def test_its_weights_are_safetensors_and_nothing_is_pickled(made: EmbeddedReport) -> None:
    names = {path.name for path in made.folder.iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= names
    assert not any(name.endswith((".bin", ".pt", ".pkl")) for name in names)
    model = AutoModelForCausalLM.from_pretrained(made.folder)
    assert sum(one.numel() for one in model.parameters()) == made.num_parameters


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
    made = make_embedded(examples, replace(TINY, relations="pieces", steps=1), tmp_path / "model", steps=STEPS)
    assert "directed_by" not in AutoTokenizer.from_pretrained(made.folder).get_added_vocab()


def test_the_same_data_and_seed_give_the_same_bytes(examples: Path, tmp_path: Path) -> None:
    short = replace(TINY, steps=3)
    for name, chosen in (("a", short), ("b", short), ("c", replace(short, seed=1))):
        make_embedded(examples, chosen, tmp_path / name, steps=STEPS, markers=MARKERS)
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b != c
    assert (tmp_path / "a" / "tokenizer.json").read_bytes() == (tmp_path / "c" / "tokenizer.json").read_bytes()


def test_making_one_leaves_torch_as_it_was(examples: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    make_embedded(examples, replace(TINY, steps=1), tmp_path / "model")
    assert torch.equal(torch.random.get_rng_state(), before) and torch.get_num_threads() == threads


def test_equal_examples_are_read_once_with_the_weight_of_all(examples: Path) -> None:
    rows = read_distinct([examples])
    assert len(rows) == len(PLANS) + 1
    assert {(row.target, row.weight) for row in rows if row.prompt == FRAME + "who directed [topic]"} == {
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
    data = Encoded([(1,), (1,), (2,)], [(3,), (4,), (5,)], np.array([6.0, 3.0, 1.0]))
    assert draw_chances(data, 1.0) == pytest.approx([0.6, 0.3, 0.1])
    assert draw_chances(data, 0.5) == pytest.approx([0.5, 0.25, 0.25])
    assert draw_chances(data, 0.0) == pytest.approx([1 / 3, 1 / 6, 1 / 2])


def test_the_loss_is_that_of_each_target_read_alone(made: EmbeddedReport, tokenizer: Any) -> None:
    """Against transformers' own loss, an example at a time, without padding."""
    model = AutoModelForCausalLM.from_pretrained(made.folder).eval()
    data = Encoded([(5, 6, 7, 8, 9), (10,), (11, 12)], [(20, 0), (21, 22, 23, 0), (24, 0)], np.ones(3))
    shares = np.array([0.5, 0.2, 0.3])
    total, read, scored = batch_loss(model, data, np.arange(3), shares, tokenizer.pad_token_id)
    expected = 0.0
    for prompt, target, share in zip(data.prompts, data.targets, shares, strict=True):
        labels = torch.tensor([[-100] * len(prompt) + list(target)])
        mean = model(input_ids=torch.tensor([[*prompt, *target]]), labels=labels).loss.item()
        expected += share * len(target) * mean
    assert total.item() == pytest.approx(expected, rel=1e-5) and (read, scored) == (3 * 7, 8)


def test_what_cannot_be_made_says_why(examples: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no example of reason to train on; there are: plan"):
        make_embedded(examples, replace(TINY, train_on=("reason",)), tmp_path / "model")
    with pytest.raises(ConfigError, match="no room for 258 bytes and ends and 6 relations; give at least 268"):
        make_embedded(examples, replace(TINY, vocabulary=200), tmp_path / "model", steps=STEPS, markers=MARKERS)
    with pytest.raises(InputError, match="context of 3 tokens"):
        make_embedded(examples, replace(TINY, context=3), tmp_path / "model", steps=STEPS, markers=MARKERS)
    with pytest.raises(InputError, match="cannot be read"):
        make_embedded(tmp_path / "none.parquet", TINY, tmp_path / "model")
    with pytest.raises(ConfigError, match="width 30"):
        EmbeddedSettings(width=30, heads=4)
    assert not (tmp_path / "model").exists()
