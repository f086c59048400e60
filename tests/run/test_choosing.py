"""Settings that a run chooses on dev: of what the stage is made, the rule, and what follows from the choice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flows.one_question import ask_system
from flows.summary import summarise
from kgqa_core.config import ExplorerSection, RunConfig
from kgqa_core.config_file import read_config
from kgqa_core.config_systems import MAX_POINTS, SystemsSection
from kgqa_core.errors import ConfigError
from kgqa_core.evaluation.predictions import read_source
from kgqa_core.explorer.fit import QuestionSet, fit_explorer
from kgqa_core.explorer.model import Explorer
from kgqa_core.questions.build import read_questions
from kgqa_core.run.ensure import ensure
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.run.stages import systems as stages
from kgqa_core.run.stages.systems import CHOICE_FILE, describe_choice
from kgqa_core.systems.tables import CANDIDATES_FILE
from kgqa_core.tracking import read_record
from kgqa_core.types import SPLITS
from tests.conftest import with_home
from tests.run.specs import assert_in_order, changed, specs_of

RUN = """\
dataset: {name: tiny, source: embedded, seed: 0}
encoder: {kind: hash, dim: 31}
explorer: {steps: 2, width: 7, edge_budget: 5, epochs: 1}
systems:
  run: [rog, eperm, ours]
  ours: {planner: generator}
  answered_by: [oracle, first]
  seeds: [5, 7]
  variants: {narrow: {system: rog, settings: {max_paths: 3}}}
  choose:
    grids: {eperm: {retriever_width: [2, 3], retriever_depth: [null, 2, 1]}, narrow: {plan_mass: [0.5, 1]}}
plans: {planners: [generator]}
lm: {kind: packaged}
"""
NUM, GRID = 11, {"retriever_width": [1, 3]}
Choosing = Callable[..., Pipeline]


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    (tmp_path / "tiny.yaml").write_text(RUN, encoding="utf-8")
    return tmp_path / "tiny.yaml"


# What the stage is made of


def test_a_row_waits_for_its_choice_which_is_made_once_for_all_seeds_by_each_answerer(run_file: Path) -> None:
    specs = specs_of(run_file)
    assert_in_order(specs)
    choices = {key: spec for key, spec in specs.items() if spec.stage == "choice"}
    assert choices.keys() == {f"choice-{row}-{who}" for row in ("eperm", "narrow") for who in ("oracle", "first")}
    for key, spec in specs.items():
        row = key.removeprefix("system-").rpartition("-seed")[0]
        chosen = [need for need in spec.needs if need.startswith("choice")]
        assert chosen == ([f"choice-{row}"] if f"choice-{row}" in choices else []), key
    section = choices["choice-eperm-first"].section
    assert (section["split"], section["num_questions"], section["seed"]) == ("dev", 60, 5)
    assert section["settings.retriever_depth"] == (None, 2, 1)
    assert "settings.retriever_width" not in specs["system-eperm-oracle-seed5"].section
    assert specs["system-eperm-oracle-seed5"].section["split"] == "test"
    assert choices["choice-narrow-first"].section["settings.max_paths"] == 3


@pytest.mark.parametrize(
    ("override", "shaped"),
    [
        ("systems.choose.num_questions=7", {"choice-eperm", "choice-narrow"}),
        ("systems.choose.draw=3", {"choice-eperm", "choice-narrow"}),
        ("systems.choose.grids.eperm.retriever_width=[2, 5]", {"choice-eperm"}),
        ("systems.eperm.retriever_width=9", set()),  # what is chosen, whatever the file says
        ("systems.eperm.num_plans=9", {"choice-eperm", "system-eperm"}),
        ("evaluation.split=gate", {"system-rog", "system-eperm", "system-narrow", "system-ours"}),
        ("systems.num_questions=9", {"system-rog", "system-eperm", "system-narrow", "system-ours"}),
    ],
)
def test_a_choice_is_shaped_by_its_grid_and_its_dev_questions(run_file: Path, override: str, shaped: set[str]) -> None:
    found = {key for key in changed(run_file, override) if key.startswith(("choice", "system"))}
    assert {key.partition("-seed")[0].removesuffix("-oracle").removesuffix("-first") for key in found} == shaped


@pytest.mark.parametrize(
    ("grids", "message"),
    [
        ("{eprm: {retriever_width: [1, 2]}}", r"grids\.eprm: rows are rog, eperm, ours, narrow; did you mean 'eperm'"),
        ("{eperm: {retriever_widht: [1, 2]}}", r"eperm\.retriever_widht: legal are .*did you mean 'retriever_width'"),
        ("{eperm: {retriever_width: [0, 2]}}", r"settings of eperm\.retriever_width: .*greater than or equal to 1"),
        ("{eperm: {retriever_width: [2]}}", "at least 2"),
        ("{eperm: {}}", "at least 1"),
        (f"{{eperm: {{num_plans: {list(range(1, MAX_POINTS + 2))}}}}}", f"33 points, .*legal are {MAX_POINTS} at most"),
        ("{rog: {plans: [lm, none]}}", "its points ask other models or planners"),
        ("{eperm: {predictor: [lm, none]}}", "its points ask other models or planners"),
        ("{ours: {num_plans: [1, 3]}}", r"grids\.ours: ours has no settings that can be chosen here"),
    ],
)
def test_a_grid_that_no_row_can_have_is_named(run_file: Path, grids: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        specs_of(run_file, f"systems.choose.grids={grids}")


@pytest.mark.parametrize("system", ["ours", "direct"])
def test_a_grid_that_a_system_left_out_cannot_have_is_named_all_the_same(run_file: Path, system: str) -> None:
    with pytest.raises(ConfigError, match=f"{system} has no settings that can be chosen here"):
        specs_of(run_file, f"systems={{run: [rog], choose: {{grids: {{{system}: {{num_plans: [1, 3]}}}}}}}}")


def test_nothing_is_chosen_on_dev_questions_that_teach(run_file: Path) -> None:
    with pytest.raises(ConfigError, match=r"explorer\.learn_dev: dev questions teach, so nothing can be chosen"):
        specs_of(run_file, "explorer.learn_dev=true", "systems.run=[rog]")


@pytest.mark.slow
def test_candidates_of_dev_questions_are_of_explorers_that_never_learned_from_them(
    films: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tunes = ("plans={planners: [generator]}", "lm={kind: packaged}", "reasoner={instructions: {choose: 1.0}, folds: 2}")
    opened = Pipeline(read_config(films, [f"runtime.home={films.parent}/home", *tunes, "explorer.learn_dev=true"]))
    taught = set[str]()

    def fit(sets: Sequence[QuestionSet], section: ExplorerSection, *given: Any, **how: Any) -> Explorer:
        taught.update(one.id for one in (*sets[0].train, *(sets[0].dev if section.learn_dev else ())))
        return fit_explorer(sets, section, *given, **how)

    monkeypatch.setattr("kgqa_core.explorer.fit.fit_explorer", fit)
    ensure(opened, ["candidates"])
    in_split = {one: {q.id for q in read_questions(opened.artifact("questions").folder, one)} for one in SPLITS}
    assert taught == in_split["train"]
    shown = pq.read_table(opened.artifact("candidates").folder / CANDIDATES_FILE)["question_id"].to_pylist()
    assert set(shown) == in_split["train"] | in_split["dev"]
    assert opened.specs["candidates"] == specs_of(films, *tunes)["candidates"]


def test_systems_of_explorers_elsewhere_and_rows_of_the_gate_choose_nothing(run_file: Path) -> None:
    with pytest.raises(ConfigError, match=r"grids\.etd\.explorer: legal are num_candidates"):
        specs_of(run_file, "systems.run=[etd]", "systems.choose.grids={etd: {explorer: [a.yaml, b.yaml]}}")
    with pytest.raises(ConfigError, match=r"gate\.systems = eperm: two releases may choose other settings"):
        specs_of(run_file, "gate={systems: [rog, eperm]}")


def test_the_grid_of_a_system_that_is_left_out_waits_until_it_runs(run_file: Path) -> None:
    left_out = specs_of(run_file, "systems.run=[rog]")
    assert {key for key in left_out if "choice" in key} == {"choice-narrow-oracle", "choice-narrow-first"}
    with pytest.raises(ConfigError, match=r"eperm\.retriever_widht: legal are"):
        specs_of(run_file, "systems={run: [rog], choose: {grids: {eperm: {retriever_widht: [1, 2]}}}}")


# The rule


def figures(hits1: float, f1: float, calls: float) -> dict[str, float]:
    return {"hits1": hits1, "f1": f1, "calls": calls, "tokens": 31.0, "num_questions": 60.0}


@pytest.mark.parametrize(
    ("found", "best", "told"),
    [
        ([(80, 70, 2), (90, 60, 9), (85, 99, 1)], 1, "Hits@1 90.0 against 85.0 of the next, F1 60.0 against 99.0"),
        ([(90, 60, 1), (90, 70, 9), (80, 99, 1)], 1, "Hits@1 90.0 against 90.0 of the next, F1 70.0 against 60.0"),
        ([(90, 70, 5), (90, 70, 3), (90, 60, 1)], 1, "F1 70.0 against 70.0; ties with 1 of 2 others"),
        ([(90, 70, 3), (90, 70 + 1e-12, 3), (90, 70, 3)], 0, "F1 70.0 against 70.0; ties with 2 of 2 others"),
    ],
)
def test_hits1_decides_then_f1_then_calls_then_the_order(
    found: list[tuple[float, float, float]], best: int, told: str
) -> None:
    points = [{"depth": depth} for depth in (None, 2, 3)]
    choice = describe_choice("eperm", points, [figures(*one) for one in found])
    assert choice["chosen"] == points[best]
    assert [row["chosen"] for row in choice["points"]] == [at == best for at in range(3)]
    assert choice["points"][0] == {**figures(*found[0]), "depth": "none", "chosen": best == 0}
    shown = ("none", "2", "3")[best]
    assert choice["told"].startswith(f"eperm: depth {shown} of none, 2, 3, chosen on 60 dev questions: ")
    assert choice["told"].endswith(told)


# What follows from it


@pytest.fixture(scope="module")
def choosing(tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Choosing:
    """Return a function that opens the small built run, whose rows an oracle answers that errs."""
    home: Path = tmp_path_factory.mktemp("choosing") / "home"
    shutil.copytree(tiny_config.runtime.home, home)
    config = with_home(tiny_config, home)

    def opened(split: str = "test", run: str = "eperm", **more: Any) -> Pipeline:
        given = {"run": [run], "answered_by": ["oracle"], "num_questions": NUM, "oracle": {"error": 0.3}, "chunk": 7}
        evaluation = config.evaluation.model_copy(update={"split": split})
        systems = SystemsSection.model_validate({**given, **more})
        return Pipeline(config.model_copy(update={"systems": systems, "evaluation": evaluation}))

    return opened


@pytest.fixture(scope="module")
def chosen(choosing: Choosing) -> Pipeline:
    """The run that chooses, made. Leave it as it is."""
    pipeline = choosing(choose={"num_questions": NUM, "grids": {"eperm": GRID}})
    ensure(pipeline, pipeline.specs)
    return pipeline


def folder_of(pipeline: Pipeline, key: str) -> Path:
    ensure(pipeline, [key])
    return pipeline.artifact(key).folder


def answered(folder: Path) -> list[dict[str, Any]]:
    rows = pq.read_table(folder / "predictions.parquet").to_pylist()
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


SYSTEM, CHOICE = "system-eperm-oracle-seed0", "choice-eperm-oracle"


def test_the_points_are_what_fixed_settings_give_on_dev_and_the_row_answers_as_the_best(
    chosen: Pipeline, choosing: Choosing
) -> None:
    choice = json.loads((folder_of(chosen, CHOICE) / CHOICE_FILE).read_text(encoding="utf-8"))
    assert [row["retriever_width"] for row in choice["points"]] == ["1", "3"]
    for width, row in zip(GRID["retriever_width"], choice["points"], strict=True):
        fixed = folder_of(choosing("dev", eperm={"retriever_width": width}), SYSTEM)
        overall = json.loads((fixed / "scores.json").read_text(encoding="utf-8"))[0]["overall"]
        told = {"hits1": "hits1", "f1": "f1", "calls": "calls_per_question", "tokens": "tokens_per_question"}
        assert {name: row[name] for name in told} == {name: overall[figure] for name, figure in told.items()}
    assert len({row["calls"] for row in choice["points"]}) == 2  # the setting was there
    ours, width = folder_of(chosen, SYSTEM), choice["chosen"]["retriever_width"]
    assert answered(ours) == answered(folder_of(choosing(eperm={"retriever_width": width}), SYSTEM))
    source = read_source(ours / "predictions.parquet")
    assert source is not None and source.about is not None
    assert source.about.settings["retriever_width"] == width
    assert read_record(ours).params["settings.retriever_width"] == str(width)


def test_no_test_question_is_asked_and_a_second_run_makes_nothing(
    choosing: Choosing, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = choosing(choose={"num_questions": 5, "draw": 1, "grids": {"eperm": GRID}})
    asked: list[str] = []
    answer = stages.answer_questions

    def noted(run: Pipeline, spec: Any, folder: Path, recorder: Any) -> None:
        answer(run, spec, folder, recorder)
        asked.extend(row["question_id"] for row in answered(folder))

    monkeypatch.setattr(stages, "answer_questions", noted)
    ensure(pipeline, [CHOICE])
    dev = {one.id for one in read_questions(pipeline.artifact("questions").folder, "dev")}
    assert len(asked) == 10 and len(set(asked)) == 5 and set(asked) <= dev
    assert not any(outcome.built for outcome in ensure(Pipeline(pipeline.config), [CHOICE]))


def test_figures_of_all_points_are_for_trackers_and_one_line_for_people(chosen: Pipeline) -> None:
    folder = folder_of(chosen, CHOICE)
    record = read_record(folder)
    rows = pq.read_table(folder / record.tables["points"]).to_pylist()
    assert [row["retriever_width"] for row in rows] == ["1", "3"]
    assert [row["hits1"] for row in rows] == [record.metrics[f"dev.point{at}.hits1"] for at in (1, 2)]
    assert (record.system, record.seed) == ("choice for eperm by oracle", 0)
    summary = summarise(chosen, ensure(Pipeline(chosen.config), chosen.specs))
    (choice,) = summary.choices
    assert choice["told"].startswith("eperm: retriever_width ") and f"on {NUM} dev questions" in choice["told"]
    assert f"- {choice['told']}\n" in summary.markdown


def test_a_killed_choice_goes_on_behind_the_points_that_are_done(
    choosing: Choosing, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = choosing(choose={"num_questions": 3, "grids": {"eperm": GRID}})
    asked: list[int] = []
    answer = stages.answer_questions

    def dies_at_the_second(run: Pipeline, spec: Any, folder: Path, recorder: Any) -> None:
        asked.append(spec.section["settings.retriever_width"])
        if asked == [1, 3]:
            raise KeyboardInterrupt
        answer(run, spec, folder, recorder)

    monkeypatch.setattr(stages, "answer_questions", dies_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        ensure(pipeline, [CHOICE])
    assert pipeline.find(CHOICE) is None
    ensure(pipeline, [CHOICE])
    assert asked == [1, 3, 3]
    assert not list(pipeline.artifact(CHOICE).folder.glob("journal*"))


@pytest.mark.parametrize("torn", stages.TABLES)
def test_a_chunk_of_which_a_power_cut_left_an_empty_file_is_answered_again(
    choosing: Choosing, monkeypatch: pytest.MonkeyPatch, torn: str
) -> None:
    """A name can be on the disk before what it names."""
    pipeline = choosing(num_questions=8, draw=stages.TABLES.index(torn))
    monkeypatch.setattr(stages, "merge_parts", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ensure(pipeline, [SYSTEM])
    monkeypatch.undo()
    (part,) = pipeline.store.root.glob(f"system/*.work/journal/parts-7/{torn}-000001.parquet")
    part.write_bytes(b"")
    assert len(answered(folder_of(pipeline, SYSTEM))) == 8


def test_few_questions_start_no_cluster_however_large_a_chunk_may_be(
    choosing: Choosing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "open_cluster", lambda *args, **options: pytest.fail("a cluster was started"))
    assert len(answered(folder_of(choosing(num_questions=3, chunk=30_000), SYSTEM))) == 3


def test_whoever_asks_the_row_one_question_asks_it_with_what_was_chosen(choosing: Choosing) -> None:
    pipeline = choosing(run="rog", choose={"num_questions": NUM, "grids": {"rog": {"num_plans": [1, 2]}}})
    folder = folder_of(pipeline, "choice-rog-oracle")
    wanted = json.loads((folder / CHOICE_FILE).read_text(encoding="utf-8"))["chosen"]["num_plans"]
    question = read_questions(pipeline.artifact("questions").folder, "test")[0]
    calls = {num: ask_system(choosing(run="rog", rog={"num_plans": num}), question.text).calls for num in (1, 2)}
    assert calls[1] != calls[2]
    assert ask_system(pipeline, question.text).calls == calls[wanted]
