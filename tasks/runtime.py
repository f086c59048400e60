"""What every flow runs in: the retry policy of tasks, the locks of runs. Its server: server.py; Dask: cluster.py.

Importing this module does not import Prefect; each function imports what it needs when it is called.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from uuid import UUID

from kgqa_core.artifacts import Artifact, exclusive_lock
from kgqa_core.errors import KgqaError
from kgqa_core.run.pipeline import Pipeline, StageOutcome
from kgqa_core.run.stages import known_stages
from tasks.leftovers import flow_lock

if TYPE_CHECKING:
    from prefect import Task
    from prefect.client.schemas.objects import State, TaskRun

    from tasks.outbox import OpenNote

P = ParamSpec("P")
R = TypeVar("R")

IO_RETRIES = 2
TRAINING = "train_explorer/train"  # the deployment by which another pool trains
POOL_SECONDS = 5.0  # between two looks at that training
AGAIN_LOOKS = 24  # at one that its worker could not start: two minutes, in which the keeper schedules it again
NOT_STARTED = "Failed to submit flow run to infrastructure"  # a worker that could not reach Prefect, mostly
_log = logging.getLogger(__name__)


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import heavy packages inside this context: a third of their CPU time is garbage collection that frees nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()  # no gc.freeze: what is frozen is not freed at exit, and duckdb's bindings complain at length


def pipeline_task(
    name: str, *, io: bool = False, run_name: str | None = None
) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Return the decorator that makes a function a task of this pipeline.

    Prefect neither caches nor keeps what tasks return: the artifact store alone decides what is skipped. Only tasks
    marked ``io`` are tried again, and only after an ``OSError``: no other error of ours goes away by itself.
    """
    from prefect import task
    from prefect.cache_policies import NO_CACHE

    return task(
        name=name,
        task_run_name=run_name and run_name.replace("{", "{{").replace("}", "}}"),  # a file's name may hold braces
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=IO_RETRIES if io else 0,
        retry_delay_seconds=1,
        retry_condition_fn=_is_io_failure if io else None,
    )


def _is_io_failure(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    return isinstance(state.result(raise_on_failure=False), OSError)


def run_as_task(work: Callable[[], R], *, title: str, key: str, io: bool) -> R:
    """Do a piece of work as one Prefect task, whose run is called by the stage's key."""

    @pipeline_task(title, io=io, run_name=key)
    def stage() -> R:
        return work()

    return stage()


def show_cached(*, title: str, key: str, why: str) -> None:
    """Show a stage that had not to be made, as a task run in the state ``Cached``."""
    from prefect.states import Completed

    run_as_task(lambda: Completed(name="Cached", message=why), title=title, key=key, io=False)


class StageTasks:
    """Does the stages of a run as Prefect tasks, shows those that are there, and keeps the run's note up to date."""

    def __init__(self, note: OpenNote, check: Callable[[str], None] = lambda key: None) -> None:
        """``check`` is called after each piece of work, and may raise."""
        self._note, self._check = note, check
        self._has: dict[str, StageOutcome] = {}

    def begin(self, pipeline: Pipeline, goals: Iterable[str]) -> StageTasks:
        """Show what is there of the stages that are about to be made, and return what does the others."""
        self._pipeline = pipeline
        found: dict[str, Artifact | None] = {}
        with suppress(KgqaError):  # an input is missing or damaged: making the stages says so better
            for key in pipeline.needed_for(goals):
                there, has = pipeline.find(key, found), self._has.get(key)
                if there and (has is None or has.artifact.folder != there.folder):
                    self._show(StageOutcome(key, there, built=False))
        self._note.has(list(self._has.values()))
        return self

    def __call__(self, work: Callable[[], R], *, title: str, key: str, io: bool) -> R:
        """Do the work of one stage, or of several of a kind."""
        done = run_as_task(work, title=title, key=key, io=io)
        made: list[StageOutcome] = done if isinstance(done, list) else [done]  # type: ignore[list-item]
        for outcome in made:
            own = outcome.key in self._pipeline.specs and self._pipeline.find(outcome.key)
            if own and own.folder == outcome.artifact.folder:  # else it is of a run that this one depends on
                self._has[outcome.key] = outcome
        self._note.has(list(self._has.values()))
        self._check(key)
        return done

    def end(self, outcomes: Sequence[StageOutcome]) -> list[StageOutcome]:
        """Return the stages of the finished run, built where this run built them; show those that were there."""
        ended = []
        for outcome in outcomes:
            has = self._has.get(outcome.key)
            if has is None and not outcome.built:
                self._show(outcome)
            built_here = has and has.built and has.artifact.folder == outcome.artifact.folder
            ended.append(has if has and built_here else outcome)
        self._note.has(ended)
        return ended

    def _show(self, outcome: StageOutcome) -> None:
        self._has[outcome.key] = outcome
        folder = "/".join(outcome.artifact.folder.parts[-2:])
        stage = known_stages().get(outcome.artifact.recipe.stage)
        show_cached(title=stage.title if stage else outcome.key, key=outcome.key, why=f"is there: {folder}")


def mark_crashed(flow_run_id: str) -> None:
    """Let Prefect know that a flow's run, and what it was doing, ended with its process.

    Raises KgqaError, after a warning, where Prefect does not answer now.
    """
    from httpx import HTTPStatusError, TransportError
    from prefect import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Crashed

    ended: State[Any] = Crashed(message="Its process was killed, as the next run of this home found.")
    try:
        with get_client(sync_client=True) as client:
            run = client.read_flow_run(UUID(flow_run_id))
            if run.state is None or run.state.is_final() or run.state.is_scheduled():  # scheduled: it is tried again
                return
            mine = FlowRunFilter(id=FlowRunFilterId(any_=[run.id]))
            for task in client.read_task_runs(flow_run_filter=mine):
                if task.state is None or not task.state.is_final():
                    client.set_task_run_state(task.id, ended, force=True)
            client.set_flow_run_state(run.id, ended, force=True)
    except (ObjectNotFound, ValueError):
        pass  # it is of another server
    except Exception as problem:
        from tasks.mlflow_store import mask

        _log.warning("Prefect was not told that run %s was killed: %s", flow_run_id, mask(str(problem)))
        # What it refuses for good must not keep the note of the run from MLflow.
        busy = isinstance(problem, HTTPStatusError) and problem.response.is_server_error
        if busy or isinstance(problem, TransportError):
            raise KgqaError("Prefect does not answer") from problem


@contextmanager
def dataset_lock(home: Path, dataset: str, *, wait: bool) -> Iterator[None]:
    """Be the one run of a dataset in a home, after a wait if need be; KgqaError where that is not wanted.

    The kernel frees the lock with the process that holds it. A concurrency limit of Prefect's would stay taken for
    minutes after a kill.
    """
    folder = home / "run" / "datasets"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{dataset.replace('/', '-')}.lock"  # nothing else: two datasets have two locks
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive_lock(path, timeout=0))
        except KgqaError:
            busy = f"another run of the dataset {dataset} is at work: {path.read_text(encoding='utf-8').strip()}"
            if not wait:
                raise KgqaError(busy) from None
            _log.info("waiting, as %s", busy)
            stack.enter_context(exclusive_lock(path))
        yield


@contextmanager
def only_process(home: Path, run_id: str) -> Iterator[None]:
    """Be the one process of a flow run. Prefect may start a run twice; its second process ends here, and sets no state.

    Raises Prefect's ``Abort``. A disk that takes no lock is a warning.
    """
    from prefect.exceptions import Abort

    path = flow_lock(home, run_id)
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(exclusive_lock(path, timeout=0))
        except OSError as problem:
            _log.warning("a second process of this run would not be noticed: %s", problem)
        except KgqaError:
            raise Abort(f"this run is at work in another process: {path.read_text(encoding='utf-8').strip()}") from None
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def never_began(state: State[Any] | None) -> bool:
    """Say whether a run has crashed because its worker could not start it: the keeper schedules such a run again."""
    return state is not None and state.is_crashed() and str(state.message).startswith(NOT_STARTED)


def train_in_pool(config: Path, pool: str, *, home: Path, counts_for: str | None = None) -> None:
    """Let a worker of another pool train a run's explorers, in this home; where none would, warn and do nothing.

    ``counts_for``: the run whose caps it has a share in. Raises CapReached where it takes more than it may, KgqaError
    where it does not end well otherwise, such as with its process.
    """
    from prefect import get_client
    from prefect.deployments import run_deployment
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Cancelled, Cancelling

    from tasks.caps import CapReached
    from tasks.outbox import end_killed

    def has_worker() -> bool:
        with suppress(ObjectNotFound):
            client.read_work_pool(pool)
            return any(worker.status == "ONLINE" for worker in client.read_workers_for_work_pool(pool))
        return False

    nobody = f"no worker of the pool {pool} is alive: the explorers are trained here"
    with get_client(sync_client=True) as client:
        if not has_worker():
            _log.warning(nobody)
            return
        its_pool = None
        with suppress(ObjectNotFound):
            its_pool = client.read_deployment_by_name(TRAINING).work_pool_name
        if its_pool != pool:  # it would wait there for a worker, perhaps for ever
            _log.warning("%s is of the pool %s, not of %s: the explorers are trained here", TRAINING, its_pool, pool)
            return
        run = run_deployment(TRAINING, parameters={"config": str(config), "counts_for": counts_for}, timeout=0)
        looks = AGAIN_LOOKS
        try:
            while run.state is None or not run.state.is_final() or (never_began(run.state) and looks):
                time.sleep(POOL_SECONDS)
                end_killed(home, mark_crashed)  # nobody else may look after what that machine lost
                run = client.read_flow_run(run.id)
                looks = looks - 1 if never_began(run.state) else AGAIN_LOOKS
                waits = run.state is None or run.state.is_scheduled() or run.state.is_pending()
                if (waits or never_began(run.state)) and not has_worker():  # its last one may never come back
                    client.set_flow_run_state(run.id, Cancelled(message=nobody), force=True)
                    _log.warning(nobody)
                    return
        except BaseException as stopped:
            if not isinstance(stopped, Exception):  # a signal, as when this run is cancelled: nobody waits for it now
                with suppress(Exception):  # Prefect may be away; the signal counts
                    client.set_flow_run_state(run.id, Cancelling(message="the run that waited for it was stopped"))
            raise
    if not run.state.is_completed():
        _, capped, why = str(run.state.message).partition(f"{CapReached.__name__}: ")
        if capped:
            raise CapReached(why)
        raise KgqaError(
            f"training in the pool {pool} ended as {run.state_name}: see the flow run {run.name!r} in Prefect"
        )
