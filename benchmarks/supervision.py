"""Supervision for MetaQA's training questions: all shortest paths, how well each does, and the published search."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.child import run_child
from benchmarks.measure import Clock, peak_megabytes, write_section
from benchmarks.networkx_paths import multi_graph, search_multi, search_simple, simple_graph
from benchmarks.path_cases import build_folders, cut_subgraphs, sample, triples_of
from kgqa_core.graph.follow import Follower
from kgqa_core.graph.kg import KnowledgeGraph, golds_of, open_graph
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.graph.shortest import PathFinder
from kgqa_core.graph.supervision import write_supervision
from kgqa_core.questions.build import read_questions
from kgqa_core.types import Question

MAX_HOPS = 3
ASKED_SHORTEST, ASKED_BEST, ASKED_TIMES = 60, 30, 500


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    questions: int | None  # None: all
    searched: int  # pairs of a topic and an answer per number of hops, by networkx over the whole graph
    cut: int  # per number of hops, over subgraphs
    repeats: int  # of ours


FULL = Size(questions=None, searched=40, cut=100, repeats=3)
SMALL = Size(questions=500, searched=1, cut=3, repeats=1)


def run(home: Path, size: Size = FULL) -> None:
    """Find paths each way, in processes of their own, and write the section."""
    graph, questions = build_folders(home)
    folders = {"graph": graph, "questions": questions}
    ours = [run_child(supervise, **folders, count=size.questions).result for _ in range(size.repeats)]
    whole = run_child(search_whole, **folders, count=size.searched).result
    cut = run_child(search_cut, **folders, count=size.cut).result
    for found in (whole, cut):
        if found["different"]:
            raise SystemExit(f"kernels and networkx differ on {found['different']}")
    best = {name: min(one[name] for one in ours) for name in ("shortest", "follow", "all", "peak")}
    write_section("Supervision", report(ours[0], best, whole, cut), "python -m benchmarks supervision")


def report(counts: dict[str, Any], best: dict[str, float], whole: dict[str, Any], cut: dict[str, Any]) -> str:
    """Return the section."""
    pairs = counts["pairs"]
    projected = {way: sum(whole[way][hops] * number for hops, number in pairs.items()) for way in ("simple", "multi")}
    rows = [
        "| what | asked | CPU s |",
        "|---|---:|---:|",
        f"| all shortest paths | <= {ASKED_SHORTEST} | {best['shortest']:.1f} |",
        f"| how well each does when followed, for the best-executing | <= {ASKED_BEST} more | {best['follow']:.1f} |",
        f"| both, with the table written | | {best['all']:.1f} |",
    ]
    ways = [
        "| CPU s per pair of a topic and an answer, in questions of | 1 hop | 2 hops | 3 hops | all pairs, h | "
        f"times ours, all shortest (asked: >= {ASKED_TIMES}) |",
        "|---|---:|---:|---:|---:|---:|",
        *(
            f"| {name} | {' | '.join(f'{whole[way][hops]:.3f}' for hops in pairs)} | {projected[way] / 3600:.1f} | "
            f"{projected[way] / best['shortest']:,.0f} |"
            for name, way in (("simple graph", "simple"), ("multigraph, both directions", "multi"))
        ),
    ]
    small = [
        "| a subgraph per question, CPU ms per question | search | with the graph's making | times ours |",
        "|---|---:|---:|---:|",
        f"| ours, subgraphs side by side | {1000 * cut['ours']:.3f} | | |",
        *(
            f"| {name} | {1000 * cut[way]:.1f} | {1000 * (cut[way] + cut['make ' + way]):.1f} | "
            f"{cut[way] / cut['ours']:,.0f}; {(cut[way] + cut['make ' + way]) / cut['ours']:,.0f} |"
            for name, way in (("simple graph", "simple"), ("multigraph, both directions", "multi"))
        ),
    ]
    note = (
        f"{counts['num_questions']:,} training questions of 1 to 3 hops over {counts['triples']:,} triples: "
        f"{counts['num_paths']:,} shortest paths, {counts['num_best']:,} of them best-executing; without a path: "
        f"{sum(counts['without_path'].values())}. Peak memory {best['peak']:,.0f} MB. One process, the least of its "
        "runs, compiled code loaded from its cache."
    )
    searched = (
        f"The published search, networkx's all_shortest_paths for each of the {sum(pairs.values()):,} pairs over the "
        f"whole graph: {whole['pairs']} pairs sampled, the others projected. On all of those the multigraph gives the "
        "same set of paths as the kernels; the simple graph gives another, directions aside, on "
        f"{whole['simple differs']}."
    )
    subgraphs = (
        f"{cut['questions']} questions with the subgraph within {MAX_HOPS} hops of the topic, "
        f"{cut['triples']:,.0f} triples on average: the same sets again."
    )
    parts = [note, "\n".join(rows), searched, "\n".join(ways), subgraphs, "\n".join(small)]
    return "\n\n".join(parts)


def supervise(graph: str, questions: str, count: int | None) -> dict[str, Any]:
    """Find the paths of training questions, follow them, and write the table; return CPU seconds and counts."""
    opened, asked = open_graph(Path(graph)), read_questions(Path(questions), "train")
    asked = asked if count is None else asked[:: len(asked) // count]
    finder, follower = PathFinder(opened, max_hops=MAX_HOPS), Follower(opened, max_steps=MAX_HOPS)
    golds = [golds_of(question) for question in asked]
    found, clock = [], Clock()
    follower.count(asked[0].topics, finder.find(asked[0].topics, golds[0]).paths, golds[0])  # compiled code is loaded
    with clock.on("shortest"):
        found.extend(finder.find(one.topics, right).paths for one, right in zip(asked, golds, strict=True))
    with clock.on("follow"):
        for one, paths, right in zip(asked, found, golds, strict=True):
            follower.count(one.topics, paths, right)
    found.clear()
    search = SearchGraph(opened, opened, None, MAX_HOPS, reenter_topic=False)
    with tempfile.TemporaryDirectory() as folder, clock.on("all"):
        report = write_supervision(search, asked, Path(folder) / "paths.parquet")
    counts = {name: getattr(report, name) for name in ("num_questions", "num_paths", "num_best", "without_path")}
    pairs = Counter({"1": 0, "2": 0, "3": 0})
    for question, right in zip(asked, golds, strict=True):
        pairs[str(question.hops)] += len(question.topics) * len(right)
    return {**clock.spent, **counts, "pairs": pairs, "triples": opened.num_triples, "peak": peak_megabytes()}


def search_whole(graph: str, questions: str, count: int) -> dict[str, Any]:
    """Search the whole graph by networkx; return CPU seconds per pair by hops, and where the kernels differ."""
    opened, asked = open_graph(Path(graph)), read_questions(Path(questions), "train")
    triples = triples_of(opened)
    simple, multi = simple_graph(triples), multi_graph(triples, opened.num_relations)
    spent: dict[str, dict[str, float]] = {"simple": {}, "multi": {}}
    found: dict[str, Any] = {"pairs": 0, "different": [], "simple differs": 0}
    clock = Clock()
    for hops in (1, 2, 3):
        pairs = sample_pairs(asked, hops, count)
        theirs: dict[str, list[Any]] = {}
        for way, searched, search in (("simple", simple, search_simple), ("multi", multi, search_multi)):
            with clock.on(way):
                theirs[way] = [search(searched, one.topics, one.answers) for one in pairs]
            spent[way][str(hops)] = clock.spent.pop(way) / len(pairs)
        found["pairs"] += len(pairs)
        found["different"] += differing(opened, pairs, theirs["multi"])
        found["simple differs"] += sum(
            one != {tuple(step % opened.num_relations for step in path) for path in other}
            for one, other in zip(theirs["simple"], theirs["multi"], strict=True)
        )
    return {**found, **spent}


def sample_pairs(questions: Sequence[Question], hops: int, count: int) -> list[Question]:
    """Return random pairs of a topic and an answer, each as a question of one answer."""
    chosen = random.Random(hops).choices(
        [one for one in questions if one.hops == hops],
        [len(one.answers) for one in questions if one.hops == hops],
        k=count,
    )
    return [replace(one, answers=(random.Random(at).choice(one.answers),)) for at, one in enumerate(chosen)]


def search_cut(graph: str, questions: str, count: int) -> dict[str, Any]:
    """Search a subgraph per question; return CPU seconds per question, making networkx's graph apart."""
    opened, asked = open_graph(Path(graph)), read_questions(Path(questions), "train")
    cut = cut_subgraphs(opened, [one for hops in (1, 2, 3) for one in sample(asked, hops, count)], MAX_HOPS)
    finder = PathFinder(cut.graph, max_hops=MAX_HOPS)
    finder.find(cut.questions[0].topics, cut.questions[0].answers)
    clock, theirs = Clock(), []
    with clock.on("ours"):
        for one in cut.questions:
            finder.find(one.topics, one.answers)
    for triples, one in zip(cut.triples, cut.questions, strict=True):
        with clock.on("make simple"):
            simple = simple_graph(triples)
        with clock.on("simple"):
            search_simple(simple, one.topics, one.answers)
        with clock.on("make multi"):
            multi = multi_graph(triples, opened.num_relations)
        with clock.on("multi"):
            theirs.append(search_multi(multi, one.topics, one.answers))
    number = len(cut.questions)
    different = differing(cut.graph, cut.questions, theirs)
    per_question = {name: seconds / number for name, seconds in clock.spent.items()}
    return {**per_question, "different": different, "questions": number, "triples": cut.graph.num_triples / number}


def differing(graph: KnowledgeGraph, questions: Sequence[Question], theirs: Sequence[set[Any]]) -> list[str]:
    """Return the ids of questions where the kernels do not find the same set of paths."""
    finder = PathFinder(graph, max_hops=MAX_HOPS)
    return [
        one.id
        for one, other in zip(questions, theirs, strict=True)
        if set(finder.find(one.topics, golds_of(one)).paths) != {path for path in other if len(path) <= MAX_HOPS}
    ]
