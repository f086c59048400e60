"""The five flows. Each makes what it needs first, so any of them can be deployed on its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from prefect import flow
from pydantic import BeforeValidator

from flows.stages import all_stages, encoding_stages, explorer_stages, graph_stages
from flows.summary import RunSummary, summarise
from kgqa_core.config import RunConfig
from kgqa_core.config_file import read_config
from kgqa_core.pipeline import Pipeline
from tasks.publish import publish_run
from tasks.runtime import write_results_artifact


def _read_if_path(value: object) -> object:
    return read_config(Path(value)) if isinstance(value, str) else value


ConfigParameter = Annotated[RunConfig, BeforeValidator(_read_if_path)]
"""A run configuration, or the path of one: what a deployment's parameters in prefect.yaml can hold."""


@flow(name="build_graph", persist_result=False)
def build_graph(config: ConfigParameter) -> RunSummary:
    """Build graph shards and linked questions."""
    pipeline = Pipeline(config)
    return summarise(pipeline, graph_stages(pipeline))


@flow(name="encode", persist_result=False)
def encode(config: ConfigParameter) -> RunSummary:
    """Encode the distinct masked texts and the relations."""
    pipeline = Pipeline(config)
    return summarise(pipeline, encoding_stages(pipeline))


@flow(name="train_explorer", persist_result=False)
def train_explorer(config: ConfigParameter) -> RunSummary:
    """Train one explorer per seed."""
    pipeline = Pipeline(config)
    return summarise(pipeline, explorer_stages(pipeline))


@flow(name="evaluate", persist_result=False)
def evaluate(config: ConfigParameter) -> RunSummary:
    """Score the explorers beside their controls."""
    pipeline = Pipeline(config)
    return summarise(pipeline, all_stages(pipeline))


@flow(name="retrain", persist_result=False)
def retrain(config: ConfigParameter) -> RunSummary:
    """The whole flow: every stage, a results artifact, and the comparison in MLflow."""
    pipeline = Pipeline(config)
    summary = summarise(pipeline, all_stages(pipeline))
    write_results_artifact(summary.markdown)
    if config.tracking.enabled:
        publish_run(pipeline, summary.outcomes)
    return summary
