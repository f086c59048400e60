"""One stage of a run, as the configuration describes it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
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
from kgqa_core.config_lm import ENDPOINT_ANSWERS, EmbeddedLmSection, EndpointLmSection, LocalLmSection, Planner
from kgqa_core.config_systems import WITHOUT_LM, Answerer, OursSection, SystemName, SystemsSection
from kgqa_core.errors import ConfigError, nearest


@dataclass(frozen=True, slots=True)
class Borrowed:
    """One stage of another run."""

    conf: Path  # its run configuration
    key: str


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One stage of a run, as the configuration describes it."""

    key: str  # unique in the run: "graph", "explorer-seed0"
    stage: str  # folder in the store
    section: Mapping[str, Any]  # what of the configuration shapes the artifact
    needs: tuple[str, ...] = ()  # keys of the stages it reads
    files: Mapping[str, Path] = field(default_factory=dict)  # external files it reads, by a name free of the machine
    borrows: Mapping[str, Borrowed] = field(default_factory=dict)  # stages of other runs that it reads, by such a name


# ------ The stages of planning: supervision, instructions, the embedded model, adapters, the dense ...


def planning_specs(config: RunConfig, base: tuple[str, ...]) -> list[StageSpec]:
    """Return the stages of planning, none where the run does not plan; ``base``: the stages of graph and questions.

    Raises:
        ConfigError: a folder that the configuration names is missing.
    """
    plans = config.plans
    if plans is None:
        return [_supervision(config, base)] if needs_gold_plans(config) else []
    specs = [_supervision(config, base)]
    if config.lm is not None and "generator" in plans.trained:
        specs += _generator_specs(config, base)
    if config.dense is not None and "dense" in plans.trained:
        section = {**config.dense.model_dump(mode="json"), **_teaching(config)}
        specs += [
            StageSpec(f"dense-seed{seed}", "dense", {**section, "seed": seed}, (*base[:-1], "supervision"))
            for seed in plans.seeds
        ]
    specs += [_scored(config, base, planner, seed) for planner in plans.planners for seed in plans.seeds]
    return specs


def needs_gold_plans(config: RunConfig) -> bool:
    """Say whether the run's systems read the right plans of the questions asked: an oracle does, and a hard pool."""
    systems = config.systems
    return systems is not None and (systems.is_answered_by("oracle") or systems.pool == "hard")


def _scored(config: RunConfig, base: tuple[str, ...], planner: Planner, seed: int) -> StageSpec:
    """Return the stage that asks one planner of one seed for its plans, and scores them."""
    plans = config.plans
    assert plans is not None
    section: dict[str, Any] = {
        "planner": planner,
        "num_plans": plans.num_plans,
        "split": config.evaluation.split,
        "seed": seed,
    }
    needs: list[str] = []
    files: Mapping[str, Path] = {}
    if planner in ("generator", "mixture"):
        needs += ["lm"] if isinstance(config.lm, EmbeddedLmSection) else []
        needs += [f"reasoner-seed{seed}"] if config.reasoner else []
        section |= {**answering_model(config), "prompts": prompt_hashes(config, "plan")}
        files = model_files(config)
    if planner in ("dense", "mixture"):
        needs.append(f"dense-seed{seed}")
    return StageSpec(f"plans-{planner}-seed{seed}", "plans", section, (*base, "supervision", *needs), files)


def _teaching(config: RunConfig) -> dict[str, Any]:
    """Return which of the paths found teach."""
    assert config.plans is not None
    return config.plans.model_dump(mode="json", include={"supervision", "precision_threshold"})


def _supervision(config: RunConfig, base: tuple[str, ...]) -> StageSpec:
    if isinstance(config.dataset, PlansDataset):
        files = {f"plans/{split}": path for split, path in config.dataset.plan_files.items()}
        return StageSpec("supervision", "supervision", {"max_reject_ratio": config.dataset.max_reject_ratio}, (), files)
    explorer = config.exploration
    section = {
        "max_hops": explorer.steps,
        "reenter_topic": config.dataset.reenter_topic,
        "mask_topics": explorer.mask_topics,
    }
    return StageSpec("supervision", "supervision", section, base)


def _generator_specs(config: RunConfig, base: tuple[str, ...]) -> list[StageSpec]:
    plans, lm, reasoner = config.plans, config.lm, config.reasoner
    assert plans is not None
    teaching = _teaching(config)
    asked = reasoner.model_dump(mode="json", include=HOW_ASKED) if reasoner else {}
    specs = []
    if isinstance(lm, EmbeddedLmSection) or reasoner is not None:
        section: dict[str, Any] = {**teaching, **asked, "prompts": prompt_hashes(config, *_taught(config))}
        needs = (*base, "supervision")
        if reasoner is not None and "choose" in reasoner.mixture:
            specs.append(_candidates(config, base))
            needs = (*needs, "candidates")
        specs.append(StageSpec("instructions", "instructions", section, needs))
    if isinstance(lm, EmbeddedLmSection):
        specs.append(StageSpec("lm", "lm", lm.model_dump(mode="json"), (*base, "instructions")))
    if reasoner is not None:
        read = ("instructions", "lm") if isinstance(lm, EmbeddedLmSection) else ("instructions",)
        section = {**reasoner.model_dump(mode="json", exclude={*HOW_ASKED, "folds"}), **answering_model(config)}
        section["taught"] = sorted(reasoner.mixture)  # instructions may hold more: plans for a model that we make
        specs += [
            StageSpec(f"reasoner-seed{seed}", "reasoner", {**section, "seed": seed}, read, model_files(config))
            for seed in plans.seeds
        ]
    return specs


def _taught(config: RunConfig) -> set[str]:
    """Return the instructions whose examples are made."""
    own = set(config.lm.train_on) if isinstance(config.lm, EmbeddedLmSection) else set()
    return own | (set(config.reasoner.mixture) if config.reasoner else set())


def _candidates(config: RunConfig, base: tuple[str, ...]) -> StageSpec:
    """Return the stage of explorers trained on all folds but one, without what only helps them to start."""
    reasoner, explorer = config.reasoner, config.exploration
    assert reasoner is not None
    section = explorer.model_dump(mode="json", exclude={"seeds", "init_from", "init_attention", "also_train_on"})
    section |= {"seed": explorer.seeds[0], "reenter_topic": config.dataset.reenter_topic}
    section |= config.evaluation.model_dump(mode="json", exclude={"split", "passes"})
    section |= reasoner.model_dump(mode="json", include={"folds", "num_candidates"})
    return StageSpec("candidates", "candidates", section, (*base, "encodings"))


# Settings of a reasoner that shape its examples.
HOW_ASKED = {
    "objective",
    "instructions",
    "shares",
    "paths_per_question",
    "wrong_plans",
    "max_paths",
    "answers",
    "num_candidates",
}


def answering_model(config: RunConfig) -> dict[str, Any]:
    """Return what the configuration says of a model that is not made here; its files, or its name, say the rest."""
    if isinstance(config.lm, LocalLmSection):
        return {"lm": config.lm.model_dump(mode="json", exclude={"path", "adapter", "batch_size"})}
    if isinstance(config.lm, EndpointLmSection):
        return {"lm": config.lm.model_dump(mode="json", include=ENDPOINT_ANSWERS)}
    return {}


def model_files(config: RunConfig) -> Mapping[str, Path]:
    """Return the files of a local model and of its adapter."""
    if not isinstance(config.lm, LocalLmSection):
        return {}
    from kgqa_core.text.transformer import content_files

    found: dict[str, Path] = {}
    for name, folder in (("lm", config.lm.path), ("adapter", config.lm.adapter)):
        if folder is None:
            continue
        if not folder.is_dir():
            beside = [entry.name for entry in folder.parent.iterdir()] if folder.parent.is_dir() else []
            near = nearest(folder.name, beside)
            key = "lm.path" if name == "lm" else "lm.adapter"
            raise ConfigError(f"{key}: {folder} is no folder" + (f"; nearest beside it: {near[0]}" if near else ""))
        found |= {f"{name}/{path.name}": path for path in content_files(folder)}
    return found


def prompt_hashes(config: RunConfig, *instructions: str) -> dict[str, str]:
    """Return the content of the prompts of some instructions, or of all: who words one anew asks something else."""
    from kgqa_core.instructions.render import read_prompts

    hashes = read_prompts(config.prompts).hashes
    if not instructions:
        return hashes
    return {name: content for name, content in hashes.items() if any(_is_of(name, one) for one in instructions)}


def _is_of(prompt: str, instruction: str) -> bool:
    """Is this the prompt of an instruction, of a variant of it, or what the system says beside one?"""
    return re.fullmatch(rf"{re.escape(instruction)}([_.].*)?", prompt) is not None


# ------ The stages of the comparison: what each system is made of, and who answers for it.


EXPLORING = {"etd", "dualr", "explorer", "ours"}  # they start from the trained explorer
PUBLISHED = Path(__file__).resolve().parents[2] / "conf" / "papers" / "tables.yaml"
COMPARISON = "comparison"  # of all systems, answerers and seeds
SHARED = (
    "topics",
    "pool",
    "num_questions",
    "draw",
    "max_calls",
    "max_new_tokens",
)  # settings of the comparison that shape each answer


def system_key(row: str, answerer: Answerer, seed: int) -> str:
    """Return the key of the stage in which a row of the comparison is answered by one language model and seed."""
    who = "" if answerer == "lm" or row in WITHOUT_LM else f"-{answerer}"
    return f"system-{row}{who}-seed{seed}"


def system_specs(config: RunConfig, base: tuple[str, ...], made: Mapping[str, StageSpec]) -> list[StageSpec]:
    """Return a stage per system, answerer and seed; those without a language model once per seed.

    Args:
        config: the run.
        base: the stages of graph and questions.
        made: all other stages of the run by key.

    Raises:
        ConfigError: a system needs something that the run does not make.
    """
    systems = config.systems
    if systems is None:
        return []
    seeds = systems.seeds or config.exploration.seeds
    rows = systems.rows()
    wanted = {
        system_key(row, answerer, seed): (row, answerer, seed)
        for seed in seeds
        for row, (_, answerers) in rows.items()
        for answerer in answerers
    }
    fuses = any(name == "ours" for name, _ in rows.values())
    fusion = [_fusion(config, base, seed, made) for seed in seeds] if fuses else []
    known = {**made, **{spec.key: spec for spec in fusion}}
    specs = [_spec(config, base, known, key, *what) for key, what in wanted.items()]
    section = {"dataset": config.dataset.name}  # papers report figures on it, or not
    return [*fusion, *specs, StageSpec(COMPARISON, COMPARISON, section, tuple(wanted), {"published": PUBLISHED})]


def _spec(
    config: RunConfig,
    base: tuple[str, ...],
    made: Mapping[str, StageSpec],
    key: str,
    row: str,
    answerer: Answerer,
    seed: int,
) -> StageSpec:
    assert config.systems is not None
    name, systems = config.systems.rows()[row][0], config.systems.as_row(row)
    section: dict[str, Any] = {"system": name, "seed": seed, "split": config.evaluation.split}
    section |= {} if row == name else {"row": row}
    section |= {**systems.model_dump(mode="json", include=set(SHARED)), **_walked(config)}
    section |= {f"settings.{setting}": value for setting, value in _settings(systems, name).items()}
    needs: list[str] = []
    files: dict[str, Path] = {}
    borrows: dict[str, Borrowed] = {}
    if name in EXPLORING:
        section |= _exploring(config)
        needs += ["encodings", explorer_key(config, seed)]
    if name == "dualr" and systems.dualr.explorer is not None:
        conf = systems.dualr.explorer
        borrows["dualr"] = Borrowed(conf, explorer_key(read_config(conf), seed))
    if name not in WITHOUT_LM:
        section |= {"answered_by": answerer, "prompts": prompt_hashes(config)}
        if answerer == "lm":
            needs += model_stages(config, seed)
            section |= answering_model(config)
            files |= model_files(config)
        if answerer == "oracle":
            section |= {f"oracle.{setting}": value for setting, value in systems.oracle.model_dump().items()}
            needs.append("supervision")
    if systems.pool == "hard":
        needs.append("supervision")
    source = _plan_source(systems, name)
    needs += [*plan_stages(config, source, seed), *([f"fusion-seed{seed}"] if name == "ours" else [])]
    if source in ("generator", "mixture"):  # the run's own model plans, whoever answers
        section |= answering_model(config)
        files |= model_files(config)
    return StageSpec(key, "system", section, (*base, *_known(key, needs, made)), files, borrows)


def _fusion(config: RunConfig, base: tuple[str, ...], seed: int, made: Mapping[str, StageSpec]) -> StageSpec:
    """Return the stage that chooses on dev how explorer and planner are fused."""
    systems = config.systems
    assert systems is not None
    ours: OursSection = systems.ours
    section = {**ours.model_dump(mode="json"), "seed": seed, **_exploring(config), **_walked(config)}
    needs = ["encodings", explorer_key(config, seed), *plan_stages(config, ours.planner, seed)]
    judged = judged_by_lm(config)
    if judged:
        needs += model_stages(config, seed)
    if judged or ours.planner != "dense":
        section |= {"prompts": prompt_hashes(config, "plan"), **answering_model(config)}
    key = f"fusion-seed{seed}"
    return StageSpec(key, "fusion", section, (*base, *_known(key, needs, made)), model_files(config))


def judged_by_lm(config: RunConfig) -> bool:
    """Say whether the run has a language model that may decide where explorer and planner disagree."""
    return config.lm is not None and config.plans is not None and "generator" in config.plans.trained


def _exploring(config: RunConfig) -> dict[str, Any]:
    limits = {"edge_budget", "attention_threshold", "evidence_paths"}
    return config.evaluation.model_dump(mode="json", include=limits)


def _walked(config: RunConfig) -> dict[str, Any]:
    """Return how far systems and plans go, and how planners read questions: other stages may not tell."""
    explorer = config.exploration
    return {
        "max_hops": explorer.steps,
        "reenter_topic": config.dataset.reenter_topic,
        "mask_topics": explorer.mask_topics,
    }


def _plan_source(systems: SystemsSection, name: SystemName) -> str:
    """Return where a system's plans come from; none: it has none, or no stage makes them."""
    if name == "ours":
        return systems.ours.planner
    return str(getattr(systems, name).plans) if name in ("rog", "eperm") else "none"


def _settings(systems: SystemsSection, name: SystemName) -> dict[str, Any]:
    section = getattr(systems, name, None)
    return section.model_dump(mode="json", exclude={"explorer"}) if section is not None else {}


def explorer_key(config: RunConfig, seed: int) -> str:
    """Return the stage of the explorer that a seed's systems use: of that seed, else the first."""
    seeds = config.exploration.seeds
    return f"explorer-seed{seed if seed in seeds else seeds[0]}"


def planner_seed(config: RunConfig, seed: int) -> int:
    """Return the seed of the planners and adapters that a seed's systems use: that one, else the first."""
    seeds = config.plans.seeds if config.plans else (seed,)
    return seed if seed in seeds else seeds[0]


def model_stages(config: RunConfig, seed: int) -> list[str]:
    """Return the stages that the run's own language model is made in."""
    made = ["lm"] if isinstance(config.lm, EmbeddedLmSection) else []
    return [*made, *([f"reasoner-seed{planner_seed(config, seed)}"] if config.reasoner else [])]


def plan_stages(config: RunConfig, source: str, seed: int) -> list[str]:
    """Return the stages that a source of plans is made in."""
    needs = model_stages(config, seed) if source in ("generator", "mixture") else []
    return [*needs, *([f"dense-seed{planner_seed(config, seed)}"] if source in ("dense", "mixture") else [])]


def _known(key: str, needs: list[str], made: Mapping[str, StageSpec]) -> list[str]:
    """Return the distinct stages that a system needs; all of them have to be the run's."""
    if missing := [need for need in needs if need not in made]:
        raise ConfigError(
            f"{key} needs {missing[0]!r}, which this run does not make: say so in its sections plans, lm, dense or "
            "reasoner, or leave the system out of systems.run"
        )
    return list(dict.fromkeys(needs))


# ------ Which stages a run has, and what each is made of: its part of the configuration, other ...


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
    from kgqa_core.questions.formats import question_files

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
    from kgqa_core.questions.formats import question_files

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


def _dev_ids(section: QuestionSection) -> dict[str, Path]:
    return {} if section.dev_ids is None else {"questions/dev_ids": section.dev_ids}


def _encoder_identity(config: RunConfig) -> dict[str, Any]:
    """Return what the configuration and our code say about the encoder; of a local one, its files say the rest."""
    section = config.encoding.model_dump(mode="json", exclude={"path"})
    if isinstance(config.encoding, LocalEncoderSection):
        from kgqa_core.text.transformer import VERSION

        return {**section, "version": VERSION}
    if isinstance(config.encoding, HashEncoderSection):
        from kgqa_core.text.encoder import HashEncoder

        return {**section, "identity": HashEncoder(config.encoding.dim).name}
    from kgqa_core.text.transformer import MiniLmEncoder

    return {**section, "identity": MiniLmEncoder().name}


def _encoder_files(config: RunConfig) -> dict[str, Path]:
    if not isinstance(config.encoding, LocalEncoderSection):
        return {}
    from kgqa_core.text.transformer import content_files

    folder = config.encoding.path
    if not folder.is_dir():
        beside = [entry.name for entry in folder.parent.iterdir()] if folder.parent.is_dir() else []
        near = nearest(folder.name, beside)
        raise ConfigError(f"encoder.path: {folder} is no folder" + (f"; nearest beside it: {near[0]}" if near else ""))
    return {f"encoder/{path.name}": path for path in content_files(folder)}
