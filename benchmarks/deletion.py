"""Facts that are missing: triples of MetaQA deleted while answering, and what explorer, planner and ours make of it.

Everything is trained on the whole graph. Then a share of the triples is gone, of all or of those on gold paths alone,
and the same questions are asked of what is left.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import open_run, write_section
from flows.trust import risk_coverage
from kgqa_core.evaluation.metrics import pair_outcome, score_outcomes
from kgqa_core.evaluation.predictions import SystemSource
from kgqa_core.evaluation.runs import is_picked_right
from kgqa_core.graph.csr import sorted_distinct
from kgqa_core.graph.follow import follow_layers
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.plan import Plan, Planner, PlanQuestion
from kgqa_core.planners.dense import open_dense, steps_around
from kgqa_core.questions.build import read_questions
from kgqa_core.run.compare import FUSION_FILE
from kgqa_core.run.open import DENSE_FOLDER, open_system, path_constraints, search_graph
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.run.stages.tuning import plan_stages
from kgqa_core.systems.answering import PlanSource
from kgqa_core.systems.etd import ExplorerAlone
from kgqa_core.systems.ours import Fusion, Ours, OursSection
from kgqa_core.systems.rog import Rog, RogSection
from kgqa_core.systems.runner import Bench, keep_back
from kgqa_core.systems.types import Answered, System
from kgqa_core.types import Question, Split

CONF = "conf/metaqa-joint.yaml"
SYSTEMS = "{run: [explorer, ours], answered_by: [oracle]}"
SETTINGS = ("explorer.seeds=[0]", f"systems={SYSTEMS}")
RISK = 1.0  # percent of wrong answers that may be given on dev; on test 5 are allowed
CHOSEN_AT = 0.4  # share of the facts on gold paths of dev that is missing where the thresholds are chosen
SEED = 0


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    questions: int | None  # per split and number of hops; None: all
    shares: Sequence[float]  # of triples that are deleted
    settings: Sequence[str] = ()


FULL = Size(400, (0.0, 0.2, 0.4, 0.6, 0.8))
SMALL = Size(60, (0.0, 0.4), ("explorer.epochs=1", "dense.max_steps=30"))


def run(home: Path, size: Size = FULL) -> None:
    """Train where that is not done, then ask with less and less of the graph."""
    pipeline = open_run("evaluate", CONF, home, [*SETTINGS, *size.settings])
    write_section("Missing facts", "\n".join(body(pipeline, size)), "python -m benchmarks deletion")


def body(pipeline: Pipeline, size: Size) -> list[str]:
    """Return the section's lines: thresholds chosen on dev, then a table per number of hops."""
    search = search_graph(pipeline)
    asked = {split: read_asked(pipeline, split, size) for split in ("dev", "test")}
    systems = open_systems(pipeline)
    cut = delete(search.graph, "gold", CHOSEN_AT, asked["dev"])
    least = {}
    for name in ("explorer", "ours"):
        curve = risk_coverage(*judge(ask(systems[name], replace(search, graph=cut, entities=cut), asked["dev"])))
        point = curve.least(RISK)
        least[name] = 1.0 if point is None else float(curve.thresholds[point])
    lines = [note(asked, least), ""]
    for hops in (2, 3):
        own = [one for one in asked["test"] if one.hops == hops]
        lines += [f"{hops} hops, {len(own):,} test questions:", "", HEADER, RULE]
        for kind in ("any", "gold"):
            for share in size.shares[kind == "gold" :]:
                cut = delete(search.graph, kind, share, own)
                found = told(systems, replace(search, graph=cut, entities=cut), own, least)
                lines += [row(kind, share, *one) for one in found]
        lines.append("")
    return lines


HEADER = (
    "| deleted | still answerable | system | Hits@1 | F1 | abstained | wrong with confidence | "
    "answered of the still answerable | wrong of these |"
)
RULE = "|---|---:|---|---:|---:|---:|---:|---:|---:|"


def note(asked: dict[str, list[Question]], least: dict[str, float]) -> str:
    """Say what was measured."""
    chosen = ", ".join(f"{name} {value:.3f}" for name, value in least.items())
    return (
        "Percent. Explorer, planner and fusion (seed 0) are those of the whole graph. A question can still be answered "
        "where its gold chain leads to a gold. Wrong with confidence: answers that are given and whose first is no "
        "gold, of all questions. Facts on gold paths are those of the questions asked, each deleted by the same "
        f"chance. *abstaining*: answers below a confidence are kept back ({chosen}), chosen on {len(asked['dev']):,} "
        f"dev questions of a graph without {CHOSEN_AT:.0%} of the facts on their gold paths, so that at most {RISK:g} %"
        " of the answers there are wrong."
    )


def read_asked(pipeline: Pipeline, split: Split, size: Size) -> list[Question]:
    """Return the questions of 2 and 3 hops that have a gold chain."""
    questions = read_questions(pipeline.artifact("questions").folder, split)
    return [one for hops in (2, 3) for one in [q for q in questions if q.hops == hops and q.chain][: size.questions]]


# ------ A graph without some of its triples; entities keep their ids.


def delete(graph: KnowledgeGraph, kind: str, share: float, asked: Sequence[Question]) -> KnowledgeGraph:
    """Return the graph without a share of all its triples (``any``), or of those on gold paths of questions."""
    head = np.repeat(np.arange(graph.num_entities), np.diff(graph.group_ptr))
    sizes = np.diff(graph.edge_ptr)
    heads, relations = np.repeat(head, sizes), np.repeat(np.asarray(graph.group_relation), sizes)
    key = triple_keys(graph, heads, relations, np.asarray(graph.edge_tail))
    pool = sorted_distinct(key if kind == "any" else np.concatenate([*gold_keys(graph, asked)]))
    gone = pool[np.random.default_rng(SEED).random(len(pool)) < share]
    stays = ~np.isin(key, gone)
    group = np.repeat(np.arange(len(sizes)), sizes)[stays]
    left = np.bincount(group, minlength=len(sizes))
    kept = left > 0
    return replace(
        graph,
        num_triples=int(stays.sum()) // 2,
        group_ptr=np.concatenate([[0], np.cumsum(np.bincount(head[kept], minlength=graph.num_entities))]),
        group_relation=np.asarray(graph.group_relation)[kept],
        edge_ptr=np.concatenate([[0], np.cumsum(left[kept])]),
        edge_tail=np.asarray(graph.edge_tail)[stays],
    )


def triple_keys(graph: KnowledgeGraph, heads: Any, relations: Any, tails: Any) -> Any:
    """Return a number per edge, the same for both directions of a triple."""
    backward = relations >= graph.num_relations
    first, last = np.where(backward, tails, heads).astype(np.int64), np.where(backward, heads, tails)
    return (first * graph.num_relations + relations % graph.num_relations) * graph.num_entities + last


def gold_keys(graph: KnowledgeGraph, asked: Sequence[Question]) -> Iterator[Any]:
    """Yield the triples on the paths along each question's gold chain that end in a gold, step by step."""
    for one in asked:
        assert one.chain is not None
        layers = follow_layers(graph, one.topics, one.chain)
        ends: Any = np.intersect1d(layers[-1], one.answers)
        for step in reversed(range(len(one.chain))):
            owner, relation, tail = graph.edges_of(layers[step])
            on = (relation == one.chain[step]) & np.isin(tail, ends)
            yield triple_keys(graph, layers[step][owner[on]], relation[on], tail[on])
            ends = sorted_distinct(layers[step][owner[on]])


# ------ Asking.

Opened = Callable[[SearchGraph], System]


def open_systems(pipeline: Pipeline) -> dict[str, Opened]:
    """Return each system as a function of what it searches."""
    explorer = open_system(pipeline, 0)
    folder = pipeline.artifact(plan_stages(pipeline.config, "dense", 0)[0]).folder / DENSE_FOLDER
    fusion = Fusion(**json.loads((pipeline.artifact("fusion-seed0").folder / FUSION_FILE).read_text("utf-8"))["chosen"])

    remembered: dict[int, tuple[SearchGraph, Remembered]] = {}  # of the last graph: plans take most of the time

    def planner(search: SearchGraph) -> PlanSource:
        if id(search) not in remembered:
            remembered.clear()
            opened = open_dense(folder, exists=steps_around(path_constraints(search)))
            remembered[id(search)] = search, Remembered(opened, {})
        return PlanSource(remembered[id(search)][1])

    def ours(search: SearchGraph) -> System:
        inside: Any = None  # nobody is asked
        found = replace(explorer, graph=search.graph)
        return Ours(search, found, planner(search), inside, replace(fusion, decided_by="planner"), OursSection())

    def rog(search: SearchGraph) -> System:
        prompts: Any = None
        settings = RogSection(plans="dense", reasoning="none", num_plans=1)
        return Rog(search, prompts, planner(search), settings)

    return {
        "explorer": lambda search: ExplorerAlone(replace(explorer, graph=search.graph)),
        "first plan": rog,
        "ours": ours,
    }


@dataclass(frozen=True, slots=True)
class Remembered:
    """A planner that plans for a question once."""

    planner: Planner
    plans: dict[str, list[Plan]]

    def plan(self, questions: Sequence[PlanQuestion], *, num_plans: int = 3) -> list[list[Plan]]:
        """Return the first plans of each question; at most as many as were asked for first."""
        new = [one for one in questions if one.id not in self.plans]
        found = self.planner.plan(new, num_plans=max(num_plans, OursSection().num_plans))
        self.plans.update((one.id, own) for one, own in zip(new, found, strict=True))
        return [self.plans[one.id][:num_plans] for one in questions]


def ask(system: Opened, search: SearchGraph, asked: Sequence[Question]) -> Sequence[Answered]:
    """Return what a system answers on a graph."""
    opened = system(search)
    return Bench(opened, search, None, (), SystemSource("", "asked")).answer(asked).answered


def judge(answered: Sequence[Answered]) -> tuple[Any, Any]:
    """Return confidence (NaN: no answer) and whether the first answer is right [B]."""
    sure = [np.nan if one.confidence is None else one.confidence for one in answered]
    right = [is_picked_right(pair_outcome(one.question, one.answer.prediction)) for one in answered]
    return np.array(sure), np.array(right, dtype=np.float64)


def told(
    systems: dict[str, Opened], search: SearchGraph, asked: Sequence[Question], least: dict[str, float]
) -> Iterator[tuple[float, str, dict[str, float]]]:
    """Yield (percent that can still be answered, system, figures) of all systems, and of those that may abstain."""
    able = np.array(
        [np.isin(follow_layers(search.graph, one.topics, one.chain or ())[-1], one.answers).any() for one in asked]
    )
    for name, opened in systems.items():
        answered = ask(opened, search, asked)
        share = 100 * float(able.mean())
        yield share, name, figures(answered, able)
        if name in least:
            yield share, f"{name}, abstaining", figures([keep_back(one, least[name]) for one in answered], able)


def figures(answered: Sequence[Answered], able: Any) -> dict[str, float]:
    """Return the figures of a row, in percent."""
    outcomes = [pair_outcome(one.question, one.answer.prediction) for one in answered]
    scores = score_outcomes(outcomes).summary()
    given = np.array([one.status == "answered" for one in answered])
    wrong = given & (judge(answered)[1] == 0)
    return {
        "hits1": scores["hits1"],
        "f1": scores["f1"],
        "abstained": 100 * float((~given).mean()),
        "wrong": 100 * float(wrong.mean()),
        "covered": 100 * float(given[able].mean()),
        "wrong_covered": 100 * float(wrong[able & given].mean()) if (able & given).any() else 0.0,
    }


def row(kind: str, share: float, able: float, name: str, found: dict[str, float]) -> str:
    """Return a line of the table."""
    what = "nothing" if not share else f"{share:.0%} of {'all triples' if kind == 'any' else 'those on gold paths'}"
    cells = [f"{value:.1f}" for value in found.values()]
    return f"| {what} | {able:.1f} | {name} | " + " | ".join(cells) + " |"
