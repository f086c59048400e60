"""Triples to a built graph: Parquet shards and a memory-mapped CSR."""

from __future__ import annotations

from pathlib import Path

from kgqa_core.config import EmbeddedDataset, FreebaseSection, GraphSection
from kgqa_core.graph.build import BuildLimits, build_graph
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.tracking import Recorder
from tasks.cluster import chunk_mapper
from tasks.questions import question_paths
from tasks.runtime import pipeline_task
from tasks.stage import StageOutcome, run_stage


@pipeline_task("build graph", io=True)
def build_graph_shards(pipeline: Pipeline) -> StageOutcome:
    """Parse, encode, sort and index the triples."""
    source = graph_source(pipeline)
    if isinstance(source, FreebaseSection):
        from tasks.closure import build_closure_graph

        return build_closure_graph(pipeline, source)
    files = [source.path] if source.path else question_paths(pipeline)

    def write(folder: Path, recorder: Recorder) -> None:
        with chunk_mapper(pipeline, files, "parsing triples") as map_chunks:
            report = build_graph(
                files,
                format=source.format,
                out_dir=folder,
                names=source.names,
                max_reject_ratio=source.max_reject_ratio,
                inverse_suffix=source.inverse_suffix,
                limits=BuildLimits(map_chunks, memory_limit=pipeline.config.runtime.memory_limit),
            )
        for name in ("num_entities", "num_relations", "num_triples", "num_duplicates", "num_rejects"):
            recorder.metric(name, getattr(report, name))
        recorder.metric("num_given_inverses", len(report.inverses))
        recorder.table("rejects", "rejects.parquet")

    return run_stage(pipeline, "graph", write)


def graph_source(pipeline: Pipeline) -> GraphSection | FreebaseSection:
    """Return where the triples are: the user's files, or those of the embedded dataset."""
    dataset = pipeline.config.dataset
    if not isinstance(dataset, EmbeddedDataset):
        return dataset.graph
    made = pipeline.artifact("dataset").folder
    return GraphSection(format="tsv", path=made / "triples.tsv", names=made / "names.tsv", max_reject_ratio=0.0)
