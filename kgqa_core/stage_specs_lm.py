"""The stages of planning: supervision, instructions, the embedded model, adapters, the dense planner, plans scored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kgqa_core.config import PlansDataset, RunConfig
from kgqa_core.config_lm import ENDPOINT_ANSWERS, EmbeddedLmSection, EndpointLmSection, LocalLmSection, Planner
from kgqa_core.errors import ConfigError, nearest
from kgqa_core.stage_types import StageSpec


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


def prompt_hashes(config: RunConfig, *instructions: str) -> dict[str, str]:
    """Return the content of the prompts of some instructions, or of all: who words one anew asks something else."""
    from kgqa_core.instructions.prompts import read_prompts

    hashes = read_prompts(config.prompts).hashes
    if not instructions:
        return hashes
    return {name: content for name, content in hashes.items() if any(_is_of(name, one) for one in instructions)}


def _is_of(prompt: str, instruction: str) -> bool:
    """Is this the prompt of an instruction, of a variant of it, or what the system says beside one?"""
    return re.fullmatch(rf"{re.escape(instruction)}([_.].*)?", prompt) is not None
