"""Running a flow here and now, with a Prefect server for as long as it takes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

from flows.summary import RunSummary
from kgqa_core.artifacts import DIGITS
from kgqa_core.config import RunConfig
from kgqa_core.config_file import config_hash
from kgqa_core.run.pipeline import Pipeline
from tasks.release import releases_of, resolve_start

if TYPE_CHECKING:
    from flows.pipeline import SweepSummary
    from tasks.sweep_points import Sweep

FlowName = Literal["build_graph", "encode", "train_explorer", "evaluate", "train_reasoner", "retrain", "make_stages"]
_log = logging.getLogger(__name__)


def run_flow(name: FlowName, config: RunConfig, **options: Any) -> RunSummary:
    """Run one flow of a configuration, with what options it has. Raises what its stages raise."""
    from tasks.server import prefect_server

    _log.info("configuration %s, hash %s", config.name, config_hash(config)[:DIGITS])
    _log.debug("resolved: %s", config.model_dump_json())
    if name == "retrain" and config.gate is not None:
        releases_of(config)  # ConfigError before anything runs
    Pipeline(resolve_start(config)[0])
    with prefect_server(config.runtime.home):
        from flows import pipeline as flows

        flow: Callable[..., RunSummary] = getattr(flows, name)
        return flow(config, **options)


def run_sweep(sweep: Sweep, overrides: Iterable[str] = ()) -> SweepSummary:
    """Run all points of a sweep, on one Prefect server, and compare them. Raises what its stages raise."""
    from tasks.server import prefect_server

    for point in sweep.points:  # ConfigError before anything runs
        Pipeline(resolve_start(point.config)[0])
    path = sweep.path.absolute()  # a run has another current folder
    with prefect_server(sweep.home):
        from flows import pipeline as flows

        return flows.sweep(path, list(overrides))
