"""Which stages a flow needs, in order. A task runs only where the store lacks the stage's artifact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flows.changes import check_changes
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.run.stages import COMPARISON, DUMP
from tasks.stage import StageOutcome


def graph_stages(pipeline: Pipeline, *, accept: bool = False) -> list[StageOutcome]:
    """Triples and questions to graph shards and linked questions; ``accept``: whatever changed since the last build.

    Raises ``DriftError`` where more changed than the configuration allows.
    """
    from tasks.dataset import make_dataset
    from tasks.graph import build_graph_shards
    from tasks.questions import link_questions
    from tasks.subgraphs import build_question_subgraphs

    outcomes = [ensure(pipeline, "dataset", make_dataset)] if "dataset" in pipeline.specs else []
    outcomes += dump_stages(pipeline)
    outcomes.append(ensure(pipeline, "graph", build_graph_shards))
    # Subgraphs that question files give say what is within reach; those that are cut start at the questions' topics.
    given = "subgraphs" in pipeline.specs["questions"].needs
    tasks = {"subgraphs": build_question_subgraphs, "questions": link_questions}
    for key in ("subgraphs", "questions") if given else ("questions", "subgraphs"):
        if key in pipeline.specs:
            outcomes.append(ensure(pipeline, key, tasks[key]))
    return [*outcomes, *check_changes(pipeline, outcomes, accept=accept)]


def dump_stages(pipeline: Pipeline) -> list[StageOutcome]:
    """The files of a dump, those that are new all in one task, and the questions' topics; nothing without a dump."""
    keys = [key for key in pipeline.specs if key.startswith(DUMP)]
    if not keys:
        return []
    found = {key: artifact for key in keys if (artifact := pipeline.find(key))}
    for key, artifact in found.items():
        pipeline.remember(key, artifact)
    outcomes = [StageOutcome(key, artifact, built=False) for key, artifact in found.items()]
    if missing := [key for key in keys if key not in found]:
        from tasks.dump import parse_dumps

        outcomes += parse_dumps(pipeline, missing)
    if "topics" in pipeline.specs:
        from tasks.topics import read_question_topics

        outcomes.append(ensure(pipeline, "topics", read_question_topics))
    return outcomes


def encoding_stages(pipeline: Pipeline) -> list[StageOutcome]:
    """All up to the encodings."""
    from tasks.encodings import encode_questions_and_relations

    return [*graph_stages(pipeline), ensure(pipeline, "encodings", encode_questions_and_relations)]


def explorer_stages(pipeline: Pipeline) -> list[StageOutcome]:
    """All up to the trained explorers, one per seed."""
    from tasks.explorer import train_one_explorer

    outcomes = encoding_stages(pipeline)
    for seed in pipeline.config.exploration.seeds:
        make_borrowed(pipeline, f"explorer-seed{seed}")
        outcomes.append(ensure(pipeline, f"explorer-seed{seed}", train_one_explorer, seed))
    return outcomes


def make_borrowed(pipeline: Pipeline, key: str) -> None:
    """Make the stages of other runs that a stage reads: an explorer to start from, datasets to learn from as well."""
    from tasks.explorer import train_one_explorer

    for borrowed in pipeline.specs[key].borrows.values():
        lender = pipeline.lender(borrowed.conf)
        encoding_stages(lender)
        name, _, seed = borrowed.key.partition("-seed")
        if name == "explorer":
            make_borrowed(lender, borrowed.key)
            ensure(lender, borrowed.key, train_one_explorer, int(seed))


def planning_stages(pipeline: Pipeline) -> list[StageOutcome]:
    """From graph and questions, or from files that hold both, to planners and their scores; adapters on the way."""
    outcomes = graph_stages(pipeline) if "graph" in pipeline.specs else []
    return [*outcomes, *planner_stages(pipeline)]


def planner_stages(pipeline: Pipeline) -> list[StageOutcome]:
    """What ``planning_stages`` adds to graph and questions; nothing where the run does not plan."""
    if pipeline.config.plans is None:
        return []
    from tasks.candidates import find_candidates
    from tasks.dense import train_dense_planner
    from tasks.instructions import make_instructions
    from tasks.lm import make_embedded_model
    from tasks.plans import score_planner
    from tasks.reasoner import tune_reasoner
    from tasks.supervision import find_supervision

    tasks = {
        "supervision": find_supervision,
        "candidates": find_candidates,
        "instructions": make_instructions,
        "lm": make_embedded_model,
    }
    outcomes = []
    if "candidates" in pipeline.specs:
        from tasks.encodings import encode_questions_and_relations

        outcomes.append(ensure(pipeline, "encodings", encode_questions_and_relations))
    outcomes += [ensure(pipeline, key, task) for key, task in tasks.items() if key in pipeline.specs]
    trained = {"reasoner": tune_reasoner, "dense": train_dense_planner}
    for seed in pipeline.config.plans.seeds:
        for stage, task in trained.items():
            if f"{stage}-seed{seed}" in pipeline.specs:
                outcomes.append(ensure(pipeline, f"{stage}-seed{seed}", task, seed))
    for planner in pipeline.config.plans.planners:
        for seed in pipeline.config.plans.seeds:
            outcomes.append(ensure(pipeline, f"plans-{planner}-seed{seed}", score_planner, planner, seed))
    return outcomes


def system_stages(pipeline: Pipeline) -> list[StageOutcome]:
    """Each system of the comparison with each answerer and seed, on what the stages before have made."""
    keys = [key for key, spec in pipeline.specs.items() if spec.stage in ("fusion", "system")]
    if not keys:
        return []
    from tasks.fusion import choose_fusion
    from tasks.systems import compare_systems, evaluate_system

    outcomes = []
    for key in keys:
        spec = pipeline.specs[key]
        make_borrowed(pipeline, key)
        if spec.stage == "fusion":
            outcomes.append(ensure(pipeline, key, choose_fusion, int(spec.section["seed"])))
        else:
            outcomes.append(ensure(pipeline, key, evaluate_system, key))
    return [*outcomes, ensure(pipeline, COMPARISON, compare_systems)]


def all_stages(pipeline: Pipeline) -> list[StageOutcome]:
    """All up to the scores: explorers with the controls beside them, planners, then systems side by side."""
    if pipeline.config.explorer is None:
        return planning_stages(pipeline)
    return [*evaluation_stages(pipeline), *planner_stages(pipeline), *system_stages(pipeline)]


def comparison_stages(pipeline: Pipeline) -> list[StageOutcome]:
    """What the systems of the comparison need, and they themselves."""
    return [*explorer_stages(pipeline), *planner_stages(pipeline), *system_stages(pipeline)]


def evaluation_stages(pipeline: Pipeline) -> list[StageOutcome]:
    """All up to the scores of the explorers, with the controls beside them."""
    from tasks.controls import fit_controls
    from tasks.evaluation import evaluate_one_explorer

    outcomes = explorer_stages(pipeline)
    outcomes.append(ensure(pipeline, "controls", fit_controls))
    for seed in pipeline.config.exploration.seeds:
        outcomes.append(ensure(pipeline, f"evaluation-seed{seed}", evaluate_one_explorer, seed))
    return outcomes


def ensure(pipeline: Pipeline, key: str, task: Callable[..., StageOutcome], *arguments: Any) -> StageOutcome:
    """Return a stage's artifact, running its task only where there is none."""
    if found := pipeline.find(key):
        pipeline.remember(key, found)
        return StageOutcome(key, found, built=False)
    return task(pipeline, *arguments)
