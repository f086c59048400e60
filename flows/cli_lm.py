"""The commands about language models and planners: lm-info, score-plans."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli_output import PERCENT, print_json, print_rejects, print_table
from flows.cli_session import Conf, Json, Settings, open_run, run_missing, working
from kgqa_core.errors import ConfigError

if TYPE_CHECKING:
    from flows.plan_scores import PlannerScore
    from kgqa_core.run.pipeline import Pipeline


def score_plans(
    conf: Conf,
    questions: Annotated[
        Path, typer.Option(metavar="FILE", help="JSON lines with id, question and relation_paths (lists of labels).")
    ],
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Score the trained planners on a file of questions and relation paths, and train what is missing.

    hit@k: one of the first k plans is one of the question's paths, over the questions that have one. valid: plans
    that lead somewhere from the topic; where there is no graph, that are made of relations of the training questions.

    \b
    Example:
      kgqa score-plans conf/webqsp-plans.yaml --questions test.jsonl --json
    """
    from flows.plan_scores import planner_keys, plans_of, score_plan_file

    pipeline = open_run(conf, settings)
    plans_of(pipeline)
    with working("scoring plans"):
        from flows.question_file import require_places

        require_places(questions)
        run_missing(pipeline, *planner_keys(pipeline))
        scores, rejects = score_plan_file(pipeline, questions)
    print_rejects(rejects)
    if as_json:
        print_json({name: score.figures | {"seeds": score.seeds} for name, score in scores.items()})
    else:
        print_planner_scores(scores)


def print_planner_scores(scores: Mapping[str, PlannerScore]) -> None:
    """Print one row per planner and seed, and their mean."""
    from flows.plan_scores import FIGURES

    rows = []
    for name, score in scores.items():
        if len(score.seeds) > 1:
            rows += [(f"{name} (seed {seed})", *_cells(own)) for seed, own in score.seeds.items()]
            name = f"{name} (mean of {len(score.seeds)} seeds)"
        rows.append((name, *_cells(score.figures)))
    print_table(f"Planners, {PERCENT}", ("planner", *FIGURES), rows, figures_from=1)


def _cells(figures: Mapping[str, float]) -> list[str]:
    from flows.plan_scores import FIGURES
    from kgqa_core.evaluation.tables import UNKNOWN

    shown = {name: f"{value:.0f}" if name.startswith("n") else f"{value:.2f}" for name, value in figures.items()}
    return [shown.get(name, UNKNOWN) for name in FIGURES]


def lm_info(
    conf: Conf,
    train: Annotated[
        bool, typer.Option("--train", help="Estimate the memory of its tuning instead: of a folder from config.json.")
    ] = False,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Show the run's language model: parameters, context, memory, and tokens per second as measured now.

    Makes the folder of a packaged model, or of a .gguf file, where it is not made yet.

    \b
    Example:
      kgqa lm-info conf/metaqa-smollm2.yaml --set 'lm={kind: local, path: models/Llama-2-7b}'
      kgqa lm-info conf/papers/rog-webqsp-lora.yaml --train
    """
    pipeline = open_run(conf, settings)
    with working("measuring"):
        if "lm" in pipeline.specs:
            run_missing(pipeline, "lm")
        facts = _tuning_facts(pipeline) if train else model_facts(pipeline)
    if as_json:
        print_json(facts)
    else:
        title = f"Tuning in {pipeline.config.name}, estimated" if train else f"Language model of {pipeline.config.name}"
        print_table(title, ("what", "value"), _readable(facts))


def model_facts(pipeline: Pipeline) -> dict[str, Any]:
    """Return what is known of the run's language model; ConfigError where it has none."""
    from kgqa_core.lm.types import FolderLmSection
    from kgqa_core.run.open import base_weights, machine_of, model_section

    section, weights, machine = model_section(pipeline.config), base_weights(pipeline), machine_of(pipeline)
    if weights is None or not isinstance(section, FolderLmSection):
        return section.facts(weights, machine)
    from flows.model_facts import describe

    return {"kind": section.kind, **describe(weights.folder, adapter=weights.adapter, **section.how(machine))}


def _tuning_facts(pipeline: Pipeline) -> dict[str, Any]:
    from flows.train_memory import training_memory
    from kgqa_core.run.open import base_weights

    config, weights = pipeline.config, base_weights(pipeline)
    if config.reasoner is None or weights is None:
        raise ConfigError(f"run {config.name!r} tunes no model of its own: give it a section 'reasoner'")
    return training_memory(weights.folder, config.reasoner, processes=config.runtime.processes)


def _readable(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    shown = []
    for name, value in facts.items():
        text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
        shown.append((name.replace("_", " "), f"{value:,.1f}" if isinstance(value, float) else text))
    return shown
