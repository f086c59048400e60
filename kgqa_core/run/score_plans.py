"""Scoring a run's trained planners on any plan file: what ``kgqa score-plans`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kgqa_core.errors import ConfigError, InputError, LinkError, shorten
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.types import Reject

if TYPE_CHECKING:
    from kgqa_core.config_lm import PlansSection
    from kgqa_core.graph.kg import KnowledgeGraph
    from kgqa_core.planners.types import PlanQuestion

FIGURES = ("n", "n_without_paths", "hit@1", "hit@3", "valid")
NOT_LINKED = "no entity name in the text"


@dataclass(frozen=True, slots=True)
class PlannerScore:
    """One planner's figures on a file: the mean over its seeds."""

    figures: dict[str, float]  # FIGURES, percent
    seeds: dict[int, dict[str, float]] = field(default_factory=dict)  # each seed's own


def score_plan_file(pipeline: Pipeline, path: Path) -> tuple[dict[str, PlannerScore], list[Reject]]:
    """Score every planner of the run, all its seeds, on a plan file; return also the lines that could not be used.

    Where the run has a graph, topics are found by name in the questions, and paths in the file have directions.

    Raises:
        ConfigError: the run trains no planner.
        InputError: no usable question.
        ArtifactError: a planner is not trained.
    """
    from kgqa_core.planners.cases import read_plan_file
    from kgqa_core.planners.evaluate import ALL, ask_planner, planner_figures
    from kgqa_core.run.open import open_planner, plan_graph, validity

    plans = plans_of(pipeline)
    search = plan_graph(pipeline)
    found = read_plan_file(path, signed=search is not None)
    questions, rejects = list(found.questions), list(found.rejects)
    if search is not None:
        mask = pipeline.config.exploration.mask_topics
        questions, unlinked = link_all(questions, search.graph, path, mask_topics=mask)
        rejects += unlinked
    if not questions:
        raise InputError(
            f"{path} holds no usable question ({len(rejects)} lines are not; the first: {rejects[0].reason})"
        )
    is_valid = validity(pipeline, search)
    scores: dict[str, PlannerScore] = {}
    for name in plans.planners:
        seeds = {}
        for seed in plans.seeds:
            with open_planner(pipeline, name, seed) as opened:
                proposed = ask_planner(
                    opened.planner,
                    questions,
                    num_plans=max(3, plans.num_plans),
                    progress=lambda done, total: pipeline.progress("planning", done, total),
                )
            figures = planner_figures(questions, proposed, signed=search is not None, is_valid=is_valid)[ALL]
            seeds[seed] = {figure: figures[figure] for figure in FIGURES}
        mean = {figure: sum(one[figure] for one in seeds.values()) / len(seeds) for figure in FIGURES}
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
    needs = {
        need
        for name in plans.planners
        for seed in plans.seeds
        for need in pipeline.specs[f"plans-{name}-seed{seed}"].needs
    }
    return [key for key in pipeline.specs if key in needs]


def link_all(
    questions: Sequence[PlanQuestion], graph: KnowledgeGraph, path: Path, *, mask_topics: bool
) -> tuple[list[PlanQuestion], list[Reject]]:
    """Return the questions with their topics and their text as planners read it, and those without a topic."""
    from kgqa_core.questions.link import link_question

    linked, rejects = [], []
    for number, question in enumerate(questions, start=1):
        try:
            asked = link_question(question.text, graph)
        except LinkError:
            rejects.append(Reject(str(path), number, NOT_LINKED, shorten(question.text)))
            continue
        linked.append(replace(question, text=asked.asked(mask_topics), topics=asked.topics))
    return linked, rejects
