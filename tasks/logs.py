"""Logs of commands, flows and the keeper: text for people, or with ``KGQA_LOGS=json`` one JSON object a line."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any

from kgqa_core.errors import ConfigError
from tasks.mlflow_store import mask

OURS = ("kgqa_core", "tasks", "flows")  # packages whose messages are ours


def wants_json() -> bool:
    """Say whether logs are to be JSON; ConfigError where the setting is neither that nor ``text``."""
    kind = os.environ.get("KGQA_LOGS") or "text"
    if kind not in ("text", "json"):
        raise ConfigError(f"KGQA_LOGS is {kind!r}; it may be 'text' or 'json'")
    return kind == "json"


class JsonLines(logging.Formatter):
    """A record as one line of JSON, with the flow's run that it is of; passwords in addresses are hidden."""

    def __init__(self, *given: Any) -> None:
        """``given`` is what a logging configuration hands to a formatter; the form is always the same."""
        super().__init__()

    def format(self, record: logging.LogRecord) -> str:
        """Return time (UTC), level, logger, message, ids of the flow's and the task's run, and the traceback if any."""
        found = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": mask(record.getMessage()),
            "flow_run_id": None,
            "task_run_id": None,
            **run_ids(record),
        }
        if record.exc_info:
            found["traceback"] = mask(self.formatException(record.exc_info))
        return json.dumps(found, ensure_ascii=False)


def run_ids(record: logging.LogRecord) -> dict[str, str]:
    """Return the ids of the runs that a record is of: what Prefect wrote into it, else what runs in this thread."""
    found = {name: getattr(record, name, None) for name in ("flow_run_id", "task_run_id")}
    if (running := sys.modules.get("prefect.context")) and not any(found.values()):  # never imported for a log
        flow, task = running.FlowRunContext.get(), running.TaskRunContext.get()
        if task is not None:
            found = {"flow_run_id": task.task_run.flow_run_id, "task_run_id": task.task_run.id}
        elif flow is not None and flow.flow_run is not None:
            found["flow_run_id"] = flow.flow_run.id
    return {name: str(value) for name, value in found.items() if value}


def worker_settings() -> dict[str, str]:
    """Return the environment by which the flows of a worker send our messages to Prefect, and write them as asked."""
    more = "PREFECT_LOGGING_EXTRA_LOGGERS"
    settings = {more: ",".join(filter(None, (os.environ.get(more), *OURS)))}
    settings["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "INFO"  # a command of ours keeps Prefect quiet
    if wants_json():
        settings["PREFECT_LOGGING_HANDLERS_CONSOLE_FORMATTER"] = "json"
        settings["PREFECT_LOGGING_FORMATTERS_JSON_CLASS"] = f"{__name__}.{JsonLines.__name__}"
    return settings


def outlive_worker() -> None:
    """Let a worker's run go on where the worker, who read its output, was killed: rich ends it at the next message."""
    if "PREFECT__FLOW_RUN_ID" in os.environ:
        from rich.console import Console

        Console.on_broken_pipe = lambda console: setattr(console, "quiet", True)  # type: ignore[method-assign]
