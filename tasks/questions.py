"""Question files to linked questions, with the lint report."""

from __future__ import annotations

from pathlib import Path

from kgqa_core.config import EmbeddedDataset, QuestionSection
from kgqa_core.questions.build import build_questions
from kgqa_core.questions.formats import list_files
from kgqa_core.run.open import graph_of, subgraphs_of
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.tracking import Recorder
from tasks.runtime import pipeline_task
from tasks.stage import StageOutcome, run_stage


@pipeline_task("link questions", io=True)
def link_questions(pipeline: Pipeline) -> StageOutcome:
    """Read, link and lint the questions."""
    section = question_section(pipeline)

    def write(folder: Path, recorder: Recorder) -> None:
        report = build_questions(
            section,
            graph=graph_of(pipeline),
            max_steps=pipeline.config.exploration.steps,
            reenter_topic=pipeline.config.dataset.reenter_topic,
            out_dir=folder,
            # Those that are cut follow the questions: then this is about the whole graph.
            subgraphs=subgraphs_of(pipeline) if "subgraphs" in pipeline.specs["questions"].needs else None,
        )
        recorder.metric("num_questions", report.num_questions)
        recorder.metric("num_rejects", report.num_rejects)
        for split, count in report.per_split.items():
            recorder.metric(f"num_{split}", count)
        if report.subset:
            recorder.metric("num_masked_texts", report.subset.num_masked)
            recorder.metric("num_masked_texts_held_out", report.subset.num_masked_held_out)
        for row in report.lint.coverage:
            recorder.metric(f"reachable.{row.split}.{row.hops or 'all'}", row.any_gold)
        recorder.table("rejects", "rejects.parquet")

    return run_stage(pipeline, "questions", write)


def question_paths(pipeline: Pipeline) -> list[Path]:
    """Return the question files, in the order in which they are read."""
    return [file.path for file in list_files(question_section(pipeline))]


def question_section(pipeline: Pipeline) -> QuestionSection:
    """Return where the questions are: the user's files, or those of the embedded dataset."""
    dataset = pipeline.config.dataset
    if not isinstance(dataset, EmbeddedDataset):
        return dataset.questions
    made = pipeline.artifact("dataset").folder / "questions"
    return QuestionSection(format="jsonl", path=made, max_reject_ratio=0.0)
