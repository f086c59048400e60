"""The parts of the dense planner, each against a plain reading of what it does."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.config_lm import DensePlannerSection
from kgqa_core.planners.dense import beam, path_exists, render_path_text, steps_of
from kgqa_core.planners.dense_rank import Taught, log_sum, neighbour_weights, spread_first
from kgqa_core.planners.dense_train import SplitEncoder, count_steps, neighbour_loss, set_loss
from kgqa_core.planners.types import LabelPath, PlanQuestion
from kgqa_core.text.transformer import LocalEncoder

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_path_reads_as_the_words_of_its_steps() -> None:
    assert render_path_text(("people.person.place_of_birth",)) == "people person place of birth"
    assert render_path_text(("^film.film.directed_by", "a")) == "film directed by of ; a"
    assert render_path_text(()) == "itself"
    assert render_path_text(("\\^--",)) == "^--"  # no words at all: as it is


def test_both_halves_together_are_the_whole_encoder(tiny_bert: Path) -> None:
    texts = ["who directed the red film", "what", "when is it " * 9]
    whole = LocalEncoder(tiny_bert, pooling="last", max_tokens=13).encode(texts)
    for frozen in (0, 1, 2):
        split = SplitEncoder(tiny_bert, frozen_layers=frozen, max_tokens=13)
        np.testing.assert_allclose(split.encode_published(texts), whole, atol=1e-5)


def test_only_the_upper_half_learns(tiny_bert: Path) -> None:
    encoder = SplitEncoder(tiny_bert, frozen_layers=1, max_tokens=13)
    states = encoder.lower_states(["who", "what film"])
    assert not states[0].requires_grad
    encoder.encode_states(states).sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.upper.parameters())


def test_losses_are_minus_the_log_of_what_right_columns_get() -> None:
    scores = torch.tensor([[1.0, 2.0, 0.5], [0.0, 0.0, 3.0]])
    right = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    first = (math.exp(1) + math.exp(0.5)) / (math.exp(1) + math.exp(2) + math.exp(0.5))
    second = 1 / (2 + math.exp(3))
    assert set_loss(scores, right).item() == pytest.approx(-(math.log(first) + math.log(second)) / 2, abs=1e-5)
    overlap = torch.tensor([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0]])
    votes = [0.5 * math.exp(2) / (math.exp(2) + math.exp(0.5)), 0.5 * 1 / (1 + math.exp(3))]
    expected = -sum(map(math.log, votes)) / 2
    assert neighbour_loss(scores, overlap, [0, 1]).item() == pytest.approx(expected, abs=1e-4)


def test_steps_are_those_of_the_epochs_up_to_a_limit() -> None:
    assert count_steps(33, DensePlannerSection(epochs=2, batch_size=32)) == 4
    assert count_steps(33, DensePlannerSection(epochs=0.5, batch_size=32)) == 1
    assert count_steps(33, DensePlannerSection(epochs=2, batch_size=32, max_steps=3)) == 3


def test_votes_are_a_softmax_of_cosines() -> None:
    bank = np.eye(3, dtype=np.float32)
    weights = neighbour_weights(bank[:1], bank, 0.5)
    assert weights[0].tolist() == pytest.approx([math.exp(2) / (math.exp(2) + 2)] + [1 / (math.exp(2) + 2)] * 2)
    assert log_sum(np.array([[700.0, 700.0]], dtype=np.float32))[0] == pytest.approx(700 + math.log(2))


def test_paths_are_numbered_in_order() -> None:
    taught = Taught.of([PlanQuestion("q", "", paths=(("b",), ("a", "c"))), PlanQuestion("r", "", paths=(("b",),))])
    assert taught.paths == (("a", "c"), ("b",))
    assert taught.targets.toarray().tolist() == [[1, 1], [0, 1]]


def test_the_second_plan_serves_those_whom_the_first_misses() -> None:
    """Columns 0 and 1 go together, 2 alone: together 0 and 2 hit always, though 1 is more probable than 2."""
    rows = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=np.float32)
    probabilities = np.array([0.4, 0.35, 0.25], dtype=np.float32)
    weights = np.full(3, 1 / 3, dtype=np.float32)
    assert spread_first(probabilities, weights, rows, num_plans=3, strength=1.0) == [0, 2, 1]
    assert spread_first(probabilities, weights, rows, num_plans=2, strength=0.0) == [0, 1]


@given(st.lists(st.floats(0, 1, width=32), max_size=5), st.integers(0, 7), st.floats(0, 1))
def test_the_first_plan_is_the_most_probable_and_none_comes_twice(
    probabilities: list[float], num_plans: int, strength: float
) -> None:
    rows = np.tile(np.array([[1, 0, 1, 0, 1]], dtype=np.float32), (2, 1))[:, : len(probabilities)]
    given_ = np.array(probabilities, dtype=np.float32)
    chosen = spread_first(given_, np.ones(2, dtype=np.float32), rows, num_plans=num_plans, strength=strength)
    assert len(set(chosen)) == len(chosen) == min(num_plans, len(probabilities))
    if chosen:
        assert chosen[0] == int(np.argmax(given_))


STEPS = "abc"
graphs = st.dictionaries(st.lists(st.sampled_from(STEPS), max_size=2).map(tuple), st.sets(st.sampled_from(STEPS)))


@given(graphs, st.integers(1, 3))
def test_a_wide_beam_visits_every_path_that_exists(graph: dict[LabelPath, set[str]], max_hops: int) -> None:
    def allowed(path: LabelPath) -> set[str]:
        return graph.get(path, set())

    def weigh(paths: list[LabelPath]) -> np.ndarray:
        return np.array([hash_score(path) for path in paths], dtype=np.float32)

    found = beam(allowed, weigh, width=99, max_hops=max_hops)
    every = [path for hops in range(1, max_hops + 1) for path in product(STEPS, repeat=hops)]
    assert set(found) == {path for path in every if path_exists(path, allowed)}
    narrow = beam(allowed, weigh, width=1, max_hops=max_hops)
    assert all(len({len(path) for path in narrow}) == len(narrow) for _ in (0,))
    assert set(narrow) <= set(found)


def hash_score(path: LabelPath) -> float:
    return float(sum((place + 1) * ord(step) for place, step in enumerate(path)) % 7)


def test_without_a_graph_steps_follow_each_other_as_in_training() -> None:
    follows = steps_of([("a", "b"), ("b", "c"), ()])
    asked = PlanQuestion("q", "")
    assert follows(asked, ()) == ("a", "b")
    assert follows(asked, ("x", "b")) == ("c",)
    assert follows(asked, ("c",)) == ()
