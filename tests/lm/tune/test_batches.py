"""Which examples are seen when: mixtures, phases, buckets, and the same order for any number of processes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.errors import ConfigError, InputError
from kgqa_core.lm.tune.batches import BUCKET_UNITS, apportion, draw_batches
from kgqa_core.lm.tune.tokens import Tokens
from kgqa_core.lm.tune.types import Phase, TuneSettings


def tokens_of(counts: dict[str, int], dev: int = 3, seed: int = 1) -> Tokens:
    """Return examples of random lengths; ``dev`` of each instruction beside those in ``counts``."""
    names = tuple(sorted(counts))
    kinds = np.repeat(np.arange(len(names)), [counts[name] + dev for name in names])
    is_dev = np.concatenate([np.arange(counts[name] + dev) >= counts[name] for name in names])
    lengths = np.random.default_rng(seed).integers(3, 90, kinds.size)
    starts = np.concatenate([[0], lengths.cumsum()])
    return Tokens(
        tokens=np.arange(starts[-1], dtype=np.int32),
        starts=starts,
        num_prompt=(lengths - 2).astype(np.int32),
        weights=np.ones(kinds.size, np.float32),
        instruction=kinds.astype(np.int16),
        dev=is_dev,
        names=names,
        too_long={},
    )


SETTINGS = TuneSettings(epochs=1, batch_size=5, batching="random")


def test_an_epoch_sees_every_training_example_once_and_no_dev_example() -> None:
    tokens = tokens_of({"plan": 31, "reason": 19})
    batches = draw_batches(tokens, SETTINGS)
    assert batches.shape == (10, 1, 1, 5)
    assert sorted(batches.ravel()) == np.flatnonzero(~tokens.dev).tolist()


@pytest.mark.parametrize("batching", ["buckets", "packed", "random"])
def test_three_epochs_see_each_three_times_evenly_spread(batching: str) -> None:
    tokens = tokens_of({"plan": 30, "reason": 20})
    batches = draw_batches(tokens, replace(SETTINGS, epochs=3, batching=batching))
    assert set(Counter(batches.ravel().tolist()).values()) == {3}
    if batching != "buckets":  # which sort a window of examples
        share = (tokens.instruction[batches.reshape(3, -1)] == 0).mean(axis=1)
        assert np.allclose(share, 0.6, atol=0.05)


def test_planning_first_then_jointly() -> None:
    tokens = tokens_of({"plan": 40, "reason": 40})
    phases = (Phase(0.25, {"plan": 1}), Phase(1.0, {"plan": 1, "reason": 3}))
    batches = draw_batches(tokens, replace(SETTINGS, max_steps=40, phases=phases))
    kinds = tokens.instruction[batches.reshape(40, 5)]
    assert not kinds[:10].any()
    assert kinds[10:].mean() == pytest.approx(0.75, abs=0.01)
    plans = batches.ravel()[kinds.ravel() == 0]
    assert len(set(plans[:40].tolist())) == 40  # each once before any comes again, across the phases too


def test_an_instruction_that_is_not_there_is_named() -> None:
    settings = replace(SETTINGS, phases=(Phase(1.0, {"plans": 1}),))
    with pytest.raises(InputError, match=r"'plans'.*there are plan, reason"):
        draw_batches(tokens_of({"plan": 5, "reason": 5}), settings)


@pytest.mark.parametrize("batching", ["buckets", "packed", "random"])
def test_processes_and_accumulation_share_what_one_process_sees(batching: str) -> None:
    tokens = tokens_of({"plan": 50, "reason": 30})
    settings = replace(SETTINGS, batch_size=8, batching=batching)
    alone = draw_batches(tokens, replace(settings, micro_batch=4))
    shared = draw_batches(tokens, replace(settings, micro_batch=2), num_processes=2)
    assert shared.shape == (10, 2, 2, 2)
    assert (alone.reshape(10, 2, 4) == shared.reshape(10, 2, 4)).all()


def test_buckets_hold_examples_of_like_length() -> None:
    tokens = tokens_of({"plan": 4000})
    padding = {}
    for batching in ("buckets", "random"):
        lengths = tokens.lengths[draw_batches(tokens, replace(SETTINGS, batch_size=8, batching=batching))]
        padding[batching] = (lengths.max(axis=-1, keepdims=True) - lengths).sum() / lengths.sum()
    assert padding["buckets"] < padding["random"] / 20
    assert BUCKET_UNITS * 8 < 4000  # so there was more than one window


def test_seeds_differ_and_repeat() -> None:
    tokens = tokens_of({"plan": 50})
    first, again, other = (draw_batches(tokens, replace(SETTINGS, seed=seed)) for seed in (1, 1, 2))
    assert (first == again).all()
    assert not (first == other).all()


@pytest.mark.parametrize(("processes", "micro"), [(2, None), (1, 2), (7, None)])
def test_a_batch_that_cannot_be_divided_is_refused(processes: int, micro: int | None) -> None:
    with pytest.raises(ConfigError, match="batch_size 5 must be a multiple"):
        draw_batches(tokens_of({"plan": 9}), replace(SETTINGS, micro_batch=micro), processes)


@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=6), st.integers(0, 1000))
def test_shares_are_whole_and_off_by_less_than_one(weights: list[float], total: int) -> None:
    parts = apportion(weights, total)
    assert sum(parts) == total
    assert all(abs(part - total * w / sum(weights)) < 1 + 1e-9 for part, w in zip(parts, weights, strict=True))


def test_phases_must_follow_each_other() -> None:
    for ends in ([0.5], [0.6, 0.5, 1.0], [0.0, 1.0]):
        with pytest.raises(ConfigError, match="phases end at"):
            TuneSettings(phases=tuple(Phase(end) for end in ends))
    with pytest.raises(ConfigError, match="must not be negative"):
        TuneSettings(phases=(Phase(1.0, {"plan": 0}),))
