"""The commands about language models and planners: lm-info, score-plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli_output import PERCENT, print_json, print_rejects, print_table
from flows.cli_session import Conf, Json, Settings, open_run, run_missing, working
from kgqa_core.errors import ConfigError, InputError, LinkError, shorten
from kgqa_core.types import Reject

if TYPE_CHECKING:
    from kgqa_core.config_lm import PlansSection
    from kgqa_core.run.pipeline import Pipeline


FIGURES = ("n", "n_without_paths", "hit@1", "hit@3", "valid")
NOT_LINKED = "no entity name in the text"


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


@dataclass(frozen=True, slots=True)
class PlannerScore:
    """One planner's figures on a file: the mean over its seeds."""

    figures: dict[str, float]  # FIGURES, percent; without those of hits where no question has a path
    seeds: dict[int, dict[str, float]] = field(default_factory=dict)  # each seed's own


def score_plan_file(pipeline: Pipeline, path: Path) -> tuple[dict[str, PlannerScore], list[Reject]]:
    """Score every planner of the run, all its seeds, on a plan file; return also the lines that could not be used.

    Where the run has a graph, topics are found by name in the questions, and paths in the file have directions.
    InputError without any usable question.
    """
    from kgqa_core.planners.evaluate import ALL, ask_planner, planner_figures, read_plan_file
    from kgqa_core.questions.link import TOO_LONG, link_question
    from kgqa_core.run.open import open_planner, plan_graph, validity

    plans, search, mask = plans_of(pipeline), plan_graph(pipeline), pipeline.config.exploration.mask_topics
    found = read_plan_file(path, signed=search is not None)
    questions, rejects = list(found.questions), list(found.rejects)
    if search is not None:
        questions = []
        for number, question in zip(found.lines, found.questions, strict=True):
            try:
                asked = link_question(question.text, search.graph, near=False)  # that would read all names, each time
            except InputError as problem:
                reason = NOT_LINKED if isinstance(problem, LinkError) else TOO_LONG
                rejects.append(Reject(str(path), number, reason, shorten(question.text)))
            else:
                questions.append(replace(question, text=asked.asked(mask), topics=asked.topics))
    if not questions:
        raise InputError(f"{path} holds no usable question ({len(rejects)} are not; the first: {rejects[0].reason})")
    is_valid = validity(pipeline, search)
    scores: dict[str, PlannerScore] = {}
    for name in plans.planners:
        seeds = {}
        for seed in plans.seeds:
            with open_planner(pipeline, name, seed) as (planner, _):
                num, told = max(3, plans.num_plans), partial(pipeline.progress, "planning")
                proposed = ask_planner(planner, questions, num_plans=num, progress=told)
            figures = planner_figures(questions, proposed, signed=search is not None, is_valid=is_valid)[ALL]
            known = [figure for figure in FIGURES if figures["n"] or not figure.startswith("hit@")]
            seeds[seed] = {figure: figures[figure] for figure in known}
        mean = {figure: sum(one[figure] for one in seeds.values()) / len(seeds) for figure in known}
        scores[name] = PlannerScore(mean | {figure: int(mean[figure]) for figure in FIGURES[:2]}, seeds)
    return scores, rejects


def plans_of(pipeline: Pipeline) -> PlansSection:
    """Return the run's section about plans; ConfigError where it has none."""
    plans = pipeline.config.plans
    if plans is None:
        raise ConfigError(f"run {pipeline.config.name!r} trains no planner: give its configuration a section 'plans'")
    return plans


def planner_keys(pipeline: Pipeline) -> list[str]:
    """Return the stages that must be done before planners can be asked."""
    plans = plans_of(pipeline)
    stages = [f"plans-{name}-seed{seed}" for name in plans.planners for seed in plans.seeds]
    needs = {need for stage in stages for need in pipeline.specs[stage].needs}
    return [key for key in pipeline.specs if key in needs]


def print_planner_scores(scores: Mapping[str, PlannerScore]) -> None:
    """Print one row per planner and seed, and their mean."""
    rows = []
    for name, score in scores.items():
        if len(score.seeds) > 1:
            rows += [(f"{name} (seed {seed})", *_cells(own)) for seed, own in score.seeds.items()]
            name = f"{name} (mean of {len(score.seeds)} seeds)"
        rows.append((name, *_cells(score.figures)))
    print_table(f"Planners, {PERCENT}", ("planner", *FIGURES), rows, figures_from=1)


def _cells(figures: Mapping[str, float]) -> list[str]:
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
