"""What planners learn from: questions as they read them, and the relation paths that reach the answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path

from kgqa_core.artifacts import write_json
from kgqa_core.config import PlansDataset
from kgqa_core.errors import InputError
from kgqa_core.planners.cases import PATHS_FILE, write_asked, write_given
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.tracking import Recorder
from kgqa_core.types import SPLITS
from tasks.runtime import pipeline_task
from tasks.stage import StageOutcome, run_stage

REPORT_FILE = "supervision.json"


@pipeline_task("find supervision", io=True)
def find_supervision(pipeline: Pipeline) -> StageOutcome:
    """Find every question's shortest relation paths, or read those that its files give."""
    dataset = pipeline.config.dataset

    def write(folder: Path, recorder: Recorder) -> None:
        counts = read_given(dataset, folder) if isinstance(dataset, PlansDataset) else search_graph(pipeline, folder)
        for name, value in counts.items():
            recorder.metric(name.replace(" ", "_"), value)
        recorder.table("paths", PATHS_FILE)

    return run_stage(pipeline, "supervision", write)


def search_graph(pipeline: Pipeline, folder: Path) -> dict[str, int]:
    """Fill ``folder`` from the graph; return counts."""
    from kgqa_core.graph.supervision import write_supervision
    from kgqa_core.questions.build import read_questions
    from kgqa_core.questions.coverage import fill_hops
    from kgqa_core.run.open import graph_of, ground_of

    config, ground = pipeline.config, ground_of(pipeline)
    reenter = config.dataset.reenter_topic
    source = pipeline.artifact("questions").folder
    questions = [question for split in SPLITS for question in read_questions(source, split)]
    questions = fill_hops(questions, graph_of(pipeline), reenter_topic=reenter, subgraphs=ground.subgraphs)
    placed = ground.place(questions)
    write_asked(placed, folder, mask_topics=config.exploration.mask_topics)
    report = write_supervision(
        ground.graph,
        placed,
        folder / PATHS_FILE,
        max_hops=config.exploration.steps,
        reenter_topic=reenter,
        progress=lambda done: pipeline.progress("finding supervision", done, len(placed)),
    )
    content = asdict(report)
    write_json(folder / REPORT_FILE, content)
    without = content.pop("without_path")
    return content | {f"without_path.{reason}": count for reason, count in without.items()}


def read_given(dataset: PlansDataset, folder: Path) -> dict[str, int]:
    """Fill ``folder`` from plan files; return counts.

    Raises:
        InputError: more lines are unusable than the configuration lets pass.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from kgqa_core.planners.cases import read_plan_file
    from kgqa_core.schemas import REJECTS

    questions, rejects = [], []
    for split, path in dataset.plan_files.items():
        found = read_plan_file(path)
        questions += [(split, question) for question in found.questions]
        rejects += found.rejects
        limit = dataset.max_reject_ratio * (len(found.questions) + len(found.rejects))
        if len(found.rejects) > limit:
            raise InputError(
                f"{path}: {len(found.rejects)} lines are not usable ({found.reject_counts}), more than "
                f"dataset.max_reject_ratio = {dataset.max_reject_ratio} lets pass. Mend the file or raise the limit"
            )
    write_given(questions, folder)
    pq.write_table(pa.Table.from_pylist([asdict(one) for one in rejects], schema=REJECTS), folder / "rejects.parquet")
    per_split = Counter(split for split, _ in questions)
    counts = {
        "num_questions": len(questions),
        "num_paths": sum(len(question.paths) for _, question in questions),
        "num_without_paths": sum(not question.paths for _, question in questions),
        "num_rejects": len(rejects),
        **{f"num_{split}": count for split, count in per_split.items()},
    }
    write_json(folder / REPORT_FILE, counts)
    return counts
