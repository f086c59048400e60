"""Opening what a run has built: graph, encodings, explorer, language model, planners. Loads torch where it must.

All raise ``ArtifactError`` where a stage that they stand on is not done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from kgqa_core.config import EncoderSection, EvaluationSection, HashEncoderSection, LocalEncoderSection, RunConfig
from kgqa_core.config_base import CONF
from kgqa_core.config_file import read_yaml, validated
from kgqa_core.config_lm import OwnModelSection, Prices, Role
from kgqa_core.errors import ConfigError
from kgqa_core.graph.kg import KnowledgeGraph, open_graph, unsigned
from kgqa_core.graph.search_graph import SearchGraph, Subgraphs, open_subgraphs
from kgqa_core.instructions import plan
from kgqa_core.instructions.plan import PathConstraints, PlanAsker, Planner, PlanQuestion
from kgqa_core.instructions.render import read_prompts
from kgqa_core.lm.call_store import CallStore
from kgqa_core.lm.calls import Meter, Metered, RoleModels
from kgqa_core.lm.types import LanguageModel, Machine, ModelSection, Weights
from kgqa_core.planners.evaluate import IsValid, leads_somewhere, made_of, read_cases
from kgqa_core.questions.build import read_questions
from kgqa_core.questions.coverage import fill_hops
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.systems.etd import ExplorerSystem
from kgqa_core.text.encoder import Encoder, HashEncoder, encode_cached
from kgqa_core.text.transformer import local_encoder, minilm_encoder
from kgqa_core.types import Question, Split

if TYPE_CHECKING:
    from kgqa_core.explorer.model import EncodeTexts

ENCODINGS_FILE = "encodings.parquet"
MODEL_FOLDER, ADAPTER_FOLDER = "model", "adapter"  # inside the artifacts of lm and reasoner
DENSE_FOLDER = "planner"  # inside the artifact of dense
PRICES = CONF / "prices.yaml"


def device_of(config: RunConfig) -> str:
    """Return where models are to work, "cpu" or "cuda"; ConfigError where a GPU is asked for and there is none."""
    import torch

    wanted, there = config.runtime.device, torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise ConfigError("runtime.device is cuda, and torch finds no GPU here; set it to auto or cpu")
    return "cuda" if there and wanted != "cpu" else "cpu"


def encoder_of(section: EncoderSection) -> Encoder:
    """Return the text encoder that a section describes; weights are loaded when it first encodes."""
    if isinstance(section, HashEncoderSection):
        return HashEncoder(section.dim)
    if isinstance(section, LocalEncoderSection):
        return local_encoder(section.path, pooling=section.pooling)
    return minilm_encoder()


def encode_all(pipeline: Pipeline, texts: Sequence[str]) -> np.ndarray:
    """Return unit-norm encodings [n, encoding_dim], computing only those that no run of this home has seen before."""
    cache, encoder = pipeline.home / "cache" / "encodings", encoder_of(pipeline.config.encoding)
    told = partial(pipeline.progress, "encoding texts")
    return unit_norm(encode_cached(texts, encoder=encoder, cache_dir=cache, progress=told))


def relation_texts(graph: KnowledgeGraph) -> list[str]:
    """Return the texts of a graph that an explorer reads: its relations, and the inverses that it names."""
    return [*graph.relation_names, *(label for label in graph.inverse_labels if label is not None)]


def unit_norm(vectors: np.ndarray) -> np.ndarray:
    """Return the rows scaled to length one; a zero row stays zero."""
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))


def read_encodings(folder: Path) -> dict[str, np.ndarray]:
    """Return text -> vector of an encodings artifact."""
    table = pq.read_table(folder / ENCODINGS_FILE)
    vectors = table["vector"].combine_chunks().flatten().to_numpy().reshape(table.num_rows, -1)
    return dict(zip(table["text"].to_pylist(), vectors, strict=True))


def graph_of(pipeline: Pipeline) -> KnowledgeGraph:
    """Open the run's graph."""
    return open_graph(pipeline.artifact("graph").folder)


def subgraphs_of(pipeline: Pipeline) -> Subgraphs | None:
    """Open the subgraphs of the run's questions; None where all explore one graph."""
    return open_subgraphs(pipeline.artifact("subgraphs").folder) if "subgraphs" in pipeline.specs else None


def search_graph(pipeline: Pipeline, *, whole: bool = False) -> SearchGraph:
    """Open what a run searches: its graph, or the graph of rows in which each question has its subgraph.

    ``whole``: its graph, also where questions will have subgraphs, which may not be there yet.
    """
    config, entities, subgraphs = pipeline.config, graph_of(pipeline), None if whole else subgraphs_of(pipeline)
    searched = subgraphs.graph if subgraphs else entities
    return SearchGraph(searched, entities, subgraphs, config.exploration.steps, config.dataset.reenter_topic)


def plan_graph(pipeline: Pipeline) -> SearchGraph | None:
    """Return what a run's plans are followed in; None where its dataset has no graph."""
    return None if pipeline.config.explorer is None else search_graph(pipeline)


def read_with_hops(pipeline: Pipeline, *splits: Split) -> list[Question]:
    """Return the linked questions of some splits, with their hops wherever these can be known."""
    folder = pipeline.artifact("questions").folder
    questions = [question for split in splits for question in read_questions(folder, split)]
    return fill_hops(questions, search_graph(pipeline))


def explorer_key(config: RunConfig, seed: int | None = None) -> str:
    """Return the stage of the explorer that a seed's systems use: of that seed, else the first."""
    seeds = config.exploration.seeds
    return f"explorer-seed{seed if seed in seeds else seeds[0]}"


def open_system(pipeline: Pipeline, seed: int | None = None, *, trained_by: Pipeline | None = None) -> ExplorerSystem:
    """Open the run's trained explorer (see ``explorer_key``), or that of another run over this one's graph.

    Raises ConfigError where neither explorers nor systems of the run have the seed.
    """
    config, trained = pipeline.config, trained_by or pipeline
    seeds = {*config.exploration.seeds, *((config.systems and config.systems.seeds) or ())}
    if seed is not None and seed not in seeds:
        raise ConfigError(f"run {config.name!r} has no seed {seed}; it has {', '.join(map(str, sorted(seeds)))}")
    system = load_system(
        trained.artifact(explorer_key(trained.config, seed)).folder,
        graph=graph_of(pipeline),
        encoder=encoder_of(config.encoding).name,
        encode=partial(encode_all, pipeline),
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
    """Open a checkpoint over a graph, under the limits to walk and evidence of an evaluation; ArtifactError if damaged.

    ``encoder`` is the identity of the text encoder, ``encode`` makes unit-norm vectors of texts.
    """
    from kgqa_core.explorer.model import load_explorer

    (model, card), kept = load_explorer(folder, encoder=encoder), evaluation.evidence_paths
    system = ExplorerSystem(graph, model, card, encode, evidence_paths=kept, batch_size=batch_size)
    return system.limited(edge_budget=evaluation.edge_budget, attention_threshold=evaluation.attention_threshold)


def model_section(config: RunConfig, role: Role | None = None, row: str = "") -> ModelSection:
    """Return the section that opens the run's language model, or a role's player; ConfigError where it has none."""
    player = config.player(role, row) if role else None
    section: ModelSection | None = config.lm if player is None or isinstance(player, OwnModelSection) else player
    if section is None:
        raise ConfigError(f"run {config.name!r} has no language model: give its configuration a section 'lm'")
    return section


def has_model_stage(config: RunConfig) -> bool:
    """Say whether stage ``lm`` makes the folder of the run's language model, of a GGUF file."""
    return config.lm is not None and config.lm.gguf is not None


def has_generator(config: RunConfig) -> bool:
    """Say whether a language model of the run plans: it may then also decide where explorer and planner disagree."""
    return config.lm is not None and config.plans is not None and "generator" in config.plans.planners


def planner_seed(config: RunConfig, seed: int) -> int:
    """Return the seed of the planners and adapters that a seed's systems use: that one, else the first."""
    seeds = config.plans.seeds if config.plans else (seed,)
    return seed if seed in seeds else seeds[0]


def base_weights(pipeline: Pipeline) -> Weights | None:
    """Return the files of the run's model before tuning; None where it is elsewhere."""
    config = pipeline.config
    made = pipeline.artifact("lm").folder / MODEL_FOLDER if has_model_stage(config) else None
    return model_section(config).weights(made)


class Player(NamedTuple):
    """Whoever plays one role."""

    model: LanguageModel
    price_name: str = ""  # as prices call it; empty: it costs no money


def open_players(pipeline: Pipeline, seed: int, roles: Iterable[Role], *, row: str = "") -> dict[Role, Player]:
    """Open the models that play some roles, in a row of the comparison or else in the run; InputError if unusable.

    Roles that one model plays share it, and adapters of one base share that base.
    """
    wanted = {role: _role_weights(pipeline, seed, role, row) for role in roles}
    players: dict[Role, Player] = {}
    for first, _ in wanted.values():
        own = {role: weights for role, (section, weights) in wanted.items() if section == first and role not in players}
        files = list(dict.fromkeys(own.values()))
        models = dict(zip(files, first.open_each(files, machine_of(pipeline)), strict=True)) if own else {}
        players |= {role: Player(models[weights], first.price_name()) for role, weights in own.items()}
    return {role: players[role] for role in wanted}


def _role_weights(pipeline: Pipeline, seed: int, role: Role, row: str) -> tuple[ModelSection, Weights | None]:
    """Return the section of the model that plays a role, and the files that it is opened on."""
    config = pipeline.config
    player = config.player(role, row)
    if not isinstance(player, OwnModelSection):
        return player, player.weights(None)
    section, weights = model_section(config), base_weights(pipeline)
    if weights is None or player.adapter == "none":
        return section, weights and Weights(weights.folder)
    if isinstance(player.adapter, Path):
        return section, Weights(weights.folder, player.adapter)
    if config.reasoner is not None:
        trained = pipeline.artifact(f"reasoner-seed{planner_seed(config, seed)}").folder
        is_adapter = (trained / ADAPTER_FOLDER).is_dir()
        weights = Weights(weights.folder, trained / ADAPTER_FOLDER) if is_adapter else Weights(trained / MODEL_FOLDER)
    return section, weights


def model_label(config: RunConfig, role: Role, row: str = "") -> str:
    """Return what tables call the model that plays a role: ``smollm2-135m+rog``."""
    player = config.player(role, row)
    section, is_own = model_section(config, role, row), isinstance(player, OwnModelSection)
    adapter = getattr(section, "adapter", None)
    if is_own and player.adapter != "tuned":
        adapter = player.adapter if isinstance(player.adapter, Path) else None
    parts = [section.label]
    if adapter:  # one that is made here lies in FINGERPRINT/adapter
        parts.append(adapter.parent.name[:8] if adapter.name == ADAPTER_FOLDER else adapter.name)
    if is_own and player.adapter == "tuned" and config.reasoner is not None:
        parts.append(config.reasoner.objective if config.reasoner.instructions is None else "tuned")
    return "+".join(parts)


def base_content(pipeline: Pipeline, role: Role, row: str = "") -> str:
    """Return the content of the model that plays a role, its tuning aside; empty where it is elsewhere.

    A tuned ``direct`` is nobody's base: what systems add is their lift over the untuned one.
    """
    from kgqa_core.lm.folders import hash_model

    player = pipeline.config.player(role, row)
    is_own = isinstance(player, OwnModelSection)
    weights = base_weights(pipeline) if is_own else player.weights(None)
    is_tuned = player.adapter != "none" if is_own else weights and weights.adapter
    return hash_model(weights.folder, pipeline.hashes.hash) if weights and not (role == "direct" and is_tuned) else ""


def machine_of(pipeline: Pipeline) -> Machine:
    """Return what opening a model may ask of the machine that the run is on."""
    return Machine(device=partial(device_of, pipeline.config), hash_file=pipeline.hashes.hash)


@contextmanager
def metered(
    pipeline: Pipeline, players: Mapping[Role, Player], *, system: str, max_calls: int | None = None
) -> Iterator[tuple[LanguageModel, Meter]]:
    """Yield whoever plays the roles as one model, each of whose calls is counted, and kept under its player's name.

    The same call is paid once in a home. ``max_calls`` of a question are for all roles together.
    """
    meter, prices = Meter(), validated(Prices, read_yaml(PRICES), PRICES, {}).models
    with CallStore(pipeline.home / "cache" / "calls") as store:
        around: dict[int, Metered] = {}
        for model, price_name in players.values():
            price = prices.get(price_name)
            counted = Metered(model, store=store, meter=meter, system=system, max_calls=max_calls, price=price)
            around.setdefault(id(model), counted)
        own: dict[Role, LanguageModel] = {role: around[id(player.model)] for role, player in players.items()}
        yield next(iter(own.values())) if len(around) == 1 else RoleModels(own), meter


def taught(pipeline: Pipeline) -> list[PlanQuestion]:
    """Return the questions that planners learn from, with the paths that the run's supervision chooses."""
    plans = pipeline.config.plans
    assert plans is not None
    return read_cases(pipeline.artifact("supervision").folder, "train", plans.supervision, plans.precision_threshold)


def validity(pipeline: Pipeline, search: SearchGraph | None) -> IsValid:
    """Return what makes a plan valid: it leads somewhere, or its relations are those of training."""
    if search is not None:
        return leads_somewhere(search)
    return made_of({label for one in taught(pipeline) for path in one.paths for label in unsigned(path)})


def path_constraints(search: SearchGraph) -> PathConstraints:
    """Return the plans that exist in a graph."""
    return PathConstraints(search.graph, max_hops=search.max_hops, reenter_topic=search.reenter_topic)


def only_existing(config: RunConfig) -> bool:
    """Say whether a language model that plans is held to paths that exist around the topics."""
    return config.plans is None or config.plans.only_existing


def plan_asker(pipeline: Pipeline, search: SearchGraph | None, row: str = "") -> PlanAsker:
    """Return how the model that plans, for a row, is asked: held to plans that exist, unless any text is wanted."""
    config = pipeline.config
    space: PathConstraints | plan.RelationConstraint | None = None
    if search:
        space = path_constraints(search) if only_existing(config) else None
    else:
        paths = [path for one in taught(pipeline) for path in one.paths]
        steps = sorted({step for path in paths for step in path})
        space = plan.RelationConstraint(steps, max_hops=max(map(len, paths), default=1))
    prompts = plan.PlanInstruction(read_prompts(config.prompts))
    return PlanAsker(prompts, space, searches=model_section(config, "plan", row).searches)


@contextmanager
def open_planner(pipeline: Pipeline, name: str, seed: int, *, row: str = "") -> Iterator[tuple[Planner, Meter | None]]:
    """Open a planner of a seed's systems, generator or dense, beside the account of what its language model costs.

    ``row``: with the model that plans for that row.
    """
    search = plan_graph(pipeline)
    if name == "dense":
        from kgqa_core.planners.dense import open_dense, steps_around

        exists = steps_around(path_constraints(search)) if search else None
        folder = pipeline.artifact(f"dense-seed{planner_seed(pipeline.config, seed)}").folder / DENSE_FOLDER
        yield open_dense(folder, exists=exists), None
        return
    players = open_players(pipeline, seed, ["plan"], row=row)
    with metered(pipeline, players, system="generator") as (model, meter):
        yield plan.GeneratorPlanner(model, plan_asker(pipeline, search, row)), meter
