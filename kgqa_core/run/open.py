"""Opening what a run has built: graph, questions, encodings, the trained explorer. Loads torch only where it must."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from kgqa_core.config import EncoderSection, EvaluationSection, HashEncoderSection, LocalEncoderSection, RunConfig
from kgqa_core.config_base import CONF
from kgqa_core.errors import ConfigError, nearest
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.graph.search_graph import SearchGraph, Subgraphs, open_subgraphs
from kgqa_core.lm.backends import Machine, ModelSection, Weights
from kgqa_core.run.pipeline import FileHashes, Pipeline
from kgqa_core.types import Split

if TYPE_CHECKING:
    from kgqa_core.explorer.model import EncodeTexts
    from kgqa_core.instructions.path_constraint import PathConstraints
    from kgqa_core.lm.calls import Budget, Meter, Metered
    from kgqa_core.lm.types import LanguageModel
    from kgqa_core.planners.dense import DensePlanner
    from kgqa_core.planners.evaluate import IsValid
    from kgqa_core.planners.generator import GeneratorPlanner
    from kgqa_core.planners.types import Planner, PlanQuestion
    from kgqa_core.systems.etd import ExplorerSystem
    from kgqa_core.text.encoder import Encoder

ENCODINGS_FILE = "encodings.parquet"


def folder_files(folder: Path, key: str, name: str) -> dict[str, Path]:
    """Return the files of a transformers folder that decide what it does.

    Args:
        folder: the folder.
        key: the setting that names it, for the error.
        name: what its files are called by.

    Raises:
        ConfigError: there is no such folder.
    """
    from kgqa_core.text.transformer import content_files

    if not folder.is_dir():
        beside = [entry.name for entry in folder.parent.iterdir()] if folder.parent.is_dir() else []
        near = nearest(folder.name, beside)
        raise ConfigError(f"{key}: {folder} is no folder" + (f"; nearest beside it: {near[0]}" if near else ""))
    return {f"{name}/{path.name}": path for path in content_files(folder)}


def make_encoder(config: RunConfig) -> Encoder:
    """Return the text encoder that a configuration names; weights are loaded when it first encodes."""
    return encoder_of(config.encoding)


def encoder_of(section: EncoderSection) -> Encoder:
    """Return the text encoder that a section of a configuration describes."""
    if isinstance(section, HashEncoderSection):
        from kgqa_core.text.encoder import HashEncoder

        return HashEncoder(section.dim)
    if isinstance(section, LocalEncoderSection):
        from kgqa_core.text.transformer import LocalEncoder

        return LocalEncoder(section.path, pooling=section.pooling)
    from kgqa_core.text.transformer import MiniLmEncoder

    return MiniLmEncoder()


def device_of(config: RunConfig) -> str:
    """Return where models are to work: "cpu" or "cuda".

    Raises:
        ConfigError: a GPU is asked for and there is none.
    """
    import torch

    wanted, there = config.runtime.device, torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise ConfigError("runtime.device is cuda, and torch finds no GPU here; set it to auto or cpu")
    return "cuda" if there and wanted != "cpu" else "cpu"


def cache_folder(pipeline: Pipeline) -> Path:
    """Return where encodings are cached, for all runs of one home."""
    return pipeline.home / "cache" / "encodings"


def encode_all(pipeline: Pipeline, texts: Sequence[str]) -> np.ndarray:
    """Return unit-norm encodings [n, encoding_dim], computing only those never seen before."""
    from kgqa_core.text.encoder import encode_cached

    def progress(done: int, total: int) -> None:
        pipeline.progress("encoding texts", done, total)

    encoder = make_encoder(pipeline.config)
    return unit_norm(encode_cached(texts, encoder=encoder, cache_dir=cache_folder(pipeline), progress=progress))


def unit_norm(vectors: np.ndarray) -> np.ndarray:
    """Return the rows scaled to length one; a zero row stays zero."""
    norm: np.ndarray = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: np.ndarray = vectors / np.maximum(norm, 1e-12)
    return scaled


def read_encodings(folder: Path) -> dict[str, np.ndarray]:
    """Return text -> vector of an encodings artifact."""
    table = pq.read_table(folder / ENCODINGS_FILE)
    width = len(table["vector"][0])
    vectors = table["vector"].combine_chunks().flatten().to_numpy().reshape(-1, width)
    return dict(zip(table["text"].to_pylist(), vectors, strict=True))


def graph_of(pipeline: Pipeline) -> KnowledgeGraph:
    """Open the run's graph.

    Raises:
        ArtifactError: it is not built.
    """
    return open_graph(pipeline.artifact("graph").folder)


def subgraphs_of(pipeline: Pipeline) -> Subgraphs | None:
    """Open the subgraphs of the run's questions; None where all explore one graph.

    Raises:
        ArtifactError: they are not built.
    """
    return open_subgraphs(pipeline.artifact("subgraphs").folder) if "subgraphs" in pipeline.specs else None


def search_graph(pipeline: Pipeline) -> SearchGraph:
    """Open what a run searches: its graph, or the graph of rows in which each question has its subgraph.

    Raises:
        ArtifactError: graph or subgraphs are not built.
    """
    config, whole, subgraphs = pipeline.config, graph_of(pipeline), subgraphs_of(pipeline)
    searched = subgraphs.graph if subgraphs else whole
    return SearchGraph(searched, whole, subgraphs, config.exploration.steps, config.dataset.reenter_topic)


def open_system(pipeline: Pipeline, seed: int | None = None) -> ExplorerSystem:
    """Open the run's trained explorer.

    Args:
        pipeline: the run.
        seed: which of its explorers; the first by default.

    Raises:
        ArtifactError: graph or explorer is not built.
    """
    config = pipeline.config
    chosen = config.exploration.seeds[0] if seed is None else seed
    system = load_system(
        pipeline.artifact(f"explorer-seed{chosen}").folder,
        graph=graph_of(pipeline),
        encoder=make_encoder(config).name,
        encode=lambda texts: encode_all(pipeline, texts),
        evaluation=config.evaluation,
        batch_size=config.runtime.batch_size,
    )
    return replace(system, model=system.model.to(device_of(config)), subgraphs=subgraphs_of(pipeline))


def load_system(
    folder: Path,
    *,
    graph: KnowledgeGraph,
    encoder: str,
    encode: EncodeTexts,
    evaluation: EvaluationSection,
    batch_size: int,
) -> ExplorerSystem:
    """Open a checkpoint over a graph, under the limits of an evaluation.

    Args:
        folder: of the checkpoint.
        graph: what is explored.
        encoder: identity of the text encoder.
        encode: texts to unit-norm vectors.
        evaluation: limits to the walk, and how many evidence paths are kept.
        batch_size: questions that are explored at once.

    Raises:
        ArtifactError: the checkpoint is missing, damaged or of another encoder.
    """
    from kgqa_core.explorer.model import load_explorer
    from kgqa_core.systems.etd import ExplorerSystem

    model, card = load_explorer(folder, encoder=encoder)
    system = ExplorerSystem(
        graph=graph,
        model=model,
        card=card,
        encode=encode,
        evidence_paths=evaluation.evidence_paths,
        batch_size=batch_size,
    )
    return system.limited(edge_budget=evaluation.edge_budget, attention_threshold=evaluation.attention_threshold)


# ------ The language model and the planners of a run: what its configuration says of them, and opening them.


MODEL_FOLDER, ADAPTER_FOLDER = "model", "adapter"  # inside the artifacts of lm and reasoner
DENSE_FOLDER = "planner"  # inside the artifact of dense
INSTRUCTIONS_FILE = "instructions.parquet"
PRICES = CONF / "prices.yaml"


# ------ What the configuration says of them: parts of recipes.


def model_section(config: RunConfig) -> ModelSection:
    """Return the section of the run's language model, which opens it.

    Raises:
        ConfigError: it has none.
    """
    if config.lm is None:
        raise ConfigError(f"run {config.name!r} has no language model: give its configuration a section 'lm'")
    section: ModelSection = config.lm
    return section


def is_made_here(config: RunConfig) -> bool:
    """Say whether the run makes its language model in a stage of its own."""
    return config.lm is not None and model_section(config).is_made_here


def answering_model(config: RunConfig) -> dict[str, Any]:
    """Return what the configuration says of a model that is not made here; its files, or its name, say the rest."""
    recipe = config.lm.recipe() if config.lm else {}
    return {"lm": recipe} if recipe else {}


def model_files(config: RunConfig) -> dict[str, Path]:
    """Return the files of a model that is on this machine, and of its adapter."""
    weights = config.lm.weights(None) if config.lm else None
    if weights is None:
        return {}
    files = folder_files(weights.folder, "lm.path", "lm")
    return files | (folder_files(weights.adapter, "lm.adapter", "adapter") if weights.adapter else {})


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


def planner_seed(config: RunConfig, seed: int) -> int:
    """Return the seed of the planners and adapters that a seed's systems use: that one, else the first."""
    seeds = config.plans.seeds if config.plans else (seed,)
    return seed if seed in seeds else seeds[0]


def model_stages(config: RunConfig, seed: int) -> list[str]:
    """Return the stages that the run's own language model is made in."""
    made = ["lm"] if is_made_here(config) else []
    return [*made, *([f"reasoner-seed{planner_seed(config, seed)}"] if config.reasoner else [])]


def plan_stages(config: RunConfig, source: str, seed: int) -> list[str]:
    """Return the stages that a source of plans is made in."""
    needs = model_stages(config, seed) if source in ("generator", "mixture") else []
    return [*needs, *([f"dense-seed{planner_seed(config, seed)}"] if source in ("dense", "mixture") else [])]


def has_generator(config: RunConfig) -> bool:
    """Say whether a language model of the run plans: it may then also decide where explorer and planner disagree."""
    return config.lm is not None and config.plans is not None and "generator" in config.plans.trained


# ------ Opening them.


def _weights(pipeline: Pipeline) -> Weights | None:
    """Return the files of the run's model before tuning; None where it is elsewhere."""
    config = pipeline.config
    made = pipeline.artifact("lm").folder / MODEL_FOLDER if is_made_here(config) else None
    return model_section(config).weights(made)


def base_folder(pipeline: Pipeline) -> Path:
    """Return the folder of the model that adapters are trained on.

    Raises:
        ArtifactError: the run makes it, and did not yet.
        ConfigError: the model is not here.
    """
    weights = _weights(pipeline)
    if weights is None:
        raise ConfigError(f"run {pipeline.config.name!r} has no model of its own: lm.kind embedded or local")
    return weights.folder


def open_model(pipeline: Pipeline, seed: int) -> LanguageModel:
    """Open the run's language model, with the adapters of this seed where it trains any.

    Raises:
        ArtifactError: something of it is not made.
        InputError: a folder or an endpoint that cannot be used.
    """
    config, weights = pipeline.config, _weights(pipeline)
    if config.reasoner is not None and weights is not None:
        trained = pipeline.artifact(f"reasoner-seed{seed}").folder
        is_adapter = (trained / ADAPTER_FOLDER).is_dir()
        weights = Weights(weights.folder, trained / ADAPTER_FOLDER) if is_adapter else Weights(trained / MODEL_FOLDER)
    return model_section(config).open(weights, _machine(pipeline))


def _machine(pipeline: Pipeline) -> Machine:
    hashes = FileHashes(pipeline.home / "cache" / "file_hashes.json")
    return Machine(device=lambda: device_of(pipeline.config), hash_file=hashes.hash)


def plan_graph(pipeline: Pipeline) -> SearchGraph | None:
    """Return what a run's plans are followed in; None where its dataset has no graph."""
    return None if pipeline.config.explorer is None else search_graph(pipeline)


def validity(pipeline: Pipeline, search: SearchGraph | None) -> IsValid:
    """Return what makes a plan valid: it leads somewhere, or its relations are those of training."""
    if search is not None:
        from kgqa_core.planners.evaluate import leads_somewhere

        return leads_somewhere(search)
    from kgqa_core.graph.kg import unsigned
    from kgqa_core.planners.evaluate import made_of

    return made_of({label for one in taught(pipeline) for path in one.paths for label in unsigned(path)})


def taught(pipeline: Pipeline, split: Split = "train") -> list[PlanQuestion]:
    """Return the questions that planners learn from, with the paths that the run's supervision chooses."""
    from kgqa_core.planners.cases import read_cases

    plans = pipeline.config.plans
    assert plans is not None
    return read_cases(pipeline.artifact("supervision").folder, split, plans.supervision, plans.precision_threshold)


def known_steps(pipeline: Pipeline) -> list[str]:
    """Return all steps that a plan may have: both directions of a graph's relations, else those of the training set."""
    search = plan_graph(pipeline)
    if search is None:
        return sorted({step for one in taught(pipeline) for path in one.paths for step in path})
    from kgqa_core.graph.kg import write_step

    return [write_step(label, backward) for backward in (False, True) for label in search.graph.relation_labels]


@dataclass(frozen=True, slots=True)
class OpenedPlanner:
    """A planner that is ready, and what its language model costs."""

    planner: Planner
    meter: Meter | None = None  # None: no language model

    def cost(self) -> dict[str, float]:
        """Return calls, tokens and seconds so far, logical ones: equal whether they were remembered or paid."""
        if self.meter is None:
            return {}
        used = self.meter.usage()
        return {
            "num_calls": used.num_calls,
            "num_prompt_tokens": used.num_prompt_tokens,
            "num_tokens": used.num_tokens,
            "paid_calls": used.paid_calls,
        }


@contextmanager
def open_planner(pipeline: Pipeline, name: str, seed: int) -> Iterator[OpenedPlanner]:
    """Open one of the run's planners: generator, dense or mixture.

    Raises:
        ArtifactError: something of it is not made.
    """
    with ExitStack() as stack:
        if name == "generator":
            generator, meter = stack.enter_context(_generator(pipeline, seed))
            yield OpenedPlanner(generator, meter)
        elif name == "dense":
            yield OpenedPlanner(_dense(pipeline, seed))
        else:
            from kgqa_core.planners.generator import MixturePlanner

            generator, meter = stack.enter_context(_generator(pipeline, seed))
            yield OpenedPlanner(MixturePlanner(_dense(pipeline, seed), generator), meter)


@contextmanager
def _generator(pipeline: Pipeline, seed: int) -> Iterator[tuple[GeneratorPlanner, Meter]]:
    """Open the language model as a planner; every call is metered, and remembered for the next time."""
    from kgqa_core.instructions.path_constraint import RelationConstraint
    from kgqa_core.instructions.render import read_prompts
    from kgqa_core.planners.generator import GeneratorPlanner

    search = plan_graph(pipeline)
    space: PathConstraints | RelationConstraint
    if search is not None:
        space = path_constraints(search)
    else:
        longest = max((len(path) for one in taught(pipeline) for path in one.paths), default=1)
        space = RelationConstraint(known_steps(pipeline), max_hops=longest)
    with metered(pipeline, open_model(pipeline, seed), system="generator") as model:
        yield GeneratorPlanner(model, read_prompts(pipeline.config.prompts), space=space), model.meter


def path_constraints(search: SearchGraph) -> PathConstraints:
    """Return the plans that exist in a graph."""
    from kgqa_core.instructions.path_constraint import PathConstraints

    return PathConstraints(search.graph, max_hops=search.max_hops, reenter_topic=search.reenter_topic)


@contextmanager
def metered(
    pipeline: Pipeline, model: LanguageModel, *, system: str, budget: Budget | None = None
) -> Iterator[Metered]:
    """Account for a model's calls, and keep them: the same call is paid once in a home. ``budget`` None: no limit."""
    from kgqa_core.lm.call_store import CallStore
    from kgqa_core.lm.calls import UNLIMITED, Meter, Metered, read_prices

    config = pipeline.config
    name = config.lm.price_name() if config.lm else ""
    price = read_prices(PRICES).models.get(name)
    with CallStore(pipeline.home / "cache" / "calls") as store:
        yield Metered(model, meter=Meter(), store=store, budget=budget or UNLIMITED, system=system, price=price)


def _dense(pipeline: Pipeline, seed: int) -> DensePlanner:
    from kgqa_core.planners.dense import open_dense, steps_around

    search = plan_graph(pipeline)
    exists = steps_around(path_constraints(search)) if search else None
    return open_dense(pipeline.artifact(f"dense-seed{seed}").folder / DENSE_FOLDER, exists=exists)


def model_facts(pipeline: Pipeline) -> dict[str, Any]:
    """Return what ``kgqa lm-info`` prints of the run's language model.

    Raises:
        ConfigError: the run has none.
        ArtifactError: it is not made.
    """
    return model_section(pipeline.config).facts(_weights(pipeline), _machine(pipeline))
