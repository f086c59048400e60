"""The stages of the comparison: how explorer and planner are fused, each system's answers, and all side by side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kgqa_core.artifacts import write_json
from kgqa_core.config import RunConfig
from kgqa_core.config_base import CONF, Section
from kgqa_core.config_file import read_config
from kgqa_core.config_systems import SYSTEMS, Answerer, system_type
from kgqa_core.run.models import answering_model, has_generator, model_files, model_stages, plan_stages, prompt_hashes
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.run.stages import OtherStage, Stage, StageSpec
from kgqa_core.run.stages.answers import answer_questions
from kgqa_core.run.stages.data import ground_keys
from kgqa_core.run.stages.explorer import explorer_key
from kgqa_core.tracking import Recorder

PUBLISHED = CONF / "papers" / "tables.yaml"
COMPARISON = "comparison"  # of all systems, answerers and seeds
SHARED = {"topics", "pool", "num_questions", "draw", "max_calls", "max_new_tokens"}  # settings that shape each answer


# ------ What they are made of.


def system_key(row: str, answerer: Answerer, seed: int) -> str:
    """Return the key of the stage in which a row of the comparison is answered by one language model and seed."""
    asks = row not in SYSTEMS or system_type(row).asks
    who = f"-{answerer}" if asks and answerer != "lm" else ""
    return f"system-{row}{who}-seed{seed}"


def _seeds(config: RunConfig) -> tuple[int, ...]:
    return (config.systems.seeds if config.systems else None) or config.exploration.seeds


def _fusion_specs(config: RunConfig) -> Iterator[StageSpec]:
    systems = config.systems
    if systems is None or not any(system_type(name).fuses for name, _ in systems.rows().values()):
        return
    ours = systems.settings_of("ours")
    section = {**ours.model_dump(mode="json"), **_exploring(config), **_walked(config)}
    judged = has_generator(config)
    if judged or ours.planner != "dense":
        section |= {"prompts": prompt_hashes(config, "plan"), **answering_model(config)}
    for seed in _seeds(config):
        needs = ["encodings", explorer_key(config, seed), *plan_stages(config, ours.planner, seed)]
        needs += model_stages(config, seed) if judged else []
        yield StageSpec(
            f"fusion-seed{seed}",
            "fusion",
            {**section, "seed": seed},
            tuple(dict.fromkeys((*ground_keys(config), *needs))),
            model_files(config),
            system="fusion",
        )


def _system_specs(config: RunConfig) -> Iterator[StageSpec]:
    """A stage per system, answerer and seed; those without a language model once per seed."""
    seen = set()
    for seed in _seeds(config) if config.systems else ():
        for row, (_, answerers) in config.systems.rows().items() if config.systems else ():
            for answerer in answerers:
                if (key := system_key(row, answerer, seed)) not in seen:
                    seen.add(key)
                    yield _system_spec(config, key, row, answerer, seed)


def _system_spec(config: RunConfig, key: str, row: str, answerer: Answerer, seed: int) -> StageSpec:
    assert config.systems is not None
    systems = config.systems
    name, own = systems.rows()[row][0], systems.settings_of(row)
    kind = system_type(name)
    section: dict[str, Any] = {"system": name, "seed": seed, "split": config.evaluation.split}
    section |= {} if row == name else {"row": row}
    section |= {**systems.model_dump(mode="json", include=SHARED), **_walked(config)}
    section |= {f"settings.{setting}": value for setting, value in _dumped(own).items()}
    needs = list(ground_keys(config))
    files: dict[str, Path] = {}
    others: dict[str, OtherStage] = {}
    if kind.explores:
        section |= _exploring(config)
        needs += ["encodings", explorer_key(config, seed)]
    if (conf := kind.depends_on_run(own)) is not None:
        others[name] = OtherStage(conf, explorer_key(read_config(conf), seed))
    if kind.asks:
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
    source = kind.plan_source(own)
    needs += [*plan_stages(config, source, seed), *([f"fusion-seed{seed}"] if kind.fuses else [])]
    if source in ("generator", "mixture"):  # the run's own model plans, whoever answers
        section |= answering_model(config)
        files |= model_files(config)
    return StageSpec(key, "system", section, tuple(dict.fromkeys(needs)), files, others, system=shown_name(section))


def shown_name(section: dict[str, Any]) -> str:
    """Return what a system is called in tables and MLflow: with who answered for it, where that is not the run's lm.

    The explorer alone must not go under the name of the stages that train and score it.
    """
    who, row = section.get("answered_by", "lm"), str(section.get("row", section["system"]))
    name = "explorer alone" if row == "explorer" else row
    pool = " (hard pool)" if section["pool"] == "hard" else ""
    return f"{name}{'' if who == 'lm' else f' by {who}'}{pool}"


def _comparison_specs(config: RunConfig) -> Iterator[StageSpec]:
    if config.systems is not None:
        section = {"dataset": config.dataset.name}  # papers report figures on it, or not
        needs = tuple(spec.key for spec in _system_specs(config))
        yield StageSpec(COMPARISON, COMPARISON, section, needs, {"published": PUBLISHED})


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


def _dumped(own: Section | None) -> dict[str, Any]:
    """Return a system's settings as JSON has them, but for the run that it depends on."""
    return own.model_dump(mode="json", exclude={"explorer"}) if own is not None else {}


# ------ How they are built.


def _choose_fusion(run: Pipeline, spec: StageSpec, folder: Path, recorder: Recorder) -> None:
    """Answer dev with explorer and planner, and keep what fuses them best."""
    from kgqa_core.run.compare import FUSION_FILE, find_fusion

    found = find_fusion(run, spec.seed)
    write_json(folder / FUSION_FILE, found)
    for part, point in found["on_dev"].items():
        for figure in ("hits1", "f1", "asked"):
            part = part.replace(" ", "_")
            recorder.metric(f"dev.{part}.{figure}", 100 * point[figure] if figure == "asked" else point[figure])
    recorder.param("fusion.weight", found["chosen"]["weight"])
    recorder.param("fusion.decided_by", found["chosen"]["decided_by"])
    recorder.param("fusion.beats_its_parts_on_dev", found["beats_its_parts"])


def _compare(run: Pipeline, spec: StageSpec, folder: Path, recorder: Recorder) -> None:
    """Put all systems of the run side by side: figures, ties, what the language model adds, what it overruled."""
    from kgqa_core.evaluation.published import paper_datasets, published_beside, read_published
    from kgqa_core.evaluation.runs import read_system_run
    from kgqa_core.evaluation.side_by_side import group_runs, side_by_side
    from kgqa_core.evaluation.tables import render_side_by_side, side_by_side_document

    runs = [read_system_run(run.artifact(key).folder / "predictions.parquet") for key in spec.needs]
    found = side_by_side(group_runs(runs))
    hops = sorted({hops for entrant in found.entrants for hops in entrant.row.by_hops})
    datasets = paper_datasets(run.config.dataset.name, hops)
    published = published_beside(read_published(PUBLISHED), datasets, found.entrants)
    document = side_by_side_document(found, published)
    for row in document["rows"]:
        del row["predictions"]  # where they are on this machine is not what was found
    write_json(folder / "comparison.json", document)
    (folder / "comparison.md").write_text(render_side_by_side(found, published), encoding="utf-8")


STAGES = (
    Stage("fusion", 1, "choose fusion", _fusion_specs, _choose_fusion),
    Stage("system", 2, "evaluate system", _system_specs, answer_questions),
    Stage(COMPARISON, 1, "compare systems", _comparison_specs, _compare),
)
