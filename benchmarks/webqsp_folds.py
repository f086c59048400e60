"""The dense planner on WebQSP's relation paths, by folds of the training questions, and what nobody could plan better.

A plan is right where it is among the paths that the file lists. Which of two inverse relations a path is listed with
looks like chance, so a second pair of figures takes them for equal. The annotators' chains and the topics of
``gold_plans`` only score: no planner sees them.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import data_folder, markdown, write_section
from kgqa_core.artifacts import hash_json, write_json
from kgqa_core.config_lm import DensePlannerSection
from kgqa_core.graph.kg import unsigned, write_step
from kgqa_core.instructions.plan import PlanQuestion
from kgqa_core.planners.dense import open_dense
from kgqa_core.planners.dense_train import VERSION, fit_dense
from kgqa_core.planners.evaluate import ask_planner, read_plan_file
from kgqa_core.types import LabelPath

FOLDS, SEED, NUM_PLANS = 5, 0, 3
CUTOFFS = (1, 3)
FIGURES = ("hit@1", "hit@3", "equal@1", "equal@3")
PLANNERS = ("dense planner", "told the annotators' chain", "dense planner, told the chain")
TOLD, FLOOR = 2.0, 1e-3  # weight of what is told beside a planner; added to shares before their log
MIN_PAIRS = 2  # times that one relation has to stand for another to count as its inverse
GROUPS = {
    "same": "another question of its topic and chain is taught",
    "topic": "another question of its topic is",
    "new": "its topic is new",
    "unknown": "no chain is known",
}
Told = dict[str, list[dict[str, list[bool]]]]
"""Planner -> for each fold the figures of each of its questions."""
Chains = Mapping[str, tuple[LabelPath, str]]
"""Question text -> the annotators' chain without directions, and the topic."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    folds: int
    epochs: float


FULL = Size(FOLDS, DensePlannerSection().epochs)
SMALL = Size(1, 0.1)


def run(home: Path, size: Size = FULL) -> None:
    """Train and score a planner per fold, and one on all training questions for dev; write the tables.

    A planner that an earlier run left in ``home`` is not trained again, unless it learned from something else.
    """
    data = data_folder()
    asked, dev = (
        [one for one in read_plan_file(data / "webqsp_plans" / f"{split}.jsonl").questions if one.paths]
        for split in ("train", "dev")
    )
    chains = read_annotators(data / "gold_plans" / "webqsp_train.jsonl")
    equal = find_inverses(asked, chains)
    folds = split_folds(len(asked))
    told: Told = {name: [] for name in PLANNERS}
    groups, costs = [], []
    for fold in range(size.folds):
        taught = [one for one, own in zip(asked, folds, strict=True) if own != fold]
        held = [one for one, own in zip(asked, folds, strict=True) if own == fold]
        out = home / f"webqsp-fold-{size.epochs}-{fold}"
        plans, cost = plan_held(out, taught, held, size.epochs)
        for name, own in zip(PLANNERS, (plans, *plan_told(out, taught, held, chains)), strict=True):
            told[name].append(score(held, own, equal))
        groups.append(group(taught, held, chains))
        costs.append(cost)
    on_dev, _ = plan_held(home / f"webqsp-all-{size.epochs}", asked, dev, size.epochs)
    lines = [*table(told), "", *group_table(told, groups), "", *dev_table(dev, on_dev, data, equal)]
    body = "\n".join([*lines, "", note(asked, chains, equal, costs)])
    write_section("Planner on WebQSP by folds", body, "python -m benchmarks webqsp_folds")


# ------ Who plans.


def split_folds(num: int) -> list[int]:
    """Return the fold of each question."""
    order = list(range(num))
    random.Random(SEED).shuffle(order)
    fold_of = {row: place % FOLDS for place, row in enumerate(order)}
    return [fold_of[row] for row in range(num)]


def plan_held(
    out: Path, taught: Sequence[PlanQuestion], held: Sequence[PlanQuestion], epochs: float
) -> tuple[list[list[LabelPath]], tuple[float, float]]:
    """Return the plans of ``held`` by a planner of ``taught``; with CPU seconds of training and per 1,000 questions."""
    settings, report = DensePlannerSection(epochs=epochs), out.parent / f"{out.name}.json"
    made_from = hash_json([VERSION, settings.model_dump(mode="json"), SEED, list(map(asdict, taught))])
    facts = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
    if facts.get("made_from") != made_from:
        shutil.rmtree(out, ignore_errors=True)
        facts = {**fit_dense(taught, settings, out, seed=SEED), "made_from": made_from}
        write_json(report, facts)
    spent = facts["cpu_seconds"]
    planner, started = open_dense(out), time.process_time()
    plans = [[plan.path for plan in own] for own in ask_planner(planner, held, num_plans=NUM_PLANS)]
    return plans, (spent, 1000 * (time.process_time() - started) / len(held))


def plan_told(
    out: Path, taught: Sequence[PlanQuestion], held: Sequence[PlanQuestion], chains: Chains
) -> tuple[list[list[LabelPath]], list[list[LabelPath]]]:
    """Return the plans of somebody who is told what each question asks for, alone and beside the planner in ``out``.

    A weight of ``TOLD`` for what is told was the best of 0.5, 1 and 2 in sight of the answers: these are bounds.
    """
    paths = sorted({path for one in taught for path in one.paths})
    told = follow_annotators(taught, held, chains, paths)
    bare = [PlanQuestion(one.id, one.text) for one in held]
    planned = np.array(open_dense(out).weigh(bare, [paths] * len(bare)))

    def first(scores: Any) -> list[list[LabelPath]]:
        return [[paths[place] for place in row[:NUM_PLANS]] for row in np.argsort(-scores, axis=1, kind="stable")]

    return first(told), first(planned + TOLD * told)


def follow_annotators(
    taught: Sequence[PlanQuestion], held: Sequence[PlanQuestion], chains: Chains, paths: Sequence[LabelPath]
) -> Any:
    """Return scores [B, P] of ``paths`` by the chains that annotators gave the questions.

    Each is the log of the share of the taught questions of this chain that list the path, and again of those of this
    chain and topic. They are 0 where there is no such question.
    """
    place = {path: column for column, path in enumerate(paths)}
    lists: dict[Any, list[list[int]]] = defaultdict(list)
    for one in taught:
        known = chains.get(one.text)
        for key in (known[0], known) if known else ():
            lists[key].append([place[path] for path in one.paths])
    scores = np.zeros((len(held), len(paths)))
    for row, one in enumerate(held):
        known = chains.get(one.text)
        for key in (known[0], known) if known else ():
            if lists.get(key):
                counts = np.bincount([column for own in lists[key] for column in own], minlength=len(paths))
                scores[row] += np.log(counts / len(lists[key]) + FLOOR)
    return scores


# ------ What is right.


def read_annotators(path: Path) -> Chains:
    """Return the chain and the topic of each question."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["question"]: (tuple(step.removeprefix("~") for step in row["chain"]), row["topic"]) for row in rows}


def find_inverses(asked: Iterable[PlanQuestion], chains: Chains) -> dict[str, str]:
    """Return pairs of relations, each the other's key, by what is listed where an annotators' chain is not.

    Where a listed path differs from the chain by one step, the two relations stand for each other; by two of two steps,
    each pair counts a third. The most frequent pairs come first, and a relation is in one pair.
    """
    counts: dict[tuple[str, str], float] = defaultdict(float)
    weights = {(1, 1): 1.0, (1, 2): 1.0, (2, 2): 1 / 3}  # (steps that differ, steps)
    for one in asked:
        chain = chains[one.text][0] if one.text in chains else ()
        listed = {unsigned(path) for path in one.paths}
        if chain in listed:
            continue
        for path in listed:
            apart = [pair for pair in zip(chain, path, strict=False) if pair[0] != pair[1]]
            weight = weights.get((len(apart), len(chain))) if len(path) == len(chain) else None
            for pair in apart if weight else ():
                counts[pair] += weight or 0.0
    equal: dict[str, str] = {}
    for (one_way, other), count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if count >= MIN_PAIRS and one_way not in equal and other not in equal:
            equal |= {one_way: other, other: one_way}
    return equal


def score(
    held: Sequence[PlanQuestion], plans: Sequence[Sequence[LabelPath]], equal: Mapping[str, str]
) -> dict[str, list[bool]]:
    """Return for each question whether a plan hits, at both cutoffs, literally and with inverses as equal."""

    def plain(path: LabelPath) -> LabelPath:
        return tuple(min(label, equal.get(label, label)) for label in unsigned(path))

    found = defaultdict(list)
    for one, own in zip(held, plans, strict=True):
        literal, right = {unsigned(path) for path in one.paths}, {plain(path) for path in one.paths}
        for k in CUTOFFS:
            found[f"hit@{k}"].append(any(unsigned(path) in literal for path in own[:k]))
            found[f"equal@{k}"].append(any(plain(path) in right for path in own[:k]))
    return dict(found)


def group(taught: Sequence[PlanQuestion], held: Sequence[PlanQuestion], chains: Chains) -> list[str]:
    """Return which of ``GROUPS`` each question is of."""
    known = {chains[one.text] for one in taught if one.text in chains}
    topics = {topic for _, topic in known}
    found = []
    for one in held:
        own = chains.get(one.text)
        found.append("unknown" if own is None else "same" if own in known else "topic" if own[1] in topics else "new")
    return found


# ------ What is written.


def table(told: Told) -> list[str]:
    """Return a line per planner: mean and standard deviation over folds."""
    rows = []
    for name, folds in told.items():
        shares = np.array([[100 * np.mean(fold[figure]) for figure in FIGURES] for fold in folds])
        spread = shares.std(axis=0, ddof=1) if len(shares) > 1 else np.zeros(len(FIGURES))
        both = zip(shares.mean(axis=0), spread, strict=True)
        rows.append([name, *(f"{mean:.1f} ± {apart:.1f}" for mean, apart in both)])
    return markdown(["planner", *FIGURES], rows)


def group_table(told: Told, groups: Sequence[Sequence[str]]) -> list[str]:
    """Return a line per group of questions with hit@1 and hit@3 of each planner, over all folds."""
    heads = [f"{shown}, {figure}" for shown in PLANNERS for figure in FIGURES[:2]]
    lines, own = [], np.array([name for fold in groups for name in fold])
    for name, shown in GROUPS.items():
        rows = own == name
        if rows.any():
            hits = [
                np.concatenate([fold[figure] for fold in told[planner]])[rows]
                for planner in PLANNERS
                for figure in FIGURES[:2]
            ]
            lines.append([shown, f"{rows.sum():,}", *(f"{100 * one.mean():.1f}" for one in hits)])
    return markdown(["taught of a question", "n", *heads], lines)


def dev_table(
    dev: Sequence[PlanQuestion], plans: Sequence[Sequence[LabelPath]], data: Path, equal: Mapping[str, str]
) -> list[str]:
    """Return a line each for our plans of dev and the published ones."""
    text = (data / "webqsp_plans" / "dev.jsonl").read_text(encoding="utf-8")
    given = {row["id"]: row["rog_llama2_7b_top3"] for row in map(json.loads, text.splitlines())}
    published = [[tuple(map(write_step, path)) for path in given[one.id]] for one in dev]
    lines = []
    for shown, own in (("dense planner, one seed", plans), ("fine-tuned Llama2-7B (published plans)", published)):
        found = score(dev, own, equal)
        lines.append([shown, *(f"{100 * np.mean(found[name]):.1f}" for name in FIGURES)])
    return markdown([f"{len(dev)} dev questions", *FIGURES], lines)


def note(
    asked: Sequence[PlanQuestion],
    chains: Chains,
    equal: Mapping[str, str],
    costs: Sequence[tuple[float, float]],
) -> str:
    """Say what it cost, and how chains and lists agree."""
    train, asking = np.mean(costs, axis=0)
    both = [one for one in asked if one.text in chains]
    alone = [PlanQuestion(one.id, one.text, paths=one.paths) for one in both]
    found = score(alone, [[chains[one.text][0]] for one in both], equal)
    listed, likewise = (100 * np.mean(found[name]) for name in ("hit@1", "equal@1"))
    return (
        f"{len(asked):,} training questions with a path; mean ± standard deviation over folds, in percent. Training "
        f"takes {train:.0f} CPU s per fold, plans {asking:.1f} CPU s per 1,000 questions. *equal* takes "
        f"{len(equal) // 2} pairs of relations for one, found where a listed path stands for an annotators' chain. The "
        f"chain is listed for {listed:.1f} % of {len(both):,} questions, it or one of inverses for {likewise:.1f} %."
    )
