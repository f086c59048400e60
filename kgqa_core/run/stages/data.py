"""The data stages: from triples and question files, or a dump, to a graph, linked questions and their subgraphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core import config_base as base
from kgqa_core import schemas
from kgqa_core.artifacts import JOURNAL
from kgqa_core.config import RunConfig
from kgqa_core.demo import copy_demo
from kgqa_core.errors import ConfigError
from kgqa_core.graph.build import BuildLimits, build_graph
from kgqa_core.graph.closure import build_from_dump
from kgqa_core.graph.closure_walk import IDS, labels_named
from kgqa_core.graph.dump import parse_dump
from kgqa_core.graph.dump_rows import DumpOptions
from kgqa_core.graph.subgraph_build import build_subgraphs
from kgqa_core.profiles import SYNTAXES
from kgqa_core.questions.build import build_questions, read_topics
from kgqa_core.questions.formats import list_files, question_files
from kgqa_core.run.cluster import chunk_mapper
from kgqa_core.run.open import graph_of, search_graph
from kgqa_core.run.pipeline import Pipeline, StageOutcome
from kgqa_core.run.stages import Stage, StageSpec
from kgqa_core.tracking import Recorder
from kgqa_core.types import MapTasks

DUMP = "dump-"  # + the name of a dump file: the key of its stage
TOPICS_FILE = "topics.parquet"
DUCKDB_SHARE = 0.6  # of a memory limit: DuckDB's own does not count what Python and Arrow hold beside it
STRICT = {"max_reject_ratio": 0.0}  # of files that we made ourselves


def ground_keys(config: RunConfig) -> tuple[str, ...]:
    """Return the stages of graph and questions, on which all others stand; none where the dataset has no graph."""
    return () if isinstance(config.dataset, base.PlansDataset) else ("graph", *subgraph_keys(config), "questions")


def subgraph_keys(config: RunConfig) -> tuple[str, ...]:
    """Return the stage whose graph is explored instead of the whole one, where each question has its own subgraph."""
    dataset = config.dataset
    return ("subgraphs",) if isinstance(dataset, base.FileDataset) and dataset.subgraphs.method != "none" else ()


def walk_of(config: RunConfig) -> dict[str, Any]:
    """Return how a run walks its graph: part of the recipe of every stage that walks."""
    return {"steps": config.exploration.steps, "reenter_topic": config.dataset.reenter_topic}


def plan_walk_of(config: RunConfig) -> dict[str, Any]:
    """Return how far plans and systems go, and how planners read questions: part of the recipes of both."""
    walk = {"max_hops": config.exploration.steps, "reenter_topic": config.dataset.reenter_topic}
    return {**walk, "mask_topics": config.exploration.mask_topics}


def _dataset_specs(config: RunConfig) -> Iterator[StageSpec]:
    if isinstance(config.dataset, base.EmbeddedDataset):
        yield StageSpec("dataset", {"seed": config.dataset.seed})


def _dump_specs(config: RunConfig) -> Iterator[StageSpec]:
    """A dump is parsed file by file, whatever is asked."""
    if graph := _dump(config):
        said = asdict(graph.profile) | {"max_reject_ratio": graph.max_reject_ratio}
        del said["names_relations"]  # the graph's
        parse = {name: list(value) if isinstance(value, tuple) else value for name, value in said.items()}
        for path in triple_files(graph):
            yield StageSpec(f"{DUMP}{path.name}", parse, files={path.name: path})


def _dump(config: RunConfig) -> base.DumpSection | None:
    graph = config.dataset.graph if isinstance(config.dataset, base.FileDataset) else None
    return graph if isinstance(graph, base.DumpSection) else None


def triple_files(graph: base.GraphSection | base.DumpSection) -> list[Path]:
    """Return the path, or the files of a folder of RDF, Parquet, CSV or TSV; ConfigError where that holds none."""
    of_lines = {form: (f".{form}", f".{form}.gz") for form in ("csv", "tsv")}
    is_dump = isinstance(graph, base.DumpSection)
    suffixes = (*SYNTAXES, ".gz") if is_dump else ({"parquet": (".parquet",)} | of_lines).get(graph.format)
    if graph.path is None or suffixes is None or not graph.path.is_dir():
        return [graph.path] if graph.path else []

    def is_one(entry: Path) -> bool:
        return entry.name.lower().endswith(suffixes) and not entry.is_dir()  # a link that leads nowhere is an error

    found = sorted(filter(is_one, graph.path.iterdir()))
    for entry in sorted({*graph.path.iterdir()} - {*found}):
        is_packed = entry.suffix.lower() in (".gz", ".bz2", ".xz", ".zst", ".zip")
        if is_packed and Path(entry.stem.lower()).suffix in suffixes:
            raise ConfigError(f"dataset.graph.path: {entry} is packed and would be left out: unpack or move it")
        is_note = is_dump or entry.name.startswith(("_", "."))  # of Spark or Delta
        if not is_note and (deeper := min(filter(is_one, entry.rglob("*")), default=None)):
            raise ConfigError(f"dataset.graph.path: {deeper} lies deeper and would be left out: move it up")
    if not found:
        raise ConfigError(f"dataset.graph.path: {graph.path} holds no {', '.join(suffixes)} file")
    return found


def _topics_specs(config: RunConfig) -> Iterator[StageSpec]:
    """Topics are a stage, so that other texts of the same topics change no graph."""
    if isinstance(config.dataset, base.FileDataset) and (graph := _dump(config)) and graph.hops is not None:
        questions = config.dataset.questions
        read = questions.model_dump(mode="json", include={"format", "hops"})
        yield StageSpec("topics", read, files=question_files(questions))


def _graph_specs(config: RunConfig) -> Iterator[StageSpec]:
    if isinstance(config.dataset, base.EmbeddedDataset):
        yield StageSpec("graph", {"format": "tsv", **STRICT}, ("dataset",))
    elif isinstance(config.dataset, base.FileDataset):
        graph, needs, files = config.dataset.graph, (*_dump_specs(config), *_topics_specs(config)), {}
        if isinstance(graph, base.GraphSection):
            named = {"triples" if path == graph.path else f"triples/{path.name}": path for path in triple_files(graph)}
            files = named or question_files(config.dataset.questions)
            files |= {"names": graph.names} if graph.names else {}
            own = graph.model_dump(mode="json", exclude={"path", "names"})
        else:
            own = graph.model_dump(mode="json", include={"format", "hops", "cvt_is_hop", "hub_cap"})
            own["names_relations"] = graph.profile.names_relations
            own |= {"names_iris": True} if graph.format == "rdf" else {}  # elsewhere labels are ids, or no names
        yield StageSpec("graph", own, tuple(spec.key for spec in needs), files)


def _subgraphs_specs(config: RunConfig) -> Iterator[StageSpec]:
    """Those that question files give say what is within reach; those that are cut start at the questions' topics."""
    if isinstance(config.dataset, base.FileDataset):
        subgraphs = config.dataset.subgraphs
        if subgraphs.is_cut:
            yield StageSpec("subgraphs", subgraphs.model_dump(mode="json"), ("graph", "questions"))
        elif subgraphs.method == "question":
            yield StageSpec("subgraphs", {}, ("graph",), question_files(config.dataset.questions))


def _questions_specs(config: RunConfig) -> Iterator[StageSpec]:
    gate = {"gate_share": config.gate.share} if config.gate else {}
    if isinstance(config.dataset, base.EmbeddedDataset):
        yield StageSpec("questions", {"format": "jsonl", **STRICT, **walk_of(config), **gate}, ("dataset", "graph"))
    elif isinstance(config.dataset, base.FileDataset):
        questions, subgraphs = config.dataset.questions, config.dataset.subgraphs
        asked = questions.model_dump(mode="json", exclude={"path", "files", "dev_ids"})
        needs = ("graph", "subgraphs") if subgraphs.method == "question" else ("graph",)
        files = question_files(questions) | ({"questions/dev_ids": questions.dev_ids} if questions.dev_ids else {})
        yield StageSpec("questions", {**asked, **walk_of(config), **gate}, needs, files)


# ------ How they are built.


def _parse_dumps(run: Pipeline, keys: Sequence[str]) -> list[StageOutcome]:
    """Parse dump files: one with a thread per worker in this process, many with a worker each."""
    if len(keys) == 1:  # one gzip stream has one reader; handing its text to other processes costs more than parsing
        return [run.make(keys[0], partial(_parse, threads=run.config.cluster.workers))]
    paths = [path for key in keys for path in run.specs[key].files.values()]
    with chunk_mapper(run, paths, "parsing dumps") as map_files:
        if map_files is map:
            return [run.make(key) for key in keys]
        build = partial(_parse, map_files=map_files)
        with ThreadPoolExecutor(len(keys)) as pool:  # each waits for its worker
            futures = [pool.submit(copy_context().run, run.make, key, build) for key in keys]
            return [future.result() for future in futures]


def _parse(
    run: Pipeline, spec: StageSpec, folder: Path, recorder: Recorder, *, map_files: MapTasks = map, threads: int = 1
) -> None:
    graph, files = _dump(run.config), list(spec.files.values())
    assert graph is not None
    options = DumpOptions(graph.profile, max_reject_ratio=graph.max_reject_ratio)
    parse = partial(parse_dump, out_dir=folder, options=options, threads=threads, journal=folder / JOURNAL)
    if map_files is map:  # nobody hears of progress on a worker
        parse = partial(parse, progress=partial(run.progress, f"parsing {files[0].name}"))
    (report,) = map_files(parse, files)
    recorder.metric("num_lines", report.num_lines)
    recorder.metrics(report.lines, prefix="lines.")
    recorder.table("rejects", "rejects.parquet")


def _read_topics(run: Pipeline, spec: StageSpec, folder: Path, recorder: Recorder) -> None:
    """Write the distinct topics of all question files: the graph depends on these, not on texts and answers."""
    topics = read_topics(_question_section(run))
    pq.write_table(pa.table([topics], schema=schemas.TOPICS), folder / TOPICS_FILE, compression="zstd")
    recorder.metric("num_topics", len(topics))


def _build_graph(run: Pipeline, spec: StageSpec, folder: Path, recorder: Recorder) -> None:
    if source := _dump(run.config):
        _build_closure(run, source, folder, recorder)
        return
    if isinstance(run.config.dataset, base.FileDataset):
        given = run.config.dataset.graph
        assert isinstance(given, base.GraphSection)
    else:
        made = run.artifact("dataset").folder
        given = base.GraphSection(format="tsv", path=made / "triples.tsv", names=made / "names.tsv", max_reject_ratio=0)
    files = triple_files(given) or [file.path for file in list_files(_question_section(run))]
    with chunk_mapper(run, files, "parsing triples") as map_chunks:
        report = build_graph(
            files,
            format=given.format,
            out_dir=folder,
            names=given.names,
            max_reject_ratio=given.max_reject_ratio,
            inverse_suffix=given.inverse_suffix,
            layout=given,
            limits=BuildLimits(map_chunks, memory_limit=run.config.runtime.memory_limit),
        )
    recorder.metrics(report, "num_entities", "num_relations", "num_triples", "num_duplicates", "num_rejects")
    recorder.metric("num_given_inverses", len(report.inverses))
    recorder.table("rejects", "rejects.parquet")


def _build_closure(run: Pipeline, source: base.DumpSection, folder: Path, recorder: Recorder) -> None:
    dumps = [run.artifact(key).folder for key in run.specs if key.startswith(DUMP)]
    allowed = min(base.size_in_bytes(section.memory_limit) for section in (run.config.runtime, run.config.cluster))
    memory_limit = f"{int(DUCKDB_SHARE * allowed) // 2**20}MiB"
    has_topics = source.hops is not None
    asked = pq.read_table(run.artifact("topics").folder / TOPICS_FILE)["label"].to_pylist() if has_topics else []
    named = labels_named(
        asked, dumps, ids=IDS[source.format], memory_limit=memory_limit, temp_directory=folder / "spill"
    )
    parts = [path for dump in dumps for path in dump.glob("triples-*.parquet")]
    with chunk_mapper(run, parts, "building the closure") as map_tasks:
        report = build_from_dump(
            dumps,
            asked,
            folder,
            hops=source.hops,
            cvt_is_hop=source.cvt_is_hop,
            hub_cap=source.hub_cap,
            names_relations=source.profile.names_relations,
            names_iris=source.format == "rdf",
            named=named,
            limits=BuildLimits(map_tasks, memory_limit=memory_limit),
        )
    names = ("num_entities", "num_relations", "num_triples", "num_topics_missing", "num_hubs", "num_named")
    recorder.metrics(report, *names)


def _build_subgraphs(run: Pipeline, spec: StageSpec, folder: Path, recorder: Recorder) -> None:
    """Put the subgraphs of all questions side by side in one graph of rows: from their files, or cut from the graph."""
    from kgqa_core.graph.subgraph_cut import cut_subgraphs

    graph = graph_of(run)
    figures = ["num_subgraphs", "num_with_answer", "num_empty", "num_rows", "num_triples", "largest"]
    if "questions" in spec.needs:
        assert isinstance(run.config.dataset, base.FileDataset)
        cut, questions = run.config.dataset.subgraphs, run.artifact("questions").folder
        figures += ["num_stopped", "num_capped"]
        with chunk_mapper(run, sorted(graph.folder.glob("*.npy")), "cutting subgraphs") as map_buckets:
            report = cut_subgraphs(questions, graph=graph, cut=cut, out_dir=folder, map_buckets=map_buckets)
    else:
        asked = _question_section(run)
        files, stems = zip(*((file.path, file.stem) for file in list_files(asked)), strict=True)
        with chunk_mapper(run, files, "packing subgraphs") as mapper:
            report = build_subgraphs(files, stems, graph=graph, out_dir=folder, format=asked.format, map_chunks=mapper)
    recorder.metrics(report, *figures)


def _link_questions(run: Pipeline, spec: StageSpec, folder: Path, recorder: Recorder) -> None:
    report = build_questions(
        _question_section(run),
        # Subgraphs that are cut follow the questions: then this is about the whole graph.
        search=search_graph(run, whole="subgraphs" not in spec.needs),
        out_dir=folder,
        gate_share=run.config.gate.share if run.config.gate else 0.0,
    )
    recorder.metrics(report, "num_questions", "num_rejects", "num_missing")
    recorder.metrics(report.per_split, prefix="num_")
    if report.subset:
        recorder.metric("num_masked_texts", report.subset.num_masked)
        recorder.metric("num_masked_texts_held_out", report.subset.num_masked_held_out)
    for row in report.lint.coverage:
        recorder.metric(f"reachable.{row.split}.{row.hops or 'all'}", row.any_gold)
    recorder.table("rejects", "rejects.parquet")


def _question_section(run: Pipeline) -> base.QuestionSection:
    """Return where the questions are: the user's files, or those of the embedded dataset."""
    if isinstance(run.config.dataset, base.FileDataset):
        return run.config.dataset.questions
    return base.QuestionSection(format="jsonl", path=run.artifact("dataset").folder / "questions", max_reject_ratio=0.0)


STAGES = (
    Stage("dataset", 1, "copy the demo dataset", _dataset_specs, lambda *args: copy_demo(args[2]), is_data=True),
    Stage("dump", 4, "parse dump", _dump_specs, _parse, io=True, is_data=True, build_all=_parse_dumps),
    Stage("topics", 3, "read topics", _topics_specs, _read_topics, io=True, is_data=True),
    Stage("graph", 10, "build graph", _graph_specs, _build_graph, io=True, is_data=True),
    Stage("subgraphs", 4, "build subgraphs", _subgraphs_specs, _build_subgraphs, io=True, is_data=True),
    Stage("questions", 10, "link questions", _questions_specs, _link_questions, io=True, is_data=True),
)
