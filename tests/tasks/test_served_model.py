"""The registered model where it is served: rows in, answers out, in Python and over HTTP."""

from __future__ import annotations

import json
import os
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException

from kgqa_core.run.ask import open_answerer
from kgqa_core.run.pipeline import Pipeline
from tests.conftest import PROJECT
from tests.processes import free_port, post_json, serving
from tests.tasks.conftest import TinyRun

MODEL = "models:/kgqa-tiny@champion"
NEVER_ASKED = "what is the colour of nothing at all?"


@pytest.fixture(scope="module")
def film(tiny_run: TinyRun) -> tuple[str, str]:
    """Name and label of an entity whose name stands in a question."""
    graph = open_answerer(Pipeline(tiny_run.config)).system.graph
    entity = next(entity for entity, label in enumerate(graph.entity_labels) if label.startswith("film_"))
    return graph.name_of(entity), graph.label_of(entity)


@pytest.fixture
def model(store: str, monkeypatch: pytest.MonkeyPatch) -> mlflow.pyfunc.PyFuncModel:
    """The champion, loaded as anybody would; nothing pickled may be read."""
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    return mlflow.pyfunc.load_model(MODEL)


def test_rows_become_ranked_entities_with_evidence(model: mlflow.pyfunc.PyFuncModel, film: tuple[str, str]) -> None:
    name, _ = film
    (row,) = model.predict([{"question": f"who directed {name}?"}])
    assert (row["question"], row["topics"], row["error"], row["nearest"]) == (f"who directed {name}?", [name], "", [])
    scores = [candidate["score"] for candidate in row["candidates"]]
    assert scores == sorted(scores, reverse=True)
    assert 0 < sum(scores) <= 100.01
    best = row["candidates"][0]
    assert best.keys() == {"name", "label", "score", "is_answer", "path"}
    assert best["is_answer"] and name in best["path"]
    assert json.loads(json.dumps(row)) == row


def test_a_topic_is_given_by_label_or_name_or_found_in_the_text(
    model: mlflow.pyfunc.PyFuncModel, film: tuple[str, str]
) -> None:
    question = {"question": f"who directed {film[0]}?"}
    rows = [question, *({**question, "topic": topic} for topic in (*film, None))]
    answers = model.predict(rows)
    assert answers[0]["candidates"]
    assert answers == [answers[0]] * 4
    assert model.predict(pd.DataFrame(rows)) == answers  # a data frame is asked like a list
    assert model.predict(pd.DataFrame(rows[:1])) == answers[:1]
    assert model.predict(pd.DataFrame({"question": [], "topic": []}, dtype=object)) == []


def test_a_bad_row_says_why_and_leaves_the_others_and_the_machine_alone(
    model: mlflow.pyfunc.PyFuncModel, tiny_run: TinyRun, film: tuple[str, str]
) -> None:
    (name, _), home = film, tiny_run.config.runtime.home

    def kept() -> dict[Path, int]:
        """When each file changed last; not the passing ones in ``run``, which other tests' commands have there."""
        return {path: path.stat().st_mtime_ns for path in home.rglob("*") if home / "run" not in (path, *path.parents)}

    before, asked = kept(), "who directed it?"
    rows = [(asked, name), (asked, f"{name}x"), (NEVER_ASKED, None), ("  ", name), (None, name)]
    good, *bad = model.predict([{"question": question, "topic": topic} for question, topic in rows])
    assert good["candidates"] and not good["error"]
    unknown, unlinked, empty, missing = bad
    assert f"'{name}x' is no entity of the graph" in unknown["error"] and unknown["nearest"][0] == name
    assert "no entity name stands in the question" in unlinked["error"] and len(unlinked["nearest"]) == 5
    assert empty["error"] == missing["error"] == "the question is empty"
    assert [row["candidates"] for row in bad] == [[]] * 4
    assert kept() == before


def test_many_threads_get_the_answers_of_one(model: mlflow.pyfunc.PyFuncModel, film: tuple[str, str]) -> None:
    asked = [[{"question": f"{word} directed {film[0]}?"}] for word in ("who", "when", "where", "why")]
    alone = [model.predict(rows) for rows in asked]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(model.predict, asked)) == alone


def test_the_signature_and_the_example_are_shown_and_another_shape_is_refused(model: mlflow.pyfunc.PyFuncModel) -> None:
    signature = model.metadata.signature
    assert signature.inputs.input_names() == ["question", "topic"]
    assert signature.inputs.required_input_names() == ["question"]
    assert signature.outputs.input_names() == ["question", "topics", "candidates", "error", "nearest"]
    assert [row["error"] for row in model.predict(model.input_example)] == ["", ""]
    with pytest.raises(MlflowException, match="question"):
        model.predict([{"topic": "film_0001"}])


# Over HTTP


@pytest.fixture(scope="module")
def server(registered: Path, tiny_run: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A real ``mlflow models serve`` on this machine alone, away from the project; gives its port."""
    folder, port = tmp_path_factory.mktemp("serving"), free_port()
    home = folder / "home"
    shutil.copytree(tiny_run.config.runtime.home / "artifacts" / "graph", home / "artifacts" / "graph")
    environment = {
        **os.environ,
        "MLFLOW_TRACKING_URI": f"sqlite:///{registered / 'mlflow' / 'mlflow.db'}",
        "KGQA_HOME": str(home),
        "PYTHONPATH": str(PROJECT),
        "PYTHONSAFEPATH": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # MLflow starts uvicorn by its name
        "http_proxy": "http://127.0.0.1:9",  # nothing is fetched: what would be fails
        "https_proxy": "http://127.0.0.1:9",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    where = ["--env-manager", "local", "--host", "127.0.0.1", "--port", str(port)]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", MODEL, *where]
    with serving(command, port, folder / "log", cwd=folder, env=environment):
        yield port


def post(port: int, body: dict[str, Any]) -> list[dict[str, Any]]:
    return post_json(f"http://127.0.0.1:{port}/invocations", body)["predictions"]


@pytest.mark.slow
def test_a_server_answers_as_the_model_does(
    server: int, model: mlflow.pyfunc.PyFuncModel, film: tuple[str, str]
) -> None:
    rows = [
        {"question": f"who directed {film[0]}?"},
        {"question": "who directed it?", "topic": film[1]},
        {"question": NEVER_ASKED},
    ]
    expected = model.predict(rows)
    assert [bool(row["error"]) for row in expected] == [False, False, True]
    assert post(server, {"inputs": rows}) == expected
    frame = pd.DataFrame(rows)
    assert post(server, {"dataframe_split": json.loads(frame.to_json(orient="split", index=False))}) == expected
    assert post(server, {"dataframe_records": json.loads(frame.to_json(orient="records"))}) == expected
    for body in ("inputs", "dataframe_records"):  # a topic that is null is one that is not given
        assert post(server, {body: [{**rows[0], "topic": None}]}) == expected[:1]
    with pytest.raises(urllib.error.HTTPError) as refused:
        post(server, {"inputs": [{"topic": "film_0001"}]})
    assert refused.value.code == 400
    assert "question" in refused.value.read().decode()
