"""The same on a GPU: values, gradients, a whole training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kgqa_core.explorer.explore import loss_sum
from kgqa_core.explorer.fit import measure
from kgqa_core.explorer.train import Trainer
from tests.explorer import films
from tests.explorer.worlds import make_model, make_question, star

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")]


def test_scores_and_gradients_are_those_of_the_cpu() -> None:
    two = [make_question([0], [5], masked="0"), make_question([1], [7, 9], masked="0")]  # from both ends of a hub
    world, results = replace(star(95), questions=two), []
    for device in ("cpu", "cuda"):
        model = make_model(steps=3).to(device)
        found = world.on(device).explore(model)
        loss, _ = loss_sum(found, world.batch, world.num_entities)
        loss.backward()
        gradient = torch.cat([weight.grad.flatten().cpu() for weight in model.parameters() if weight.grad is not None])
        results.append((found.entity.tolist(), found.class_score.detach().cpu(), gradient))
    (entities, scores, gradient), (same_entities, same_scores, same_gradient) = results
    assert entities == same_entities
    assert torch.allclose(scores, same_scores, atol=1e-9)
    assert torch.allclose(gradient, same_gradient, atol=1e-9)


@pytest.mark.parametrize("half", [False, True])
def test_a_training_on_the_gpu_learns_as_well(half: bool) -> None:
    model, lessons = films.fresh_model().to("cuda"), films.lessons()
    texts = lessons.texts.to("cuda")
    on_gpu = replace(lessons, texts=texts)
    settings = films.section(epochs=30, precision="bfloat16" if half else "float32")
    list(Trainer(model, [on_gpu], settings, seed=0).steps())
    assert measure(model, on_gpu).hits1 == 100.0
