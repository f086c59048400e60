"""The score of a run's trained planners on any plan file: what ``kgqa score-plans`` prints."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from kgqa_core.config_lm import PlansSection
from kgqa_core.errors import ConfigError, InputError, LinkError, shorten
from kgqa_core.run import open as opening
from kgqa_core.run.open import open_planner
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.types import Reject

FIGURES = ("n", "n_without_paths", "hit@1", "hit@3", "valid")
NOT_LINKED = "no entity name in the text"


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

    plans, search, mask = plans_of(pipeline), opening.plan_graph(pipeline), pipeline.config.exploration.mask_topics
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
    is_valid = opening.validity(pipeline, search)
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
