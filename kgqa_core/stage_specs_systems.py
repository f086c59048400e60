"""The stages of the comparison: what each system is made of, and who answers for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kgqa_core.config import RunConfig
from kgqa_core.config_file import read_config
from kgqa_core.config_lm import EmbeddedLmSection
from kgqa_core.config_systems import WITHOUT_LM, Answerer, OursSection, SystemName, SystemsSection
from kgqa_core.errors import ConfigError
from kgqa_core.stage_specs_lm import answering_model, model_files, prompt_hashes
from kgqa_core.stage_types import Borrowed, StageSpec

EXPLORING = {"etd", "dualr", "explorer", "ours"}  # they start from the trained explorer
PUBLISHED = Path(__file__).resolve().parents[1] / "conf" / "papers" / "tables.yaml"
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
