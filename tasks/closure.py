"""Coded parts of a dump to the graph that the questions' topics reach."""

from __future__ import annotations

import shutil
from pathlib import Path

from kgqa_core.config import FreebaseSection
from kgqa_core.config_base import size_in_bytes
from kgqa_core.graph.closure.closure import build_from_dump
from kgqa_core.graph.closure.options import ClosureLimits, ClosureOptions
from kgqa_core.graph.dump.names import labels_named
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.run.stages import DUMP
from kgqa_core.tracking import Recorder
from tasks.cluster import chunk_mapper
from tasks.stage import StageOutcome, run_stage
from tasks.topics import topics_of


def build_closure_graph(pipeline: Pipeline, source: FreebaseSection) -> StageOutcome:
    """Follow the topics through the dump; number, sort and index what they reach."""
    dumps = [pipeline.artifact(key).folder for key in pipeline.specs if key.startswith(DUMP)]
    memory_limit = pipeline.config.runtime.memory_limit

    def write(folder: Path, recorder: Recorder) -> None:
        spill = folder / "spill"
        spill.mkdir()
        asked = [] if source.hops is None else topics_of(pipeline)
        named = labels_named(asked, dumps, memory_limit=memory_limit, temp_directory=spill)
        topics = sorted({label for topic in asked for label in (topic, *named.get(topic, ()))})
        parts = [path for dump in dumps for path in dump.glob("triples-*.parquet")]
        with chunk_mapper(pipeline, parts, "building the closure") as map_tasks:
            report = build_from_dump(
                dumps,
                topics,
                folder,
                options=ClosureOptions(hops=source.hops, cvt_is_hop=source.cvt_is_hop, hub_cap=source.hub_cap),
                limits=ClosureLimits(map_tasks, size_in_bytes(memory_limit), temp_directory=spill),
            )
        shutil.rmtree(spill)
        for name in ("num_entities", "num_relations", "num_triples", "num_topics_missing", "num_hubs", "num_named"):
            recorder.metric(name, getattr(report, name))

    return run_stage(pipeline, "graph", write)
