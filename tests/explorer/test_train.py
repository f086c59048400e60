"""What training minimises, that it is repeatable, and that it learns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from kgqa_core.config import ExplorerSection
from kgqa_core.errors import KgqaError
from kgqa_core.explorer import train as explorer_train
from kgqa_core.explorer.batch import Batch, QuestionArrays
from kgqa_core.explorer.explore import Exploration, Lessons, loss_sum
from kgqa_core.explorer.fit import measure
from kgqa_core.explorer.model import Explorer, Texts
from kgqa_core.explorer.train import Trainer, TrainStep
from tests.explorer import films
from tests.explorer.plain_walk import plainly
from tests.explorer.worlds import Way, make_question

SETTINGS = films.section()


def train(model: Explorer, lessons: Lessons, settings: ExplorerSection = SETTINGS, seed: int = 0) -> list[TrainStep]:
    return list(Trainer(model, [lessons], settings, seed=seed).steps())


def weights_of(model: Explorer) -> bytes:
    return b"".join(weight.detach().numpy().tobytes() for weight in model.parameters())


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Let torch have two threads, as a configuration may say."""
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.slow
@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("way", [nullcontext, plainly], ids=["merged", "plain"])
def test_the_same_seed_gives_the_same_weights_bit_by_bit(way: Way) -> None:
    # Wide enough that torch uses both threads where it can.
    results = set()
    for _ in range(3):
        model = films.fresh_model(width=127)
        with way():
            train(model, films.lessons(), films.section(batch_size=69))
        results.add(weights_of(model))
    assert len(results) == 1
    other = films.fresh_model(width=127)
    with way():
        train(other, films.lessons(), films.section(batch_size=69), seed=1)
    assert weights_of(other) not in results


def test_the_largest_seed_that_a_configuration_takes_draws_its_noise() -> None:
    settings = films.section(epochs=1, question_noise=0.6)
    assert train(films.fresh_model(), films.lessons(), settings, seed=2**63 - 1)[-1].loss > 0


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_two_relation_texts_that_decide_the_answer_are_learned_to_the_last_question(precision: str) -> None:
    model = films.fresh_model()
    steps = train(model, films.lessons(), films.section(epochs=30, precision=precision))
    assert np.mean([step.loss for step in steps[-7:]]) < 0.5 * np.mean([step.loss for step in steps[:7]])
    figures = measure(model, films.lessons(films.questions()))
    assert (figures.hits1, figures.coverage) == (100.0, 100.0)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


def test_every_step_reports_where_it_stands_and_its_rate_that_warms_up_and_falls_to_almost_nothing() -> None:
    steps = train(films.fresh_model(), films.lessons(), films.section(epochs=2))
    num_steps = 2 * 7  # 69 questions in batches of 11
    assert [step.step for step in steps] == list(range(1, num_steps + 1))
    assert {step.num_steps for step in steps} == {num_steps}
    assert [step.epoch for step in steps] == [1] * 7 + [2] * 7
    assert [step.step for step in steps if step.ends_epoch] == [7, 14]
    assert {step.coverage for step in steps} == {100.0}
    assert all(0 < step.classes_per_node <= 1 and step.edges_per_question > 1 for step in steps)
    expected = [0.01 * min(1, (step + 1) / 3) * (1 - step / 14) for step in range(14)]
    assert [step.learning_rate for step in steps] == pytest.approx(expected)


def test_an_epoch_sees_every_question_once_in_another_order() -> None:
    seen: list[list[int]] = []
    model, lessons = films.fresh_model(), films.lessons()
    questions = lessons.questions

    class Spy(QuestionArrays):
        """Notes which rows are asked for."""

        def batch(self, rows: np.ndarray) -> object:  # type: ignore[override]
            seen.append(rows.tolist())
            return questions.batch(rows)

    spy = Spy(*(getattr(questions, one.name) for one in fields(questions)))
    train(model, replace(lessons, questions=spy), films.section(epochs=2))
    first, second = ([row for rows in seen[start : start + 7] for row in rows] for start in (0, 7))
    assert sorted(first) == sorted(second) == list(range(69))
    assert first != second


def test_a_step_without_reached_golds_changes_nothing() -> None:
    # Not even by the momentum of the steps before it.
    three_steps_away = make_question([0], [films.director(22)], masked=films.WHO)
    lessons = films.lessons([films.questions()[0], three_steps_away])
    model = films.fresh_model()
    weights, moved = [weights_of(model)], []
    for step in Trainer(model, [lessons], films.section(epochs=3, batch_size=1), seed=0).steps():
        weights.append(weights_of(model))
        moved.append((step.coverage, weights[-1] != weights[-2]))
    assert sorted(moved) == [(0.0, False)] * 3 + [(100.0, True)] * 3
    useless = [make_question([], [3], masked=films.WHO), make_question([5], [], masked=films.WHO)]
    assert train(films.fresh_model(), films.lessons(useless * 7)) == []  # without topic or gold: left out


def test_training_that_diverged_stops_and_names_the_setting() -> None:
    model = films.fresh_model()
    with torch.no_grad():
        model.project.weight.fill_(torch.inf)
    with pytest.raises(KgqaError, match=r"diverged.*lower explorer\.learning_rate"):
        train(model, films.lessons())


def test_pruning_begins_after_its_steps_and_walks_less() -> None:
    settings = films.section(epochs=4, prune_after=2 * 7, prune_below=1.0)
    steps = train(films.fresh_model(), films.lessons(), settings)
    full, pruned = (np.mean([step.edges_per_question for step in part]) for part in (steps[:14], steps[14:]))
    assert pruned < 0.7 * full  # what is left are the questions explored again
    assert steps[:14] == train(films.fresh_model(), films.lessons(), films.section(epochs=4))[:14]


def test_what_loses_its_golds_by_pruning_is_explored_again_without() -> None:
    # Nothing has an attention of 1, so pruning leaves every question at its topic.
    settings = films.section(epochs=3, batch_size=8, prune_below=1.0)
    trainer = Trainer(films.fresh_model(), [films.lessons()], settings, seed=0)
    steps = list(trainer.steps())
    assert {step.coverage for step in steps} == {0.0}
    assert np.mean([step.explored_again for step in steps]) > 90
    assert trainer.state.hopeless == [[]]
    assert all(step.loss > 0 for step in steps[1:])


def test_what_no_exploration_reaches_is_tried_again_once() -> None:
    far = [make_question([0], [films.director(22)], masked=films.WHO, id=str(at)) for at in range(4)]
    trainer = Trainer(
        films.fresh_model(), [films.lessons(far)], films.section(epochs=5, batch_size=4, prune_below=0.1), seed=0
    )
    assert [step.explored_again for step in trainer.steps()] == [0.0, 100.0, 0.0, 0.0, 0.0]
    assert sorted(trainer.state.hopeless[0]) == [0, 1, 2, 3]


def test_batches_too_large_for_memory_are_split_and_give_the_same_weights() -> None:
    whole, halves = films.fresh_model().double(), films.fresh_model().double()
    double = Texts(films.TEXTS.questions.double(), films.TEXTS.relations.double())
    train(whole, replace(films.lessons(), texts=double))
    train(halves, replace(films.lessons(max_edges=100), texts=double))
    for one, other in zip(whole.parameters(), halves.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-9)


FULL = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried 2 bytes"),
    MemoryError(),
    RuntimeError("std::bad_alloc"),
)


@pytest.mark.parametrize("problem", FULL, ids=["gpu", "cpu", "numpy", "c++"])
def test_where_memory_is_full_a_step_begins_again_by_half_and_gives_the_same_weights(
    problem: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    double = Texts(films.TEXTS.questions.double(), films.TEXTS.relations.double())
    settings, lessons = films.section(prune_after=5, prune_below=0.2), replace(films.lessons(), texts=double)
    whole, halves = films.fresh_model().double(), films.fresh_model().double()
    train(whole, lessons, settings)
    sizes = list[int]()

    def tight(found: Exploration, batch: Batch, *more: Any, **options: Any) -> Any:
        sizes.append(len(batch))
        if sizes[-1] > 6 or len(sizes) == 7:  # the latter once, when a part of its step was done
            raise problem
        return loss_sum(found, batch, *more, **options)

    monkeypatch.setattr(explorer_train, "loss_sum", tight)
    train(halves, lessons, settings)
    for one, other in zip(whole.parameters(), halves.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-9)
    said = [record.message for record in caplog.records if "out of memory" in record.message]
    assert [size for size in sizes if size > 6] == sizes[: len(said) - 1]  # what did not fit is not tried again
    assert said[0] == f"out of memory with {sizes[0]} questions at once: going on with {sizes[0] // 2}"


def test_one_question_that_memory_does_not_hold_is_an_error_that_says_what_to_lower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(explorer_train, "loss_sum", full)
    with pytest.raises(KgqaError, match="memory does not hold a training step of one question: lower"):
        train(films.fresh_model(), films.lessons())


def test_several_datasets_are_learned_from_at_once() -> None:
    who, when = ([one for one in films.questions() if one.masked == text] for text in (films.WHO, films.WHEN))
    model = films.fresh_model()
    trainer = Trainer(model, [films.lessons(who), films.lessons(when)], films.section(epochs=40), seed=0)
    assert trainer.num_steps == 40 * (3 + 3)  # each in batches of its own
    list(trainer.steps())
    assert [measure(model, films.lessons(asked)).hits1 for asked in (who, when)] == [100.0, 100.0]
