"""One system over the questions of the evaluation split: chunk by chunk, here or on Dask workers, then its figures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kgqa_core.artifacts import JOURNAL, write_json
from kgqa_core.config import RunConfig
from kgqa_core.config_systems import SystemsSection
from kgqa_core.errors import InputError
from kgqa_core.pipeline import Pipeline
from kgqa_core.stage_specs_systems import COMPARISON
from kgqa_core.tracking import Recorder
from tasks.evaluation import record_scores
from tasks.runtime import pipeline_task
from tasks.stage import StageOutcome, run_stage

if TYPE_CHECKING:
    from tasks.cluster import MapTasks

PARTS = "parts"  # in the journal: files of each chunk that is done
TABLES = ("calls", "usage", "predictions")  # schemas.SYSTEM_CALLS, METER, SYSTEM_PREDICTIONS


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some questions of one system, as a worker gets them."""

    config: str = field(repr=False)  # of the run, JSON
    key: str  # of the stage
    number: int
    folder: Path  # where its parts go

    def part(self, table: str) -> Path:
        """Return where its rows of a table are, once it is done."""
        return self.folder / f"{table}-{self.number:06d}.parquet"

    @property
    def is_done(self) -> bool:
        """Are its parts there? The last is written last."""
        return self.part(TABLES[-1]).is_file()


@pipeline_task("evaluate system")
def evaluate_system(pipeline: Pipeline, key: str) -> StageOutcome:
    """Answer all questions, resuming behind the last chunk that a killed run finished; then score the answers."""
    section = pipeline.specs[key].section

    def write(folder: Path, recorder: Recorder) -> None:
        from kgqa_core.comparing import read_asked
        from kgqa_core.systems.predictions_file import merge_parts

        systems = section_of(pipeline.config)
        num = len(read_asked(pipeline))
        if not num:
            raise InputError(f"there are no {section['split']} questions to answer; set evaluation.split, or add some")
        parts = folder / JOURNAL / PARTS
        parts.mkdir(parents=True, exist_ok=True)
        config = pipeline.config.model_dump_json()
        chunks = [Chunk(config, key, number, parts) for number in range(math.ceil(num / systems.chunk))]
        left = [chunk for chunk in chunks if not chunk.is_done]
        with _mapper(pipeline, len(left) * systems.chunk) as map_chunks:
            for done, _ in enumerate(map_chunks(answer_chunk, left), len(chunks) - len(left) + 1):
                pipeline.progress(key, done, len(chunks))
        for table in TABLES:
            merge_parts([chunk.part(table) for chunk in chunks], folder / f"{table}.parquet")
        record_system(pipeline, key, folder, recorder)

    return run_stage(pipeline, key, write, seed=int(section["seed"]), system=shown_name(pipeline, key))


def record_system(pipeline: Pipeline, key: str, folder: Path, recorder: Recorder) -> None:
    """Score what a system answered, and record it."""
    from kgqa_core.comparing import read_asked
    from kgqa_core.evaluation.system_runs import read_system_run
    from kgqa_core.evaluation.systems import system_row
    from kgqa_core.questions.coverage import find_answerable
    from kgqa_core.workspace import graph_of, subgraphs_of

    name = shown_name(pipeline, key)
    run = read_system_run(folder / "predictions.parquet", name)
    by_id = {question.id: question for question in read_asked(pipeline)}
    questions = [by_id[outcome.question_id] for outcome in run.outcomes]
    answerable = find_answerable(questions, graph_of(pipeline), subgraphs=subgraphs_of(pipeline))
    row = asdict(system_row(name, [run], answerable))
    write_json(folder / "scores.json", [row])
    record_scores(recorder, row, ())
    for table in ("predictions", "calls"):
        recorder.table(table, f"{table}.parquet")


@pipeline_task("compare systems")
def compare_systems(pipeline: Pipeline) -> StageOutcome:
    """Put all systems of the run side by side: figures, ties, what the language model adds, what it overruled."""

    def write(folder: Path, recorder: Recorder) -> None:
        from kgqa_core.evaluation.side_by_side import group_runs, side_by_side
        from kgqa_core.evaluation.side_by_side_text import comparison_tables, merit_sentences, render_side_by_side
        from kgqa_core.evaluation.system_runs import read_system_run

        keys = pipeline.specs[COMPARISON].needs
        runs = [read_system_run(pipeline.artifact(key).folder / "predictions.parquet") for key in keys]
        found = side_by_side(group_runs(runs))
        document = {
            "num_questions": found.num_questions,
            "tables": [asdict(table) for table in comparison_tables(found)],
            "sentences": merit_sentences(found),
            "rows": [asdict(entrant.row) | {"lift": dict(entrant.lift)} for entrant in found.entrants],
        }
        write_json(folder / "comparison.json", document)
        (folder / "comparison.md").write_text(render_side_by_side(found), encoding="utf-8")

    return run_stage(pipeline, COMPARISON, write)


def section_of(config: RunConfig) -> SystemsSection:
    """Return the section about systems of a run that has one."""
    assert config.systems is not None
    return config.systems


def shown_name(pipeline: Pipeline, key: str) -> str:
    """Return what a system is called in tables and MLflow: with who answered for it, where that is not the run's lm.

    The explorer alone must not go under the name of the stages that train and score it.
    """
    section = pipeline.specs[key].section
    who = section.get("answered_by", "lm")
    row = str(section.get("row", section["system"]))
    name = "explorer alone" if row == "explorer" else row
    pool = " (hard pool)" if section["pool"] == "hard" else ""
    return f"{name}{'' if who == 'lm' else f' by {who}'}{pool}"


@contextmanager
def _mapper(pipeline: Pipeline, num_questions: int) -> Iterator[MapTasks]:
    """Yield ``map``, over a Dask cluster where there are many questions; results may be in any order."""
    cluster = pipeline.config.cluster
    if num_questions <= cluster.fan_out_questions:
        yield map
        return
    from kgqa_core.graph.fan_out import fan_out
    from tasks.cluster import open_cluster

    with open_cluster(cluster, home=pipeline.home) as client:
        yield fan_out(client, progress=lambda done, total: None)


def answer_chunk(chunk: Chunk) -> int:
    """Answer one chunk's questions and write its parts; return its number. Runs in any process that sees the home."""
    import pyarrow.parquet as pq

    from kgqa_core.comparing import kept_bench
    from kgqa_core.disk import written_whole
    from kgqa_core.systems.predictions_file import write_answered, write_calls

    bench, questions = kept_bench(chunk.config, chunk.key)
    size = section_of(RunConfig.model_validate_json(chunk.config)).chunk
    done = bench.answer(questions[chunk.number * size : (chunk.number + 1) * size])
    write_calls(chunk.part("calls"), done.answered)
    with written_whole(chunk.part("usage")) as partial:
        pq.write_table(done.usage, partial, compression="zstd")
    write_answered(
        chunk.part("predictions"),
        done.answered,
        source=bench.source,
        entity_names=bench.walk.entities.entity_names,
        render_path=bench.render,
        usage=done.usage,
        stopped=done.stopped,
    )
    return chunk.number
