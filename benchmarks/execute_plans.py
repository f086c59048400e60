"""Executing three plans for each of 1,000 questions: over sets of entities, and walk by walk as published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.child import run_child
from benchmarks.measure import Clock, cpu_seconds, write_section
from benchmarks.networkx_paths import follow_multi, follow_simple, multi_graph, simple_graph
from benchmarks.path_cases import Cut, build_folders, cut_subgraphs, sample
from kgqa_core.graph.follow import execute_plans
from kgqa_core.graph.kg import KnowledgeGraph, open_graph, to_labels
from kgqa_core.graph.shortest import PathFinder
from kgqa_core.questions.build import read_questions
from kgqa_core.types import Question, RelationPath

HOPS, NUM_PLANS, ASKED_TIMES = 3, 3, 100
WAYS = {"simple": "simple graph, no directions (as published)", "multi": "multigraph, directions, topic not re-entered"}


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    questions: int
    walked: int  # of them, the published way
    repeats: int  # of ours; the least counts


FULL = Size(questions=1000, walked=100, repeats=5)
SMALL = Size(questions=20, walked=3, repeats=1)


def run(home: Path, size: Size = FULL) -> None:
    """Execute the plans each way, in one process, and write the section."""
    graph, questions = build_folders(home)
    counts = {"count": size.questions, "walked": size.walked, "repeats": size.repeats}
    found = run_child(execute, graph=graph, questions=questions, **counts).result
    if found["different"]:
        raise SystemExit(f"what {found['different']} plans reach differs between the kernels and networkx")
    write_section("Executing plans", report(found), "python -m benchmarks execute_plans")


def report(found: dict[str, Any]) -> str:
    """Return the section."""
    ours = found["ours"]
    note = (
        f"{NUM_PLANS} plans for each of {found['questions']:,} training questions of {HOPS} hops: its own shortest "
        f"relation paths, filled up with the commonest of all. Every question has a subgraph, {found['triples']:,.0f} "
        f"triples on average, within {HOPS} hops of the topic; the published way walks it breadth-first with networkx, "
        f"question by question ({found['walked']} of them). Entities reached per plan: {found['reached']:,.0f}, walks: "
        f"{found['walks']:,.0f}. On all {found['compared']} plans walked with directions both ways reach the same."
    )
    rows = [
        "| sets of entities, all questions in one pass | CPU s per 1,000 questions |",
        "|---|---:|",
        *(f"| {name} | {seconds:.4f} |" for name, seconds in ours.items()),
        "",
        "| breadth-first over networkx, CPU s per 1,000 questions | walking | with the graph's making | "
        f"times ours over subgraphs: walking, all of it (asked: >= {ASKED_TIMES}) | over the whole graph |",
        "|---|---:|---:|---:|---:|",
        *(
            f"| {name} | {found[way]:.1f} | {found[way] + found['make ' + way]:.1f} | "
            f"{times(found, way, SUBGRAPHS)} | {times(found, way, WHOLE)} |"
            for way, name in WAYS.items()
        ),
    ]
    return "\n\n".join([note, "\n".join(rows)])


def times(found: dict[str, Any], way: str, what: str) -> str:
    """Return how many times longer a way takes, without and with the making of its graph."""
    ours = found["ours"][what]
    return f"{found[way] / ours:,.0f}, {(found[way] + found['make ' + way]) / ours:,.0f}"


SUBGRAPHS, WHOLE = "over the subgraphs", "over the whole graph"


def execute(graph: str, questions: str, count: int, walked: int, repeats: int) -> dict[str, Any]:
    """Execute plans each way; return CPU seconds per 1,000 questions."""
    opened = open_graph(Path(graph))
    asked = sample(read_questions(Path(questions), "train"), HOPS, count)
    plans = draw_plans(opened, asked)
    labels = [[to_labels(opened, plan) for plan in of_question] for of_question in plans]
    cut = cut_subgraphs(opened, asked, HOPS)
    rows, entities = [one.topics for one in cut.questions], [one.topics for one in asked]

    calls: dict[str, Callable[[], object]] = {
        SUBGRAPHS: lambda: execute_plans(cut.graph, rows, labels),
        WHOLE: lambda: execute_plans(opened, entities, labels),
    }
    for call in calls.values():
        call()  # compiled code is loaded
    per_thousand = 1000 / len(asked)
    ours = {name: per_thousand * min(cpu_seconds(call) for _ in range(repeats)) for name, call in calls.items()}
    reached = execute_plans(cut.graph, rows, labels)
    theirs = walk(cut, plans, reached, walked)
    return {
        **theirs,
        "ours": ours,
        "questions": len(asked),
        "triples": cut.graph.num_triples / len(asked),
        "reached": sum(len(entities) for plans in reached for entities in plans) / (NUM_PLANS * len(asked)),
    }


def draw_plans(graph: KnowledgeGraph, questions: Sequence[Question]) -> list[list[RelationPath]]:
    """Return three plans per question: shortest paths of its own first, then the commonest of all."""
    finder = PathFinder(graph, max_hops=HOPS)
    own = [finder.find(one.topics, one.answers).paths for one in questions]
    ranked = Counter(path for paths in own for path in paths).most_common()
    common = [path for path, _ in ranked]
    return [list(dict.fromkeys([*paths, *common]))[:NUM_PLANS] for paths in own]


def walk(
    cut: Cut, plans: Sequence[Sequence[RelationPath]], reached: Sequence[Sequence[Any]], count: int
) -> dict[str, Any]:
    """Walk the plans of the first questions with networkx; compare what they reach."""
    clock, num_relations = Clock(), cut.graph.num_relations
    different = num_walks = 0
    for question in range(count):
        (topic,) = cut.questions[question].topics
        with clock.on("make simple"):
            simple = simple_graph(cut.triples[question])
        with clock.on("simple"):
            for plan in plans[question]:
                follow_simple(simple, topic, [step % num_relations for step in plan])
        with clock.on("make multi"):
            multi = multi_graph(cut.triples[question], num_relations)
        with clock.on("multi"):
            walks = [follow_multi(multi, topic, plan) for plan in plans[question]]
        num_walks += sum(map(len, walks))
        different += sum(
            reached[question][number].tolist() != sorted({one[-1] for one in found})
            for number, found in enumerate(walks)
        )
    compared = count * NUM_PLANS
    spent = {name: 1000 * seconds / count for name, seconds in clock.spent.items()}
    return {**spent, "walked": count, "compared": compared, "walks": num_walks / compared, "different": different}
