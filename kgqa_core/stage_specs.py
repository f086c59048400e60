"""Which stages a run has, and what each is made of: its part of the configuration, other stages, the user's files.

Whatever shapes the bytes of an artifact is in its spec, by content: no machine's paths, no ``runtime`` settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kgqa_core.config import (
    EmbeddedDataset,
    ExplorerSection,
    FileDataset,
    FreebaseSection,
    HashEncoderSection,
    LocalEncoderSection,
    PlansDataset,
    QuestionSection,
    RunConfig,
)
from kgqa_core.config_file import read_config
from kgqa_core.errors import ConfigError, InputError, nearest
from kgqa_core.stage_specs_lm import planning_specs
from kgqa_core.stage_specs_systems import system_specs
from kgqa_core.stage_types import Borrowed, StageSpec
from kgqa_core.types import SPLITS


def stage_specs(config: RunConfig) -> list[StageSpec]:
    """Return the stages of a run, each after those that it reads.

    Raises:
        ConfigError: a folder that the configuration names is missing or holds nothing to read.
    """
    if isinstance(config.dataset, PlansDataset):
        return planning_specs(config, ())
    explorer, evaluation = config.exploration, config.evaluation
    reenter = {"reenter_topic": config.dataset.reenter_topic}
    walk = {"steps": explorer.steps, **reenter}
    encoder, weights = _encoder_identity(config), _encoder_files(config)
    specs = _source_specs(config, walk)
    as_asked = {} if explorer.mask_topics else {"mask_topics": False}
    specs.append(StageSpec("encodings", "encodings", {**encoder, **as_asked}, ("graph", "questions"), weights))
    blocks = _subgraphs(config.dataset)
    base = ("graph", *blocks, "questions", "encodings")
    no_start = set() if explorer.init_from else {"init_attention"}
    training = explorer.model_dump(mode="json", exclude={"seeds", "init_from", "also_train_on", *no_start})
    for seed in explorer.seeds:
        # The checkpoint names its encoder, so the encoder shapes it even where two encode alike.
        section = {**training, **reenter, "seed": seed, **{f"encoder_{name}": value for name, value in encoder.items()}}
        files, borrows = {**weights, **_start_files(explorer)}, _borrowed(config, seed)
        specs.append(StageSpec(f"explorer-seed{seed}", "explorer", section, base, files, borrows))
    specs.append(
        StageSpec("controls", "controls", {**walk, "split": evaluation.split}, ("graph", *blocks, "questions"))
    )
    for seed in explorer.seeds:
        section = {**evaluation.model_dump(mode="json"), "seed": seed}
        specs.append(
            StageSpec(f"evaluation-seed{seed}", "evaluation", section, (*base, f"explorer-seed{seed}", "controls"))
        )
    specs += planning_specs(config, ("graph", *blocks, "questions"))
    return [*specs, *system_specs(config, ("graph", *blocks, "questions"), {spec.key: spec for spec in specs})]


def _start_files(explorer: ExplorerSection) -> dict[str, Path]:
    """Return the files of an explorer to start from that is given as a folder."""
    start = explorer.init_from
    if start is None or is_config(start):
        return {}
    if not start.is_dir():
        raise ConfigError(f"explorer.init_from: {start} is neither a run configuration (.yaml) nor a folder")
    return {f"init/{name}": start / name for name in ("model.json", "model.safetensors")}


def _borrowed(config: RunConfig, seed: int) -> dict[str, Borrowed]:
    """Return the stages of other runs that a training starts or learns from."""
    found = {}
    start = config.exploration.init_from
    if start is not None and is_config(start):
        seeds = _lender(config, start, "init_from").exploration.seeds
        found["init"] = Borrowed(start, f"explorer-seed{seed if seed in seeds else seeds[0]}")
    for number, conf in enumerate(config.exploration.also_train_on):
        lender = _lender(config, conf, "also_train_on")
        if lender.exploration.mask_topics != config.exploration.mask_topics:
            raise ConfigError(f"explorer.also_train_on: {conf} has another explorer.mask_topics; both must read alike")
        for key in ("graph", *_subgraphs(lender.dataset), "questions", "encodings"):
            found[f"also{number}.{key}"] = Borrowed(conf, key)
    return found


def _lender(config: RunConfig, conf: Path, key: str) -> RunConfig:
    lender = read_config(conf)
    if lender.encoding != config.encoding:
        raise ConfigError(f"explorer.{key}: {conf} has another encoder; an explorer carries over only with its encoder")
    return lender


def is_config(path: Path) -> bool:
    """Say whether a path names a run configuration."""
    return path.suffix in (".yaml", ".yml")


def _source_specs(config: RunConfig, walk: Mapping[str, Any]) -> list[StageSpec]:
    if isinstance(config.dataset, FileDataset):
        specs, subgraphs = _file_specs(config.dataset, walk), config.dataset.subgraphs
        cut = subgraphs.model_dump(mode="json")
        return [*specs, StageSpec("subgraphs", "subgraphs", cut, ("graph", "questions"))] if subgraphs.is_cut else specs
    assert isinstance(config.dataset, EmbeddedDataset)
    strict = {"max_reject_ratio": 0.0}
    return [
        StageSpec("dataset", "dataset", {"seed": config.dataset.seed}),
        StageSpec("graph", "graph", {"format": "tsv", **strict}, ("dataset",)),
        StageSpec("questions", "questions", {"format": "jsonl", **strict, **walk}, ("dataset", "graph")),
    ]


def _file_specs(dataset: FileDataset, walk: Mapping[str, Any]) -> list[StageSpec]:
    graph, questions = dataset.graph, dataset.questions
    asked_in = question_files(questions)
    if isinstance(graph, FreebaseSection):
        return _freebase_specs(graph, questions, walk)
    triples = {"triples": graph.path} if graph.path else asked_in
    files = {**triples, "names": graph.names} if graph.names else triples
    asked = questions.model_dump(mode="json", exclude={"path", "files", "dev_ids"})
    blocks = _subgraphs(dataset) if dataset.subgraphs.method == "question" else ()
    return [
        StageSpec("graph", "graph", graph.model_dump(mode="json", exclude={"path", "names"}), (), files),
        *(StageSpec(stage, stage, {}, ("graph",), asked_in) for stage in blocks),
        StageSpec("questions", "questions", {**asked, **walk}, ("graph", *blocks), asked_in | _dev_ids(questions)),
    ]


DUMP = "dump-"  # + the name of a dump file: the key of its stage
HOW_TO_PARSE = {"language", "keep_types", "noise", "max_reject_ratio"}  # settings of a dump; the others are the graph's


def _freebase_specs(graph: FreebaseSection, questions: QuestionSection, walk: Mapping[str, Any]) -> list[StageSpec]:
    """A dump is parsed file by file, whatever is asked; topics are a stage, so that other texts change no graph."""
    asked_in = question_files(questions)
    asked = questions.model_dump(mode="json", exclude={"path", "files", "dev_ids"})
    parse = graph.model_dump(mode="json", include=HOW_TO_PARSE)
    reach = graph.model_dump(mode="json", exclude={"path", *HOW_TO_PARSE})
    dumps = [StageSpec(f"{DUMP}{path.name}", "dump", parse, (), {path.name: path}) for path in dump_files(graph.path)]
    read = {name: value for name, value in asked.items() if name in ("format", "hops")}
    topics = [] if graph.hops is None else [StageSpec("topics", "topics", read, (), asked_in)]
    needs = tuple(spec.key for spec in (*dumps, *topics))
    return [
        *dumps,
        *topics,
        StageSpec("graph", "graph", reach, needs),
        StageSpec("questions", "questions", {**asked, **walk}, ("graph",), asked_in | _dev_ids(questions)),
    ]


def dump_files(path: Path) -> list[Path]:
    """Return the files of a dump: ``path``, or what a folder holds.

    Raises:
        ConfigError: a folder without one.
    """
    if not path.is_dir():
        return [path]
    found = sorted(entry for entry in path.iterdir() if entry.suffix in (".nt", ".gz") and entry.is_file())
    if not found:
        raise ConfigError(f"dataset.graph.path: {path} holds no .nt or .gz file")
    return found


def _subgraphs(dataset: EmbeddedDataset | FileDataset | PlansDataset) -> tuple[str, ...]:
    """Return the stage whose graph is explored instead of the whole one, where each question has its own subgraph."""
    return ("subgraphs",) if isinstance(dataset, FileDataset) and dataset.subgraphs.method != "none" else ()


WANTED = {"metaqa": "1-hop/qa_train.txt", "wc2014": "1-hop.txt or 2-hop.txt"}


def question_files(section: QuestionSection) -> dict[str, Path]:
    """Return every file that the questions are read from, with MetaQA's chains and the vocabulary of NSM files.

    Names hold the file's own name, which goes into question ids, but no folder above the dataset's.

    Raises:
        ConfigError: a folder without question files.
    """
    if section.files is not None:
        named = {f"questions/{split}/{path.name}": path for split, path in section.files.items()}
        named |= {f"{name} chains": chains for name, path in named.items() for chains in _chains(section, path)}
        return named | _vocabulary(section, named.values())
    assert section.path is not None  # QuestionSection checks it
    if not section.path.is_dir():
        return {f"questions/{section.path.name}": section.path, **_vocabulary(section, [section.path])}
    if section.format == "metaqa":
        folders = [f"{hop}-hop" for hop in section.hops] if section.hops else ["[0-9]-hop"]
        found = [path for folder in folders for path in section.path.glob(f"{folder}/**/qa_*.txt")]
    elif section.format == "wc2014":
        names = [f"{hop}-hop" for hop in section.hops] if section.hops else ["[0-9]-hop"]
        found = [path for name in names for path in section.path.glob(f"{name}.txt")]
    elif section.format != "jsonl":
        found = _split_files(section, section.path)
    else:
        found = [path for split in SPLITS if (path := section.path / f"{split}.jsonl").is_file()]
    if not found:
        wanted = WANTED.get(section.format, "train.jsonl, dev.jsonl or test.jsonl")
        raise ConfigError(f"dataset.questions.path: {section.path} holds no {section.format} question files ({wanted})")
    named = {f"questions/{path.relative_to(section.path).as_posix()}": path for path in sorted(found)}
    return named | _vocabulary(section, found)


def _vocabulary(section: QuestionSection, paths: Iterable[Path]) -> dict[str, Path]:
    if section.format != "nsm":
        return {}
    from kgqa_core.graph.nsm import vocabulary_files

    return {f"questions/{path.parent.name}/{path.name}": path for each in paths for path in vocabulary_files(each)}


def _split_files(section: QuestionSection, folder: Path) -> list[Path]:
    from kgqa_core.questions.sources import split_files

    try:
        return [path for path, _ in split_files(folder, section.format)]
    except InputError as error:
        raise ConfigError(f"dataset.questions.path: {error}") from error


def _dev_ids(section: QuestionSection) -> dict[str, Path]:
    return {} if section.dev_ids is None else {"questions/dev_ids": section.dev_ids}


def _chains(section: QuestionSection, path: Path) -> list[Path]:
    from kgqa_core.questions.metaqa import find_chains

    chains = find_chains(path) if section.format == "metaqa" else None
    return [] if chains is None else [chains]


def _encoder_identity(config: RunConfig) -> dict[str, Any]:
    """Return what the configuration and our code say about the encoder; of a local one, its files say the rest."""
    section = config.encoding.model_dump(mode="json", exclude={"path"})
    if isinstance(config.encoding, LocalEncoderSection):
        from kgqa_core.text.local import VERSION

        return {**section, "version": VERSION}
    if isinstance(config.encoding, HashEncoderSection):
        from kgqa_core.text.hashing import HashEncoder

        return {**section, "identity": HashEncoder(config.encoding.dim).name}
    from kgqa_core.text.minilm import MiniLmEncoder

    return {**section, "identity": MiniLmEncoder().name}


def _encoder_files(config: RunConfig) -> dict[str, Path]:
    if not isinstance(config.encoding, LocalEncoderSection):
        return {}
    from kgqa_core.text.local import content_files

    folder = config.encoding.path
    if not folder.is_dir():
        beside = [entry.name for entry in folder.parent.iterdir()] if folder.parent.is_dir() else []
        near = nearest(folder.name, beside)
        raise ConfigError(f"encoder.path: {folder} is no folder" + (f"; nearest beside it: {near[0]}" if near else ""))
    return {f"encoder/{path.name}": path for path in content_files(folder)}
