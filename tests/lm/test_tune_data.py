"""Examples become tokens once; who sees which when; and what one forward pass is made of."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from kgqa_core.config_lm import ReasonerSection
from kgqa_core.errors import ConfigError, InputError
from kgqa_core.instructions.types import Example
from kgqa_core.lm import tune_data
from kgqa_core.lm.folders import encode_prompts, load, load_tokenizer
from kgqa_core.lm.tune import tune
from kgqa_core.lm.tune_data import (
    BUCKET_UNITS,
    Tokens,
    apportion,
    collate,
    draw_batches,
    passes_of,
    read_tokens,
    write_tokens,
)
from kgqa_core.lm.tune_loop import split_pass, target_nll
from kgqa_core.lm.types import Prompt
from tests.lm.tiny_models import byte_level, make_examples, make_job, write_examples


def test_an_example_is_the_prompt_as_it_is_asked_then_the_target_and_the_end(qwen2: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(qwen2)
    example = Example("plan", "q1", "train", "Be short.", "who directed Heat", "Michael Mann", 1.0)
    write_tokens([write_examples(tmp_path / "one.parquet", [example])], tokenizer, tmp_path / "tokens", max_length=200)
    tokens = read_tokens(tmp_path / "tokens")
    asked = encode_prompts(tokenizer, [Prompt(example.prompt, example.system)])[0]
    assert tokens.tokens[: tokens.num_prompt[0]].tolist() == asked
    assert tokenizer.decode(tokens.tokens[tokens.num_prompt[0] :]) == "Michael Mann" + tokenizer.eos_token
    assert tokens.num_targets.tolist() == [len(tokens.tokens) - len(asked)]


def test_rows_stay_in_order_however_many_are_read_at_once(
    llama: Path, instructions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load_tokenizer(llama)
    write_tokens([instructions, instructions], tokenizer, tmp_path / "whole", max_length=200)
    monkeypatch.setattr(tune_data, "READ_ROWS", 7)
    write_tokens([instructions, instructions], tokenizer, tmp_path / "pieces", max_length=200)
    for file in sorted((tmp_path / "whole").iterdir()):
        assert file.read_bytes() == (tmp_path / "pieces" / file.name).read_bytes()
    tokens = read_tokens(tmp_path / "whole")
    assert isinstance(tokens.tokens, np.memmap)
    assert tokens.starts[-1] == len(tokens.tokens)
    expected = make_examples() * 2
    assert [tokens.names[kind] for kind in tokens.instruction] == [example.instruction for example in expected]
    assert tokens.dev.tolist() == [example.split == "dev" for example in expected]
    given = np.array([example.weight for example in expected])
    assert tokens.weights == pytest.approx(given / given[~tokens.dev].mean())  # 1 in the mean over training


def test_what_is_too_long_is_dropped_and_counted(llama: Path, instructions: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(llama)
    write_tokens([instructions], tokenizer, tmp_path / "all", max_length=1000)
    lengths, kinds = read_tokens(tmp_path / "all").lengths, read_tokens(tmp_path / "all").instruction
    limit = int(np.quantile(lengths, 0.8))
    write_tokens([instructions], tokenizer, tmp_path / "short", max_length=limit)
    short = read_tokens(tmp_path / "short")
    assert short.lengths.max() <= limit
    dropped = {name: int((lengths[kinds == kind] > limit).sum()) for kind, name in enumerate(short.names)}
    assert short.too_long == {name: count for name, count in dropped.items() if count}


def test_data_that_cannot_teach_is_refused(llama: Path, instructions: Path, tmp_path: Path) -> None:
    tokenizer, out = load_tokenizer(llama), tmp_path / "tokens"
    test = write_examples(tmp_path / "test.parquet", [Example("plan", "q", "test", "", "who", "Mann", 1.0)])
    nothing = write_examples(tmp_path / "nothing.parquet", [Example("plan", "q", "train", "", "who", "Mann", 0.0)])
    pq.write_table(pa.table({"instruction": ["plan"]}), tmp_path / "odd.parquet")
    for file, limit, said in (
        (test, 100, r"no training example is in .*test\.parquet"),
        (instructions, 3, r"no training example is in .*; 45 are longer than max_length 3"),
        (nothing, 100, "must not be negative, nor all 0"),
        (tmp_path / "odd.parquet", 100, "no column prompt, split, system, target, weight"),
        (tmp_path / "none.parquet", 100, "cannot read the instruction data"),
    ):
        with pytest.raises(InputError, match=said):
            write_tokens([file], tokenizer, out, max_length=limit)
    assert not out.exists()


def tokens_of(counts: dict[str, int], dev: int = 3) -> Tokens:
    """Return examples of random lengths; ``dev`` of each instruction beside those in ``counts``."""
    names = tuple(sorted(counts))
    kinds = np.repeat(np.arange(len(names)), [counts[name] + dev for name in names])
    is_dev = np.concatenate([np.arange(counts[name] + dev) >= counts[name] for name in names])
    lengths = np.random.default_rng(1).integers(3, 90, kinds.size)
    starts = np.concatenate([[0], lengths.cumsum()])
    prompts, weights = (lengths - 2).astype(np.int32), np.ones(kinds.size, np.float32)
    return Tokens(np.arange(starts[-1], dtype=np.int32), starts, prompts, weights, kinds.astype(np.int16), is_dev,
                  names, {})  # fmt: skip


def section(**changed: Any) -> ReasonerSection:
    return ReasonerSection(**{"epochs": 1.0, "batch_size": 5, "batching": "random", **changed})


@pytest.mark.parametrize("batching", ["buckets", "random"])
def test_three_epochs_see_each_three_times_evenly_spread(batching: str) -> None:
    tokens = tokens_of({"plan": 30, "reason": 20})
    batches = draw_batches(tokens, section(epochs=3.0, batching=batching))
    assert batches.shape == (30, 1, 1, 5)
    assert Counter(batches.ravel().tolist()) == dict.fromkeys(np.flatnonzero(~tokens.dev).tolist(), 3)
    if batching != "buckets":  # which sort a window of examples
        share = (tokens.instruction[batches.reshape(3, -1)] == 0).mean(axis=1)
        assert np.allclose(share, 0.6, atol=0.05)


@pytest.mark.parametrize("batching", ["buckets", "random"])
def test_processes_and_accumulation_share_what_one_process_sees(batching: str) -> None:
    tokens = tokens_of({"plan": 50, "reason": 30})
    alone = draw_batches(tokens, section(batch_size=8, batching=batching, micro_batch=4))
    shared = draw_batches(tokens, section(batch_size=8, batching=batching, micro_batch=2), num_processes=2)
    assert shared.shape == (10, 2, 2, 2)
    assert (alone.reshape(10, 2, 4) == shared.reshape(10, 2, 4)).all()


def test_a_pass_over_buckets_is_of_one_instruction_wherever_there_are_enough() -> None:
    tokens = tokens_of({"plan": 1024, "reason": 1024})
    kinds = tokens.instruction[draw_batches(tokens, section(batch_size=8, batching="buckets"))]
    assert (kinds.min(axis=-1) != kinds.max(axis=-1)).mean() < 0.02


def test_buckets_hold_examples_of_like_length() -> None:
    tokens = tokens_of({"plan": 4000})
    padding = {}
    for batching in ("buckets", "random"):
        lengths = tokens.lengths[draw_batches(tokens, section(batch_size=8, batching=batching))]
        padding[batching] = (lengths.max(axis=-1, keepdims=True) - lengths).sum() / lengths.sum()
    assert padding["buckets"] < padding["random"] / 20
    assert BUCKET_UNITS * 8 < 4000  # so there was more than one window


def test_seeds_differ_and_repeat() -> None:
    first, again, other = (draw_batches(tokens_of({"plan": 50}), section(), seed=seed) for seed in (1, 1, 2))
    assert (first == again).all() and not (first == other).all()


@pytest.mark.parametrize(("processes", "micro"), [(2, None), (1, 2), (7, None)])
def test_a_batch_that_cannot_be_divided_is_refused(processes: int, micro: int | None) -> None:
    with pytest.raises(ConfigError, match="batch_size 5 must be a multiple"):
        draw_batches(tokens_of({"plan": 9}), section(micro_batch=micro), num_processes=processes)


@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=6), st.integers(0, 1000))
def test_shares_are_whole_and_off_by_less_than_one(weights: list[float], total: int) -> None:
    parts = apportion(weights, total)
    assert sum(parts) == total
    assert all(abs(part - total * w / sum(weights)) < 1 + 1e-9 for part, w in zip(parts, weights, strict=True))


# ------ One forward pass

EXAMPLES = np.array([0, 4, 1, 17, 6, 9])


@pytest.fixture
def opened(any_model: Path, instructions: Path, tmp_path: Path) -> tuple[Any, Tokens]:
    """A model in double precision and the examples in its tokens."""
    loaded = load(any_model)
    write_tokens([instructions], loaded.tokenizer, tmp_path / "tokens", max_length=250)
    return loaded.model.double(), read_tokens(tmp_path / "tokens")


def alone(model: Any, tokens: Tokens, example: int) -> torch.Tensor:
    """Return an example's mean loss per target token, read alone and whole."""
    text = torch.tensor(np.asarray(tokens.tokens[tokens.starts[example] : tokens.starts[example + 1]], np.int64))
    asked = int(tokens.num_prompt[example])
    return cross_entropy(model(input_ids=text[None]).logits[0, asked - 1 : -1], text[asked:])


@pytest.mark.parametrize("least_shared", [1, 10**9])
def test_examples_together_have_the_losses_that_they_have_alone(
    opened: tuple[Any, Tokens], least_shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where what they begin with is read once: loss and gradients are those of reading it in each."""
    monkeypatch.setattr("kgqa_core.lm.generate.LEAST_SHARED", least_shared)
    model, tokens = opened
    batch = collate(tokens, EXAMPLES, 1 / tokens.num_targets[EXAMPLES], pad=0)
    loss = (target_nll(model, batch, torch.float32) * batch["weights"]).sum()
    together = torch.autograd.grad(loss, list(model.parameters()))
    expected = torch.stack([alone(model, tokens, example) for example in EXAMPLES]).sum()
    apart = torch.autograd.grad(expected, list(model.parameters()))
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("most", [1, 100, 400, 10**6])
def test_a_pass_in_parts_has_the_losses_of_the_whole(opened: tuple[Any, Tokens], most: int) -> None:
    model, tokens = opened
    whole = collate(tokens, EXAMPLES, 1 / tokens.num_targets[EXAMPLES], pad=0)
    parts = split_pass(whole, most)
    held = [part["input_ids"].numel() for part in parts]
    assert len(parts) == 1 if most >= 10**6 else all(one <= most or len(parts) == len(EXAMPLES) for one in held)
    losses = torch.cat([target_nll(model, part, torch.float32) for part in parts])
    torch.testing.assert_close(losses, target_nll(model, whole, torch.float32), rtol=1e-6, atol=1e-9)
    assert torch.equal(torch.cat([part["weights"] for part in parts]), whole["weights"])


def test_a_steps_passes_add_up_to_rogs_objective(opened: tuple[Any, Tokens]) -> None:
    """RoG Eq. 7 by hand: each example's log-likelihood by its weight (a plan's is 1/|Z*|), in the step's mean."""
    model, tokens = opened
    assert len(set(tokens.weights[EXAMPLES].tolist())) > 1
    means = torch.stack([alone(model, tokens, example) for example in EXAMPLES]).detach().numpy()
    counted = tokens.num_targets[EXAMPLES]
    expected = (means * tokens.weights[EXAMPLES] * counted).sum() / counted.sum()
    total = 0.0
    for rank in range(2):
        passes = list(passes_of(tokens, EXAMPLES.reshape(1, 3, 2, 1), rank=rank, pad=0))
        assert len(passes) == 3
        for one in passes:
            total += float((target_nll(model, one, torch.float32).detach() * one["weights"]).sum())
    assert total == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_a_journal_keeps_no_tokens_for_an_adapter_that_brings_another_tokenizer(
    qwen2: Path, instructions: Path, tmp_path: Path
) -> None:
    plain = tune(make_job(qwen2, instructions, tmp_path / "plain", max_steps=1, journal=tmp_path / "work"))
    adapter = Path(shutil.copytree(plain.folder, tmp_path / "adapter"))
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    other = byte_level(special, corpus=["nothing of the same"], eos_token="<|im_end|>", pad_token="<|endoftext|>")
    other.save_pretrained(adapter)
    read = [
        tune(make_job(qwen2, instructions, tmp_path / name, max_steps=1, adapter=adapter, journal=tmp_path / name))
        for name in ("work", "anew")
    ]
    assert read[0].num_tokens == read[1].num_tokens != plain.num_tokens
