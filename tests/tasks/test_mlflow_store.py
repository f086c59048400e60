"""Where MLflow keeps what it is told: its address without passwords, its command, its place in a copied home."""

from __future__ import annotations

import shlex
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from mlflow import MlflowClient

from kgqa_core.errors import ArtifactError
from tasks.mlflow_store import artifacts_uri, ensure_store, mask, ui_command
from tests.tasks.conftest import copy_store


def test_the_command_for_the_ui_can_be_pasted_into_a_shell(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(ui_command(home, port=5013))
    assert Path(words[0]).parent == Path(sys.executable).parent
    assert words[1:4] == ["ui", "--backend-store-uri", f"sqlite:///{home / 'mlflow' / 'mlflow.db'}"]
    assert words[4:] == ["--port", "5013", "--host", "127.0.0.1", "--workers", "1"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example/team")
    assert shlex.split(ui_command(home))[-1] == "https://mlflow.example/team"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://ann:secret@db/mlflow")
    assert '--backend-store-uri "$MLFLOW_TRACKING_URI" --port' in ui_command(home)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ann:p@ss/w@db:5432/x?sslmode=on", "postgresql://ann:***@db:5432/x?sslmode=on"),
        ("at http://token@host/x.", "at http://***@host/x."),
        ("https://ann:secret@host", "https://***@host"),
        ("mysql+pymysql://db/x?user=ann&password=secret&a=b", "mysql+pymysql://db/x?user=ann&password=***&a=b"),
        ("sqlite:////a b/mlflow.db", "sqlite:////a b/mlflow.db"),
        ("http://host:80/p?to=a@b and s3://bucket/key", "http://host:80/p?to=a@b and s3://bucket/key"),
    ],
)
def test_passwords_in_addresses_are_hidden(text: str, shown: str) -> None:
    assert mask(text) == shown


def test_a_copied_home_writes_beside_itself_and_not_into_the_original(empty_store: Path, tmp_path: Path) -> None:
    for place in ("original", "copy"):
        ensure_store(copy_store(empty_store, tmp_path / place))
        with closing(sqlite3.connect(tmp_path / place / "mlflow" / "mlflow.db")) as store:
            (where,) = store.execute("select artifact_location from experiments").fetchone()
        assert where == (tmp_path / place / "mlflow" / "artifacts" / "0").as_uri()


def test_runs_of_an_experiment_that_was_copied_write_beside_the_copy(empty_store: Path, tmp_path: Path) -> None:
    original, copy = (tmp_path / name for name in ("original", "copy"))
    uri = ensure_store(copy_store(empty_store, original))
    MlflowClient(uri).create_experiment("films", artifact_location=artifacts_uri(original, uri))
    shutil.copytree(original, copy)
    uri = ensure_store(copy)
    with closing(sqlite3.connect(copy / "mlflow" / "mlflow.db")) as store:
        where = dict(store.execute("select name, artifact_location from experiments").fetchall())
    assert where["films"] == artifacts_uri(copy, uri) == (copy / "mlflow" / "artifacts").as_uri()


@pytest.mark.parametrize("content", [b"", b"no database at all" * 300])
def test_a_damaged_store_is_named_and_no_run_is_lost_for_it(tmp_path: Path, content: bytes) -> None:
    store = tmp_path / "mlflow" / "mlflow.db"
    store.parent.mkdir()
    store.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"mlflow\.db cannot be used: .*move it away"):
        ensure_store(tmp_path)
    assert ui_command(tmp_path) is None


def test_a_store_that_another_process_holds_is_not_called_damaged(
    tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.mlflow_store.LOCK_SECONDS", 0.1)
    copy_store(empty_store, tmp_path)
    with closing(sqlite3.connect(tmp_path / "mlflow" / "mlflow.db", isolation_level=None)) as other:
        other.execute("begin exclusive")
        with pytest.raises(ArtifactError, match=r"database is locked\. Another process has held it for") as raised:
            ensure_store(tmp_path)
    assert "damaged" not in str(raised.value)
