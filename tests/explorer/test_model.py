"""What counts as the same text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from kgqa_core.explorer.model import Texts, texts_of
from tests.explorer import films
from tests.explorer.worlds import unit_vectors


def test_same_text_names_the_first_relation_of_a_text_per_direction() -> None:
    texts = Texts(unit_vectors(1), unit_vectors(3)[[2, 0, 2, 1, 0]])
    assert texts.same_text.tolist() == [0, 1, 0, 3, 1, 5, 6, 5, 8, 6, 10]


def test_an_inverse_with_a_text_of_its_own_is_a_text_like_any_other() -> None:
    vectors = unit_vectors(5)
    texts = Texts(
        unit_vectors(1), vectors[[0, 1, 0]], inverse_of=torch.tensor([0, 2]), inverses=vectors[[3, 1]]
    )  # the inverse of relation 0 says something new, that of 2 what relation 1 says
    assert texts.same_text.tolist() == [0, 1, 0, 3, 4, 1, 6]


def test_the_inverses_that_a_graph_names_are_encoded() -> None:
    graph: Any = SimpleNamespace(relation_labels=["play", "win"], inverse_labels=[None, "won_by"])
    texts = texts_of(["who?"], graph, films.ENCODER.encode)
    assert texts.inverse_of is not None and texts.inverse_of.tolist() == [1]
    assert texts.inverses is not None and texts.inverses.tolist() == films.ENCODER.encode(["won_by"]).tolist()
    graph.inverse_labels = [None, None]
    assert texts_of(["who?"], graph, films.ENCODER.encode).inverses is None


def test_noise_moves_the_rows_asked_for_by_its_amount_and_keeps_their_norm() -> None:
    texts = Texts(unit_vectors(50, dim=400), unit_vectors(3, dim=400))
    rows = np.array([3, 7, 41])
    blurred = texts.blurred(rows, 0.75, seed=5)
    still = np.setdiff1d(np.arange(50), rows)
    assert torch.equal(blurred.questions[still], texts.questions[still])
    assert torch.allclose(blurred.questions.norm(dim=1), torch.ones(50, dtype=torch.float64))
    cosine = (blurred.questions[rows] * texts.questions[rows]).sum(dim=1)
    assert torch.allclose(cosine, torch.full((3,), 0.8, dtype=torch.float64), atol=0.05)  # 1 / sqrt(1 + 0.75²)
    assert torch.equal(blurred.questions, texts.blurred(rows, 0.75, seed=5).questions)
    assert not torch.equal(blurred.questions, texts.blurred(rows, 0.75, seed=6).questions)
    assert blurred.relations is texts.relations
    assert blurred.same_text is texts.same_text
