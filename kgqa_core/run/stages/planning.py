"""The stages of planning: the relation paths that teach, the dense planner, and the scores of every planner."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from kgqa_core.artifacts import write_json
from kgqa_core.config import RunConfig
from kgqa_core.config_base import PlansDataset
from kgqa_core.errors import InputError
from kgqa_core.graph.input_files import check_rejects, records_table
from kgqa_core.graph.supervision import write_supervision
from kgqa_core.instructions.plan import PlanQuestion
from kgqa_core.planners import evaluate
from kgqa_core.questions.build import read_questions
from kgqa_core.run import open as opening
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.run.stages import Stage, StageSpec
from kgqa_core.run.stages.data import ground_keys, plan_walk_of
from kgqa_core.run.stages.tuning import model_files, model_recipe, plan_stages, prompt_hashes, teaching
from kgqa_core.schemas import REJECTS
from kgqa_core.tracking import Recorder, hop_metric
from kgqa_core.types import EVERY_SPLIT, Reject, Split

REPORT_FILE = "supervision.json"
SCORES_FILE = "scores.json"
CURVE_EVERY = 20  # steps of the dense planner per point


def _supervision_specs(config: RunConfig) -> Iterator[StageSpec]:
    systems = config.systems
    # An oracle reads the right plans of the questions asked, and so does a hard pool.
    gold = systems is not None and (systems.is_answered_by("oracle") or systems.pool == "hard")
    if isinstance(config.dataset, PlansDataset):
        files = {f"plans/{split}": path for split, path in config.dataset.plan_files.items()}
        yield StageSpec("supervision", {"max_reject_ratio": config.dataset.max_reject_ratio}, files=files)
    elif config.plans is not None or gold:
        yield StageSpec("supervision", plan_walk_of(config), ground_keys(config))


def _dense_specs(config: RunConfig) -> Iterator[StageSpec]:
    plans = config.plans
    if plans is None or config.dense is None or "dense" not in plans.planners:
        return
    section = {**config.dense.model_dump(mode="json"), **teaching(config)}
    needs = (*ground_keys(config)[:-1], "supervision")
    for seed in plans.seeds:
        yield StageSpec(f"dense-seed{seed}", {**section, "seed": seed}, needs, system="dense")


def _plans_specs(config: RunConfig) -> Iterator[StageSpec]:
    """A stage asks one planner of one seed for its plans, and scores them."""
    if (plans := config.plans) is None:
        return
    for planner, seed in itertools.product(plans.planners, plans.seeds):
        section: dict[str, Any] = {"planner": planner, "num_plans": plans.num_plans}
        section |= {"split": config.evaluation.split, "seed": seed}
        section |= {} if plans.only_existing else {"only_existing": False}
        section |= {"reenter_topic": True} if config.dataset.reenter_topic else {}  # golds' paths may be the same
        files: dict[str, Path] = {}
        if planner == "generator":
            section |= {**model_recipe(config), "prompts": prompt_hashes(config, "plan")}
            files = model_files(config)
        needs = (*ground_keys(config), "supervision", *plan_stages(config, planner, seed))
        yield StageSpec(f"plans-{planner}-seed{seed}", section, needs, files, system=planner)


# ------ How they are built.


def _find_supervision(run: Pipeline, spec: StageSpec, folder: Path, recorder: Recorder) -> None:
    """Find every question's shortest relation paths, or read those that its files give."""
    dataset = run.config.dataset
    counts = _read_given(dataset, folder) if isinstance(dataset, PlansDataset) else _search_graph(run, folder)
    for name, value in counts.items():
        recorder.metric(name.replace(" ", "_"), value)
    recorder.table("paths", evaluate.PATHS_FILE)


def _search_graph(run: Pipeline, folder: Path) -> dict[str, int]:
    search = opening.search_graph(run)
    placed = search.place(opening.read_with_hops(run, *EVERY_SPLIT))
    evaluate.write_asked(placed, folder, mask_topics=run.config.exploration.mask_topics)
    report = write_supervision(
        search,
        placed,
        folder / evaluate.PATHS_FILE,
        progress=lambda done: run.progress("finding supervision", done, len(placed)),
    )
    content = asdict(report)
    write_json(folder / REPORT_FILE, content)
    without = content.pop("without_path")
    return content | {f"without_path.{reason}": count for reason, count in without.items()}


def _read_given(dataset: PlansDataset, folder: Path) -> dict[str, int]:
    """Fill ``folder`` from plan files; return counts. InputError: more lines are unusable than may be."""
    questions: list[tuple[Split, PlanQuestion]] = []
    rejects: list[Reject] = []
    for split, path in dataset.plan_files.items():
        found = evaluate.read_plan_file(path)
        questions += [(split, question) for question in found.questions]
        rejects += found.rejects
        check_rejects(
            [records_table(found.rejects, REJECTS)],
            num_rejects=len(found.rejects),
            num_rows=len(found.questions) + len(found.rejects),
            max_ratio=dataset.max_reject_ratio,
            section="dataset",
        )
    evaluate.write_given(questions, folder)
    pq.write_table(records_table(rejects, REJECTS), folder / "rejects.parquet")
    counts = {
        "num_questions": len(questions),
        "num_paths": sum(len(question.paths) for _, question in questions),
        "num_without_paths": sum(not question.paths for _, question in questions),
        "num_rejects": len(rejects),
        **{f"num_{split}": count for split, count in Counter(split for split, _ in questions).items()},
    }
    write_json(folder / REPORT_FILE, counts)
    return counts


def _train_dense(run: Pipeline, spec: StageSpec, folder: Path, recorder: Recorder) -> None:
    import torch

    from kgqa_core.planners.dense_train import fit_dense

    section = run.config.dense
    assert section is not None
    torch.set_num_threads(run.config.runtime.threads)

    def told(step: int, total: int, loss: float) -> None:
        run.progress(f"training the dense planner (seed {spec.seed})", step, total)
        if step % CURVE_EVERY == 0 or step == total:
            recorder.curve("dense.loss", step, loss)

    report = fit_dense(opening.taught(run), section, folder / opening.DENSE_FOLDER, seed=spec.seed, progress=told)
    recorder.metrics(report, "num_questions", "num_without_paths", "num_paths", "cpu_seconds", prefix="dense.")


def _score_plans(run: Pipeline, spec: StageSpec, folder: Path, recorder: Recorder) -> None:
    """Ask for plans, follow the first of each where there is a graph, and score them."""
    split, source, planner = run.config.evaluation.split, run.artifact("supervision").folder, spec.section["planner"]
    questions, num_plans = evaluate.read_cases(source, split), spec.section["num_plans"]
    if not questions:
        raise InputError(f"there are no {split} questions to plan; set evaluation.split")
    search, told = opening.plan_graph(run), partial(run.progress, f"planning ({planner}, seed {spec.seed})")
    with opening.open_planner(run, planner, spec.seed) as (opened, meter):
        started = time.process_time()
        plans = evaluate.ask_planner(opened, questions, num_plans=num_plans, progress=told)
        recorder.metric("plan.cpu_seconds", time.process_time() - started)
        if meter:
            recorder.param("model.plan", opening.model_label(run.config, "plan"))
            # Calls and tokens are logical ones: equal whether they were remembered or paid.
            counted = ("num_calls", "num_prompt_tokens", "num_tokens", "paid_calls")
            recorder.metrics(meter.usage(), *counted, prefix="lm.")
    f1 = None
    if search is not None:
        asked = read_questions(run.artifact("questions").folder, split)
        f1 = evaluate.f1_of_first(search, search.place(asked), plans)
    figures = evaluate.planner_figures(
        questions,
        plans,
        signed=search is not None,
        is_valid=opening.validity(run, search),
        f1=f1,
        hops=evaluate.read_hops(source),
        best_f1=evaluate.read_best_f1(source),
    )
    evaluate.write_plans(folder / "plans.parquet", planner, questions, plans, signed=search is not None)
    write_json(folder / SCORES_FILE, {"planner": planner, "seed": spec.seed, "figures": figures})
    for hops, values in figures.items():
        for name, value in values.items():
            metric = name.replace("@", "_at_")
            recorder.metric(metric if hops == evaluate.ALL else hop_metric(metric, hops), value)
    recorder.table("plans", "plans.parquet")


DENSE = (
    "give the sections 'plans' with planners: [dense] and 'dense' (an empty one will do), or leave the system out of "
    "systems.run"
)
PLANS = "give the section 'plans'"

STAGES = (
    Stage("supervision", 1, "find supervision", _supervision_specs, _find_supervision, asked_for=PLANS, io=True),
    Stage("dense", 2, "train dense planner", _dense_specs, _train_dense, asked_for=DENSE),
    Stage("plans", 4, "score planner", _plans_specs, _score_plans),
)
