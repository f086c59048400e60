"""The explorer on the whole WikiMovies graph, where it is at hand (environment variable KGQA_DATA)."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from kgqa_core.explorer.batch import question_arrays
from kgqa_core.explorer.explore import Exploration, ExploreOptions, explore, loss_sum
from kgqa_core.explorer.model import Explorer, Texts
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.text.encoder import HashEncoder
from tests.explorer.plain_walk import plainly
from tests.loading import load_question_file

pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif(
        "KGQA_DATA" not in os.environ, reason="KGQA_DATA names no folder with metaqa/kb.txt and metaqa/3-hop"
    ),
]


def outcome(found: Exploration, num_entities: int) -> tuple[np.ndarray, np.ndarray]:
    """Node keys, ascending, and their scores."""
    key = found.question * num_entities + found.entity
    order = np.argsort(key)
    return key[order], found.class_score.detach().numpy()[found.node_class][order]


@pytest.mark.parametrize("edge_budget", [5, 40])
def test_merging_changes_nothing_on_real_3_hop_questions(wikimovies: KnowledgeGraph, edge_budget: int) -> None:
    path = next((Path(os.environ["KGQA_DATA"]) / "metaqa" / "3-hop").glob("**/qa_dev.txt"))
    questions, _ = load_question_file(path, format="metaqa", graph=wikimovies, split="dev", hops=3)
    chosen = [questions[row] for row in np.random.default_rng(0).permutation(len(questions))[:13]]
    masked = sorted({question.masked for question in chosen})
    batch = question_arrays(chosen, {text: row for row, text in enumerate(masked)}).batch(np.arange(13))
    encode = HashEncoder(61).encode
    torch.manual_seed(0)
    model = Explorer(encoding_dim=61, width=17, steps=3).double()  # single precision differs by 1e-5 on these hubs
    results = []
    texts = Texts(torch.tensor(encode(masked)).double(), torch.tensor(encode(wikimovies.relation_names)).double())
    for way in (nullcontext, plainly):
        with way():
            found = explore(model, wikimovies, batch, texts=texts, options=ExploreOptions(edge_budget))
        model.zero_grad()
        loss, covered = loss_sum(found, batch, wikimovies.num_entities)
        loss.backward()
        gradient = torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])
        results.append((*outcome(found, wikimovies.num_entities), gradient, found.counts))
        assert edge_budget < 40 or covered.all()
    (keys, scores, gradient, counts), (plain_keys, plain_scores, plain_gradient, plain_counts) = results
    assert np.array_equal(keys, plain_keys)
    assert np.abs(scores - plain_scores).max() < 1e-9
    assert (gradient - plain_gradient).abs().max() < 1e-9 * plain_gradient.abs().max()
    assert counts["edges"] == plain_counts["edges"]
    assert counts["classes"] < 0.2 * counts["nodes"]
