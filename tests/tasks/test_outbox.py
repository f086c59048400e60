"""Notes of runs: kept while MLflow is away, and where a process was killed; without passwords."""

from __future__ import annotations

import errno
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock
from uuid import uuid4

import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from kgqa_core.errors import ConfigError
from tasks import outbox
from tasks.outbox import end_killed, noted, waiting
from tasks.runtime import mark_crashed, only_process
from tests.conftest import Start
from tests.tasks.published import SYSTEMS, Pipeline, a_run, publish, reused, seen, told

NOTED = """
import sys, time
from pathlib import Path
from tests.tasks.published import Pipeline, a_run
from tasks.outbox import noted
home = Path(sys.argv[1])
with noted(home, a_run(1), tracked=True) as note, noted(home, a_run(7), tracked=False):
    note.has([Pipeline(home).graph()])
    print("noted", flush=True)
    time.sleep(300)
"""


def noted_by(start: Start, home: Path) -> subprocess.Popen[str]:
    """Return a process that has noted two runs, and works on."""
    run = start(NOTED, home)
    assert run.stdout is not None and run.stdout.readline() == "noted\n"
    return run


@pytest.mark.slow
def test_a_run_whose_process_was_killed_is_shown_as_killed_with_the_stages_that_it_had(
    home: Path, start: Start
) -> None:
    stages = [Pipeline(home).graph()]
    run = noted_by(start, home)
    assert end_killed(home, lambda _: None) == []  # it is alive
    assert waiting(home) == []
    run.kill()
    run.wait(30)
    ended: list[str] = []
    assert end_killed(home, ended.append) == ended == ["flow-run-1", "flow-run-7"]
    assert [note.run.id for note in waiting(home)] == ["flow-run-1"]  # the other told MLflow nothing anyway
    assert told(publish(home, a_run(2), stages)).created == ()
    killed = seen(home)[1]["brave-otter-1"]
    assert (killed.info.status, killed.data.tags["stage.graph"]) == ("KILLED", "built")
    assert not list((home / "outbox").iterdir())


@pytest.mark.slow
def test_a_killed_run_that_prefect_started_once_more_is_not_told_to_have_crashed(home: Path, start: Start) -> None:
    run = noted_by(start, home)
    run.kill()
    run.wait(30)
    told_of: list[str] = []
    with only_process(home, "flow-run-1"):  # its second process, which looks for killed runs as well
        assert end_killed(home, told_of.append) == ["flow-run-1", "flow-run-7"]
    assert told_of == ["flow-run-7"]
    assert [note.run.status for note in waiting(home)] == ["KILLED"]


def test_a_run_on_a_disk_without_locks_is_not_taken_for_dead(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("fcntl.flock", Mock(side_effect=OSError(errno.ENOLCK, "no locks available")))
        with noted(home, a_run(1), tracked=True) as note:
            note.has([Pipeline(home).graph()])
            assert end_killed(home, lambda _: None) == []
            assert waiting(home) == []
    (left,) = waiting(home)
    assert (left.run.status, [stage.key for stage in left.stages]) == ("FINISHED", ["graph"])


def test_a_run_that_ends_while_the_keeper_looks_stays_finished(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = noted(home, a_run(1), tracked=True)
    run.__enter__()

    def read_and_end(where: Path) -> list[outbox.Note]:
        notes = read(where)
        run.__exit__(None, None, None)  # right after the keeper read its note
        return notes

    read = outbox.read_notes
    told: list[str] = []
    with monkeypatch.context() as raced:
        raced.setattr(outbox, "read_notes", read_and_end)
        assert end_killed(home, told.append) == told == []
    assert [note.run.status for note in waiting(home)] == ["FINISHED"]
    assert [line["status"] for line in outbox.read_ended(home)] == ["FINISHED"]


def test_a_note_that_cannot_be_read_now_is_read_later(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with noted(home, a_run(1), tracked=True):
        pass
    with monkeypatch.context() as busy:
        busy.setattr(Path, "read_bytes", Mock(side_effect=OSError(errno.EMFILE, "too many open files")))
        assert waiting(home) == []
    assert "cannot be read now: [Errno 24] too many open files" in caplog.text
    assert [note.run.status for note in waiting(home)] == ["FINISHED"]


def test_how_a_run_ended_is_noted_and_a_password_is_in_no_note(home: Path) -> None:
    for number, problem in ((1, ValueError("no postgresql://ann:secret@db/x")), (2, KeyboardInterrupt()), (3, None)):
        with suppress(ValueError, KeyboardInterrupt), noted(home, a_run(number), tracked=True):
            if problem:
                raise problem
    assert [(note.run.status, note.run.error) for note in waiting(home)] == [
        ("FAILED", "ValueError: no postgresql://ann:***@db/x"),
        ("KILLED", "ended by KeyboardInterrupt"),
        ("FINISHED", ""),
    ]
    (home / "outbox" / "0000000000001-x.json").write_text("{")
    assert len(waiting(home)) == 3
    assert (home / "outbox" / "0000000000001-x.unreadable").exists()


def test_an_error_that_quotes_half_a_character_is_the_one_that_is_raised_and_noted(home: Path) -> None:
    with pytest.raises(ValueError, match="no file"), noted(home, a_run(1), tracked=True):
        raise ValueError("no file caf\udce9.tsv")  # a name in Latin-1, as Python reads it
    assert [(note.run.status, note.run.error) for note in waiting(home)] == [
        ("FAILED", r"ValueError: no file caf\udce9.tsv")
    ]
    assert outbox.read_ended(home)[0]["status"] == "FAILED"


def test_a_line_that_a_full_disk_cut_in_a_letter_hides_no_other_run(home: Path) -> None:
    outbox.log_end(home, a_run(1))
    with (home / outbox.ENDED).open("ab") as stream:
        stream.write('{"name": "caf\u00e9'.encode()[:-1])
    outbox.log_end(home, a_run(2, error="no entity Aare\u2028Rhine"))  # which ends a line, too, but no JSON
    assert [line["id"] for line in outbox.read_ended(home)] == [a_run(1).id, a_run(2).id]


@pytest.mark.slow
def test_a_killed_run_that_prefect_cannot_be_told_of_now_is_told_of_later(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = replace(a_run(1), id=str(uuid4()), status="RUNNING")
    outbox.write(home, outbox.Note(run, tracked=True))  # its lock is free
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api", PREFECT_CLIENT_MAX_RETRIES: 0}):
        assert end_killed(home, mark_crashed) == waiting(home) == []
    assert f"Prefect was not told that run {run.id} was killed" in caplog.text
    told_of: list[str] = []
    assert end_killed(home, told_of.append) == told_of == [run.id]
    assert [note.run.status for note in waiting(home)] == ["KILLED"]


def test_a_kill_between_delivery_and_its_note_doubles_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(outbox, "remove", Mock(side_effect=KeyboardInterrupt))
        publish(home, a_run(1), Pipeline(home).everything())
    assert [note.run.id for note in waiting(home)] == ["flow-run-1"]
    publish(home, a_run(2), [Pipeline(home).graph()])
    assert waiting(home) == []
    client, runs = seen(home)  # which fails for two of a name
    assert sorted(runs) == ["brave-otter-1", "brave-otter-2", *SYSTEMS]
    assert reused(client, runs["brave-otter-1"]) == {}


def test_a_run_whose_configuration_cannot_be_read_is_among_those_that_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deployment's: only Prefect showed it, and kgqa status nothing."""
    from flows.pipeline import build_graph

    monkeypatch.setenv("KGQA_HOME", str(tmp_path / "home"))
    (tmp_path / "nightly.yaml").write_text("dataset: {nam: towns}", encoding="utf-8")
    with pytest.raises(ConfigError):
        build_graph.fn(tmp_path / "nightly.yaml")
    (ended,) = outbox.read_ended(tmp_path / "home")
    assert ended["name"].startswith("nightly 20") and ended["status"] == "FAILED"
    assert ended["error"].startswith("ConfigError: ") and "nightly.yaml" in ended["error"]
