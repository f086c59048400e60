"""The subgraph of each question, side by side in one graph of rows: as its file gives it, or cut from the graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kgqa_core.config import FileDataset, SubgraphSection
from kgqa_core.graph.subgraph_build import SubgraphReport, build_subgraphs
from kgqa_core.graph.subgraph_cut import Cut, cut_subgraphs
from kgqa_core.run.open import graph_of
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.tracking import Recorder
from tasks.cluster import chunk_mapper
from tasks.questions import question_paths, question_section
from tasks.runtime import pipeline_task
from tasks.stage import StageOutcome, run_stage

FIGURES = ("num_subgraphs", "num_with_answer", "num_empty", "num_rows", "num_triples", "largest")
FIGURES_OF_CUTS = ("num_stopped", "num_capped")


@pipeline_task("build subgraphs", io=True)
def build_question_subgraphs(pipeline: Pipeline) -> StageOutcome:
    """Take the triples of each question from its file, or cut them out of the graph."""
    dataset = pipeline.config.dataset
    section = dataset.subgraphs if isinstance(dataset, FileDataset) else SubgraphSection()
    make: Callable[[Pipeline, Path], SubgraphReport] = cut_from_graph if section.is_cut else take_from_files

    def write(folder: Path, recorder: Recorder) -> None:
        report = make(pipeline, folder)
        for name in (*FIGURES, *(FIGURES_OF_CUTS if section.is_cut else ())):
            recorder.metric(name, getattr(report, name))

    return run_stage(pipeline, "subgraphs", write)


def take_from_files(pipeline: Pipeline, folder: Path) -> SubgraphReport:
    """Pack what the question files hold."""
    files = question_paths(pipeline)
    format = "rog" if question_section(pipeline).format == "rog" else "nsm"
    with chunk_mapper(pipeline, files, "packing subgraphs") as map_chunks:
        return build_subgraphs(files, graph=graph_of(pipeline), out_dir=folder, format=format, map_chunks=map_chunks)


def cut_from_graph(pipeline: Pipeline, folder: Path) -> SubgraphReport:
    """Cut the neighbourhoods of the questions' topics."""
    graph = graph_of(pipeline)
    with chunk_mapper(pipeline, sorted(graph.folder.glob("*.npy")), "cutting subgraphs") as map_buckets:
        return cut_subgraphs(
            pipeline.artifact("questions").folder,
            graph=graph,
            cut=cut_of(pipeline),
            out_dir=folder,
            map_buckets=map_buckets,
        )


def cut_of(pipeline: Pipeline) -> Cut:
    """Return what the configuration says a question's subgraph is; the defaults where it says nothing of cutting."""
    dataset = pipeline.config.dataset
    if not isinstance(dataset, FileDataset) or not dataset.subgraphs.is_cut:
        return Cut()
    return Cut(**dataset.subgraphs.model_dump())
