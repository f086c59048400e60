"""A run of one's own small graph from the command line: run in real processes, run again, ask, score, stop."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.leftovers import process_started
from tests.flows.rivers import SPLITS, Run, write_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(tmp_path_factory, server) -> tuple[Run, dict]:
    """A finished run, and the document that it printed."""
    run = write_run(tmp_path_factory.mktemp("rivers"), server)
    return run, json.loads(run.kgqa("run", run.conf, "--json").stdout)


def test_a_run_prints_results_artifacts_and_how_to_open_mlflow(finished):
    run, document = finished
    assert {row["role"] for row in document["results"]} == {"learned", "template control", "ceiling"}
    keys = ["graph", "questions", "encodings", "explorer-seed0", "controls", "evaluation-seed0"]
    assert [stage["key"] for stage in document["stages"] if stage["built"]] == keys
    assert all((Path(stage["folder"]) / "manifest.json").is_file() for stage in document["stages"])
    assert "mlflow ui" in document["mlflow_ui"]
    assert str(run.folder / "home") in document["mlflow_ui"]


def test_an_answer_has_scores_in_percent_and_evidence(finished):
    run, _ = finished
    answer = json.loads(run.kgqa_here("ask", run.conf, "which towns does River A flow through?", "--json").stdout)
    assert answer["topics"] == ["River A"]
    scores = [candidate["score"] for candidate in answer["candidates"]]
    assert scores == sorted(scores, reverse=True)
    assert 1 < scores[0] <= 100
    assert any("flows_through" in candidate["path"] for candidate in answer["candidates"])
    given = json.loads(run.kgqa_here("ask", run.conf, "which towns?", "--topic", "River B", "--json").stdout)
    assert given["topics"] == ["River B"]


def test_an_unknown_topic_is_answered_with_the_nearest_names(finished):
    run, _ = finished
    done = run.kgqa_here("ask", run.conf, "which towns does Rover A flow through?", "--json", code=4)
    assert not done.stdout
    assert "'River A'" in done.stderr and "Traceback" not in done.stderr


def test_a_file_of_questions_is_scored_beside_the_controls(finished):
    run, document = finished
    questions = str(run.folder / "questions" / "test.jsonl")
    given = ("evaluate", run.conf, "--questions", questions, "--controls", "--out", str(run.folder / "new.parquet"))
    figures = json.loads(run.kgqa_here(*given, "--json").stdout)
    bounds = {f"{metric}.{end}" for metric in ("hits1", "f1", "em") for end in ("low", "high")}
    assert set(figures) == {"n", "hits1", "f1", "em", "coverage", "seconds", "rejects", "controls", *bounds}
    assert figures["n"] == len(SPLITS["test"])
    (learned,) = (row["overall"] for row in document["results"] if row["role"] == "learned")
    assert figures["hits1"] == pytest.approx(learned["hits1"])
    assert figures["f1"] == pytest.approx(learned["f1"])
    assert figures["controls"]["template control"]["hits1"] == 100
    again = json.loads(run.kgqa_here("score", str(run.folder / "new.parquet"), "--json").stdout)
    assert (again["n"], again["strict"]["f1"]) == (figures["n"], pytest.approx(figures["f1"]))


def test_a_file_of_questions_is_answered_line_by_line(finished):
    run, _ = finished
    (run.folder / "asked.txt").write_text("which towns does River A flow through?\nwho is nobody?\n", encoding="utf-8")
    asked = ("ask", run.conf, "--file", str(run.folder / "asked.txt"))
    done = run.kgqa_here(*asked)
    (line,) = map(json.loads, done.stdout.splitlines())
    assert any("flows_through" in path for path in line["evidence"])
    assert "not used: asked.txt, line 2: no entity name in the text" in done.stderr
    done = run.kgqa_here(*asked, "--out", str(run.folder / "answers.jsonl"))
    assert not done.stdout and "1 line in all, kept in" in done.stderr
    assert json.loads((run.folder / "answers.jsonl").read_text()) == line
    for wrong in (("ask", run.conf), (*asked, "--trace"), ("evaluate", run.conf, "--out", "a.jsonl")):
        run.kgqa_here(*wrong, code=2)


def test_lint_reports_coverage_and_lines_not_used(finished):
    run, _ = finished
    report = json.loads(run.kgqa_here("lint", run.conf, "--json").stdout)
    assert report["rejects"] == {"graph": {}, "questions": {}}
    assert {row["split"]: row["num_questions"] for row in report["coverage"]} == {"train": 9, "dev": 2, "test": 2}
    assert {row["any_gold"] for row in report["coverage"]} == {100.0}


def test_ctrl_c_ends_cleanly(tmp_path):
    run = write_run(tmp_path)
    command = [sys.executable, "-m", "flows.cli", "build", run.conf, "--json"]
    with subprocess.Popen(
        command, env=run.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        server = run.folder / "home" / "run"
        while process.poll() is None and not list(server.glob("process-*.json")):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate()
    assert process.returncode == 130
    assert not out
    assert "stopped: finished stages are kept" in errors
    assert "Traceback" not in errors
    for record in server.glob("process-*.json"):
        started = json.loads(record.read_text(encoding="utf-8"))
        assert process_started(started["pid"]) != started["started"], "the Prefect server was left running"
