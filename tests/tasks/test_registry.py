"""What the model registry shows after a run: each explorer once, as code and weights, with what it was made of."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import mlflow
import pytest
from mlflow import MlflowClient

import tasks.registry
from flows.pipeline import describe_serving
from kgqa_core.artifacts import Artifact
from kgqa_core.config import RunConfig
from kgqa_core.config_base import FileDataset
from kgqa_core.errors import InputError
from kgqa_core.explorer.model import CARD, WEIGHTS
from kgqa_core.run.ask import EXPLORER_FILES, Answer, open_answerer
from kgqa_core.run.pipeline import Pipeline, StageOutcome
from kgqa_core.tracking import read_record, write_record
from tasks.mlflow_store import tracking_uri
from tasks.registry import load_answerer, point_aliases, register_explorers
from tasks.release import model_name
from tasks.run_content import RunStatus, read_stages
from tasks.tracking import Published
from tests.tasks.conftest import TinyRun, copy_store
from tests.tasks.published import publish, told

PICKLES = (*(b"\x80" + bytes([version]) for version in range(2, 6)), b"PK\x03\x04")  # and zip, as torch.save writes


@pytest.fixture
def home(tmp_path: Path, registered: Path) -> Path:
    """A copy of the store to which the tiny run is published, at a place of its own."""
    shutil.copytree(registered / "mlflow", tmp_path / "home" / "mlflow")
    return tmp_path / "home"


def client_of(home: Path) -> MlflowClient:
    return MlflowClient(tracking_uri=tracking_uri(home))


def logged_folder(home: Path) -> Path:
    """Where the first version's files are."""
    (version,) = client_of(home).search_model_versions("name = 'kgqa-tiny'")
    return Path(version.source.removeprefix("file://"))


def examples_of(home: Path) -> list[dict[str, str]]:
    return json.loads((logged_folder(home) / "input_example.json").read_text(encoding="utf-8"))


def published(home: Path, tiny: TinyRun, **changes: Any) -> Published:
    """Publish the tiny run, changed a little."""
    return told(publish(home, replace(tiny.run, **changes), tiny.outcomes))


def registered_of(home: Path, tiny: TinyRun, outcomes: list[StageOutcome]) -> tuple[str, ...]:
    """Register the explorers of a run whose figures the store shows already, and return the new versions."""
    client = client_of(home)
    (shown_by,) = {version.run_id for version in client.search_model_versions("name = 'kgqa-tiny'")}
    stages = read_stages(outcomes)
    (explorer,) = (stage.fingerprint for stage in stages if stage.outcome.artifact.recipe.stage == "explorer")
    return register_explorers(client, tiny.run, stages, {explorer: shown_by}, "us")


def aliases(home: Path) -> dict[str, int]:
    return client_of(home).get_registered_model("kgqa-tiny").aliases


def retrained(tiny: TinyRun, folder: Path, seed: int) -> list[StageOutcome]:
    """Return the outcomes of a run that trained with another seed (here the same weights, under another name)."""
    outcomes = []
    for outcome in tiny.outcomes:
        artifact = outcome.artifact
        if outcome.key.endswith("-seed0"):
            recipe = replace(artifact.recipe, config={**artifact.recipe.config, "seed": seed})
            moved = folder / recipe.fingerprint
            shutil.copytree(artifact.folder, moved)
            write_record(moved, replace(read_record(moved), fingerprint=recipe.fingerprint, seed=seed))
            artifact = Artifact(moved, recipe, artifact.content, artifact.files)
        outcomes.append(StageOutcome(outcome.key.replace("seed0", f"seed{seed}"), artifact, built=True))
    return outcomes


@pytest.mark.slow
def test_a_trained_explorer_is_a_version_that_says_what_it_was_made_of(registered: Path, tiny_run: TinyRun) -> None:
    client = client_of(registered)
    model = client.get_registered_model("kgqa-tiny")
    assert model.tags == {"dataset": "tiny", "config_name": "tiny"}
    assert "models:/kgqa-tiny@champion" in model.description
    assert model.aliases == {"champion": 1}
    (version,) = client.search_model_versions("name = 'kgqa-tiny'")
    explorer = tiny_run.outcome("explorer-seed0").artifact
    expected = {"fingerprint": explorer.fingerprint, "seed": "0", "config_hash": "c0ffee", "encoder": "hash-v1-d31"}
    expected |= {"graph": tiny_run.outcome("graph").artifact.content, "git_commit": "0123abcd"}
    assert expected.items() <= version.tags.items()
    run = client.get_run(version.run_id)
    assert run.data.tags["fingerprint.explorer"] == explorer.fingerprint
    assert f"Hits@1 {run.data.metrics['hits1']:.2f}" in version.description
    (output,) = run.outputs.model_outputs
    logged = client.get_logged_model(output.model_id)  # the models page of the experiment shows it with its scores
    assert (logged.status, logged.name, logged.source_run_id) == ("READY", "kgqa-tiny", version.run_id)
    assert json.loads(logged.tags["mlflow.modelVersions"]) == [{"name": "kgqa-tiny", "version": 1}]
    scores = {metric.key: metric.value for metric in logged.metrics}
    assert scores == {name: run.data.metrics[name] for name in ("hits1", "f1", "em")}
    assert {metric.dataset_name for metric in logged.metrics} == {"tiny/questions"}
    assert logged.params["width"] == "7"


def test_nothing_that_is_logged_is_pickled_or_knows_this_machine(registered: Path, tiny_run: TinyRun) -> None:
    folder = logged_folder(registered)
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    ours = {"MLmodel", "conda.yaml", "input_example.json", "python_env.yaml", "requirements.txt", "served_model.py"}
    ours |= {f"artifacts/explorer/{name}" for name in (CARD, WEIGHTS, "served.json")}
    assert {*files} - {"registered_model_meta"} == ours | {"serving_input_example.json"}
    assert set(EXPLORER_FILES) == {CARD, WEIGHTS}
    assert not any((folder / name).read_bytes().startswith(PICKLES) for name in files)
    card = json.loads((folder / "artifacts/explorer/served.json").read_text(encoding="utf-8"))
    assert (card["run"], card["dataset"], card["seed"]) == ("tiny", "tiny", 0)
    assert card["graph"] == tiny_run.outcome("graph").artifact.content
    assert card["encoder_name"] == "hash-v1-d31"
    assert str(tiny_run.config.runtime.home) not in json.dumps(card)
    requirements = (folder / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert not [line for line in requirements if "+" in line or "cloudpickle" in line]
    assert {line.partition("==")[0] for line in requirements} >= {"mlflow", "numba", "safetensors", "torch"}
    assert [set(row) for row in examples_of(registered)] == [{"question", "topic"}, {"question"}]
    # Each version carries its code, so one of an earlier kgqa opens only while these names stay where they were.
    code = (folder / "served_model.py").read_text(encoding="utf-8")
    assert [line for line in code.splitlines() if line.startswith("from kgqa_core")] == [
        "from kgqa_core.ask import Answer, Answerer, Asked",
        "from kgqa_core.config_file import home_folder",
        "from kgqa_core.served import open_served",
    ]


def test_versions_and_aliases_are_made_once_and_moved_by_nobody_else(
    home: Path, tiny_run: TinyRun, tmp_path: Path
) -> None:
    assert published(home, tiny_run).versions == ()  # the registry has it
    client_of(home).delete_registered_model_alias("kgqa-tiny", "champion")  # as a kill may have left it
    published(home, tiny_run)
    assert aliases(home) == {"champion": 1}
    for number in (2, 3):  # the first stays champion, the newest is challenger
        outcomes = retrained(tiny_run, tmp_path / str(number), number)
        assert registered_of(home, tiny_run, outcomes) == (f"kgqa-tiny/{number}",)
        assert aliases(home) == {"champion": 1, "challenger": number}
    client_of(home).set_registered_model_alias("kgqa-tiny", "champion", "2")
    published(home, tiny_run)
    assert aliases(home)["champion"] == 2


@pytest.mark.parametrize("killed_in", ["save_model", "_log_model", "_find_logged"])
def test_what_a_kill_left_of_a_registration_is_used_or_removed(
    home: Path, tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_in: str
) -> None:
    outcomes = retrained(tiny_run, tmp_path / "a", 1)
    original: Callable[..., object] = getattr(tasks.registry, killed_in)

    def kill(*args: object) -> None:
        original(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(tasks.registry, killed_in, kill)
        registered_of(home, tiny_run, outcomes)
    assert registered_of(home, tiny_run, outcomes) == ("kgqa-tiny/2",)
    client = client_of(home)
    experiment = client.get_experiment_by_name("tiny")
    assert [model.status for model in client.search_logged_models([experiment.experiment_id])] == ["READY"] * 2
    assert aliases(home) == {"champion": 1, "challenger": 2}


@pytest.mark.slow
def test_a_registration_that_fails_costs_no_run(
    tmp_path: Path,
    empty_store: Path,
    tiny_run: TinyRun,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fresh = copy_store(empty_store, tmp_path / "fresh")
    with monkeypatch.context() as broken, caplog.at_level(logging.WARNING, "tasks.tracking"):
        broken.setattr(tasks.registry, "save_model", Mock(side_effect=OSError("no space left")))
        done = published(fresh, tiny_run)
    assert (len(done.created), done.versions) == (1, ())
    assert "no explorer of this run was registered in MLflow: OSError: no space left" in caplog.text
    assert published(fresh, tiny_run).versions == ("kgqa-tiny/1",)


def test_models_are_left_out_where_asked_and_where_an_explorer_needs_a_subgraph_per_question(
    tiny_config: RunConfig,
) -> None:
    tracking = tiny_config.tracking.model_copy(update={"register_models": False})
    assert describe_serving(tiny_config.model_copy(update={"tracking": tracking})) is None
    section = {"graph": {"format": "nsm"}, "questions": {"format": "nsm", "path": "questions"}, "source": "files"}
    for method in ("question", "none"):  # nobody has a subgraph for a new question
        dataset = FileDataset.model_validate({**section, "name": "web", "subgraphs": method})
        serving = describe_serving(tiny_config.model_copy(update={"dataset": dataset}))
        assert (serving is None) == (method == "question")


@pytest.mark.parametrize(
    ("run", "model"), [("metaqa-3hop", "kgqa-metaqa-3hop"), ("a.b:c d'e", "kgqa-a-b-c-d-e"), ("Ωmega", "kgqa-Ωmega")]
)
def test_a_models_name_is_one_that_mlflow_takes(run: str, model: str) -> None:
    assert model_name(run) == model


@pytest.mark.parametrize("version", ["@champion", "/1"])
def test_a_registered_model_answers_as_its_run_does(
    registered: Path, store: str, tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    def rounded(answer: Answer) -> Answer:
        """Scores differ a little by how texts were batched."""
        lines = tuple(replace(line, score=round(line.score, 4)) for line in answer.candidates)
        return replace(answer, candidates=lines)

    question = str(examples_of(registered)[1]["question"])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    answer = load_answerer(tiny_run.config.runtime.home, f"models:/kgqa-tiny{version}").ask(question)
    assert answer.candidates
    assert not list(tmp_path.iterdir())
    assert rounded(answer) == rounded(open_answerer(Pipeline(tiny_run.config)).ask(question))


def test_the_code_that_a_model_carries_is_not_run_where_it_is_asked(
    registered: Path, store: str, tiny_run: TinyRun, tmp_path: Path
) -> None:
    (code,) = logged_folder(registered).rglob("served_model.py")
    whole, marker = code.read_text(encoding="utf-8"), tmp_path / "was-here"
    try:
        code.write_text(f"open({str(marker)!r}, 'w').close()\n{whole}", encoding="utf-8")
        question = str(examples_of(registered)[1]["question"])
        assert load_answerer(tiny_run.config.runtime.home, "models:/kgqa-tiny@champion").ask(question).candidates
    finally:
        code.write_text(whole, encoding="utf-8")
    assert not marker.exists()


@pytest.mark.parametrize(
    ("uri", "offered"),
    [
        ("models:/kgqa-tinny@champion", "did you mean 'kgqa-tiny'?"),
        ("models:/kgqa-tiny@chalenger", "@champion (version 1)"),
        ("models:/kgqa-tiny/7", "/1 (the newest version)"),
    ],
)
def test_a_model_that_is_not_there_is_answered_with_those_that_are(
    registered: Path, store: str, uri: str, offered: str
) -> None:
    with pytest.raises(InputError) as problem:
        load_answerer(registered, uri)
    assert uri in str(problem.value) and offered in str(problem.value)


def test_aliases_go_where_the_gate_says_and_wait_for_versions_that_are_not_there(home: Path, tiny_run: TinyRun) -> None:
    explorer = tiny_run.outcome("explorer-seed0").artifact.fingerprint
    assert not point_aliases(home, "kgqa-tiny", "unknown", None)
    assert aliases(home) == {"champion": 1}
    assert point_aliases(home, "kgqa-tiny", None, explorer)
    assert aliases(home) == {"challenger": 1}
    for _ in range(3):
        assert point_aliases(home, "kgqa-tiny", explorer, None)
    assert aliases(home) == {"champion": 1}


def test_where_mlflow_is_away_aliases_wait_and_a_model_that_is_asked_for_is_an_error_without_a_password(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = mlflow.get_tracking_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ann:s3cret@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert not point_aliases(home, "kgqa-tiny", "any", None)
    assert "http://***@127.0.0.1:9" in caplog.text
    try:
        with pytest.raises(
            InputError, match=r"cannot load models:/x@champion from MLflow \(http://\*\*\*@.*answer\?"
        ) as told:
            load_answerer(home, "models:/x@champion")
    finally:
        mlflow.set_tracking_uri(before)
    assert "s3cret" not in caplog.text + str(told.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gated", "status", "judged", "versions"),
    [
        (False, "KILLED", True, ()),
        (True, "KILLED", False, ()),
        (True, "KILLED", True, ("kgqa-tiny/1",)),  # that may be champion
        (True, "FINISHED", True, ("kgqa-tiny/1",)),
    ],
)
def test_a_run_with_a_gate_registers_what_it_judged_though_it_failed_and_leaves_the_aliases_alone(
    empty_store: Path,
    tiny_run: TinyRun,
    tmp_path: Path,
    gated: bool,
    status: RunStatus,
    judged: bool,
    versions: tuple[str, ...],
) -> None:
    assert tiny_run.run.serving is not None
    home, outcomes = copy_store(empty_store, tmp_path / "home"), tiny_run.outcomes
    made = [one for one in outcomes if judged or not one.key.startswith("evaluation")]
    run = replace(tiny_run.run, serving=replace(tiny_run.run.serving, gated=gated), status=status)
    assert told(publish(home, run, made)).versions == versions
    assert not versions or aliases(home) == {}


@pytest.mark.slow
def test_a_model_of_another_run_gets_no_versions_of_this_one(
    home: Path, tiny_run: TinyRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client_of(home).set_registered_model_tag("kgqa-tiny", "config_name", "tiny'")
    other = replace(tiny_run.run, id="another", config_name="tiny")
    assert told(publish(home, other, retrained(tiny_run, tmp_path / "a", 1))).versions == ()
    assert "the runs 'tiny' and \"tiny'\" would share the model kgqa-tiny" in caplog.text
