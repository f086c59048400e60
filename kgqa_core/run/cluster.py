"""The Dask cluster of a run, a local one for as long as it is needed or one that is there, and tasks mapped over it.

Importing this module does not import Dask: a run whose input is small never pays for it. Local workers load it when
they start.
"""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from kgqa_core.addresses import mount_of
from kgqa_core.artifacts import written_whole
from kgqa_core.config import ClusterSection
from kgqa_core.errors import KgqaError, shorten
from kgqa_core.types import MapTasks

if TYPE_CHECKING:
    from distributed import Client

    from kgqa_core.run.pipeline import Pipeline

Item = TypeVar("Item")
Result = TypeVar("Result")

POLL_SECONDS = 5.0  # between two looks at whether there still is a worker
PATIENCE_SECONDS = 120.0  # without any worker; a killed one is back within a few
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
WORKER_ENVIRONMENT = {**ONE_THREAD, "PYTHONSAFEPATH": "1", "MALLOC_TRIM_THRESHOLD_": "65536"}
SETTINGS = {
    "distributed.nanny.pre-spawn-environ": WORKER_ENVIRONMENT,  # before the interpreter starts: later is too late
    # A worker above a share of its memory would be paused. What Arrow and numba hold is not freed by waiting, so it
    # would be paused for ever. It works on, and is ended where it outgrows the limit.
    "distributed.worker.memory.pause": False,
    "distributed.worker.preload": [__name__],
    # Dask looks this long after every loss of a worker whether there is one of that name, and else closes its nanny
    # for good. Where that moment falls into the restart after a later loss, the worker would never come back.
    "distributed.deploy.lost-worker-timeout": "365 days",
    "distributed.comm.timeouts.connect": "300s",  # a machine that is busy with something else starts workers slowly
}


def dask_setup(worker: Any) -> None:
    """Leave Ctrl-C, which a terminal sends to workers as well, to the process that started them: it ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Where it ends them in the middle of a task, that is no news.
    logging.getLogger("distributed.worker.state_machine").setLevel(logging.ERROR)


@contextmanager
def chunk_mapper(pipeline: Pipeline, files: Sequence[Path], what: str = "on the cluster") -> Iterator[MapTasks]:
    """Yield ``map`` where ``files`` are small, else a mapping over a Dask cluster whose progress is called ``what``."""
    cluster = pipeline.config.cluster
    if sum(path.stat().st_size for path in files if path.is_file()) <= cluster.fan_out_bytes:
        yield map
        return
    with open_cluster(cluster, home=pipeline.home) as client:
        yield fan_out(client, progress=lambda done, total: pipeline.progress(what, done, total))


@contextmanager
def open_cluster(cluster: ClusterSection, *, home: Path, timeout: float = 30.0) -> Iterator[Client]:
    """Yield a client of a local Dask cluster that ends with the context, or of that at ``cluster.address``.

    Local workers are processes of one thread each (one OpenMP thread, too: else they fight for cores). Raises
    ``KgqaError`` where no scheduler answers at the address within ``timeout`` seconds, where it has no worker, or
    where a worker sees another folder under the path of ``home``.
    """
    logging.getLogger("distributed").setLevel(logging.WARNING)
    if cluster.address is not None:
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # a lost scheduler is told by fan_out
        with _remote_client(cluster, home, timeout) as client:
            yield client
        return
    import dask
    from distributed import Client, LocalCluster

    with (
        dask.config.set(SETTINGS),
        LocalCluster(
            n_workers=cluster.workers,
            threads_per_worker=1,
            memory_limit=cluster.memory_limit,
            local_directory=str(cluster.spill_folder or home / "run" / "dask"),
            host="127.0.0.1",
            security=True,  # certificates of this cluster's own: who can send a task runs code
            # No dashboard; the scheduler's own port for health checks is any free one, not always the same.
            scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            silence_logs=logging.WARNING,
        ) as local,
        Client(local) as client,
    ):
        yield client


@contextmanager
def _remote_client(cluster: ClusterSection, home: Path, timeout: float) -> Iterator[Client]:
    from distributed import Client
    from distributed.security import Security

    address, files = cluster.address, (cluster.tls_ca, cluster.tls_cert, cluster.tls_key)
    names = ("tls_ca_file", "tls_client_cert", "tls_client_key")
    tls = dict(zip(names, map(str, files), strict=True)) if cluster.tls_ca else {}
    try:
        opened = Client(address, timeout=timeout, security=Security(require_encryption=True, **tls) if tls else None)
    except (OSError, ValueError) as problem:
        cure = "Start one with `dask scheduler`, or leave the address out to use a local cluster."
        raise KgqaError(f"cluster.address: no Dask scheduler answers at {address!r} ({problem}). {cure}") from problem
    with opened as client:
        try:
            client.wait_for_workers(1, timeout=timeout)
        except TimeoutError as problem:
            idle = f"the scheduler at {address!r} has had no worker for {timeout:.0f} s"
            raise KgqaError(f"cluster.address: {idle}. Start some with `dask worker {address}`.") from problem
        (home / "run").mkdir(parents=True, exist_ok=True)
        token = home / "run" / f"cluster-{uuid4().hex}"
        with written_whole(token) as partial:
            partial.write_text(token.name, encoding="utf-8")
        try:
            _check_home(client, home, token)
            yield client
            if client.status == "running":
                _check_home(client, home, token)  # a worker may have come meanwhile
        finally:
            token.unlink(missing_ok=True)


def _check_home(client: Client, home: Path, token: Path) -> None:
    """Raise KgqaError unless every worker reads there what was written here: a path alone may be of another disk."""
    for worker, (host, read, disk) in client.run(_read_token, str(token)).items():
        if read != token.name:
            raise KgqaError(
                f"cluster.address: worker {worker} on {host} does not see the run's home: its {home} is {disk}. "
                "Workers read and write the run's files: mount KGQA_HOME and the input files under the same paths on "
                "every machine. Nothing was published."
            )


def _read_token(token: str) -> tuple[str, str, str]:
    """Return a worker's host, what it reads in a file, and the disk on which the nearest folder of the file lies."""
    path = Path(token)
    existing = next(folder for folder in path.parents if folder.exists())
    disk = "not there" if existing != path.parent else "another disk"
    device, place, _ = mount_of(existing)
    disk += f" ({device} mounted on {place})" if device else ""
    try:
        return socket.gethostname(), path.read_text(encoding="utf-8"), disk
    except OSError:
        return socket.gethostname(), "", disk


# ------ Mapping tasks over a cluster.
#
# A task is an importable function of one item. Its results are files, each written under another name and renamed once
# it is whole (``artifacts.written_whole``), and a small report: so a task that runs twice, because its worker died or
# was only thought to, changes nothing.


def fan_out(
    client: Any,
    *,
    progress: Callable[[int, int], None] | None = None,
    arrived: Callable[[Any], None] = lambda result: None,
) -> Callable[[Callable[[Item], Result], Iterable[Item]], list[Result]]:
    """Return a stand-in for ``map`` that runs on the workers of a ``distributed.Client`` and keeps the items' order.

    Workers must see the same folders under the same paths. Items are taken when a worker is free for them, so there
    may be any number. A killed worker costs only its task, and results on their way from there to here: milliseconds
    after they were made. ``arrived`` gets each result; ``progress`` is told where the number of items is known.

    A failure is raised here and cancels what still waits. Raises KgqaError where a task's workers were killed time
    after time, with the item's name, and where there has been no worker for ``PATIENCE_SECONDS``.
    """
    slots = _Slots(client)

    def map_tasks(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        total = len(items) if isinstance(items, Sized) else None
        name = str(getattr(getattr(function, "func", function), "__name__", "task"))
        numbered = enumerate(items)
        upcoming = next(numbered, None)
        running: dict[Any, tuple[int, Item]] = {}
        results: dict[int, Result] = {}
        try:
            while upcoming is not None or running:
                while upcoming is not None and slots.take(wait=not running):
                    key = f"{name}-{uuid4().hex[:8]}-{upcoming[0]}-{name_of(upcoming[1])}"
                    running[client.submit(function, upcoming[1], key=key, pure=False)] = upcoming
                    upcoming = next(numbered, None)
                for future in _wait_for_some(client, list(running)):
                    number, item = running[future]
                    results[number] = _result_of(future, name, item)
                    del running[future]
                    future.release()  # else a worker that dies later would have its result to make again
                    slots.give(1)
                    arrived(results[number])
                    if progress is not None and total is not None:
                        progress(len(results), total)
        finally:
            slots.give(len(running))
            with suppress(OSError):  # a scheduler that is gone has forgotten them
                client.cancel(list(running))
        return [results[number] for number in range(len(results))]

    return map_tasks


class _Slots:
    """No more tasks at once than the cluster has threads, whoever asks.

    A task that waits behind another on the same worker would be blamed, too, where that one kills the worker.
    """

    def __init__(self, client: Any) -> None:
        self._client, self._taken, self._freed = client, 0, threading.Condition()

    def take(self, *, wait: bool) -> bool:
        """Take a slot; where none is free, wait for one or return False. Workers may come and go meanwhile."""
        while True:
            with _scheduler_lost():
                num_threads = max(1, sum(self._client.nthreads().values()))
            with self._freed:
                if self._taken < num_threads:
                    self._taken += 1
                    return True
                if not wait:
                    return False
                self._freed.wait(POLL_SECONDS)

    def give(self, count: int) -> None:
        with self._freed:
            self._taken -= count
            self._freed.notify_all()


def name_of(item: object) -> str:
    """Return what an item is called in errors and on Dask's pages: its path, or what it says of itself."""
    named = item if isinstance(item, str | Path) else getattr(item, "name", None) or getattr(item, "path", None)
    return str(named) if isinstance(named, str | Path) else shorten(item)


def _wait_for_some(client: Any, futures: list[Any]) -> Iterable[Any]:
    from distributed import wait

    alive = monotonic()
    while True:
        with _scheduler_lost():
            try:
                return list(
                    wait(futures, timeout=min(POLL_SECONDS, PATIENCE_SECONDS), return_when="FIRST_COMPLETED").done
                )
            except TimeoutError:
                if client.nthreads():
                    alive = monotonic()
        if monotonic() - alive > PATIENCE_SECONDS:
            raise KgqaError(
                f"the Dask cluster has had no worker for {PATIENCE_SECONDS:.0f} s, and {len(futures)} tasks wait. "
                "Start workers that come back when they die (`dask worker` with its nanny, as by default), then run "
                "again: finished stages are kept."
            )


def _result_of(future: Any, function: str, item: object) -> Any:
    from distributed.scheduler import KilledWorker

    with _scheduler_lost():
        try:
            return future.result()
        except KilledWorker as problem:
            raise KgqaError(
                f"{name_of(item)}: every one of the {problem.allowed_failures + 1} workers that tried {function!r} on "
                "it was killed, most often for want of memory. Give each worker more (cluster.memory_limit), with "
                "fewer of them if need be (cluster.workers), then run again: finished stages are kept."
            ) from problem


@contextmanager
def _scheduler_lost() -> Iterator[None]:
    from distributed.comm.core import CommClosedError

    try:
        yield
    except (CancelledError, CommClosedError) as problem:
        raise KgqaError(
            "the Dask scheduler went away or dropped the tasks of this run. See that it runs (cluster.address), then "
            "run again: finished stages are kept."
        ) from problem
