"""``kgqa view`` of a configuration: its report served on this machine, and following the run that makes it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from threading import Lock
from typing import Any

from flows.cli_compare import side_by_side_of
from flows.report import Beside, build, script
from flows.report_about import answered, beside_of, curves, overview_of, stored_comparison
from kgqa_core.errors import KgqaError, shorten
from kgqa_core.evaluation.runs import read_system_run
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.run.stages.systems import COMPARISON
from tasks.garbage import history_file, runs_at_work
from tasks.release import model_name

KEPT = 2  # versions: an open page still reads the one before
STATE = "/data/version.js"


class LivePages:
    """The report of a run, each version in a folder of its own: a page never reads data of two."""

    def __init__(self, pipeline: Pipeline, folder: Path) -> None:
        self.pipeline, self.folder = pipeline, folder
        self.versions: list[str] = []
        self._lock = Lock()

    def state(self) -> dict[str, Any]:
        """Return the version that is true now, after writing it if need be, what is still to be made, and who is at it.

        A system appears when it has answered, curves when their stage has ended; data, what the explorer walked and the
        stored comparison come at the end.
        """
        with self._lock:
            found: dict[str, Any] = {}
            keys = self.pipeline.needed_for([COMPARISON])
            missing = [key for key in keys if self.pipeline.find(key, found) is None]
            folders = [str(found[key].folder) for key in keys if key not in missing]
            name, home = self.pipeline.config.name, self.pipeline.home
            # A later run, and a move of the champion, are on the page too.
            told = (history_file(home, name), home / "releases" / model_name(name) / "moves.json")
            seen = [file.read_text(encoding="utf-8") for file in told if file.is_file()]
            version = hashlib.sha256("\0".join([*folders, *seen]).encode()).hexdigest()[:16]
            if version not in self.versions:
                self._write(version, missing)
            at_work = [run for run in runs_at_work(home) if run.startswith(f"{name} ")]
            return {"version": version, "missing": missing, "at_work": at_work}

    def _write(self, version: str, missing: Sequence[str]) -> None:
        runs, title = answered(self.pipeline), self.pipeline.config.name
        systems = stored_comparison(self.pipeline)
        if systems is None and runs:
            systems = side_by_side_of({title: [read_system_run(path, name) for name, path in runs]})
        if missing:  # what the data hold takes a while on large graphs: it comes once, at the end
            beside = Beside(overview_of(systems), {"tables": [], "curves": list(curves(self.pipeline))})
        else:
            beside = beside_of(self.pipeline, systems)
        beside.overview["live"] = version
        build(runs, self.folder / version, title=title, beside=beside)
        self.versions = [*self.versions, version][-KEPT:]
        for old in self.folder.iterdir():
            if old.name not in self.versions:
                shutil.rmtree(old, ignore_errors=True)


class LiveHandler(SimpleHTTPRequestHandler):
    """Serves a folder, or the versions of live pages: any other address leads to the latest."""

    timeout = 30  # seconds that a browser may say nothing: else each opened connection keeps its thread

    def __init__(self, *given: Any, folder: Path, pages: LivePages | None) -> None:
        self._pages = pages
        super().__init__(*given, directory=str(folder))

    def do_GET(self) -> None:
        """Answer with a file, or with the state of the run; to nobody who came by another name of this machine."""
        path = self.path.partition("?")[0]
        if self.headers.get("Host", "").partition(":")[0] not in ("127.0.0.1", "localhost"):
            self.send_error(403)
        elif self._pages is None or (path.split("/")[1] in self._pages.versions and not path.endswith(STATE)):
            super().do_GET()
        elif path.endswith((".js", ".css")) and not path.endswith(STATE):
            self.send_error(404)  # of a version that is gone
        else:
            self._tell(self._pages, as_script=path.endswith(STATE))

    def _tell(self, pages: LivePages, *, as_script: bool) -> None:
        """Answer with the state of the run, or lead to its latest version."""
        try:
            state = pages.state()
        except (KgqaError, OSError) as problem:  # an input or an artifact is gone: the page asks again
            self.send_error(500, explain=shorten(str(problem)))  # a status line holds no letter beyond Latin-1
            return
        body = script("version", state).encode() if as_script else b""
        self.send_response(200 if as_script else 302)
        self.send_header(*(("Content-Type", "text/javascript") if as_script else ("Location", f"/{state['version']}/")))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        """Let a browser keep nothing: a version may be written again. No other site may load the data as scripts."""
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a page asks every few seconds."""
