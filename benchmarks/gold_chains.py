"""Planners on gold chains of real questions: ComplexWebQuestions by folds of topics, and what WebQSP's paths bear.

The dense planner learns from the other folds and from WebQSP's chains. A plan is right where it is the chain, step by
step; directions count unless it is said that they do not.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import data_folder, markdown, write_section
from kgqa_core.config_lm import DensePlannerSection
from kgqa_core.graph.kg import unsigned, write_step
from kgqa_core.instructions.plan import PlanQuestion
from kgqa_core.planners.dense import open_dense
from kgqa_core.planners.dense_train import fit_dense, open_encoder
from kgqa_core.planners.evaluate import read_plan_file
from kgqa_core.questions.link import mask_topics
from kgqa_core.text.transformer import SplitEncoder
from kgqa_core.types import LabelPath

FOLDS, SEED, NUM_PLANS = 5, 0, 5
PLANS = "webqsp_plans/train.jsonl"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    folds: int
    epochs: float


FULL = Size(FOLDS, 1.0)
SMALL = Size(1, 0.1)


def run(home: Path, size: Size = FULL) -> None:
    """Train and score a planner per fold, and write the table."""
    data = data_folder() / "gold_plans"
    cwq, webqsp = (read_chains(data / name) for name in ("cwq_dev.jsonl", "webqsp_train.jsonl"))
    topics = sorted({row["topic"] for row in cwq})
    random.Random(SEED).shuffle(topics)
    fold_of = {topic: place % FOLDS for place, topic in enumerate(topics)}
    settings = DensePlannerSection(num_unseen=0, epochs=size.epochs)
    encoder, rows, costs, told = open_encoder(settings), [], [], []
    for fold in range(size.folds):
        asked = [row for row in cwq if fold_of[row["topic"]] == fold]
        taught = [row for row in cwq if fold_of[row["topic"]] != fold] + webqsp
        with tempfile.TemporaryDirectory(dir=home) as folder:
            out = Path(folder) / "planner"
            report = fit_dense([row["asked"] for row in taught], settings, out, seed=SEED)
            planner, started = open_dense(out), time.process_time()
            plans = planner.plan([row["asked"] for row in asked], num_plans=NUM_PLANS)
        costs.append((report["cpu_seconds"], 1000 * (time.process_time() - started) / len(asked)))
        rows.append(figures(asked, [[plan.path for plan in own] for own in plans]))
        told += list(zip(asked, guess_restrictions(encoder, taught, asked), strict=True))
    published = figures(cwq, [[tuple(map(write_step, path)) for path in row["rog_llama2_7b_top2"]] for row in cwq])
    body = "\n".join([*table(rows, published), "", *restriction_table(told), "", note(costs, data)])
    write_section("Plans on CWQ's gold chains", body, "python -m benchmarks gold_chains")


def read_chains(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file, each with the question as a planner sees it: its topic masked, its chain the path."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        chain = tuple(write_step(step.removeprefix("~"), step.startswith("~")) for step in row["chain"])
        row["asked"] = PlanQuestion(row["id"], mask_topics(row["question"], {row["topic"]}), paths=(chain,))
    return rows


def figures(asked: Sequence[dict[str, Any]], plans: Sequence[Sequence[LabelPath]]) -> dict[str, float]:
    """Return n and exact @1 and @2, in percent, of chains without a backward step, and of all, both ways to count."""
    found: dict[str, list[tuple[bool, bool]]] = {"forward": [], "signed": [], "unsigned": []}
    for row, own in zip(asked, plans, strict=True):
        chain = row["asked"].paths[0]
        hits = at_most_two(own, chain)
        found["signed"].append(hits)
        found["unsigned"].append(at_most_two(dict.fromkeys(map(unsigned, own)), unsigned(chain)))
        if not any(step.startswith("~") for step in row["chain"]):
            found["forward"].append(hits)
    shares = {name: 100 * np.mean(hits, axis=0) for name, hits in found.items()}
    named = {f"{name} @{k + 1}": float(share[k]) for name, share in shares.items() for k in range(2)}
    return {"n": len(asked), "n forward": len(found["forward"]), **named}


def at_most_two(plans: Iterable[LabelPath], chain: LabelPath) -> tuple[bool, bool]:
    """Say whether the first plan is the chain, and whether one of the first two is."""
    own = list(plans)
    return chain in own[:1], chain in own[:2]


def table(rows: Sequence[dict[str, float]], published: dict[str, float]) -> list[str]:
    """Return a line per fold, their mean and spread, and the published plans."""
    names = list(rows[0])
    values = np.array([list(row.values()) for row in rows])
    spread = values.std(axis=0, ddof=1) if len(rows) > 1 else np.zeros(len(names))
    both = (f"{mean:.1f} ± {apart:.1f}" for mean, apart in zip(values.mean(axis=0)[2:], spread[2:], strict=True))
    lines = [cells(f"{fold}", row) for fold, row in enumerate(values)]
    lines.append(["**mean ± sd**", f"{values[:, 0].sum():.0f}", f"{values[:, 1].sum():.0f}", *both])
    lines.append(cells("RoG-Llama2-7B, published", list(published.values())))
    return markdown(["fold", *names], lines)


def cells(name: str, values: Sequence[float]) -> list[str]:
    """Return a line: two counts, and percents."""
    return [name, *(f"{value:.0f}" for value in values[:2]), *(f"{value:.1f}" for value in values[2:])]


# ------ What a question asks for beside its chain.

KINDS = {"entity": "->", "value": "FILTER", "order": "ORDER BY", "limit": "LIMIT"}
TEMPERATURE = 0.05  # of the cosine of two questions


def has_kinds(rows: Sequence[dict[str, Any]]) -> Any:
    """Return which kinds of restriction each question has [B, K]."""
    return np.array([[any(mark in one for one in row["restrictions"]) for mark in KINDS.values()] for row in rows])


def guess_restrictions(encoder: SplitEncoder, taught: Sequence[dict[str, Any]], asked: Sequence[dict[str, Any]]) -> Any:
    """Return which kinds of restriction each question has [B, K], by the vote of the questions that are near it."""
    near, own = (encoder.encode_published([row["asked"].text for row in rows]) for rows in (taught, asked))
    weights = np.exp(own @ near.T / TEMPERATURE)
    return weights @ has_kinds(taught) / weights.sum(axis=1, keepdims=True) > 0.5


def restriction_table(told: Sequence[tuple[dict[str, Any], Any]]) -> list[str]:
    """Return a line per kind of restriction: how many questions have it, and how well it is told who does."""
    right, guessed = has_kinds([row for row, _ in told]), np.array([one for _, one in told])
    lines = []
    for place, kind in enumerate(KINDS):
        true, said = right[:, place], guessed[:, place]
        both, shares = int((true & said).sum()), (true.mean(), (true == said).mean())
        found = (*shares, both / max(said.sum(), 1), both / max(true.sum(), 1))
        lines.append([kind, *(f"{100 * share:.1f}" for share in found)])
    return markdown(["restriction", "questions with it", "told rightly, of all", "precision", "recall"], lines)


def note(costs: Sequence[tuple[float, float]], data: Path) -> str:
    """Say what it cost, and how many of WebQSP's questions list the chain that a person gave among their paths."""
    train, asking = np.mean(costs, axis=0)
    given = {" ".join(one.text.casefold().split()): one for one in read_plan_file(data.parent / PLANS).questions}
    chains = {" ".join(row["question"].casefold().split()): row for row in read_chains(data / "webqsp_train.jsonl")}
    both = [(one, chains[text]["asked"].paths[0]) for text, one in given.items() if text in chains and one.paths]
    listed = sum(unsigned(chain) in map(unsigned, one.paths) for one, chain in both)
    return (
        f"Exact matches in percent; topics masked. Training takes {train:.0f} CPU s per fold, plans {asking:.1f} CPU s "
        "per 1,000 questions. The published plans have no directions, so only the last two columns are fair to them. "
        "Kinds of restriction are told by the vote of the nearest questions, apart from the chain."
        "\n\n"
        f"Of {len(both):,} questions of WebQSP in both files, {listed:,} ({100 * listed / len(both):.1f} %) list the "
        "chain that people gave, directions ignored, among the paths that count as right. So planning exactly as "
        "people do has a hit@1 of so much on those files."
    )
