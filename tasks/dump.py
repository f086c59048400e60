"""Dump files to coded parts: one artifact per file, several files at once on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path

from kgqa_core.artifacts import JOURNAL
from kgqa_core.config import FileDataset, FreebaseSection
from kgqa_core.graph.dump.filters import NOISE_PREFIXES, DumpOptions
from kgqa_core.graph.dump.parse import DumpReport, Progress, parse_dump
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.tracking import Recorder
from tasks.cluster import MapTasks, chunk_mapper
from tasks.runtime import pipeline_task
from tasks.stage import StageOutcome, run_stage


@dataclass(frozen=True, slots=True)
class DumpFile:
    """One file to parse, as a worker is told of it."""

    path: Path
    out_dir: Path
    options: DumpOptions
    threads: int


def parse_file(file: DumpFile, progress: Progress | None = None) -> DumpReport:
    """Parse one file into its folder; what a killed worker had finished there is kept."""
    return parse_dump(
        file.path,
        file.out_dir,
        options=file.options,
        threads=file.threads,
        journal=file.out_dir / JOURNAL,
        progress=progress,
    )


@pipeline_task("parse dump", io=True)
def parse_dumps(pipeline: Pipeline, keys: Sequence[str]) -> list[StageOutcome]:
    """Parse dump files: one with a thread per worker in this process, many with a worker each."""
    paths = [path for key in keys for path in pipeline.specs[key].files.values()]
    if len(keys) == 1:  # one gzip stream has one reader; handing its text to other processes costs more than scanning
        return [_parse(pipeline, keys[0], map, threads=pipeline.config.cluster.workers)]
    with chunk_mapper(pipeline, paths, "parsing dumps") as map_files:
        if map_files is map:
            return [_parse(pipeline, key, map) for key in keys]
        with ThreadPoolExecutor(len(keys)) as pool:  # each waits for its worker
            futures = [pool.submit(copy_context().run, _parse, pipeline, key, map_files) for key in keys]
            return [future.result() for future in futures]


def _parse(pipeline: Pipeline, key: str, map_files: MapTasks, threads: int = 1) -> StageOutcome:
    (path,) = pipeline.specs[key].files.values()
    options = dump_options(pipeline)

    def progress(done: int, total: int) -> None:
        pipeline.progress(f"parsing {path.name}", done, total)

    def write(folder: Path, recorder: Recorder) -> None:
        file = DumpFile(path, folder, options, threads)
        (report,) = [parse_file(file, progress)] if map_files is map else map_files(parse_file, [file])
        recorder.metric("num_lines", report.num_lines)
        for outcome, count in report.lines.items():
            recorder.metric(f"lines.{outcome}", count)
        recorder.table("rejects", "rejects.parquet")

    return run_stage(pipeline, key, write)


def dump_options(pipeline: Pipeline) -> DumpOptions:
    """Return what of the configuration says how lines are read."""
    dataset = pipeline.config.dataset
    assert isinstance(dataset, FileDataset) and isinstance(dataset.graph, FreebaseSection)
    graph = dataset.graph
    return DumpOptions(
        language=graph.language,
        types_as_triples=graph.keep_types,
        noise=NOISE_PREFIXES if graph.noise is None else graph.noise,
        max_reject_ratio=graph.max_reject_ratio,
    )
