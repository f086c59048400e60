"""Logs as JSON: one object a line, with the ids of runs, without passwords; a worker's flows write the same form."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys

import pytest

from kgqa_core.errors import ConfigError
from tasks.logs import JsonLines, wants_json, worker_settings
from tests.conftest import PROJECT

SAYS = """\
import logging, sys
import flows.pipeline
from prefect.logging.handlers import PrefectConsoleHandler
logging.basicConfig(handlers=[PrefectConsoleHandler()])
logging.getLogger().error(sys.stdin.readline())
print("it goes on")
"""


def line_of(**given: object) -> dict[str, object]:
    """Return what a record with these attributes is written as."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    record = logging.makeLogRecord({"name": "tasks.x", "levelname": "INFO", "created": 0.0, "msg": "a\nb", **given})
    handler.handle(record)
    (line,) = stream.getvalue().splitlines()
    found: dict[str, object] = json.loads(line)
    return found


def test_a_record_is_one_line_of_json() -> None:
    assert line_of(flow_run_id="f1") == {
        "time": "1970-01-01T00:00:00.000+00:00",
        "level": "INFO",
        "logger": "tasks.x",
        "message": "a\nb",
        "flow_run_id": "f1",
        "task_run_id": None,
    }


def test_passwords_are_hidden_in_messages_and_tracebacks() -> None:
    address = "postgresql://kgqa:hunter2@db/mlflow"
    try:
        raise ValueError(address)
    except ValueError:
        found = line_of(msg="%s", args=(address,), exc_info=sys.exc_info())
    assert "hunter2" not in json.dumps(found)
    assert "ValueError" in str(found["traceback"])


def test_flows_of_a_worker_write_the_same_form_and_send_our_messages_to_prefect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from prefect.logging.configuration import DEFAULT_LOGGING_SETTINGS_PATH, load_logging_config

    assert worker_settings()["PREFECT_LOGGING_EXTRA_LOGGERS"] == "kgqa_core,tasks,flows"
    monkeypatch.setenv("KGQA_LOGS", "json")
    for name, value in worker_settings().items():
        monkeypatch.setenv(name, value)
    config = load_logging_config(DEFAULT_LOGGING_SETTINGS_PATH)
    assert config["handlers"]["console"]["level"] == "INFO"
    assert config["formatters"][config["handlers"]["console"]["formatter"]]["class"] == "tasks.logs.JsonLines"
    monkeypatch.setenv("KGQA_LOGS", "")
    assert not wants_json()
    monkeypatch.setenv("KGQA_LOGS", "yaml")
    with pytest.raises(ConfigError, match="KGQA_LOGS is 'yaml'; it may be 'text' or 'json'"):
        wants_json()


def test_a_run_whose_worker_was_killed_goes_on_at_its_next_message() -> None:
    ours = {"PREFECT__FLOW_RUN_ID": "x", "PYTHONPATH": str(PROJECT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", SAYS], env=os.environ | ours, text=True, **pipes) as run:
        assert run.stdin and run.stdout and run.stderr
        run.stderr.close()  # the worker read it
        run.stdin.write("a message\n")
        run.stdin.close()
        assert run.stdout.read() == "it goes on\n"
