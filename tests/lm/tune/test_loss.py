"""The loss is that of the targets alone, and the same one however examples share a forward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.lm.local import load
from kgqa_core.lm.tune.collate import collate, pack
from kgqa_core.lm.tune.loop import Parts, target_nll
from kgqa_core.lm.tune.packing import packs_cleanly
from kgqa_core.lm.tune.tokens import Tokens, read_tokens, write_tokens

EXAMPLES = [0, 4, 1, 17, 6]


@pytest.fixture
def opened(any_model: Path, instructions: Path, tmp_path: Path) -> tuple[Any, Tokens]:
    """A model and the examples in its tokens."""
    loaded = load(any_model)
    write_tokens([instructions], loaded.tokenizer, tmp_path / "tokens", max_length=250)
    return loaded.model, read_tokens(tmp_path / "tokens")


def alone(model: Any, tokens: Tokens, example: int) -> torch.Tensor:
    """Return an example's loss per target token as transformers counts it: of one text, its prompt ignored."""
    text = torch.tensor(np.asarray(tokens.tokens[tokens.starts[example] : tokens.starts[example + 1]], np.int64))[None]
    labels = text.clone()
    labels[:, : tokens.num_prompt[example]] = -100
    return model(input_ids=text, labels=labels).loss


@pytest.mark.parametrize("row_length", [None, 250])
def test_examples_together_have_the_losses_that_they_have_alone(
    opened: tuple[Any, Tokens], row_length: int | None
) -> None:
    model, tokens = opened
    scales = [1 / int(tokens.num_targets[example]) for example in EXAMPLES]
    batch = collate(tokens, EXAMPLES, scales, pad=0, row_length=row_length)
    assert (batch["input_ids"].shape[0] < len(EXAMPLES)) == (row_length is not None)
    loss = (target_nll(model, batch, torch.float32) * batch["weights"]).sum()
    together = torch.autograd.grad(loss, list(model.parameters()))
    expected = torch.stack([alone(model, tokens, example) for example in EXAMPLES]).sum()
    apart = torch.autograd.grad(expected, list(model.parameters()))
    torch.testing.assert_close(loss, expected)
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_models_that_cannot_select_logits_are_read_whole(
    opened: tuple[Any, Tokens], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokens = opened
    batch = collate(tokens, EXAMPLES, [1.0] * len(EXAMPLES), pad=0)
    selected = target_nll(model, batch, torch.float32)
    monkeypatch.setattr("kgqa_core.lm.tune.loop.selects_logits", lambda model: False)
    torch.testing.assert_close(target_nll(model, batch, torch.float32), selected)


@pytest.mark.parametrize("per_example", [False, True])
def test_a_steps_parts_add_up_to_the_mean_over_the_step(opened: tuple[Any, Tokens], per_example: bool) -> None:
    model, tokens = opened
    batch = np.array([*EXAMPLES, 9])
    losses = torch.stack([alone(model, tokens, example) for example in batch]).detach().numpy()
    many = tokens.num_targets[batch]
    by = many if not per_example else np.ones(len(batch))
    expected = (losses * tokens.weights[batch] * by).sum() / by.sum()
    total = 0.0
    for rank in range(2):
        parts = Parts(tokens, batch.reshape(1, 3, 2, 1), rank=rank, per_example=per_example)
        assert len(parts) == 3
        for part in (parts[index] for index in range(3)):
            total += float((target_nll(model, part, torch.float32).detach() * part["weights"]).sum())
    assert total == pytest.approx(expected, rel=1e-5)


def test_known_architectures_keep_packed_examples_apart(any_model: Path) -> None:
    assert packs_cleanly(load(any_model).model)


def test_a_model_that_lets_packed_examples_see_each_other_is_found_out(llama: Path) -> None:
    model = load(llama).model
    forward = model.forward
    model.forward = lambda position_ids=None, **inputs: forward(**inputs)
    assert not packs_cleanly(model)

    def knows_no_positions(input_ids: torch.Tensor, use_cache: bool) -> Any:
        return forward(input_ids=input_ids, use_cache=use_cache)

    model.forward = knows_no_positions
    assert not packs_cleanly(model)


@given(st.lists(st.integers(1, 50), max_size=40))
def test_packed_rows_hold_every_example_once_and_are_never_too_long(lengths: list[int]) -> None:
    rows = pack(lengths, 50)
    assert sorted(one for row in rows for one in row) == list(range(len(lengths)))
    assert all(sum(lengths[one] for one in row) <= 50 for row in rows)
    fuller = [sum(lengths[one] for one in row) for row in rows]
    assert sum(total <= 25 for total in fuller) <= 1  # two half-empty rows would have been one
