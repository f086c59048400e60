"""Opening what a run has built: graph, questions, encodings, the trained explorer. Loads torch only where it must."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from kgqa_core.artifacts import FileHashes
from kgqa_core.config import EncoderSection, EvaluationSection, HashEncoderSection, LocalEncoderSection, RunConfig
from kgqa_core.config_lm import EmbeddedLmSection, EndpointLmSection, LocalLmSection
from kgqa_core.errors import ConfigError
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.graph.subgraphs import Subgraphs, open_subgraphs
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.types import Question, Split

if TYPE_CHECKING:
    from kgqa_core.explorer.model import EncodeTexts
    from kgqa_core.instructions.path_constraint import PathConstraints
    from kgqa_core.lm.calls import Budget, Meter, Metered
    from kgqa_core.lm.types import LanguageModel
    from kgqa_core.planners.dense import DensePlanner
    from kgqa_core.planners.evaluate import Ground as PlanGround
    from kgqa_core.planners.evaluate import IsValid
    from kgqa_core.planners.generator import GeneratorPlanner
    from kgqa_core.planners.types import Planner, PlanQuestion
    from kgqa_core.systems.explorer_system import ExplorerSystem
    from kgqa_core.text.encoder import Encoder

ENCODINGS_FILE = "encodings.parquet"


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
    from kgqa_core.text.cache import encode_cached

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


@dataclass(frozen=True, slots=True)
class Ground:
    """What a run walks on: its graph, or the graph of rows in which each question has its subgraph."""

    graph: KnowledgeGraph
    subgraphs: Subgraphs | None

    def place(self, questions: Sequence[Question]) -> list[Question]:
        """Return linked questions whose entities are those of ``graph``."""
        return self.subgraphs.all_to_rows(questions) if self.subgraphs else list(questions)


def ground_of(pipeline: Pipeline) -> Ground:
    """Open what a run walks on.

    Raises:
        ArtifactError: graph or subgraphs are not built.
    """
    subgraphs = subgraphs_of(pipeline)
    return Ground(subgraphs.graph if subgraphs else graph_of(pipeline), subgraphs)


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
    from kgqa_core.explorer.checkpoint import load_explorer
    from kgqa_core.systems.explorer_system import ExplorerSystem

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


# ------ Opening the language model and the planners of a run.


MODEL_FOLDER, ADAPTER_FOLDER = "model", "adapter"  # inside the artifacts of lm and reasoner
DENSE_FOLDER = "planner"  # inside the artifact of dense
INSTRUCTIONS_FILE = "instructions.parquet"
PRICES = Path(__file__).resolve().parents[2] / "conf" / "prices.yaml"


def base_folder(pipeline: Pipeline) -> Path:
    """Return the folder of the model that adapters are trained on.

    Raises:
        ArtifactError: the embedded model is not made.
        ConfigError: the model is not here.
    """
    lm = pipeline.config.lm
    if isinstance(lm, EmbeddedLmSection):
        return pipeline.artifact("lm").folder / MODEL_FOLDER
    if isinstance(lm, LocalLmSection):
        return lm.path
    raise ConfigError(f"run {pipeline.config.name!r} has no model of its own: lm.kind embedded or local")


def open_model(pipeline: Pipeline, seed: int) -> LanguageModel:
    """Open the run's language model, with the adapters of this seed where it trains any.

    Raises:
        ArtifactError: something of it is not made.
        InputError: a folder or an endpoint that cannot be used.
    """
    config = pipeline.config
    if isinstance(config.lm, EndpointLmSection):
        from kgqa_core.lm.endpoint import Endpoint

        return Endpoint(config.lm)
    from kgqa_core.lm.local import open_local

    folder, adapter = base_folder(pipeline), None
    local = config.lm if isinstance(config.lm, LocalLmSection) else None
    if local is not None:
        adapter = local.adapter
    if config.reasoner is not None:
        trained = pipeline.artifact(f"reasoner-seed{seed}").folder
        if (trained / ADAPTER_FOLDER).is_dir():
            adapter = trained / ADAPTER_FOLDER
        else:
            folder, adapter = trained / MODEL_FOLDER, None
    return open_local(
        folder,
        adapter=adapter,
        dtype=local.dtype if local else "auto",
        quantise=local.quantise if local else "none",
        device=device_of(config),
        hash_file=FileHashes(pipeline.home / "cache" / "file_hashes.json").hash,
    )


def plan_ground(pipeline: Pipeline) -> PlanGround | None:
    """Return what a run's plans are followed in; None where its dataset has no graph."""
    config = pipeline.config
    if config.explorer is None:
        return None
    from kgqa_core.planners.evaluate import Ground

    return Ground(ground_of(pipeline).graph, config.explorer.steps, config.dataset.reenter_topic)


def validity(pipeline: Pipeline, ground: PlanGround | None) -> IsValid:
    """Return what makes a plan valid: it leads somewhere, or its relations are those of training."""
    if ground is not None:
        return ground.is_valid()
    from kgqa_core.graph.kg import unsigned
    from kgqa_core.planners.evaluate import made_of

    return made_of({label for one in taught(pipeline) for path in one.paths for label in unsigned(path)})


def taught(pipeline: Pipeline, split: Split = "train") -> list[PlanQuestion]:
    """Return the questions that planners learn from, with the paths that the run's supervision chooses."""
    from kgqa_core.planners.cases import Teaching, read_cases

    plans = pipeline.config.plans
    assert plans is not None
    teaching = Teaching(plans.supervision, plans.precision_threshold)
    return read_cases(pipeline.artifact("supervision").folder, split, teaching)


def known_steps(pipeline: Pipeline) -> list[str]:
    """Return all steps that a plan may have: both directions of a graph's relations, else those of the training set."""
    ground = plan_ground(pipeline)
    if ground is None:
        return sorted({step for one in taught(pipeline) for path in one.paths for step in path})
    from kgqa_core.graph.kg import write_step

    return [write_step(label, backward) for backward in (False, True) for label in ground.graph.relation_labels]


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
            from kgqa_core.planners.generator import open_mixture

            generator, meter = stack.enter_context(_generator(pipeline, seed))
            yield OpenedPlanner(open_mixture(_dense(pipeline, seed), generator), meter)


@contextmanager
def _generator(pipeline: Pipeline, seed: int) -> Iterator[tuple[GeneratorPlanner, Meter]]:
    """Open the language model as a planner; every call is metered, and remembered for the next time."""
    from kgqa_core.instructions.path_constraint import RelationConstraint
    from kgqa_core.instructions.render import read_prompts
    from kgqa_core.planners.generator import GeneratorPlanner

    ground = plan_ground(pipeline)
    space: PathConstraints | RelationConstraint
    if ground is not None:
        space = path_constraints(ground)
    else:
        longest = max((len(path) for one in taught(pipeline) for path in one.paths), default=1)
        space = RelationConstraint(known_steps(pipeline), max_hops=longest)
    with metered(pipeline, open_model(pipeline, seed), system="generator") as model:
        yield GeneratorPlanner(model, read_prompts(pipeline.config.prompts), space=space), model.meter


def path_constraints(ground: PlanGround) -> PathConstraints:
    """Return the plans that exist in a graph."""
    from kgqa_core.instructions.path_constraint import PathConstraints

    return PathConstraints(ground.graph, max_hops=ground.max_hops, reenter_topic=ground.reenter_topic)


@contextmanager
def metered(
    pipeline: Pipeline, model: LanguageModel, *, system: str, budget: Budget | None = None
) -> Iterator[Metered]:
    """Account for a model's calls, and keep them: the same call is paid once in a home. ``budget`` None: no limit."""
    from kgqa_core.lm.call_store import CallStore
    from kgqa_core.lm.calls import UNLIMITED, Meter, Metered, read_prices

    lm = pipeline.config.lm
    price = read_prices(PRICES).models.get(lm.model) if isinstance(lm, EndpointLmSection) else None
    with CallStore(pipeline.home / "cache" / "calls") as store:
        yield Metered(model, meter=Meter(), store=store, budget=budget or UNLIMITED, system=system, price=price)


def _dense(pipeline: Pipeline, seed: int) -> DensePlanner:
    from kgqa_core.planners.dense import open_dense, steps_around

    ground = plan_ground(pipeline)
    exists = steps_around(path_constraints(ground)) if ground else None
    return open_dense(pipeline.artifact(f"dense-seed{seed}").folder / DENSE_FOLDER, exists=exists)


def model_facts(pipeline: Pipeline) -> dict[str, Any]:
    """Return what ``kgqa lm-info`` prints of the run's language model.

    Raises:
        ConfigError: the run has none.
        ArtifactError: it is not made.
    """
    config = pipeline.config
    if config.lm is None:
        raise ConfigError(f"run {config.name!r} has no language model: give its configuration a section 'lm'")
    if isinstance(config.lm, EndpointLmSection):
        from kgqa_core.lm.endpoint import Endpoint

        model = Endpoint(config.lm)
        return {"kind": "endpoint", "url": config.lm.url, "served": model.model, "context": model.context}
    from kgqa_core.lm.facts import describe

    local = config.lm if isinstance(config.lm, LocalLmSection) else None
    facts = describe(
        base_folder(pipeline),
        adapter=local.adapter if local else None,
        dtype=local.dtype if local else "auto",
        quantise=local.quantise if local else "none",
        device=device_of(config),
    )
    return {"kind": config.lm.kind, **asdict(facts)}
