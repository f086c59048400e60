"""How plans are scored: a hit is a proposed path that equals one of the question's paths.

hit@k, in percent, over the questions that have a path: is one of the first k plans right? ``valid``, in percent of
all plans proposed, also for questions without paths: can the plan be followed (around the topic where there is a graph;
else: is it made of known relations)?
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core.artifacts import written_whole
from kgqa_core.evaluation.metrics import bootstrap_bounds, interval_names
from kgqa_core.evaluation.tables import markdown_table
from kgqa_core.graph.follow import Follower
from kgqa_core.graph.kg import golds_of, to_relations, unsigned
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.planners.types import LabelPath, Plan, Planner, PlanQuestion
from kgqa_core.schemas import PLANS
from kgqa_core.types import Question

CUTOFFS = (1, 3)
IsValid = Callable[[PlanQuestion, LabelPath], bool]


@dataclass(frozen=True, slots=True)
class PlanScores:
    """Plans of many questions beside the paths that count as right."""

    question_ids: tuple[str, ...]  # those that have a path
    ranks: npt.NDArray[np.int64]  # [n], from 1: of the first right plan; 0: none is
    num_without_paths: int  # questions that cannot be scored
    num_plans: int  # of all questions
    num_valid: int

    def hits(self, k: int) -> npt.NDArray[np.bool_]:
        """Return [n]: is one of the first ``k`` plans right?"""
        return (self.ranks >= 1) & (self.ranks <= k)

    def summary(self) -> dict[str, float]:
        """Return n, n_without_paths, hit@1, hit@3 and valid; zeros where there is nothing to count."""
        hits = {f"hit@{k}": 100 * float(self.hits(k).mean()) if len(self.ranks) else 0.0 for k in CUTOFFS}
        valid = 100 * self.num_valid / self.num_plans if self.num_plans else 0.0
        return {"n": len(self.ranks), "n_without_paths": self.num_without_paths, **hits, "valid": valid}

    def intervals(self) -> dict[str, float]:
        """Return the bounds of hit@1 and hit@3 (``hit@1.low``, ``hit@1.high``), by bootstrap over the questions."""
        bounds = bootstrap_bounds(np.stack([100.0 * self.hits(k) for k in CUTOFFS], axis=1))
        figures: dict[str, float] = {}
        for place, k in enumerate(CUTOFFS):
            figures |= dict(zip(interval_names(f"hit@{k}"), bounds[:, place].tolist(), strict=True))
        return figures


def score_plans(
    questions: Sequence[PlanQuestion],
    plans: Sequence[Sequence[Plan]],
    *,
    signed: bool = False,
    is_valid: IsValid | None = None,
) -> PlanScores:
    """Score the plans of each question, best first.

    Args:
        questions: with the paths that count as right.
        plans: as many lists as questions.
        signed: do directions count? They do not where the questions' file has none.
        is_valid: what makes a plan valid; None: every plan is.

    Raises:
        ValueError: ``plans`` are not as many as ``questions``.
    """
    ids, ranks, num_valid = [], [], 0
    for question, proposed in zip(questions, plans, strict=True):
        num_valid += sum(is_valid is None or is_valid(question, plan.path) for plan in proposed)
        if question.paths:
            right = {path if signed else unsigned(path) for path in question.paths}
            found = [(plan.path if signed else unsigned(plan.path)) in right for plan in proposed]
            ids.append(question.id)
            ranks.append(found.index(True) + 1 if True in found else 0)
    return PlanScores(
        question_ids=tuple(ids),
        ranks=np.array(ranks, dtype=np.int64),
        num_without_paths=len(questions) - len(ids),
        num_plans=sum(map(len, plans)),
        num_valid=num_valid,
    )


def made_of(relations: Collection[str]) -> IsValid:
    """Return what makes a plan valid where there is no graph: all its labels are in ``relations``."""
    known = frozenset(relations)
    return lambda _, path: all(label in known for label in unsigned(path))


# ------ A planner on many questions: its plans at rest, and its figures over all of them and by hops.


BATCH = 256  # questions that a planner gets at once
ALL = "all"
ROUNDING = 1e-6  # percent


def follower_of(search: SearchGraph) -> Follower:
    """Return what follows paths in a graph."""
    return Follower(search.graph, max_steps=search.max_hops, reenter_topic=search.reenter_topic)


def leads_somewhere(search: SearchGraph) -> IsValid:
    """Return the test whether a plan leads from its question's topics to anything."""
    follower = follower_of(search)
    known: dict[tuple[tuple[int, ...], LabelPath], bool] = {}

    def exists(question: PlanQuestion, path: LabelPath) -> bool:
        key = (question.topics, path)
        if key not in known:
            relations = to_relations(search.graph, path)
            known[key] = False
            if relations is not None and 0 < len(relations) <= search.max_hops:
                (reached,), _ = follower.count(question.topics, [relations], ())
                known[key] = reached > 0
        return known[key]

    return exists


def f1_of_first(search: SearchGraph, questions: Sequence[Question], plans: Sequence[Sequence[Plan]]) -> list[float]:
    """Return the F1, in percent, of answering each question with all that its first plan reaches."""
    follower, found = follower_of(search), []
    for question, proposed in zip(questions, plans, strict=True):
        path = to_relations(search.graph, proposed[0].path) if proposed else None
        golds = golds_of(question, reenter_topic=search.reenter_topic)
        if path is None or not golds or not 0 < len(path) <= search.max_hops:
            found.append(0.0)
            continue
        (reached,), (right,) = follower.count(question.topics, [path], golds)
        found.append(200.0 * right / (reached + len(golds)))
    return found


def ask_planner(
    planner: Planner,
    questions: Sequence[PlanQuestion],
    *,
    num_plans: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[list[Plan]]:
    """Return the plans of all questions, best first. A planner never sees a question's own paths."""
    plans: list[list[Plan]] = []
    for start in range(0, len(questions), BATCH):
        batch = [PlanQuestion(one.id, one.text, one.topics) for one in questions[start : start + BATCH]]
        plans += planner.plan(batch, num_plans=num_plans)
        progress(len(plans), len(questions))
    return plans


def planner_figures(
    questions: Sequence[PlanQuestion],
    plans: Sequence[Sequence[Plan]],
    *,
    signed: bool,
    is_valid: IsValid,
    f1: Sequence[float] | None = None,
    hops: Mapping[str, int | None] | None = None,
    best_f1: Mapping[str, float] | None = None,
) -> dict[str, dict[str, float]]:
    """Return the figures (percent) by number of hops and, with intervals, over ``all``.

    ``hops`` holds each question's number by its id. ``f1`` is that of answering with the first plan, where there is a
    graph; then ``best_f1`` (by id) makes the figure "as_good": first plans that do as well as the question's best
    shortest path. A gold chain that is not among the shortest paths is no hit, and yet as good.
    """
    groups: dict[str, list[int]] = {}
    for row, question in enumerate(questions):
        if hops and hops.get(question.id) is not None:
            groups.setdefault(str(hops[question.id]), []).append(row)
    groups = dict(sorted(groups.items())) if len(groups) > 1 else {}
    found = {}
    for name, rows in {**groups, ALL: list(range(len(questions)))}.items():
        chosen = [questions[row] for row in rows]
        scores = score_plans(chosen, [plans[row] for row in rows], signed=signed, is_valid=is_valid)
        figures = scores.summary() | (scores.intervals() if name == ALL and len(scores.ranks) else {})
        if f1 is not None and rows:
            figures["f1"] = sum(f1[row] for row in rows) / len(rows)
            known = [row for row in rows if best_f1 and questions[row].id in best_f1]
            if known and best_f1:
                good = [f1[row] >= best_f1[questions[row].id] - ROUNDING for row in known]
                figures["as_good"] = 100.0 * sum(good) / len(good)
        found[name] = figures
    return found


def write_plans(
    path: Path, planner: str, questions: Sequence[PlanQuestion], plans: Sequence[Sequence[Plan]], *, signed: bool
) -> None:
    """Write schemas.PLANS."""
    rows: list[dict[str, Any]] = []
    for question, proposed in zip(questions, plans, strict=True):
        right = {one if signed else unsigned(one) for one in question.paths}
        rows += [
            {
                "planner": planner,
                "question_id": question.id,
                "rank": rank,
                "path": list(plan.path),
                "log_prob": plan.log_prob,
                "right": (plan.path if signed else unsigned(plan.path)) in right,
            }
            for rank, plan in enumerate(proposed, start=1)
        ]
    with written_whole(path) as partial:
        pq.write_table(pa.Table.from_pylist(rows, schema=PLANS), partial)


# ------ The table of planners: figures by hops, the mean over seeds.


HEADER = ("hops", "planner", "n", "hit@1", "hit@3", "as good", "valid", "F1 of first plan")
FIGURES = ("hit@1", "hit@3", "as_good", "valid", "f1")

Scores = Mapping[str, Any]
"""What stage plans writes as scores.json: planner, seed, figures by hops."""


def planner_cells(scores: Sequence[Scores]) -> list[tuple[str, ...]]:
    """Return the cells under ``HEADER``: one row per number of hops and planner, its seeds averaged."""
    by_planner: dict[str, list[Mapping[str, Mapping[str, float]]]] = {}
    for one in scores:
        by_planner.setdefault(one["planner"], []).append(one["figures"])
    cells = []
    for hops in dict.fromkeys(hops for seeds in by_planner.values() for hops in seeds[0]):
        for name, seeds in by_planner.items():
            if hops not in seeds[0]:
                continue
            mean = {figure: sum(one[hops][figure] for one in seeds) / len(seeds) for figure in seeds[0][hops]}
            shown = name if len(seeds) == 1 else f"{name} (mean of {len(seeds)} seeds)"
            figures = (f"{mean[figure]:.2f}" if figure in mean else "" for figure in FIGURES)
            cells.append((hops, shown, f"{mean['n']:.0f}", *figures))
    return cells


def render_planners(scores: Sequence[Scores]) -> str:
    """Return the table as Markdown; empty without scores."""
    if not scores:
        return ""
    figures = [place > 1 for place in range(len(HEADER))]
    return "\n".join(markdown_table(HEADER, planner_cells(scores), figures)) + "\n"
