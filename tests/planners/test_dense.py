"""The dense planner on a random encoder: its parts against a plain reading, and the whole."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.config_lm import DensePlannerSection
from kgqa_core.errors import ArtifactError, InputError
from kgqa_core.instructions.plan import PlanQuestion
from kgqa_core.planners.dense import DensePlanner, EncoderPlanner, beam, open_dense, render_path_text, spread_first
from kgqa_core.planners.dense_train import count_steps, fit_dense, set_loss
from kgqa_core.planners.evaluate import score_plans
from kgqa_core.text.encoder import HashEncoder
from kgqa_core.text.transformer import SplitEncoder, checked_minilm, local_encoder
from kgqa_core.types import LabelPath

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS = DensePlannerSection(
    epochs=6, batch_size=7, learning_rate=3e-3, path_learning_rate=3e-2, frozen_layers=1, max_tokens=13, dropout=0.0
)


def settings(**changed: object) -> DensePlannerSection:
    return SETTINGS.model_copy(update=changed)


VERBS: dict[str, tuple[LabelPath, ...]] = {
    "directed": (("film.directed_by",),),
    "wrote": (("film.written_by",), ("book.written_by",)),
    "starred": (("^person.films", "film.actors"),),
}
ALL = [path for paths in VERBS.values() for path in paths]


def questions(*openings: str, names: tuple[str, ...] = ("the red", "the blue", "a", "b")) -> list[PlanQuestion]:
    asked = product(openings, VERBS.items(), names)
    return [
        PlanQuestion(f"q{number}", f"{opening} {verb} {name} film", paths=paths)
        for number, (opening, (verb, paths), name) in enumerate(asked)
    ]


TRAIN = questions("who", "what person", "which people")


@pytest.fixture(scope="module", autouse=True)
def small_encoder(tiny_bert: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kgqa_core.planners.dense_train.checked_minilm", lambda: tiny_bert)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dense") / "planner"
    fit_dense([*TRAIN, PlanQuestion("no-path", "when")], settings(members=2), out, seed=3)
    return out


@pytest.fixture
def planner(folder: Path) -> DensePlanner:
    return open_dense(folder)


def test_it_learns_which_words_ask_for_which_path(planner: DensePlanner) -> None:
    unseen = questions("who", names=("the green", "c"))
    plans = planner.plan(unseen)
    assert score_plans(unseen, plans, signed=True)["hit@1"] == 100
    assert all(len(set(plan.path for plan in own)) == 3 for own in plans)


def test_what_it_learned_is_told(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    report = fit_dense(
        [*TRAIN, PlanQuestion("no-path", "when")],
        settings(members=2, max_steps=4),
        tmp_path / "planner",
        progress=lambda step, total, loss: told.append((step, total)),
    )
    assert (report["num_questions"], report["num_without_paths"], report["num_paths"]) == (len(TRAIN), 1, 4)
    assert told == [(step, 8) for step in range(1, 9)]
    assert report["cpu_seconds"] > 0


def test_equal_seeds_give_equal_bytes_and_others_do_not(tmp_path: Path) -> None:
    changed_settings = settings(max_steps=3, dropout=0.1)
    found = []
    for number, seed in enumerate((1, 1, 2)):
        fit_dense(TRAIN, changed_settings, tmp_path / str(number), seed=seed)
        found.append({file.name: file.read_bytes() for file in (tmp_path / str(number)).iterdir()})
    assert found[0] == found[1]
    assert found[0]["member-0.safetensors"] != found[2]["member-0.safetensors"]


def test_probabilities_of_all_paths_sum_to_one_and_plans_have_theirs(planner: DensePlanner) -> None:
    (weighed,) = planner.weigh(TRAIN[:1], [ALL])
    assert np.exp(weighed).sum() == pytest.approx(1, abs=1e-5)
    (plans,) = planner.plan(TRAIN[:1], num_plans=9)
    assert {plan.path: plan.log_prob for plan in plans} == pytest.approx(dict(zip(ALL, weighed, strict=True)), abs=1e-5)
    assert [plan.sure for plan in plans] == pytest.approx([math.exp(plan.log_prob) for plan in plans], abs=1e-5)


def test_the_batch_changes_nothing(planner: DensePlanner) -> None:
    alone = {(one.id, plan.path): plan.log_prob for one in TRAIN[:5] for plan in planner.plan([one])[0]}
    plans = zip(TRAIN[:5], planner.plan(TRAIN[:5]), strict=True)
    together = {(one.id, plan.path): plan.log_prob for one, own in plans for plan in own}
    assert list(alone) == list(together) and alone == pytest.approx(together, abs=1e-4)
    assert planner.plan([]) == []


def test_only_what_exists_is_proposed_unseen_paths_too(folder: Path) -> None:
    def exists(question: PlanQuestion, path: LabelPath) -> tuple[str, ...]:
        if question.topics == (9,):
            return ()
        return {(): ("film.written_by", "^film.actors"), ("^film.actors",): ("^film.year",)}.get(path, ())

    planner = open_dense(folder, exists=exists)
    somewhere, nowhere = planner.plan([replace(TRAIN[0], topics=(1,)), replace(TRAIN[0], topics=(9,))], num_plans=5)
    assert somewhere[0].path == ("film.written_by",)
    assert {plan.path for plan in somewhere[1:]} == {("^film.actors",), ("^film.actors", "^film.year")}
    assert nowhere == []
    (weighed,) = planner.weigh(TRAIN[:1], [[plan.path for plan in somewhere]])
    assert np.diff([plan.log_prob for plan in somewhere]) == pytest.approx(np.diff(weighed), abs=1e-4)
    # What does not exist keeps its share of how sure a planner is.
    assert [plan.sure for plan in somewhere] == pytest.approx(np.exp(weighed), abs=1e-4)


def test_few_vectors_of_unseen_paths_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server would else hold a vector of every path that it ever met; plans are the same."""

    def exists(question: PlanQuestion, path: LabelPath) -> tuple[str, ...]:
        return tuple(f"r{topic}" for topic in question.topics) if not path else ()

    asked = [replace(TRAIN[0], topics=tuple(range(start, start + 5))) for start in (0, 5, 10, 0)]
    plans = open_dense(folder, exists=exists).plan(asked, num_plans=5)
    monkeypatch.setattr("kgqa_core.planners.dense.MOST_TEXTS", 7)
    planner = open_dense(folder, exists=exists)
    assert planner.plan(asked, num_plans=5) == plans
    assert len(planner._texts) <= 7


def test_without_a_graph_paths_of_training_are_all_there_is(planner: DensePlanner) -> None:
    assert {plan.path for plan in planner.plan(TRAIN[:1], num_plans=9)[0]} == set(ALL)


def test_questions_of_any_characters_get_plans(planner: DensePlanner) -> None:
    odd = [PlanQuestion("q", text) for text in ("", "\0", "é" * 500, "<PATH>", "who\n" * 99, "\U0001f600")]
    assert all(len(plans) == 3 for plans in planner.plan(odd))


def test_without_any_path_there_is_nothing_to_learn(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none of the 1 training questions has a relation path"):
        fit_dense([PlanQuestion("q", "who")], SETTINGS, tmp_path / "planner")


def test_one_path_one_question(tmp_path: Path) -> None:
    only = PlanQuestion("q", "who", paths=((),))
    fit_dense([only], SETTINGS, tmp_path / "planner")
    (plans,) = open_dense(tmp_path / "planner").plan([only])
    assert [plan.path for plan in plans] == [()]


def test_a_folder_that_is_no_dense_planner_says_so(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="holds no dense planner"):
        open_dense(tmp_path)
    (tmp_path / "dense.json").write_text(json.dumps({"settings": {"members": 0}}))
    with pytest.raises(ArtifactError, match="holds no dense planner"):
        open_dense(tmp_path)


def test_an_encoder_that_does_not_fit_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"frozen_layers is 3; .* has 2 layers"):
        fit_dense(TRAIN, settings(frozen_layers=3), tmp_path / "planner")
    monkeypatch.setattr("kgqa_core.planners.dense_train.checked_minilm", checked_minilm)
    with pytest.raises(ArtifactError, match="was trained on the encoder"):
        open_dense(folder)


def test_a_path_reads_as_the_words_of_its_steps() -> None:
    assert render_path_text(("people.person.place_of_birth",)) == "people person place of birth"
    assert render_path_text(("^film.film.directed_by", "a")) == "film directed by of ; a"
    assert render_path_text(()) == "itself"
    assert render_path_text(("\\^--",)) == "^--"  # no words at all: as it is


def test_both_halves_together_are_the_whole_encoder(tiny_bert: Path) -> None:
    texts = ["who directed the red film", "what", "when is it " * 5]
    whole = local_encoder(tiny_bert).encode(texts)
    for frozen in (0, 1, 2):
        split = SplitEncoder(tiny_bert, frozen_layers=frozen, max_tokens=256)
        np.testing.assert_allclose(split.encode_published(texts), whole, atol=1e-5)


def test_questions_of_equal_words_share_what_the_lower_half_makes_of_them(tiny_bert: Path) -> None:
    """Of MetaQA's masked questions 12,274 are 150 texts; a copy for each took 800 MB."""
    encoder = SplitEncoder(tiny_bert, frozen_layers=1, max_tokens=13)
    states = encoder.lower_states(["who is it", "what year", "who is it"])
    assert states[0] is states[2] and states[0] is not states[1]


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


def test_steps_are_those_of_the_epochs_up_to_a_limit() -> None:
    assert count_steps(33, DensePlannerSection(epochs=2, batch_size=32)) == 4
    assert count_steps(33, DensePlannerSection(epochs=0.5, batch_size=32)) == 1
    assert count_steps(33, DensePlannerSection(epochs=2, batch_size=32, max_steps=3)) == 3


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

    def weigh(fronts: Sequence[Sequence[LabelPath]]) -> list[list[float]]:
        return [[sum((at + 1) * ord(step) for at, step in enumerate(path)) % 7 for path in paths] for paths in fronts]

    found, nowhere, again = beam([allowed, lambda path: (), allowed], weigh, width=99, max_hops=max_hops)
    every = [path for hops in range(1, max_hops + 1) for path in product(STEPS, repeat=hops)]
    assert set(found) == {path for path in every if all(step in allowed(path[:at]) for at, step in enumerate(path))}
    assert again == found and not nowhere
    (narrow,) = beam([allowed], weigh, width=1, max_hops=max_hops)
    assert len({len(path) for path in narrow}) == len(narrow)
    assert set(narrow) <= set(found)


def test_without_training_the_paths_come_first_whose_words_the_question_has() -> None:
    """The shorter comes first where both have the same words; an oracle that knows all paths gives the same."""
    steps = ("directed_by", "^directed_by", "written_by", "born_in")
    encoder, asked_for = HashEncoder(), list[int]()
    every = [path for hops in (1, 2) for path in product(steps, repeat=hops)]

    def encode(texts: Sequence[str]) -> np.ndarray:
        asked_for.append(len(texts))
        return encoder.encode(texts)

    def exists(question: PlanQuestion, path: LabelPath) -> tuple[str, ...]:
        return steps if len(path) < 2 else ()

    asked = [PlanQuestion("0", "where was [topic] born in"), PlanQuestion("1", "what was [topic] directed by")]
    planner = EncoderPlanner(encode, exists, max_hops=2)
    found = planner.plan(asked, num_plans=99)
    assert asked_for == [2, 4, 16]  # the questions, then each step's paths once, of both together
    assert [own[0].path for own in found] == [("born_in",), ("directed_by",)]
    texts = encode([*map(render_path_text, every)])
    for question, own in zip(asked, found, strict=True):
        scores = 20 * texts @ encode([question.text])[0] - 2 * np.array([len(path) - 1 for path in every])
        log_probs = scores - np.log(np.exp(scores).sum())
        assert {plan.path: plan.log_prob for plan in own} == pytest.approx(
            dict(zip(every, log_probs, strict=True)), rel=1e-5
        )
        assert [plan.log_prob for plan in own] == sorted((plan.log_prob for plan in own), reverse=True)
    assert planner.plan(asked, num_plans=3) == [own[:3] for own in found]
    nowhere = EncoderPlanner(encode, lambda question, path: (), max_hops=2)
    assert nowhere.plan(asked) == [[], []] and nowhere.plan([]) == []
