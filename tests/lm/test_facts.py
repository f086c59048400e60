"""What is told of a model before and after loading it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgqa_core.lm import facts
from kgqa_core.lm.facts import describe
from kgqa_core.lm.generate import read_prompts
from kgqa_core.lm.local import Quantise, open_local


def test_facts_are_those_of_the_loaded_model(any_model: Path) -> None:
    told = describe(any_model, batch_size=3)
    model = open_local(any_model)
    assert told.parameters == sum(weight.numel() for weight in model.model.parameters())
    assert told.weight_bytes == 4 * told.parameters
    assert (told.context, told.vocabulary, told.name) == (257, len(model.tokenizer), model.name)
    assert told.memory_bytes == told.weight_bytes + 3 * 257 * told.cache_bytes_per_token
    assert told.read_tokens_per_second and told.new_tokens_per_second


def test_the_cache_is_as_large_as_told(any_model: Path) -> None:
    cached, _ = read_prompts(open_local(any_model).model, [[5, 6, 7]])
    numbers = sum(layer.keys[:, :, :3].numel() + layer.values[:, :, :3].numel() for layer in cached.states.layers)
    assert describe(any_model).cache_bytes_per_token == 4 * numbers // 3


def test_a_model_that_does_not_fit_is_described_unloaded(qwen2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "free_memory", lambda device: 1000)
    told = describe(qwen2)
    assert told.read_tokens_per_second is None and told.parameters > 1000


@pytest.mark.parametrize(("quantise", "bytes_per_weight"), [("none", 2), ("int8", 1), ("int4", 0.5)])
def test_quantisation_shrinks_matrices_but_not_tables(qwen2: Path, quantise: Quantise, bytes_per_weight: float) -> None:
    told = describe(qwen2, dtype="bfloat16", quantise=quantise, timed=False)
    model = open_local(qwen2).model
    layers = model.model.layers
    matrices = sum(weight.numel() for weight in layers.parameters() if weight.dim() == 2)
    assert told.weight_bytes == 2 * (told.parameters - matrices) + bytes_per_weight * matrices
