"""The dense planner on a random encoder: it learns, comes back from its folder, and proposes what exists."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from kgqa_core.config_lm import DensePlannerSection
from kgqa_core.errors import ArtifactError, InputError
from kgqa_core.planners.dense import DensePlanner, fit_dense, open_dense
from kgqa_core.planners.evaluate import score_plans
from kgqa_core.planners.types import LabelPath, PlanQuestion

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


@pytest.fixture(scope="module")
def folder(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dense") / "planner"
    fit_dense([*TRAIN, PlanQuestion("no-path", "when")], settings(members=2), out, seed=3, encoder=tiny_bert)
    return out


@pytest.fixture
def planner(folder: Path, tiny_bert: Path) -> DensePlanner:
    return open_dense(folder, encoder=tiny_bert)


def test_it_learns_which_words_ask_for_which_path(planner: DensePlanner) -> None:
    unseen = questions("who", names=("the green", "c"))
    plans = planner.plan(unseen)
    assert score_plans(unseen, plans, signed=True).summary()["hit@1"] == 100
    assert all(len(set(plan.path for plan in own)) == 3 for own in plans)


def test_what_it_learned_is_told(tiny_bert: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    report = fit_dense(
        [*TRAIN, PlanQuestion("no-path", "when")],
        settings(members=2, max_steps=4),
        tmp_path / "planner",
        encoder=tiny_bert,
        progress=lambda step, total, loss: told.append((step, total)),
    )
    assert (report["num_questions"], report["num_without_paths"], report["num_paths"]) == (len(TRAIN), 1, 4)
    assert told == [(step, 8) for step in range(1, 9)]
    assert [len(curve) for curve in report["losses"]] == [4, 4]
    assert report["cpu_seconds"] > 0


@pytest.mark.parametrize("changed", [{}, {"neighbour_loss": 1.0}])
def test_equal_seeds_give_equal_bytes_and_others_do_not(tiny_bert: Path, tmp_path: Path, changed: dict) -> None:
    changed_settings = settings(max_steps=3, dropout=0.1, **changed)
    found = []
    for number, seed in enumerate((1, 1, 2)):
        fit_dense(TRAIN, changed_settings, tmp_path / str(number), seed=seed, encoder=tiny_bert)
        found.append({file.name: file.read_bytes() for file in (tmp_path / str(number)).iterdir()})
    assert found[0] == found[1]
    assert found[0]["member-0.safetensors"] != found[2]["member-0.safetensors"]


def test_probabilities_of_all_paths_sum_to_one_and_plans_have_theirs(planner: DensePlanner) -> None:
    (weighed,) = planner.weigh(TRAIN[:1], [ALL])
    assert np.exp(weighed).sum() == pytest.approx(1, abs=1e-5)
    (plans,) = planner.plan(TRAIN[:1], num_plans=9)
    assert {plan.path: plan.log_prob for plan in plans} == pytest.approx(dict(zip(ALL, weighed, strict=True)), abs=1e-5)


def test_the_batch_changes_nothing(planner: DensePlanner) -> None:
    alone = [plan for one in TRAIN[:5] for plan in planner.plan([one])[0]]
    together = [plan for own in planner.plan(TRAIN[:5]) for plan in own]
    assert [plan.path for plan in alone] == [plan.path for plan in together]
    assert [plan.log_prob for plan in alone] == pytest.approx([plan.log_prob for plan in together], abs=1e-4)
    assert planner.plan([]) == []


def test_only_what_exists_is_proposed_unseen_paths_too(folder: Path, tiny_bert: Path) -> None:
    def exists(question: PlanQuestion, path: LabelPath) -> tuple[str, ...]:
        if question.topics == (9,):
            return ()
        return {(): ("film.written_by", "^film.actors"), ("^film.actors",): ("^film.year",)}.get(path, ())

    planner = open_dense(folder, exists=exists, encoder=tiny_bert)
    somewhere, nowhere = planner.plan([replace(TRAIN[0], topics=(1,)), replace(TRAIN[0], topics=(9,))], num_plans=5)
    assert somewhere[0].path == ("film.written_by",)
    assert {plan.path for plan in somewhere[1:]} == {("^film.actors",), ("^film.actors", "^film.year")}
    assert nowhere == []
    (weighed,) = planner.weigh(TRAIN[:1], [[plan.path for plan in somewhere]])
    assert np.diff([plan.log_prob for plan in somewhere]) == pytest.approx(np.diff(weighed), abs=1e-4)


def test_without_a_graph_unseen_paths_are_guessed_only_when_asked_for(folder: Path, tiny_bert: Path) -> None:
    assert len(open_dense(folder, encoder=tiny_bert).plan(TRAIN[:1], num_plans=9)[0]) == len(ALL)
    guessing = open_dense(folder, encoder=tiny_bert, ranking={"guess_unseen": True})
    paths = {plan.path for plan in guessing.plan(TRAIN[:1], num_plans=9)[0]}
    assert paths == {*ALL, ("^person.films",)}  # the only other path whose steps follow each other in training


def test_questions_of_any_characters_get_plans(planner: DensePlanner) -> None:
    odd = [PlanQuestion("q", text) for text in ("", "\0", "é" * 500, "<PATH>", "who\n" * 99, "\U0001f600")]
    assert all(len(plans) == 3 for plans in planner.plan(odd))


def test_without_any_path_there_is_nothing_to_learn(tmp_path: Path, tiny_bert: Path) -> None:
    with pytest.raises(InputError, match="none of the 1 training questions has a relation path"):
        fit_dense([PlanQuestion("q", "who")], SETTINGS, tmp_path / "planner", encoder=tiny_bert)


def test_one_path_one_question(tmp_path: Path, tiny_bert: Path) -> None:
    only = PlanQuestion("q", "who", paths=((),))
    changed_settings = settings(neighbour_loss=1.0)
    fit_dense([only], changed_settings, tmp_path / "planner", encoder=tiny_bert)
    (plans,) = open_dense(tmp_path / "planner", encoder=tiny_bert).plan([only])
    assert [plan.path for plan in plans] == [()]


def test_a_folder_that_is_no_dense_planner_says_so(folder: Path, tmp_path: Path, tiny_bert: Path) -> None:
    with pytest.raises(ArtifactError, match="holds no dense planner"):
        open_dense(tmp_path, encoder=tiny_bert)
    facts = json.loads((folder / "dense.json").read_text())
    (tmp_path / "dense.json").write_text(json.dumps({**facts, "version": 0}))
    with pytest.raises(ArtifactError, match="of version 0"):
        open_dense(tmp_path, encoder=tiny_bert)


def test_another_encoder_is_refused(folder: Path) -> None:
    with pytest.raises(ArtifactError, match="was trained on the encoder"):
        open_dense(folder)


def test_more_frozen_layers_than_there_are_are_refused(tmp_path: Path, tiny_bert: Path) -> None:
    with pytest.raises(InputError, match=r"frozen_layers is 3; .* has 2 layers"):
        fit_dense(TRAIN, settings(frozen_layers=3), tmp_path / "planner", encoder=tiny_bert)
