"""The subgraph of each question, side by side in one graph of rows."""

from __future__ import annotations

from pathlib import Path

from kgqa_core.graph.subgraph_build import build_subgraphs
from kgqa_core.pipeline import Pipeline
from kgqa_core.tracking import Recorder
from kgqa_core.workspace import graph_of
from tasks.cluster import chunk_mapper
from tasks.questions import question_paths, question_source
from tasks.runtime import pipeline_task
from tasks.stage import StageOutcome, run_stage


@pipeline_task("build subgraphs", io=True)
def build_question_subgraphs(pipeline: Pipeline) -> StageOutcome:
    """Cut the triples of each question out of its file."""
    files = question_paths(pipeline)

    def write(folder: Path, recorder: Recorder) -> None:
        with chunk_mapper(pipeline, files, "packing subgraphs") as map_chunks:
            report = build_subgraphs(
                files,
                graph=graph_of(pipeline),
                out_dir=folder,
                format="rog" if question_source(pipeline).format == "rog" else "nsm",
                map_chunks=map_chunks,
            )
        for name in ("num_subgraphs", "num_with_answer", "num_empty", "num_rows", "num_triples", "largest"):
            recorder.metric(name, getattr(report, name))

    return run_stage(pipeline, "subgraphs", write)
