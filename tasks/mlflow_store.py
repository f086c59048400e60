"""Where MLflow's store is: the one that the user names, else a SQLite file and a folder under the home."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from kgqa_core.artifacts import exclusive_lock
from kgqa_core.errors import ArtifactError
from tasks.leftovers import past_proxies, running_server
from tasks.runtime import quick_imports

LOCK_SECONDS = 120.0
_log = logging.getLogger(__name__)
UI_PORT = 5000

# MLflow's own defaults retry for minutes, tell its makers about each use, look for a project of uv's in the current
# folder, and print each run's address.
CLIENT_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_UV_AUTO_DETECT": "false",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # it would print the server's address, password and all
}

FOLDERS = ("KGQA_DATA", "MLFLOW_DEFAULT_ARTIFACT_ROOT", "MLFLOW_ARTIFACTS_DESTINATION")
DATABASES = (
    "PREFECT_API_DATABASE_CONNECTION_URL",
    "PREFECT_SERVER_DATABASE_CONNECTION_URL",
    "MLFLOW_BACKEND_STORE_URI",
)
PLACES = (*FOLDERS, *DATABASES, "MLFLOW_TRACKING_URI")

# Secrets of an address, in any text: who a user of a web server is; the password of a database; what a query tells.
WEB_USER = re.compile(r"(https?://)[^\s/?#]*@")
PASSWORD = re.compile(r"(\b(?!https?:)\w[\w+.-]*://[^\s/:@]*:)\S*@")
QUERY = re.compile(r"(?i)([?&;][^=&;\s]*(?:passw|pwd|secret|token|key|signature)[^=&;\s]*=)[^&;\s'\"]+")


def mask(text: str) -> str:
    """Return a text with the passwords in its addresses hidden."""
    for secret in (WEB_USER, PASSWORD):
        text = secret.sub(r"\1***@", text)
    return QUERY.sub(r"\1***", text)


def tracking_uri(home: Path) -> str:
    """Return where MLflow's store is: ``MLFLOW_TRACKING_URI``, what ``kgqa up`` runs, else a file in ``home``."""
    if given := os.environ.get("MLFLOW_TRACKING_URI"):
        return given
    if ours := running_server(home, "mlflow"):
        os.environ |= past_proxies(ours)
    return ours or ensure_store(home)


def ensure_store(home: Path) -> str:
    """Return the URI of the SQLite store under ``home``, and make the store where there is none.

    Two processes on a fresh file, or a kill while MLflow makes it, break it for good: it is made in another file, by
    one process at a time, and renamed when it is whole. ArtifactError where it is damaged.
    """
    folder = store_folder(home)
    store = folder / "mlflow.db"
    if not store.exists():
        with exclusive_lock(folder / "mlflow.db.lock", timeout=LOCK_SECONDS):
            if not store.exists():
                _make_store(folder, store)
    try:
        _follow_the_home(folder, store)
    except sqlite3.DatabaseError as problem:
        cure = (
            "If it is damaged, put back a copy of it, or move it away: the list of past runs and models is lost, the "
            "artifacts of runs are not"
        )
        if "locked" in str(problem):
            cure = f"Another process has held it for longer than {LOCK_SECONDS:.0f} s: end that, and run again"
        raise ArtifactError(f"MLflow's database {store} cannot be used: {problem}. {cure}") from None
    return f"sqlite:///{store}"


def _follow_the_home(folder: Path, store: Path) -> None:
    """Let a store in a home that was copied or moved name the files that lie beside it, not the original's."""
    with closing(sqlite3.connect(store, timeout=LOCK_SECONDS)) as connection:
        first = "select artifact_location from experiments where experiment_id = 0"
        (was,) = connection.execute(first).fetchone() or ("",)
        old, now = was.removesuffix("/0"), (folder / "artifacts").as_uri()
        if not was.startswith("file:") or old == now:
            return
        _log.info("this home was copied or moved: MLflow's files are now those of %s", folder)
        tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        for table in tables:
            for _, column, kind, *_ in connection.execute(f'pragma table_info("{table}")').fetchall():
                if kind.upper().startswith(("VARCHAR", "TEXT")):
                    place = f'"{column}" = ? || substr("{column}", ?) where substr("{column}" || \'/\', 1, ?) = ?'
                    connection.execute(f'update "{table}" set {place}', (now, len(old) + 1, len(old) + 1, f"{old}/"))
        connection.commit()


def ui_command(home: Path, *, port: int = UI_PORT) -> str | None:
    """Return the one command, for a shell, that opens MLflow's UI on what runs of this ``home`` published.

    None where the store cannot be used, of which whoever published has warned: no finished run is lost for it.
    """
    try:
        uri = tracking_uri(home)
    except Exception:  # whatever the disk, SQLite or MLflow throws
        return None
    if is_server(uri):
        return shlex.join([sys.executable, "-m", "webbrowser", "-t", WEB_USER.sub(r"\1", uri)])
    program = Path(sys.executable).with_name("mlflow")
    start = [str(program)] if program.exists() else [sys.executable, "-m", "mlflow"]
    # By default it starts four workers, each of which takes seconds to import.
    where = ["--port", str(port), "--host", "127.0.0.1", "--workers", "1"]
    store = shlex.quote(uri) if mask(uri) == uri else '"$MLFLOW_TRACKING_URI"'  # the shell knows it; a log must not
    return f"{shlex.join([*start, 'ui'])} --backend-store-uri {store} {shlex.join(where)}"


def run_address(uri: str, page: str) -> str:
    """Return where a page of MLflow's UI is: on its server, or on the one that ``ui_command`` starts."""
    server = WEB_USER.sub(r"\1", uri.rstrip("/")) if is_server(uri) else f"http://127.0.0.1:{UI_PORT}"
    return f"{server}/{page}"


def named_by_aliases(home: Path) -> set[str] | None:
    """Return explorers (fingerprints) and graphs (content hashes) of the model versions that an alias names.

    None, after a warning, where MLflow does not answer.
    """
    own = os.environ.get("MLFLOW_TRACKING_URI") or running_server(home, "mlflow")
    if not own and not (home / "mlflow" / "mlflow.db").is_file():
        return set()
    import_mlflow()
    from mlflow import MlflowClient

    found, page = set[str](), None
    try:
        uri = tracking_uri(home)
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        while page is None or page.token:
            page = client.search_registered_models(page_token=page.token if page else None)
            for model in page:
                for version in {str(one) for one in model.aliases.values()}:
                    tags = client.get_model_version(model.name, version).tags
                    found |= {tags[name] for name in ("fingerprint", "graph") if name in tags}
    except Exception as problem:  # whatever MLflow throws
        _log.warning("cannot ask MLflow: %s: %s", type(problem).__name__, mask(str(problem))[:500])
        return None
    return found


def absolute_places() -> dict[str, str]:
    """Return the variables that name files and databases, such that they mean the same in another current folder."""
    found = {name: place for name in PLACES if (place := os.environ.get(name))}
    for name, place in found.items():
        scheme, slashes, path = place.partition(":///")
        if scheme.partition("+")[0] == "sqlite" and slashes:
            memory = path.partition("?")[0] in ("", ":memory:") or path.startswith("file:")
            found[name] = place if memory else f"{scheme}:///{Path(path).absolute()}"
        elif name in FOLDERS and not re.match(r"~|\w[\w+.-]*:", place):
            found[name] = str(Path(place).absolute())
    return found


def artifacts_uri(home: Path, uri: str) -> str | None:
    """Return where artifacts of a new experiment go; None: where the server likes.

    A store that is no server would put them into the current folder. MLFLOW_DEFAULT_ARTIFACT_ROOT names another
    place, as it does for MLflow's own server; else it is a folder under the home.
    """
    if is_server(uri):
        return None
    return os.environ.get("MLFLOW_DEFAULT_ARTIFACT_ROOT") or (store_folder(home) / "artifacts").as_uri()


def store_folder(home: Path) -> Path:
    """Return the folder of MLflow's files, made if missing."""
    folder = home.resolve() / "mlflow"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def is_server(uri: str) -> bool:
    """Is the store behind a server, which keeps artifacts where it likes?"""
    return uri.startswith(("http://", "https://"))


def import_mlflow() -> None:
    """Import MLflow, quickly and quietly; over a CPU second all the same, so only where something is published."""
    for name, value in CLIENT_SETTINGS.items():
        os.environ.setdefault(name, value)
    with quick_imports():
        import mlflow.store.tracking.sqlalchemy_store
        import mlflow.tracking  # noqa: F401
    for logger in ("mlflow", "alembic"):
        logging.getLogger(logger).setLevel(logging.WARNING)


def _make_store(folder: Path, store: Path) -> None:
    """Make an empty store as ``store``; called with the lock held."""
    import_mlflow()
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for rubble in folder.glob("mlflow.db.new*"):  # of a process that was killed here
        rubble.unlink()
    new = folder / "mlflow.db.new"
    made = SqlAlchemyStore(f"sqlite:///{new}", (folder / "artifacts").as_uri())  # type: ignore[no-untyped-call]
    made.engine.dispose()
    new.replace(store)
