"""What every command does before and after its work: which variables it knows, how it ends, what terminals show."""

from __future__ import annotations

import io
import json
import re
import signal
import sys
import weakref
from pathlib import Path

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


EXIT_CODES = {KgqaError: 1, ConfigError: 2, InputError: 3, LinkError: 4, ArtifactError: 5, DriftError: 6}
# An error that is not ours keeps its traceback; a broken pipe names no file, and is the business of whoever reads.
EXIT_CODES |= {KeyboardInterrupt: 130, ZeroDivisionError: None, BrokenPipeError: None, SystemExit: None}


@pytest.mark.parametrize("problem", EXIT_CODES)
def test_each_kind_of_error_has_its_exit_code(problem: type[BaseException], capsys: pytest.CaptureFixture[str]) -> None:
    @with_exit_code
    def command() -> None:
        raise problem("the harbour is closed")

    code = EXIT_CODES[problem]
    with pytest.raises(typer.Exit if code else problem) as ended:
        command()
    shown = capsys.readouterr()
    assert not code or ended.value.exit_code == code
    assert shown.out + shown.err == "error: the harbour is closed\n" or code in (130, None)


def test_a_command_that_sigterm_ends_says_what_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    @with_exit_code
    def command() -> None:
        sys.exit(128 + signal.SIGTERM)  # as the context of a run's Prefect server has it

    with pytest.raises(typer.Exit) as ended:
        command()
    assert ended.value.exit_code == 143
    assert capsys.readouterr().err.startswith("stopped: finished stages are kept")


@pytest.mark.parametrize("name", ["serve", "view"])
def test_ctrl_c_of_a_command_that_makes_nothing_promises_nothing(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        raise KeyboardInterrupt

    command.__name__ = name
    with pytest.raises(typer.Exit) as ended:
        with_exit_code(command)()
    assert (ended.value.exit_code, capsys.readouterr().err) == (130, "stopped\n")


def test_a_stopped_command_lets_go_of_what_it_held() -> None:
    class Held:
        """What complains where it is there at exit, as DuckDB does."""

    def query(held: Held) -> None:
        raise RuntimeError("Query interrupted")

    @with_exit_code
    def command() -> None:
        held = Held()
        gone.append(weakref.ref(held))
        try:
            query(held)
        except RuntimeError:
            kept.append(KeyboardInterrupt())  # as Prefect keeps it
            raise kept[0]  # noqa: B904

    gone, kept = [], []
    with pytest.raises(typer.Exit) as ended:
        command()
    assert ended.value.exit_code == 130
    assert gone[0]() is None


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (PermissionError(13, "Permission denied", "here.html"), "cannot read or write 'here.html': Permission denied"),
        (IsADirectoryError(21, "Is a directory", ".part", None, "here"), "cannot read or write 'here': Is a directory"),
        (OSError(28, "No space left on device"), "cannot read or write: No space left on device; free some space"),
    ],
)
def test_a_file_that_cannot_be_used_and_a_full_disk_are_messages(
    problem: OSError, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        raise problem

    with pytest.raises(typer.Exit) as ended:
        with_exit_code(command)()
    assert ended.value.exit_code == 5
    assert capsys.readouterr().err.startswith(f"error: {said}")


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
    with pytest.raises(typer.Exit) as ended:
        with_exit_code(command)()
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err.startswith("error: memory is full: ")
    monkeypatch.setattr("flows.cli_output.say", say)
    with pytest.raises(typer.Exit):
        with_exit_code(command)()
