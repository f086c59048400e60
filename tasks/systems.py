"""One system over the questions of the evaluation split: chunk by chunk, here or on Dask workers, then its figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kgqa_core.artifacts import JOURNAL, write_json
from kgqa_core.config import RunConfig
from kgqa_core.config_systems import SystemsSection
from kgqa_core.errors import InputError
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.run.stages import COMPARISON, PUBLISHED
from kgqa_core.tracking import Recorder
from tasks.evaluation import record_scores
from tasks.runtime import pipeline_task
from tasks.stage import StageOutcome, run_stage

if TYPE_CHECKING:
    from tasks.cluster import MapTasks

PARTS = "parts"  # in the journal, with the size of a chunk: files of each one that is done
TABLES = ("calls", "usage", "predictions")  # schemas.SYSTEM_CALLS, METER, SYSTEM_PREDICTIONS


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some questions of one system, as a worker gets them."""

    config: str = field(repr=False)  # of the run, JSON
    key: str  # of the stage
    fingerprint: str  # of its recipe
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
        from kgqa_core.run.compare import read_asked
        from kgqa_core.systems.predictions_file import merge_parts

        systems = section_of(pipeline.config)
        num = len(read_asked(pipeline))
        if not num:
            raise InputError(f"there are no {section['split']} questions to answer; set evaluation.split, or add some")
        parts = folder / JOURNAL / f"{PARTS}-{systems.chunk}"
        parts.mkdir(parents=True, exist_ok=True)
        config, recipe = pipeline.config.model_dump_json(), pipeline.recipe(key)
        assert recipe is not None  # what it stands on is made
        numbers = range(math.ceil(num / systems.chunk))
        chunks = [Chunk(config, key, recipe.fingerprint, number, parts) for number in numbers]
        left = [chunk for chunk in chunks if not chunk.is_done]

        def told(done: int, total: int) -> None:
            pipeline.progress(key, len(chunks) - total + done, len(chunks))

        with _mapper(pipeline, len(left) * systems.chunk, told) as map_chunks:
            map_chunks(answer_chunk, left)
        for table in TABLES:
            merge_parts([chunk.part(table) for chunk in chunks], folder / f"{table}.parquet")
        record_system(pipeline, key, folder, recorder)

    return run_stage(pipeline, key, write, seed=int(section["seed"]), system=shown_name(pipeline, key))


def record_system(pipeline: Pipeline, key: str, folder: Path, recorder: Recorder) -> None:
    """Score what a system answered, and record it."""
    from kgqa_core.evaluation.runs import read_system_run
    from kgqa_core.evaluation.side_by_side import system_row
    from kgqa_core.questions.coverage import find_answerable
    from kgqa_core.run.compare import read_asked
    from kgqa_core.run.open import graph_of, subgraphs_of

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
        from kgqa_core.evaluation.published import read_published
        from kgqa_core.evaluation.runs import read_system_run
        from kgqa_core.evaluation.side_by_side import group_runs, side_by_side
        from kgqa_core.evaluation.side_by_side_text import (
            paper_datasets,
            published_beside,
            render_side_by_side,
            side_by_side_document,
        )

        keys = pipeline.specs[COMPARISON].needs
        runs = [read_system_run(pipeline.artifact(key).folder / "predictions.parquet") for key in keys]
        found = side_by_side(group_runs(runs))
        hops = sorted({hops for entrant in found.entrants for hops in entrant.row.by_hops})
        datasets = paper_datasets(pipeline.config.dataset.name, hops)
        published = published_beside(read_published(PUBLISHED), datasets, found.entrants)
        document = side_by_side_document(found, published)
        for row in document["rows"]:
            del row["predictions"]  # where they are on this machine is not what was found
        write_json(folder / "comparison.json", document)
        (folder / "comparison.md").write_text(render_side_by_side(found, published), encoding="utf-8")

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
def _mapper(pipeline: Pipeline, num_questions: int, told: Callable[[int, int], None]) -> Iterator[MapTasks]:
    """Yield what maps chunks, over a Dask cluster where there are many questions; ``told`` hears (done, total)."""
    from kgqa_core.run.compare import close_bench

    cluster = pipeline.config.cluster
    if num_questions <= cluster.fan_out_questions:
        try:
            yield partial(_map_here, told)
        finally:
            close_bench()  # the next system brings a model of its own
        return
    from kgqa_core.graph.fan_out import fan_out
    from tasks.cluster import open_cluster

    with open_cluster(cluster, home=pipeline.home) as client:
        yield fan_out(client, progress=told)


def _map_here(told: Callable[[int, int], None], function: Callable[[Chunk], int], chunks: Sequence[Chunk]) -> list[int]:
    results = []
    for chunk in chunks:
        results.append(function(chunk))
        told(len(results), len(chunks))
    return results


def answer_chunk(chunk: Chunk) -> int:
    """Answer one chunk's questions and write its parts; return its number. Runs in any process that sees the home."""
    import pyarrow.parquet as pq

    from kgqa_core.artifacts import written_whole
    from kgqa_core.run.compare import close_bench, kept_bench
    from kgqa_core.systems.predictions_file import write_answered, write_calls

    bench, questions = kept_bench(chunk.config, chunk.key, chunk.fingerprint)
    size = section_of(RunConfig.model_validate_json(chunk.config)).chunk
    try:
        done = bench.answer(questions[chunk.number * size : (chunk.number + 1) * size])
    except BaseException:
        close_bench()  # its meters hold calls of questions that will be asked again
        raise
    write_calls(chunk.part("calls"), done.answered)
    with written_whole(chunk.part("usage")) as unfinished:
        pq.write_table(done.usage, unfinished, compression="zstd")
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
