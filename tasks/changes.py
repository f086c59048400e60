"""What differs between a new build and the last accepted one, kept as an artifact: so it is found once, and shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core.artifacts import Artifact, Recipe, write_json
from kgqa_core.questions.diff import Build, BuildDiff, compare_builds
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.tracking import Recorder, write_record
from tasks.runtime import pipeline_task
from tasks.stage import StageOutcome

STAGE = "changes"
VERSION = 1  # raised whenever the same builds would give other tables
DOCUMENT, RELATIONS, QUESTIONS = "changes.json", "relations.parquet", "questions.parquet"


@pipeline_task("compare builds")
def compare_with_last(pipeline: Pipeline, last: Mapping[str, Artifact], now: Mapping[str, Artifact]) -> StageOutcome:
    """Write what differs between two builds, each its stages' artifacts, unless it is there."""
    hops = pipeline.config.exploration.steps
    builds = {"last": last, "now": now}
    inputs = {f"{when} {key}": artifact.content for when, build in builds.items() for key, artifact in build.items()}
    recipe = Recipe(STAGE, VERSION, {"hops": hops}, inputs)

    def write(folder: Path) -> None:
        recorder = Recorder(STAGE)
        diff, questions = compare_builds(_build(last), _build(now), hops=hops)
        write_json(folder / DOCUMENT, asdict(diff))
        pq.write_table(_relations(diff), folder / RELATIONS, compression="zstd")
        pq.write_table(questions, folder / QUESTIONS, compression="zstd")
        _record(diff, recorder)
        write_record(folder, recorder.record(recipe.fingerprint))

    artifact, built = pipeline.store.build(recipe, write)
    pipeline.remember(STAGE, artifact)
    return StageOutcome(STAGE, artifact, built)


def read_diff(artifact: Artifact) -> BuildDiff:
    """Return what ``compare_with_last`` found."""
    from pydantic import TypeAdapter

    return TypeAdapter(BuildDiff).validate_json((artifact.folder / DOCUMENT).read_bytes())


def _build(artifacts: Mapping[str, Artifact]) -> Build:
    subgraphs = artifacts.get("subgraphs")
    return Build(artifacts["graph"].folder, artifacts["questions"].folder, subgraphs.folder if subgraphs else None)


def _relations(diff: BuildDiff) -> pa.Table:
    rows = [{"relation": label, **asdict(change)} for label, change in diff.graph.per_relation.items()]
    counts = [(name, pa.int64()) for name in ("before", "after", "came", "gone")]
    return pa.Table.from_pylist(rows, schema=pa.schema([("relation", pa.string()), *counts]))


def _record(diff: BuildDiff, recorder: Recorder) -> None:
    graph = diff.graph
    sets = {"triples": graph.triples, "entities": graph.entities, "relations": graph.relations}
    for name, change in {**sets, "questions": diff.questions}.items():
        recorder.metric(f"{name}_in", change.came)
        recorder.metric(f"{name}_out", change.gone)
    recorder.metric("entities_renamed", graph.num_renamed)
    recorder.metric("questions_reworded", diff.num_reworded)
    recorder.metric("subgraphs_changed", diff.num_subgraphs_changed)
    for row in diff.coverage:
        recorder.metric(f"coverage_gained.{row.split}.{row.hops or 'all'}", row.any_after - row.any_before)
