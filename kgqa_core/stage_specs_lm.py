"""The stages of planning: supervision, instructions, the embedded model, adapters, the dense planner, plans scored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kgqa_core.config import PlansDataset, RunConfig
from kgqa_core.config_lm import EmbeddedLmSection, EndpointLmSection, LocalLmSection
from kgqa_core.errors import ConfigError, nearest
from kgqa_core.stage_types import StageSpec

HOW_SCORED = {"num_plans", "planners"}  # settings of plans that change what is asked, not what is learned


def planning_specs(config: RunConfig, base: tuple[str, ...]) -> list[StageSpec]:
    """Return the stages of planning, none where the run does not plan; ``base``: the stages of graph and questions.

    Raises:
        ConfigError: a folder that the configuration names is missing.
    """
    plans = config.plans
    if plans is None:
        return []
    specs = [_supervision(config, base)]
    if config.lm is not None and "generator" in plans.trained:
        specs += _generator_specs(config, base)
    if config.dense is not None and "dense" in plans.trained:
        section = {**config.dense.model_dump(mode="json"), "supervision": plans.supervision}
        specs += [
            StageSpec(f"dense-seed{seed}", "dense", {**section, "seed": seed}, (*base[:-1], "supervision"))
            for seed in plans.seeds
        ]
    made = {spec.key for spec in specs}
    for seed in plans.seeds:
        needs = [key for key in ("lm", f"reasoner-seed{seed}", f"dense-seed{seed}") if key in made]
        section = {**plans.model_dump(mode="json", include=HOW_SCORED), "split": config.evaluation.split, "seed": seed}
        section |= _answering_model(config) if "generator" in plans.trained else {}
        files = {**_model_files(config), **_prompt_files(config)} if "generator" in plans.trained else {}
        specs.append(StageSpec(f"plans-seed{seed}", "plans", section, (*base, "supervision", *needs), files))
    return specs


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
    teaching = plans.model_dump(mode="json", include={"supervision", "precision_threshold"})
    asked = reasoner.model_dump(mode="json", include=HOW_ASKED) if reasoner else {}
    specs = []
    if isinstance(lm, EmbeddedLmSection) or reasoner is not None:
        section = {**teaching, **asked}
        specs.append(StageSpec("instructions", "instructions", section, (*base, "supervision"), _prompt_files(config)))
    if isinstance(lm, EmbeddedLmSection):
        specs.append(StageSpec("lm", "lm", lm.model_dump(mode="json"), (*base, "instructions")))
    if reasoner is not None:
        needs = ("instructions", "lm") if isinstance(lm, EmbeddedLmSection) else ("instructions",)
        section = {**reasoner.model_dump(mode="json", exclude=HOW_ASKED), **_answering_model(config)}
        specs += [
            StageSpec(f"reasoner-seed{seed}", "reasoner", {**section, "seed": seed}, needs, _model_files(config))
            for seed in plans.seeds
        ]
    return specs


HOW_ASKED = {"objective", "instructions", "paths_per_question"}  # settings of a reasoner that shape its examples


def _answering_model(config: RunConfig) -> dict[str, Any]:
    """Return what the configuration says of a model that is not made here; its files, or its name, say the rest."""
    if isinstance(config.lm, LocalLmSection):
        return {"lm": config.lm.model_dump(mode="json", exclude={"path", "adapter", "batch_size"})}
    if isinstance(config.lm, EndpointLmSection):
        return {"lm": config.lm.model_dump(mode="json", include={"kind", "model"})}
    return {}


def _model_files(config: RunConfig) -> Mapping[str, Path]:
    """Return the files of a local model and of its adapter."""
    if not isinstance(config.lm, LocalLmSection):
        return {}
    from kgqa_core.text.local import content_files

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


def _prompt_files(config: RunConfig) -> Mapping[str, Path]:
    from kgqa_core.instructions.prompts import prompt_files

    return {f"prompts/{name}": path for name, path in prompt_files(config.prompts).items()}
