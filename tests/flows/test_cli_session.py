"""What every command does before and after its work: here, which variables of the environment it knows."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import Result

from flows import cli_session
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
    assert f"kgqa run '{conf}'; kgqa status '{conf}' says more" in " ".join(said.split())


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_what_a_terminal_cannot_show_stays_json(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, written = "Zoë Ёлка 😀", io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    cli_session.prepare_environment()
    sys.stdout.write(json.dumps(name, ensure_ascii=False))
    sys.stdout.flush()
    assert json.loads(written.getvalue().decode(encoding)) == name
