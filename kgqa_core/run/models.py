"""The language model and the planners of a run: what its configuration says of them, and opening them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgqa_core.config import RunConfig
from kgqa_core.config_base import CONF, open_entry
from kgqa_core.config_lm import BACKENDS
from kgqa_core.errors import ConfigError
from kgqa_core.lm.backends import Backend, Machine, Weights
from kgqa_core.run.file_hashes import FileHashes
from kgqa_core.run.open import device_of, folder_files, search_graph
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.types import Split

if TYPE_CHECKING:
    from kgqa_core.graph.search_graph import SearchGraph
    from kgqa_core.instructions.path_constraint import PathConstraints
    from kgqa_core.lm.calls import Budget, Meter, Metered
    from kgqa_core.lm.types import LanguageModel
    from kgqa_core.planners.dense import DensePlanner
    from kgqa_core.planners.evaluate import IsValid
    from kgqa_core.planners.generator import GeneratorPlanner
    from kgqa_core.planners.types import Planner, PlanQuestion

MODEL_FOLDER, ADAPTER_FOLDER = "model", "adapter"  # inside the artifacts of lm and reasoner
DENSE_FOLDER = "planner"  # inside the artifact of dense
INSTRUCTIONS_FILE = "instructions.parquet"
PRICES = CONF / "prices.yaml"


# ------ What the configuration says of them: parts of recipes.


def backend_of(config: RunConfig) -> Backend:
    """Return the backend of the run's language model.

    Raises:
        ConfigError: it has none.
    """
    if config.lm is None:
        raise ConfigError(f"run {config.name!r} has no language model: give its configuration a section 'lm'")
    backend: Backend = open_entry(BACKENDS, config.lm.kind, what="kind of lm")
    return backend


def is_made_here(config: RunConfig) -> bool:
    """Say whether the run makes its language model in a stage of its own."""
    return config.lm is not None and backend_of(config).is_made_here


def answering_model(config: RunConfig) -> dict[str, Any]:
    """Return what the configuration says of a model that is not made here; its files, or its name, say the rest."""
    recipe = backend_of(config).recipe(config.lm) if config.lm else {}
    return {"lm": recipe} if recipe else {}


def model_files(config: RunConfig) -> dict[str, Path]:
    """Return the files of a model that is on this machine, and of its adapter."""
    weights = backend_of(config).weights(config.lm, None) if config.lm else None
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
    return backend_of(config).weights(config.lm, made)


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
    return backend_of(config).open(config.lm, weights, _machine(pipeline))


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
    name = backend_of(config).price_name(config.lm) if config.lm else ""
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
    backend = backend_of(pipeline.config)
    return backend.facts(pipeline.config.lm, _weights(pipeline), _machine(pipeline))
