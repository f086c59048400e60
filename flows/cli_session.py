"""How a command runs: logs and progress on standard error, results on standard output, errors as exit codes."""

from __future__ import annotations

import codecs
import contextlib
import errno
import functools
import io
import json
import logging
import os
import re
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, ParamSpec

import typer

from kgqa_core.errors import ArtifactError, KgqaError, is_out_of_memory, nearest, shorten

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from kgqa_core.config import RunConfig
    from kgqa_core.run.pipeline import Pipeline

P = ParamSpec("P")
_log = logging.getLogger(__name__)

INTERRUPTED, TERMINATED = 130, 143  # exit codes of Ctrl-C and of SIGTERM
SERVING = ("serve", "view")  # commands that go on until they are stopped, and make no stages
PIPE_WIDTH = 160  # columns where no terminal says how wide it is
SHOW_AFTER = 2.0  # seconds that an activity lasts before it gets a bar
REPORT_EVERY = 30.0  # seconds between two lines of an activity where standard error is no terminal
# SERVICES: we set that one for our own processes. SERVICE_, PORT: Kubernetes sets them where a service is called kgqa.
VARIABLE = re.compile(r"KGQA_(?!SERVICES$|SERVICE_|PORT)(.+)")
VARIABLES = ("DATA", "HOME", "HOST", "LOGS", "MLFLOW_PORT", "POLL_SECONDS", "PREFECT_PORT", "SERVE_PORT", "WEBHOOK")
WRITTEN_OUT = "kgqa.written_out"  # how streams treat what their encoding lacks
MANY = 1000  # parts from which on a rate is shown, too
SPACE = "free some space (`kgqa gc --all`), or name another place: for what kgqa keeps, by KGQA_HOME"
LIMIT = "raise the limit that `ulimit -f` shows, or name another place"
CURES = {errno.ENOSPC: SPACE, errno.EDQUOT: SPACE, errno.EFBIG: LIMIT}

Conf = Annotated[Path, typer.Argument(metavar="CONF", help="A run configuration, e.g. conf/demo.yaml.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one setting, e.g. explorer.epochs=3; repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def read_run(conf: Path, settings: Sequence[str] | None = None) -> RunConfig:
    """Return a run configuration as the user gave it."""
    from kgqa_core.config_file import read_config

    return read_config(conf, settings or ())


def open_run(conf: Path, settings: Sequence[str] | None) -> Pipeline:
    """Return the stages of a run configuration."""
    from kgqa_core.run.pipeline import Pipeline
    from tasks.release import resolve_start

    return Pipeline(resolve_start(read_run(conf, settings))[0])


def run_missing(pipeline: Pipeline, *keys: str) -> None:
    """Make the stages ``keys`` and what they read, and nothing else; where all are done, Prefect is not even loaded."""
    if any(pipeline.find(key) is None for key in keys):
        from flows.run import run_flow

        run_flow("make_stages", pipeline.config, keys=keys)


def as_given(conf: Path | str, settings: Sequence[str] | None) -> str:
    """Return a run configuration and its overrides as a command line has them."""
    return shlex.join([str(conf), *(f"--set={one}" for one in settings or ())])


def with_conf(message: str, conf: Path | str, settings: Sequence[str] | None) -> str:
    """Return a message that advises for CONF as lines that can be pasted."""
    return re.sub(r"\bCONF\b", lambda _: as_given(conf, settings), message)


@contextmanager
def advising_for(conf: Path | str, settings: Sequence[str] | None) -> Iterator[None]:
    """Let errors about one of several configurations advise for that one."""
    try:
        yield
    except KgqaError as problem:
        problem.args = (with_conf(str(problem), conf, settings),)
        raise


def with_exit_code(command: Callable[P, None]) -> Callable[P, None]:
    """Return ``command`` with our errors as a message and an exit code in the place of a traceback."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
            return
        except (KgqaError, OSError, RuntimeError, MemoryError) as raised:
            problem = raised if isinstance(raised, KgqaError) else _as_ours(raised)
            message, code = str(problem), problem.exit_code
            del problem
        except (KeyboardInterrupt, SystemExit) as ended:
            if isinstance(ended, SystemExit) and ended.code != TERMINATED:
                raise
            for one in (ended, ended.__context__):  # Prefect keeps it; DuckDB would list at exit all that is held
                traceback.clear_frames(one.__traceback__ if one else None)
            kept = ": finished stages are kept, and the same command goes on from there"
            typer.echo(f"stopped{'' if command.__name__ in SERVING else kept}", err=True)
            raise typer.Exit(TERMINATED if isinstance(ended, SystemExit) else INTERRUPTED) from None
        # Outside, where the error is gone and holds no arrays of its frames: what is imported here needs memory.
        conf, settings = kwargs.get("conf"), kwargs.get("settings")
        if conf and not str(conf).startswith("models:/"):
            message = with_conf(message, str(conf), settings if isinstance(settings, list) else None)
        _tell("error", message)
        raise typer.Exit(code)

    return guarded


def _tell(kind: Literal["error", "warning"], message: str) -> None:
    """Write a message to standard error: a line of text, or of JSON."""
    from flows.cli_output import say
    from tasks.logs import JsonLines
    from tasks.mlflow_store import mask

    said = f"{kind}: {mask(message)}"
    if os.environ.get("KGQA_LOGS") == "json":
        level = logging.getLevelNamesMapping()[kind.upper()]
        said = JsonLines().format(logging.LogRecord(__name__, level, "", 0, message, None, None))
    say(said, err=True)


def _as_ours(problem: Exception) -> KgqaError:
    """Return an error of ours for a file that cannot be used, a full disk, or memory that is full; raise any other.

    Batches are halved where memory is full; this was outside of one.
    """
    if isinstance(problem, OSError) and (problem.filename is not None or problem.errno in CURES):
        name = problem.filename2 or problem.filename
        where = f" {shorten(str(name))}" if name is not None else ""
        cure = CURES.get(problem.errno or 0, "mend this, or name another place")
        return ArtifactError(f"cannot read or write{where}: {problem.strerror}; {cure}")
    if not is_out_of_memory(problem):
        raise problem
    return KgqaError(
        f"memory is full: {shorten(problem)}. Lower batch_size or width of what was at work, or cluster.workers. "
        "Finished stages are kept, and the same command goes on from there"
    )


def make_console(*, stderr: bool = False) -> Console:
    """Return a console for people: as wide as the terminal, else wide enough for a path."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else PIPE_WIDTH)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Run what takes its time: logs and bars go to standard error, and so does whatever anybody prints."""
    from rich.logging import RichHandler

    from kgqa_core.run.pipeline import PROGRESS
    from tasks.logs import OURS, JsonLines, wants_json
    from tasks.mlflow_store import mask

    def hide_passwords(record: logging.LogRecord) -> bool:
        record.msg, record.args = mask(record.getMessage()), ()
        return True

    console, as_json = make_console(stderr=True), wants_json()
    # Ours have a handler of their own: Prefect, when it starts, takes away those of the root.
    ours, others = (
        logging.StreamHandler()
        if as_json
        else RichHandler(console=console, show_path=False, log_time_format="%X", highlighter=None)
        for _ in range(2)
    )
    for handler in (ours, others):
        handler.addFilter(hide_passwords)
        if as_json:
            handler.setFormatter(JsonLines())
    others.addFilter(lambda record: record.name.partition(".")[0] not in OURS)
    handlers = [(logging.getLogger(), others), *((logging.getLogger(name), ours) for name in OURS)]
    for logger, handler in handlers:
        logger.addHandler(handler)
    for name in OURS:
        logging.getLogger(name).setLevel(logging.INFO)
    bars = ProgressBars(console, what, as_logs=as_json)
    listening = PROGRESS.set(bars)
    try:
        with bars, contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        PROGRESS.reset(listening)
        for logger, handler in handlers:
            logger.removeHandler(handler)


class ProgressBars:
    """A bar for every activity that lasts, below one that shows that the command is alive.

    Where standard error is no terminal, a line now and then; ``as_logs``: a message of the log.
    """

    def __init__(self, console: Console, what: str, *, as_logs: bool = False) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        self._console, self._as_logs, self._shows = console, as_logs, console.is_terminal and not as_logs
        self._began: dict[str, tuple[float, int]] = {}  # when, and what an earlier process had done by then
        self._reported: dict[str, float] = {}
        self._shown: dict[str, TaskID] = {}
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self._bars = Progress(*columns, console=console, transient=True, disable=not self._shows)
        self._bars.add_task(what, total=None)

    def __enter__(self) -> ProgressBars:
        self._bars.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._bars.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Take note that ``done`` of ``total`` parts of an activity are done."""
        now = time.monotonic()
        began, first = self._began.setdefault(what, (now, done))
        if now - began >= SHOW_AFTER and self._shows:
            if what not in self._shown:
                self._shown[what] = self._bars.add_task(what, total=total)
            told = f"{what}{pace(done - first, total - first, now - began)}"
            self._bars.update(self._shown[what], completed=done, total=total, description=told)
        elif now - began >= SHOW_AFTER and now - self._reported.get(what, began) >= REPORT_EVERY:
            self._reported[what] = now
            line = f"{what}: {100 * done / max(total, 1):.0f} %{pace(done - first, total - first, now - began)}"
            _log.info("%s", line) if self._as_logs else self._console.print(line, markup=False)
        if done >= total:
            self._began.pop(what)
            self._reported.pop(what, None)
            if what in self._shown:
                self._bars.remove_task(self._shown.pop(what))


def pace(done: int, total: int, seconds: float) -> str:
    """Return how fast an activity goes and when it will be done: ``, 48 per second, 0:01:20 left``."""
    rate = f", {done / seconds:,.0f} per second" if total >= MANY else ""
    left = f", {timedelta(seconds=round(seconds * (total - done) / done))} left" if done else ""
    return f"{rate}{left}"


def _written_out(problem: UnicodeError) -> tuple[str, int]:
    """Return what a terminal cannot show as JSON spells it: what is printed may be JSON."""
    assert isinstance(problem, UnicodeEncodeError)
    return json.dumps(problem.object[problem.start : problem.end])[1:-1], problem.end


codecs.register_error(WRITTEN_OUT, _written_out)


def prepare_environment() -> None:
    """Set what this process and its children go by, unless the user has."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name may hold what this terminal cannot show
            stream.reconfigure(errors=WRITTEN_OUT)
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # no module from the current folder
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Prefect logs every failure as a traceback; ours end in a message, others in Python's own traceback.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    for name in sorted(os.environ):
        found = VARIABLE.fullmatch(name)  # one like none of ours may be a model's key
        if found and found[1] not in VARIABLES and (near := nearest(found[1], VARIABLES)):
            _tell("warning", f"nothing reads the environment variable {name}; did you mean KGQA_{near[0]}?")
