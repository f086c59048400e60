"""Training end to end: what is saved and recorded on the way, and the thresholds that are chosen on dev."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from kgqa_core.config import ExplorerSection
from kgqa_core.errors import InputError
from kgqa_core.evaluation.metrics import score_predictions
from kgqa_core.explorer import fit as fit_module
from kgqa_core.explorer import train as journal_module
from kgqa_core.explorer.explore import Lessons
from kgqa_core.explorer.fit import (
    ANSWER_THRESHOLDS,
    ATTENTION_THRESHOLDS,
    CURVE_EVERY,
    DevFigures,
    FitRun,
    QuestionSet,
    choose_thresholds,
    fit_explorer,
    measure,
)
from kgqa_core.explorer.model import Explorer, load_explorer
from kgqa_core.explorer.predict import predict
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.tracking import Recorder, TrackingRecord
from kgqa_core.types import Question
from tests.explorer import films
from tests.explorer.worlds import make_question
from tests.loading import graph_of_text

SECTION = ExplorerSection(
    steps=2, width=17, edge_budget=29, epochs=7, batch_size=11, learning_rate=0.01, warmup_steps=3
)
TEXTS = (*films.TEXT_ROW, *films.RELATIONS)
ENCODINGS = dict(zip(TEXTS, films.ENCODER.encode(TEXTS), strict=True))


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> KnowledgeGraph:
    """The films, built as any graph is; labels sort as the entity ids in ``films`` do."""
    folder = tmp_path_factory.mktemp("films")
    lines = [f"e{head:02}\t{films.RELATIONS[relation]}\te{tail:02}\n" for head, relation, tail in films.TRIPLES]
    return graph_of_text(folder, "".join(lines))


def fit(
    graph: KnowledgeGraph,
    folder: Path,
    section: ExplorerSection = SECTION,
    *,
    seed: int = 0,
    encoder: str = films.ENCODER.name,
    init_from: Path | None = None,
    train: Sequence[Question] | None = None,
    dev: Sequence[Question] | None = None,
    journal: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> TrackingRecord:
    recorder, questions = Recorder("explorer"), films.questions()
    folder.mkdir(exist_ok=True)
    asked = QuestionSet(
        graph, questions if train is None else train, questions[::3] if dev is None else dev, ENCODINGS, False
    )
    run = FitRun(folder, recorder, journal=journal, progress=progress)
    fit_explorer([asked], section, run, seed=seed, encoder=encoder, init_from=init_from)
    return recorder.record("fingerprint")


def with_section(**changes: object) -> ExplorerSection:
    return SECTION.model_copy(update=changes)


def test_the_checkpoint_holds_what_predicting_needs(graph: KnowledgeGraph, tmp_path: Path) -> None:
    record = fit(graph, tmp_path)
    model, card = load_explorer(tmp_path, encoder=films.ENCODER.name)
    assert (card.steps, card.width, card.edge_budget, card.reenter_topic) == (2, 17, 29, False)
    assert card.encoding_dim == films.ENCODER.dim
    assert card.answer_threshold == record.metrics["dev.answer_threshold"]
    question = make_question([5], masked=films.WHO)
    (prediction,) = predict(
        model,
        graph,
        [question],
        texts=films.TEXTS,
        text_row=films.TEXT_ROW,
        options=films.OPTIONS,
        answer_threshold=card.answer_threshold,
    )
    assert prediction.answers == (films.director(5),)


def test_the_same_settings_give_the_same_files_and_another_seed_others(graph: KnowledgeGraph, tmp_path: Path) -> None:
    first, same, other = tmp_path / "first", tmp_path / "same", tmp_path / "other"
    fit(graph, first)
    fit(graph, same)
    fit(graph, other, seed=1)
    for name in ("model.json", "model.safetensors"):
        assert (first / name).read_bytes() == (same / name).read_bytes()
    assert (first / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()


def test_curves_have_a_point_per_some_steps_and_one_at_the_end(graph: KnowledgeGraph, tmp_path: Path) -> None:
    record = fit(graph, tmp_path)
    num_steps = 7 * 7  # epochs x batches of 69 questions
    steps = [step for step, _, _ in record.curves["train.loss"]]
    assert steps == [CURVE_EVERY, 2 * CURVE_EVERY, num_steps]
    assert [step for step, _, _ in record.curves["dev.hits1"]] == [7 * epoch for epoch in range(1, 8)]
    assert record.metrics["dev.hits1"] == record.curves["dev.hits1"][-1][1]
    assert record.metrics["train.best_epoch"] == 7
    assert record.metrics["train.cpu_seconds"] > 0
    assert record.curves["train.loss"][-1][1] < record.curves["train.loss"][0][1]
    assert {value for _, value, _ in record.curves["train.coverage"]} == {100.0}


def test_without_dev_nothing_is_watched(graph: KnowledgeGraph, tmp_path: Path) -> None:
    record = fit(graph, tmp_path, dev=[make_question([], [3], masked=films.WHO)])  # without a topic: no use
    assert load_explorer(tmp_path, encoder=films.ENCODER.name)[1].answer_threshold == 0.5
    assert "dev.hits1" not in record.curves and "dev.f1" not in record.metrics


@pytest.mark.parametrize(
    "train", [[], [make_question([3], masked=films.WHO)], [make_question([], [3], masked=films.WHO)]]
)
def test_nothing_to_learn_from_is_said_before_anything_is_written(
    graph: KnowledgeGraph, tmp_path: Path, train: list[Question]
) -> None:
    with pytest.raises(InputError, match=rf"none of the {len(train)} training questions.*kgqa lint"):
        fit(graph, tmp_path / "out", train=train, dev=[])
    assert list((tmp_path / "out").iterdir()) == []


def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a training without a number of epochs have 14 epochs of seven steps."""
    for module, name, value in ((journal_module, "LEAST_EPOCHS", 6), (journal_module, "LEAST_STEPS", 95)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(fit_module, "LOOK_EVERY", 10)


def test_without_epochs_dev_and_the_cost_say_when_to_end(
    graph: KnowledgeGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_steps(monkeypatch)
    record = fit(graph, tmp_path, with_section(epochs=None))
    looks = [step for step, _, _ in record.curves["dev.hits1"]]
    assert looks == list(range(14, looks[-1] + 1, 14))  # the first end of an epoch after ten steps
    sums = [hits1[1] + f1[1] for hits1, f1 in zip(record.curves["dev.hits1"], record.curves["dev.f1"], strict=True)]
    gained = looks[sums.index(max(sums))]
    assert looks[-1] == record.metrics["train.stopped_after_epoch"] * 7 == gained + 56  # half of 14 epochs, and even
    short = fit(graph, tmp_path, with_section(epochs=None, cpu_minutes=0.002)).curves
    last = short["train.loss"][-1][0]
    assert 5 < last < 30 and short["dev.hits1"][-1][0] == last  # looked at even in the midst of an epoch


@pytest.mark.parametrize(("prune_after", "cut"), [(10, 0.3), (1000, 0.0)])
def test_where_dev_is_learned_from_it_chooses_nothing(
    graph: KnowledgeGraph, tmp_path: Path, prune_after: int, cut: float
) -> None:
    settings, questions = with_section(prune_after=prune_after, prune_below=0.3), films.questions()
    cut_at = len(questions) // 3
    parts = {"train": questions[cut_at:], "dev": questions[:cut_at]}
    record = fit(graph, tmp_path / "both", settings.model_copy(update={"learn_dev": True}), **parts)
    fit(graph, tmp_path / "one", settings, train=[*parts["train"], *parts["dev"]], dev=[])
    both, one = (tmp_path / name / "model.safetensors" for name in ("both", "one"))
    assert both.read_bytes() == one.read_bytes()
    _, card = load_explorer(tmp_path / "both", encoder=films.ENCODER.name)
    assert (card.attention_threshold, card.answer_threshold) == (cut, 0.5)  # as training walked at last
    assert not {"dev.hits1", "dev.f1", "train.best_epoch"} & {*record.metrics, *record.curves}


class Killed(BaseException):
    """What a kill looks like from inside."""


@pytest.mark.parametrize(
    ("killed_after", "changes"),
    [(1, {}), (11, {}), (28, {}), (17, {"epochs": None}), (30, {"epochs": None}), (30, {"learn_dev": True})],
)
def test_a_killed_training_goes_on_and_ends_with_the_same_files(
    graph: KnowledgeGraph,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    killed_after: int,
    changes: dict[str, object],
) -> None:
    monkeypatch.setattr(journal_module, "SAVE_EVERY", 0.0)
    few_steps(monkeypatch)
    settings = with_section(prune_after=10, prune_below=0.3, **changes)
    steps = iter(range(1, 1000))

    def kill(done: int, total: int) -> None:
        if next(steps) == killed_after + 1:
            raise Killed

    with pytest.raises(Killed):
        fit(graph, tmp_path / "killed", settings, journal=tmp_path / "journal", progress=kill)
    went_on: list[int] = []
    journal = tmp_path / "journal"
    resumed = fit(
        graph, tmp_path / "resumed", settings, journal=journal, progress=lambda done, total: went_on.append(done)
    )
    straight = fit(graph, tmp_path / "straight", settings)
    assert went_on[0] == killed_after + 1  # not from the beginning
    for name in ("model.json", "model.safetensors"):
        assert (tmp_path / "resumed" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()
    values = [{name: [p[:2] for p in points] for name, points in one.curves.items()} for one in (resumed, straight)]
    assert values[0] == values[1]


@pytest.mark.parametrize("damage", ["state.safetensors", "other training"])
def test_a_state_that_cannot_be_gone_on_with_is_left_and_training_begins_anew(
    graph: KnowledgeGraph, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    fit(graph, tmp_path / "first", journal=tmp_path / "journal")
    for file in (tmp_path / "journal").rglob(damage):
        file.write_bytes(file.read_bytes()[:50])
    steps: list[int] = []
    seed = int(damage == "other training")
    journal = tmp_path / "journal"
    fit(graph, tmp_path / "second", seed=seed, journal=journal, progress=lambda done, total: steps.append(done))
    assert steps[0] == 1
    assert "journal" in caplog.text


def test_a_state_with_notes_of_another_release_is_left_too(
    graph: KnowledgeGraph, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit(graph, tmp_path / "first", journal=tmp_path / "journal")
    path = tmp_path / "journal" / journal_module.STATE
    with safe_open(path, "pt") as file:
        state = json.loads(file.metadata()["state"])
    state["notes"]["looked_back"] = state["notes"].pop("looked_at")
    save_file(load_file(path), path, {"state": json.dumps(state)})
    steps: list[int] = []
    fit(graph, tmp_path / "second", journal=path.parent, progress=lambda done, total: steps.append(done))
    assert steps[0] == 1 and "cannot go on" in caplog.text
    files = [tmp_path / name / "model.safetensors" for name in ("first", "second")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_training_stops_early_and_keeps_the_best_epoch(graph: KnowledgeGraph, tmp_path: Path) -> None:
    # At this rate the first epochs learn all there is; later ones only move the weights.
    settings = with_section(epochs=60, learning_rate=0.02, patience=2)
    record = fit(graph, tmp_path, settings)
    stopped, best = record.metrics["train.stopped_after_epoch"], record.metrics["train.best_epoch"]
    assert stopped < 60
    curves = zip(record.curves["dev.hits1"], record.curves["dev.f1"], strict=True)
    figures = [hits1 + f1 for (_, hits1, _), (_, f1, _) in curves]
    assert len(figures) == stopped
    assert max(figures[:-2]) == max(figures)  # the last two brought nothing
    assert figures[int(best) - 1] == max(figures)


def test_an_explorer_starts_from_another(graph: KnowledgeGraph, tmp_path: Path) -> None:
    fit(graph, tmp_path / "first")
    settings = with_section(epochs=1, learning_rate=1e-9, init_attention=1.0)
    record = fit(graph, tmp_path / "second", settings, init_from=tmp_path / "first")
    assert record.metrics["dev.hits1"] == 100.0
    assert record.params["init_fresh"] == "none"
    assert fit(graph, tmp_path / "third", settings).metrics["dev.hits1"] < 100.0


def test_the_papers_variant_reads_questions_as_they_are_asked_and_prunes_by_its_budget_alone(
    graph: KnowledgeGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_module, "ATTENTION_THRESHOLDS", (0.999,))  # taken whatever it costs
    monkeypatch.setattr(fit_module, "TOLERANCE", 1e6)
    monkeypatch.setattr(fit_module, "SAFE", 1.0)
    section = ExplorerSection.model_validate({"variant": "paper", "steps": 2, "edge_budget": 29, "epochs": 1})
    assert (section.width, section.batch_size, section.learning_rate, section.weight_decay) == (256, 20, 1e-4, 1e-3)
    fit(graph, tmp_path, section)
    _, card = load_explorer(tmp_path, encoder=films.ENCODER.name)
    assert (card.width, card.mask_topics, card.attention_threshold) == (256, False, 0.0)
    fit(graph, tmp_path / "ours", with_section(epochs=1))
    assert load_explorer(tmp_path / "ours", encoder=films.ENCODER.name)[1].attention_threshold == 0.999


def scores_of(
    model: Explorer, questions: Sequence[Question], answer_threshold: float, attention_threshold: float = 0.0
) -> dict[str, float]:
    predictions = predict(
        model,
        films.GRAPH,
        questions,
        texts=films.TEXTS,
        text_row=films.TEXT_ROW,
        options=replace(films.OPTIONS, attention_threshold=attention_threshold),
        answer_threshold=answer_threshold,
    )
    return score_predictions(questions, predictions).summary()


@pytest.mark.parametrize(("seed", "epochs"), [(1, 3), (2, 2), (2, 3), (3, 3)])
def test_the_answer_threshold_is_the_one_of_best_f1_on_dev_nearest_to_a_half(seed: int, epochs: int) -> None:
    model, dev = films.trained(seed, epochs=epochs), films.questions()[::2]
    figures = measure(model, films.lessons(dev))
    scores = {threshold: scores_of(model, dev, threshold) for threshold in ANSWER_THRESHOLDS}
    expected = {threshold: found["f1"] for threshold, found in scores.items()}
    assert figures.f1 == pytest.approx(expected)
    assert (figures.hits1, figures.coverage) == pytest.approx((scores[0.5]["hits1"], scores[0.5]["coverage"]), abs=1e-3)
    assert len(set(expected.values())) > 1
    best = [threshold for threshold in ANSWER_THRESHOLDS if expected[threshold] >= max(expected.values()) - 0.01]
    assert abs(figures.answer_threshold - 0.5) == min(abs(threshold - 0.5) for threshold in best)
    assert figures.answer_threshold in best


@pytest.mark.parametrize(("seed", "epochs"), [(0, 2), (1, 3), (2, 30)])
def test_the_attention_threshold_is_the_best_on_dev_of_equals_the_largest(seed: int, epochs: int) -> None:
    model, dev = films.trained(seed, epochs=epochs), films.questions()[::2]
    attention, figures = choose_thresholds(model, films.lessons(dev))

    def sum_of(threshold: float) -> float:
        found = measure(model, films.lessons(dev), threshold)
        return found.hits1 + found.best_f1

    sums = {threshold: sum_of(threshold) for threshold in (0.0, *ATTENTION_THRESHOLDS)}
    for at in (0.0, *(threshold for threshold in ATTENTION_THRESHOLDS if threshold > 0.01)):
        sums[at] -= 0.2  # to cut nothing must be worth its price, and so must cutting more than training did
    assert attention == max(threshold for threshold, value in sums.items() if value == max(sums.values()))
    scores = scores_of(model, dev, figures.answer_threshold, attention)
    assert (scores["hits1"], scores["f1"]) == pytest.approx((figures.hits1, figures.f1[figures.answer_threshold]))


@pytest.mark.parametrize(
    ("uncut", "strict", "chosen"),
    [(0.0, 0.0, 0.01), (0.19, 0.0, 0.01), (0.21, 0.0, 0.0), (0.0, 0.19, 0.01), (0.0, 0.21, 0.5), (0.3, 0.4, 0.5)],
)
def test_only_a_gain_above_the_tolerance_is_worth_a_walk_that_cuts_nothing_or_what_other_wordings_need(
    uncut: float, strict: float, chosen: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(model: Explorer, dev: Lessons, threshold: float = 0.0) -> DevFigures:
        gain = uncut if not threshold else strict if threshold > 0.1 else 0.0
        return DevFigures(90.0 + gain, 100.0, {0.5: 80.0})

    monkeypatch.setattr("kgqa_core.explorer.fit.measure", told)
    assert choose_thresholds(films.trained(epochs=1), films.lessons(films.questions()))[0] == chosen


def test_without_dev_answers_the_answer_threshold_is_a_half_and_nothing_is_cut() -> None:
    model = films.trained(epochs=1)
    attention, figures = choose_thresholds(model, films.lessons([]))
    assert (attention, figures.answer_threshold, figures.hits1, figures.f1) == (0.0, 0.5, 0.0, {})
    claims = [make_question([5], masked=films.WHO, claim=films.director(5), verdict=True)]
    assert choose_thresholds(model, films.lessons(claims))[1].answer_threshold == 0.5
