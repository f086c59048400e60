"""A planner on many questions: its plans at rest, and its figures over all of them and by hops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core.disk import written_whole
from kgqa_core.graph.follow import Follower
from kgqa_core.graph.golds import golds_of
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.label_paths import to_relations, unsigned
from kgqa_core.planners.score import IsValid, score_plans
from kgqa_core.planners.types import LabelPath, Plan, Planner, PlanQuestion
from kgqa_core.schemas import PLANS
from kgqa_core.types import Question

BATCH = 256  # questions that a planner gets at once
ALL = "all"
ROUNDING = 1e-6  # percent


@dataclass(frozen=True, slots=True)
class Ground:
    """What plans are followed in."""

    graph: KnowledgeGraph
    max_hops: int
    reenter_topic: bool = False

    def follower(self) -> Follower:
        """Return what follows paths here."""
        return Follower(self.graph, max_steps=self.max_hops, reenter_topic=self.reenter_topic)

    def is_valid(self) -> IsValid:
        """Return the test whether a plan leads from its question's topics to anything."""
        follower = self.follower()
        known: dict[tuple[tuple[int, ...], LabelPath], bool] = {}

        def exists(question: PlanQuestion, path: LabelPath) -> bool:
            key = (question.topics, path)
            if key not in known:
                relations = to_relations(self.graph, path)
                known[key] = False
                if relations is not None and 0 < len(relations) <= self.max_hops:
                    (reached,), _ = follower.count(question.topics, [relations], ())
                    known[key] = reached > 0
            return known[key]

        return exists

    def f1_of_first(self, questions: Sequence[Question], plans: Sequence[Sequence[Plan]]) -> list[float]:
        """Return the F1, in percent, of answering each question with all that its first plan reaches."""
        follower, found = self.follower(), []
        for question, proposed in zip(questions, plans, strict=True):
            path = to_relations(self.graph, proposed[0].path) if proposed else None
            golds = golds_of(question, reenter_topic=self.reenter_topic)
            if path is None or not golds or not 0 < len(path) <= self.max_hops:
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
