"""What every command does before and after its work: which variables it knows, how it ends, what terminals show."""

from __future__ import annotations

import errno
import io
import json
import re
import signal
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import typer
from click.testing import Result

from flows import cli_session
from flows.cli_session import with_exit_code
from kgqa_core.errors import ArtifactError, ConfigError, DriftError, InputError, KgqaError, LinkError
from tests.conftest import PROJECT, kgqa

CONFIG = """
dataset: {name: towns, source: embedded}
encoder: {kind: hash, dim: 16}
explorer: {steps: 2, edge_budget: 10, epochs: 1, seeds: [0]}
"""


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KGQA_HOME", str(tmp_path / "home"))
    conf = tmp_path / "towns of mine.yaml"
    conf.write_text(CONFIG, encoding="utf-8")
    return conf


def status(conf: Path) -> Result:
    return kgqa("status", str(conf))


def test_a_misspelt_variable_of_the_environment_is_told_once_and_others_are_left_alone(
    conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KGQA_DAAT", "KGQA_KEY", "KGQA_SERVICES", "KGQA_POLL_SECONDS", "KGQA_SERVE_PORT"):
        monkeypatch.setenv(name, "7")
    said = "nothing reads the environment variable KGQA_DAAT; did you mean KGQA_DATA?"
    assert status(conf).stderr == f"warning: {said}\n"
    monkeypatch.setenv("KGQA_LOGS", "json")
    told = json.loads(status(conf).stderr)
    assert (told["level"], told["message"]) == ("WARNING", said)


def test_every_variable_that_the_tree_reads_is_known() -> None:
    folders = (PROJECT / name for name in ("flows", "tasks", "kgqa_core"))
    texts = [path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.py")]
    read = {name for text in texts for name in re.findall(r'"KGQA_([A-Z_]+)"', text)}
    assert read - {"SERVICES"} == set(cli_session.VARIABLES)


def test_advice_names_the_run_and_its_settings_as_they_were_given(conf: Path) -> None:
    said = kgqa("sql", str(conf), "from facts", "--set", "explorer.epochs=2").stderr
    assert f"kgqa build '{conf}' --set=explorer.epochs=2;" in " ".join(said.split())
    said = kgqa("ask", str(conf), "where does the Aare rise?").stderr
    advice = f"kgqa run '{conf}'; kgqa status '{conf}' says more"
    assert advice in " ".join(said.split())
    for words in (("compare", conf), ("compare", f"{conf}@0", conf), ("report", conf), ("view", f"{conf}@0")):
        assert advice in " ".join(kgqa(*map(str, words)).stderr.split())


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_what_a_terminal_cannot_show_stays_json(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, written = "Zoë Ёлка 😀", io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    cli_session.prepare_environment()
    sys.stdout.write(json.dumps(name, ensure_ascii=False))
    sys.stdout.flush()
    assert json.loads(written.getvalue().decode(encoding)) == name


def end(command: Callable[[], None], name: str = "build") -> int:
    """Return the exit code of a command of that name."""
    command.__name__ = name
    with pytest.raises(typer.Exit) as ended:
        with_exit_code(command)()
    return ended.value.exit_code


CLOSED, KEPT = "the harbour is closed", "stopped: finished stages are kept"


@pytest.mark.parametrize(
    ("problem", "code", "said"),
    [
        (KgqaError(CLOSED), 1, f"error: {CLOSED}\n"),
        (ConfigError(CLOSED), 2, f"error: {CLOSED}\n"),
        (InputError(CLOSED), 3, f"error: {CLOSED}\n"),
        (LinkError(CLOSED), 4, f"error: {CLOSED}\n"),
        (ArtifactError(CLOSED), 5, f"error: {CLOSED}\n"),
        (DriftError(CLOSED), 6, f"error: {CLOSED}\n"),
        (PermissionError(13, "Permission denied", "a"), 5, "error: cannot read or write 'a': Permission denied"),
        (IsADirectoryError(21, "Is a directory", "x", None, "a"), 5, "error: cannot read or write 'a': Is a directory"),
        (OSError(28, "No space left"), 5, "error: cannot read or write: No space left; free some space"),
        (OSError(errno.EDQUOT, "Quota exceeded"), 5, "error: cannot read or write: Quota exceeded; free some space"),
        (OSError(errno.EFBIG, "Too large"), 5, "error: cannot read or write: Too large; raise the limit"),
        (KeyboardInterrupt(), 130, KEPT),
        (SystemExit(128 + signal.SIGTERM), 143, KEPT),  # as the context of a run's Prefect server has it
    ],
)
def test_each_kind_of_error_is_one_message_with_its_exit_code(
    problem: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end(Mock(side_effect=problem)) == code
    (shown,) = capsys.readouterr().err.splitlines(keepends=True)
    assert shown.startswith(said)


@pytest.mark.parametrize("problem", [ZeroDivisionError, BrokenPipeError, SystemExit])
def test_what_is_no_error_of_ours_passes_as_it_is(problem: type[BaseException]) -> None:
    """A broken pipe names no file, and is the business of whoever reads."""
    with pytest.raises(problem):
        with_exit_code(Mock(side_effect=problem))()


@pytest.mark.parametrize("name", ["serve", "view"])
def test_ctrl_c_of_a_command_that_makes_nothing_promises_nothing(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (end(Mock(side_effect=KeyboardInterrupt), name), capsys.readouterr().err) == (130, "stopped\n")


def test_a_stopped_command_lets_go_of_what_it_held() -> None:
    class Held:
        """What complains where it is there at exit, as DuckDB does."""

    def query(held: Held) -> None:
        raise RuntimeError("Query interrupted")

    def command() -> None:
        held = Held()
        gone.append(weakref.ref(held))
        try:
            query(held)
        except RuntimeError:
            kept.append(KeyboardInterrupt())  # as Prefect keeps it
            raise kept[0]  # noqa: B904

    gone, kept = [], []
    assert end(command) == 130
    assert gone[0]() is None


@pytest.mark.parametrize("problem", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_full_memory_is_one_message_and_what_the_error_held_is_free_before_it_is_said(
    problem: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Held:
        """Stands for the arrays of the frames that an error came through."""

    def say(*_: object, **__: object) -> None:
        assert gone() is None

    def command() -> None:
        nonlocal gone
        held = Held()
        gone = weakref.ref(held)
        raise type(problem)(*problem.args)

    gone = None
    assert end(command) == 1
    assert capsys.readouterr().err.startswith("error: memory is full: ")
    monkeypatch.setattr("flows.cli_output.say", say)
    assert end(command) == 1
