"""A file of questions, answered as it is read: ``kgqa evaluate CONF --questions`` and ``kgqa ask CONF --file``.

Questions are read, linked, answered, scored and written by the chunk, so that memory does not grow with the file. What
stays of a question is its id and its figures.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from flows.one_question import asked_key
from flows.score import JSONL_SUFFIXES
from kgqa_core.artifacts import written_whole
from kgqa_core.config_base import FileDataset, PlansDataset
from kgqa_core.errors import ConfigError, InputError
from kgqa_core.evaluation.figures import make_figures
from kgqa_core.evaluation.metrics import (
    INTERVAL_METRICS,
    QuestionScores,
    interval_names,
    join_scores,
    score_predictions,
)
from kgqa_core.evaluation.predictions import (
    Answer,
    Source,
    WriteRows,
    answer_stream,
    make_row,
    open_predictions,
    unfinished,
)
from kgqa_core.graph.input_files import require_file
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.formats import Loaded, QuestionFile, Reader, open_format
from kgqa_core.questions.link import Resolver, link_file
from kgqa_core.run.ask import torch_threads
from kgqa_core.run.compare import open_bench
from kgqa_core.run.open import encode_all, open_system, relation_texts, search_graph
from kgqa_core.run.pipeline import PROGRESS, Pipeline
from kgqa_core.systems.controls import follow_gold_chains, load_template_control
from kgqa_core.text.encoder import RememberedEncodings
from kgqa_core.types import Prediction, Question, Reject

FIRST, CHUNK = 64, 512  # questions that are answered together: few at first, so that an answer comes early
NUM_KEPT = 5  # rejects that stay in memory, to be shown; a file beside the answers holds all
LINE_DIGITS = 6  # of a score in JSON lines
SHOWN = ("n", *INTERVAL_METRICS, "coverage", *(end for metric in INTERVAL_METRICS for end in interval_names(metric)))


@dataclass(frozen=True, slots=True)
class FileAnswerer:
    """Who answers the questions of a file."""

    answer: Answer
    graph: KnowledgeGraph  # that questions are linked to
    source: Source | None = None  # kept in a table of its answers
    chunk: int = CHUNK


@dataclass(slots=True)
class Rejected:
    """The lines of a file that were not used."""

    num: int = 0
    first: list[Reject] = field(default_factory=list)
    file: Path | None = None  # that holds all


def needed_stages(pipeline: Pipeline, row: str | None, *, controls: bool = False) -> list[str]:
    """Return the stages that must be done before a row of the comparison, or the first explorer (None), can answer."""
    if isinstance(pipeline.config.dataset, PlansDataset):
        raise ConfigError(f"run {pipeline.config.name!r} has plans, and no explorer to ask: kgqa score-plans")
    first = f"explorer-seed{pipeline.config.exploration.seeds[0]}"
    needs = [first] if row is None else list(pipeline.specs[asked_key(pipeline, row)].needs)
    return [*needs, *(["controls"] if controls else ())]


def require_places(path: Path, out: Path | TextIO | None = None) -> None:
    """Raise InputError where there is no such file of questions, or ``out`` cannot have answers: before all work."""
    if not path.exists():  # a pipe is no file, and can be read
        require_file(path, what="question file")
    if isinstance(out, Path) and out.suffix.lower() not in (*JSONL_SUFFIXES, ".parquet"):
        raise InputError(f"cannot write {out}: give a file that ends in .jsonl or .parquet")
    if isinstance(out, Path) and not out.parent.is_dir():
        raise InputError(f"cannot write {out}: there is no folder {out.parent}")
    if isinstance(out, Path) and out.exists() and out.samefile(path):
        raise InputError(f"cannot write {out}: it holds the questions. Give another file")


@contextmanager
def open_row(pipeline: Pipeline, row: str | None) -> Iterator[FileAnswerer]:
    """Open a row of the run's comparison, or its first explorer (None); see ``needed_stages``."""
    if row is not None and pipeline.config.comparison.topics == "linked":
        raise ConfigError(
            "systems.topics: linked is for the run's own questions; those of a file are asked about the topics that it "
            "gives, or that are found in the text. Add --set systems.topics=gold"
        )
    content = pipeline.artifact("graph").content
    if row is None:
        system = open_system(pipeline)
        encode = RememberedEncodings(partial(encode_all, pipeline), relation_texts(system.graph))
        source = Source(content, f"explorer (seed {pipeline.config.exploration.seeds[0]})")
        with torch_threads(pipeline.config.runtime.threads):
            yield FileAnswerer(replace(system, encode=encode).answer, system.graph, source)
        return
    with open_bench(pipeline, asked_key(pipeline, row)) as bench:

        def answer(questions: Sequence[Question]) -> list[Prediction]:
            return [one.answer.prediction for one in bench.answer(questions).answered]

        yield FileAnswerer(
            answer, bench.search.entities, Source(content, bench.source.name), pipeline.config.comparison.chunk
        )


def evaluate_file(
    pipeline: Pipeline, path: Path, *, row: str | None = None, out: Path | None = None, controls: bool = False
) -> tuple[dict[str, Any], Rejected]:
    """Score a row of the comparison, or the first explorer, on any question file in the dataset's format.

    Returns ``{"n", "hits1", "f1", "em", "coverage", "seconds", "rejects"}`` (percent, with the bounds of 95 % intervals
    as ``hits1.low``; seconds from the first line to the last answer; lines that could not be used) and, where they are
    asked for, ``"controls": {name: {...}}``; and those lines. ``out`` gets the answers. Raises as ``answer_file``.
    """
    dataset, search = pipeline.config.dataset, search_graph(pipeline) if controls else None
    form = dataset.questions.format if isinstance(dataset, FileDataset) else "jsonl"
    scores: dict[str, list[QuestionScores]] = {}  # of whoever answers, and of the controls

    def score(questions: Sequence[Question], predictions: Sequence[Prediction]) -> None:
        scores.setdefault("", []).append(score_predictions(questions, predictions))
        if search is not None:
            placed = search.place(questions)
            name, bound = follow_gold_chains(search, placed)
            ceilings.add(name)
            for who, answers in (("template control", control.answer(placed)), ("ceiling", bound)):
                scores.setdefault(who, []).append(score_predictions(placed, answers))

    if search is not None:
        saved = pipeline.artifact("controls").folder / "template_control.json"
        control, ceilings = load_template_control(saved, search), set[str]()
    with open_row(pipeline, row) as answerer:
        started = time.perf_counter()
        rejected = answer_file(answerer, path, open_format(form).read, out=out, on_answers=score)
    seconds = time.perf_counter() - started
    every = {who: make_figures(join_scores(own)) for who, own in scores.items()}
    figures = {who: {name: own[name] for name in SHOWN} for who, own in every.items()}
    found: dict[str, Any] = {**figures.pop(""), "seconds": seconds, "rejects": rejected.num}
    if controls:  # the ceiling is that of gold chains only where all questions have one; else "best-path" comes first
        found["controls"] = {min(ceilings) if who == "ceiling" else who: own for who, own in figures.items()}
    return found, rejected


def answer_file(
    who: FileAnswerer,
    path: Path,
    read: Reader,
    *,
    out: Path | TextIO | None,
    on_answers: Callable[[Sequence[Question], Sequence[Prediction]], None] = lambda questions, predictions: None,
) -> Rejected:
    """Answer all questions of a file in its order; ``out`` gets the answers as they come, a file beside it the rejects.

    Raises InputError where no question is usable, or for a name that says no format; then, as after any error, nothing
    is left at ``out``.
    """
    require_places(path, out)
    loaded, rejected, done, total = Loaded(), Rejected(), 0, _count_lines(path)
    questions = link_file(QuestionFile(path, "test"), loaded, read=read, resolver=Resolver(who.graph))
    with ExitStack() as stack:
        write = keep = None
        if out is not None:
            is_table = isinstance(out, Path) and out.suffix.lower() not in JSONL_SUFFIXES
            opened = partial(open_predictions, source=who.source) if is_table else open_lines
            write = stack.enter_context(opened(out, who.graph))
        if isinstance(out, Path):
            rejected.file = out.with_name(f"{out.name}.rejects.jsonl")
            keep = stack.enter_context(stack.enter_context(written_whole(rejected.file)).open("w", encoding="utf-8"))
        for asked, predictions in answer_stream(who.answer, questions, first=FIRST, chunk=who.chunk):
            if write:
                write(asked, predictions)
            on_answers(asked, predictions)
            done += len(asked)
            _move(loaded, rejected, keep)
            _tell(done + rejected.num, total)
        _move(loaded, rejected, keep)
        _tell(total, total)
        if not done:
            first = [f"; the first line that cannot be used is {one.line}: {one.reason}" for one in rejected.first[:1]]
            raise InputError(f"{path} holds no usable question{''.join(first)}")
    if rejected.file is not None and not rejected.num:
        rejected.file.unlink()
    return rejected


@contextmanager
def open_lines(out: Path | TextIO, graph: KnowledgeGraph) -> Iterator[WriteRows]:
    """Yield what writes answers as they come, each as ``answer_line``."""

    def write(questions: Sequence[Question], predictions: Sequence[Prediction]) -> None:
        pairs = zip(questions, predictions, strict=True)
        lines.writelines(answer_line(make_row(*pair, graph)) for pair in pairs)
        lines.flush()

    if not isinstance(out, Path):
        lines = out
        yield write
        return
    with unfinished(out) as partial_file, partial_file.open("w", encoding="utf-8") as lines:
        yield write


def answer_line(row: Mapping[str, Any]) -> str:
    """Return a row as a line of JSON, which ``kgqa score`` reads: answers, best first, with scores and evidence."""
    first = row["candidate_ids"][: len(row["answer_ids"])]  # what else was answered has neither score nor evidence
    scores, paths = (dict(zip(first, row[name], strict=False)) for name in ("candidate_scores", "paths"))
    line = {name: row[name] for name in ("question_id", "question", "prediction")}
    line |= {"scores": [round(scores.get(entity, 0.0), LINE_DIGITS) for entity in row["answer_ids"]]}
    line |= {"evidence": [paths.get(entity, "") for entity in row["answer_ids"]], "ground_truth": row["ground_truth"]}
    line |= {} if row["verdict"] is None else {"verdict": row["verdict"]}
    return json.dumps(line, ensure_ascii=False) + "\n"


def _move(loaded: Loaded, rejected: Rejected, file: TextIO | None) -> None:
    """Move what was rejected since the last chunk to its account and its file; forget what was noted."""
    rejected.num += len(loaded.rejects)
    rejected.first += loaded.rejects[: NUM_KEPT - len(rejected.first)]
    if file is not None:
        file.writelines(json.dumps(asdict(one), ensure_ascii=False) + "\n" for one in loaded.rejects)
    for growing in (loaded.rejects, loaded.unknown, loaded.missing, loaded.notes):
        growing.clear()


def _tell(done: int, total: int) -> None:
    if listener := PROGRESS.get():
        listener("answering", min(done, total), total)


def _count_lines(path: Path) -> int:
    """Return how many lines a file has, at least 1; of one that cannot be read, whoever reads it says why."""
    if not path.is_file():  # a pipe is read but once
        return 1
    try:
        with path.open("rb") as file:
            return sum(block.count(b"\n") for block in iter(partial(file.read, 2**20), b"")) or 1
    except OSError:
        return 1
