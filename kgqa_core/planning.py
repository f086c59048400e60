"""Opening the language model and the planners of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgqa_core.config_lm import EmbeddedLmSection, EndpointLmSection, LocalLmSection
from kgqa_core.errors import ConfigError
from kgqa_core.file_hashes import FileHashes
from kgqa_core.pipeline import Pipeline
from kgqa_core.types import Split

if TYPE_CHECKING:
    from kgqa_core.instructions.path_constraint import PathConstraints
    from kgqa_core.lm.endpoint import Endpoint
    from kgqa_core.lm.meter import Meter
    from kgqa_core.lm.metered import Metered
    from kgqa_core.lm.types import LanguageModel
    from kgqa_core.planners.dense import DensePlanner
    from kgqa_core.planners.evaluate import Ground
    from kgqa_core.planners.generator import GeneratorPlanner
    from kgqa_core.planners.score import IsValid
    from kgqa_core.planners.types import Planner, PlanQuestion

MODEL_FOLDER, ADAPTER_FOLDER = "model", "adapter"  # inside the artifacts of lm and reasoner
DENSE_FOLDER = "planner"  # inside the artifact of dense
INSTRUCTIONS_FILE = "instructions.parquet"
PRICES = Path(__file__).resolve().parents[1] / "conf" / "prices.yaml"


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
        return open_endpoint_of(config.lm)
    from kgqa_core.lm.local import open_local
    from kgqa_core.workspace import device_of

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


def open_endpoint_of(section: EndpointLmSection) -> Endpoint:
    """Return the model behind the endpoint that a configuration names."""
    from kgqa_core.lm.endpoint import open_endpoint
    from kgqa_core.lm.endpoint_settings import EndpointSettings

    return open_endpoint(EndpointSettings(**section.model_dump(exclude={"kind"})))


def plan_ground(pipeline: Pipeline) -> Ground | None:
    """Return what a run's plans are followed in; None where its dataset has no graph."""
    config = pipeline.config
    if config.explorer is None:
        return None
    from kgqa_core.planners.evaluate import Ground
    from kgqa_core.workspace import ground_of

    return Ground(ground_of(pipeline).graph, config.explorer.steps, config.dataset.reenter_topic)


def validity(pipeline: Pipeline, ground: Ground | None) -> IsValid:
    """Return what makes a plan valid: it leads somewhere, or its relations are those of training."""
    if ground is not None:
        return ground.is_valid()
    from kgqa_core.graph.label_paths import unsigned
    from kgqa_core.planners.score import made_of

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
    from kgqa_core.graph.label_paths import write_step

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
            from kgqa_core.planners.mixture import open_mixture

            generator, meter = stack.enter_context(_generator(pipeline, seed))
            yield OpenedPlanner(open_mixture(_dense(pipeline, seed), generator), meter)


@contextmanager
def _generator(pipeline: Pipeline, seed: int) -> Iterator[tuple[GeneratorPlanner, Meter]]:
    """Open the language model as a planner; every call is metered, and remembered for the next time."""
    from kgqa_core.instructions.path_constraint import RelationConstraint
    from kgqa_core.instructions.prompts import read_prompts
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


def path_constraints(ground: Ground) -> PathConstraints:
    """Return the plans that exist in a graph."""
    from kgqa_core.instructions.path_constraint import PathConstraints

    return PathConstraints(ground.graph, max_hops=ground.max_hops, reenter_topic=ground.reenter_topic)


@contextmanager
def metered(pipeline: Pipeline, model: LanguageModel, *, system: str) -> Iterator[Metered]:
    """Account for a model's calls, and keep them: the same call is paid once in a home."""
    from kgqa_core.lm.call_cache import CallCache
    from kgqa_core.lm.meter import Meter
    from kgqa_core.lm.metered import Metered
    from kgqa_core.lm.prices import read_prices

    lm = pipeline.config.lm
    price = read_prices(PRICES).of(lm.model) if isinstance(lm, EndpointLmSection) else None
    with CallCache(pipeline.home / "cache" / "calls", model.name) as cache:
        yield Metered(model, meter=Meter(), cache=cache, system=system, price=price)


def _dense(pipeline: Pipeline, seed: int) -> DensePlanner:
    from kgqa_core.planners.dense import open_dense
    from kgqa_core.planners.dense_beam import steps_around

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
        model = open_endpoint_of(config.lm)
        return {"kind": "endpoint", "url": config.lm.url, "served": model.model, "context": model.context}
    from kgqa_core.lm.facts import describe
    from kgqa_core.workspace import device_of

    local = config.lm if isinstance(config.lm, LocalLmSection) else None
    facts = describe(
        base_folder(pipeline),
        adapter=local.adapter if local else None,
        dtype=local.dtype if local else "auto",
        quantise=local.quantise if local else "none",
        device=device_of(config),
    )
    return {"kind": config.lm.kind, **asdict(facts)}
