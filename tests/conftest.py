"""What all tests share: no settings of the developer's, no network, a home of their own, one small built run."""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from filelock import FileLock
from hypothesis import settings

from kgqa_core.config import RunConfig
from kgqa_core.config_file import read_config
from kgqa_core.graph.build import build_graph
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.run.ensure import ensure
from kgqa_core.run.pipeline import Pipeline

PROJECT = Path(__file__).resolve().parents[1]

# Sizes are small and distinct primes where they can be: a swapped axis fails.
TINY_RUN = """\
dataset: {name: tiny, source: embedded, seed: 0}
encoder: {kind: hash, dim: 31}
explorer: {steps: 2, width: 7, edge_budget: 5, epochs: 1, batch_size: 257}
tracking: {enabled: false}
"""

# A run on files of one's own, which lie beside it.
TOWNS = """\
dataset:
  name: towns
  source: files
  graph: {format: tsv, path: triples.tsv}
  questions: {format: jsonl, path: questions.jsonl}
encoder: {kind: hash}
explorer: {steps: 2, edge_budget: 10, epochs: 1}
"""

Start = Callable[..., "subprocess.Popen[str]"]
"""(code, *arguments): start Python on ``code``."""
Build = Callable[[Pipeline], list[str]]
Shared = Callable[[str], Path]


def pytest_configure(config: pytest.Config) -> None:
    """Forget the developer's own servers and stores, before Prefect and MLflow read their settings; draw no chances."""
    num_examples = 100 if os.environ.get("CI") else 30  # of each property that does not say how many it takes
    settings.register_profile("same-every-time", derandomize=True, deadline=None, max_examples=num_examples)
    settings.load_profile("same-every-time")
    for name in [name for name in os.environ if name.startswith(("PREFECT_", "MLFLOW_"))]:
        del os.environ[name]
    prefect_home = tempfile.mkdtemp(prefix="kgqa-tests-")
    config.add_cleanup(lambda: shutil.rmtree(prefect_home, ignore_errors=True))
    os.environ |= {"PREFECT_HOME": prefect_home, "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    # A shell starts what runs in the background with Ctrl-C ignored, and children inherit that; tests that send it to
    # theirs must mean something there too.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Leave what importing made out of every later collection of garbage: a full one, which training asks for each
    time, would look at millions of objects of other libraries again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let it go like any other garbage: libraries in C++ report what is still there at the end."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path) -> Iterator[Path]:
    """Let every test have a KGQA_HOME that no other test, and no user, has, and take back what it does to the others.

    A command that is called in this process sets variables for its children, which later tests must not see.
    """
    # Not dict(os.environ): MLflow's threads may take a variable away meanwhile.
    before = {name: value for name in list(os.environ) if (value := os.environ.get(name)) is not None}
    os.environ["KGQA_HOME"] = str(tmp_path / "kgqa-home")
    yield tmp_path / "kgqa-home"
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """Return a function that makes a folder which all workers have in common: what one of them made is there."""
    root = tmp_path_factory.getbasetemp()

    def folder(name: str) -> Path:
        found = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / f"shared-{name}"
        found.mkdir(exist_ok=True)
        return found

    return folder


@pytest.fixture(scope="session")
def tiny_config(shared: Shared, build_stages: Build) -> RunConfig:
    """The embedded dataset, hashed texts and a very small explorer: a run with all stages built. Leave it as it is."""
    file = shared("tiny") / "tiny.yaml"
    with FileLock(file.with_suffix(".lock")):  # once: another worker may be copying the home meanwhile
        if not (made := file.with_suffix(".made")).exists():
            build_stages(open_run(file, TINY_RUN))
            made.touch()
    return read_config(file, [f"runtime.home={file.parent / 'home'}"])


@pytest.fixture
def tiny_copy(tiny_config: RunConfig, tmp_path: Path) -> RunConfig:
    """A copy of the built run that a test may damage."""
    home = tmp_path / "tiny-home"
    shutil.copytree(tiny_config.runtime.home, home)
    return with_home(tiny_config, home)


@pytest.fixture(scope="session")
def prefect_folder(shared: Shared) -> Path:
    """What a Prefect server leaves in a home: above all its database, which takes longer to make than a small run."""
    from tasks.server import prefect_server

    home = shared("prefect")
    with FileLock(home.with_suffix(".lock")):
        if not (home / "made").exists():
            with prefect_server(home):
                pass
            (home / "made").touch()
    return home / "prefect"


@pytest.fixture(scope="session")
def wikimovies(tmp_path_factory: pytest.TempPathFactory) -> KnowledgeGraph:
    """The graph of MetaQA, for tests marked realdata."""
    folder = tmp_path_factory.mktemp("wikimovies")
    build_graph(Path(os.environ["KGQA_DATA"]) / "metaqa" / "kb.txt", format="wikimovies", out_dir=folder)
    return open_graph(folder)


@pytest.fixture
def used_home(prefect_folder: Path, tmp_path: Path) -> Path:
    """A home in which a Prefect server has run, and nothing else."""
    shutil.copytree(prefect_folder, tmp_path / "home" / "prefect")
    return tmp_path / "home"


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python on some code that may import ours; what is still running at the test's end is killed."""
    children: list[subprocess.Popen[str]] = []

    def start_child(code: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
        environment = os.environ | {"PYTHONPATH": str(PROJECT), "PYTHONSAFEPATH": "1"} | options.pop("env", {})
        command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        child = subprocess.Popen(command, env=environment, text=True, **streams)
        children.append(child)
        return child

    yield start_child
    for child in children:
        if child.poll() is None:
            child.kill()
        child.communicate()


@pytest.fixture(scope="session")
def build_stages() -> Build:
    """Build what a run lacks, stage by stage but without Prefect, and return the keys of what was built."""

    def build(pipeline: Pipeline) -> list[str]:
        return [outcome.key for outcome in ensure(pipeline, pipeline.specs) if outcome.built]

    return build


def with_home(config: RunConfig, home: Path) -> RunConfig:
    """Return the same run with its artifacts elsewhere."""
    return config.model_copy(update={"runtime": config.runtime.model_copy(update={"home": home})})


def open_run(path: Path, text: str, *settings: str) -> Pipeline:
    """Write a run file and open it, with its home beside it unless a setting says another."""
    path.write_text(text, encoding="utf-8")
    return Pipeline(read_config(path, [f"runtime.home={path.parent / 'home'}", *settings]))


def kgqa(*arguments: object, **options: Any) -> Any:
    """Call the command in this process; return its exit code and what it printed, as typer's runner gives them."""
    from typer.testing import CliRunner

    from flows.cli import app

    return CliRunner().invoke(app, [*map(str, arguments)], **options)


def write_jsonl(path: Path, rows: Iterable[object]) -> Path:
    """Write a row per line and return the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


S3_ENVIRONMENT = {  # made up
    "AWS_ACCESS_KEY_ID": "AKIANOBODYHASTHIS",
    "AWS_SECRET_ACCESS_KEY": "nobody-has-this-secret",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass(frozen=True)
class Bucket:
    """A bucket of the server, and what a test does to it."""

    name: str
    files: Any  # pyarrow's file system

    def address(self, key: str) -> str:
        return f"s3://{self.name}/{key}"

    def put(self, key: str, content: bytes) -> None:
        with self.files.open_output_stream(f"{self.name}/{key}", compression=None) as out:
            out.write(content)

    def get(self, key: str) -> bytes:
        with self.files.open_input_stream(f"{self.name}/{key}", compression=None) as source:
            return bytes(source.read())

    def keys(self, prefix: str = "") -> list[str]:
        from pyarrow.fs import FileSelector, FileType

        found = self.files.get_file_info(FileSelector(f"{self.name}/{prefix}", recursive=True))
        return sorted(one.path.removeprefix(f"{self.name}/") for one in found if one.type == FileType.File)

    def delete(self, key: str) -> None:
        self.files.delete_file(f"{self.name}/{key}")


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """A server that speaks S3, on a port of this machine; it keeps objects in memory."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty bucket, which the environment has the endpoint and the keys of."""
    from pyarrow.fs import S3FileSystem

    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server)
    server = S3FileSystem(scheme="http", endpoint_override=s3_server.partition("://")[2], allow_bucket_creation=True)
    name = f"bucket-{uuid4().hex[:12]}"
    server.create_dir(name)
    return Bucket(name, server)
