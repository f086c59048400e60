"""One system over the questions of the evaluation split: chunk by chunk, here or on Dask workers, then its figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from kgqa_core.artifacts import JOURNAL, write_json, written_whole
from kgqa_core.config import RunConfig
from kgqa_core.errors import InputError
from kgqa_core.run.cluster import MapTasks, open_cluster
from kgqa_core.run.open import graph_of, subgraphs_of
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.run.stages import StageSpec
from kgqa_core.run.stages.explorer import record_scores
from kgqa_core.tracking import Recorder

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


def answer_questions(run: Pipeline, spec: StageSpec, folder: Path, recorder: Recorder) -> None:
    """Answer all questions, resuming behind the last chunk that a killed run finished; then score the answers."""
    from kgqa_core.run.compare import read_asked, section_of
    from kgqa_core.systems.tables import merge_parts

    size, num = section_of(run).chunk, len(read_asked(run))
    if not num:
        split = spec.section["split"]
        raise InputError(f"there are no {split} questions to answer; set evaluation.split, or add some")
    parts = folder / JOURNAL / f"{PARTS}-{size}"
    parts.mkdir(parents=True, exist_ok=True)
    config, recipe = run.config.model_dump_json(), run.recipe(spec.key)
    assert recipe is not None  # what it stands on is made
    chunks = [Chunk(config, spec.key, recipe.fingerprint, number, parts) for number in range(math.ceil(num / size))]
    left = [chunk for chunk in chunks if not chunk.is_done]

    def told(done: int, total: int) -> None:
        run.progress(spec.key, len(chunks) - total + done, len(chunks))

    with _mapper(run, len(left) * size, told) as map_chunks:
        map_chunks(answer_chunk, left)
    for table in TABLES:
        merge_parts([chunk.part(table) for chunk in chunks], folder / f"{table}.parquet")
    _record(run, str(spec.system), folder, recorder)


def _record(run: Pipeline, name: str, folder: Path, recorder: Recorder) -> None:
    """Score what a system answered, and record it."""
    from kgqa_core.evaluation.figures import system_row
    from kgqa_core.evaluation.runs import read_system_run
    from kgqa_core.questions.coverage import find_answerable
    from kgqa_core.run.compare import read_asked

    answers = read_system_run(folder / "predictions.parquet", name)
    by_id = {question.id: question for question in read_asked(run)}
    questions = [by_id[outcome.question_id] for outcome in answers.outcomes]
    answerable = find_answerable(questions, graph_of(run), subgraphs=subgraphs_of(run))
    row = asdict(system_row(name, [answers], answerable))
    write_json(folder / "scores.json", [row])
    record_scores(recorder, row)
    for table in ("predictions", "calls"):
        recorder.table(table, f"{table}.parquet")


@contextmanager
def _mapper(run: Pipeline, num_questions: int, told: Callable[[int, int], None]) -> Iterator[MapTasks]:
    """Yield what maps chunks, over a Dask cluster where there are many questions; ``told`` hears (done, total)."""
    from kgqa_core.run.compare import close_bench

    cluster = run.config.cluster
    if num_questions <= cluster.fan_out_questions:
        try:
            yield partial(_map_here, told)
        finally:
            close_bench()  # the next system brings a model of its own
        return
    from kgqa_core.graph.fan_out import fan_out

    with open_cluster(cluster, home=run.home) as client:
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

    from kgqa_core.run.compare import cached_bench, close_bench
    from kgqa_core.systems.tables import write_answered, write_calls

    bench, questions = cached_bench(chunk.config, chunk.key, chunk.fingerprint)
    systems = RunConfig.model_validate_json(chunk.config).systems
    assert systems is not None
    try:
        done = bench.answer(questions[chunk.number * systems.chunk : (chunk.number + 1) * systems.chunk])
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
        entity_names=bench.search.entities.entity_names,
        render_path=bench.render,
        usage=done.usage,
        stopped=done.stopped,
    )
    return chunk.number
