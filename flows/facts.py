"""What the data stages of a run hold, in a few lines for people: read from the reports in their artifacts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kgqa_core.run.pipeline import StageOutcome

Fact = tuple[str, str]
KINDS = {"entity": "named", "cvt": "CVT nodes", "foreign": "named in another language only", "literal": "literals"}


def read_facts(outcomes: Sequence[StageOutcome]) -> list[Fact]:
    """Return (what, how much) of dumps, graph, subgraphs and questions, in the order of the stages."""
    facts: list[Fact] = []
    for outcome in outcomes:
        folder, stage = outcome.artifact.folder, outcome.artifact.recipe.stage
        if stage == "dump":
            facts.append((outcome.key, dump_fact(_read(folder / "dump.json"))))
        elif stage == "graph":
            facts += graph_facts(_read(folder / "graph.json"), _read(folder / "closure.json"))
        elif stage == "subgraphs":
            facts.append(("subgraphs", subgraphs_fact(_read(folder / "subgraphs.json"))))
        elif stage == "questions":
            facts += question_facts(_read(folder / "lint.json"))
    return facts


def dump_fact(report: dict[str, Any]) -> str:
    """Return what became of the lines of a dump."""
    lines = ", ".join(f"{count:,} {use.replace('_', ' ')}" for use, count in report["lines"].items() if count)
    return f"{report['num_lines']:,} lines: {lines}"


def graph_facts(graph: dict[str, Any], closure: dict[str, Any]) -> Iterator[Fact]:
    """Yield what a graph holds and, where it is a closure, what each step added."""
    kinds = ", ".join(f"{count:,} {KINDS[kind]}" for kind, count in (graph.get("kinds") or {}).items() if count)
    sizes = f"{graph['num_relations']:,} relations, {graph['num_triples']:,} triples"
    yield "graph", f"{graph['num_entities']:,} entities{f' ({kinds})' if kinds else ''}, {sizes}"
    for hop in closure.get("hops", ()):
        if hop["hop"]:
            yield f"  step {hop['hop']}", f"{hop['num_entities']:,} new entities, {hop['num_triples']:,} new triples"
    if closure.get("num_topics_missing"):
        yield "  topics", f"{closure['num_topics_missing']:,} of {closure['num_topics']:,} are not in the dump"
    if closure.get("num_hubs"):
        yield "  hubs", f"{closure['num_hubs']:,} groups of triples were capped"


def subgraphs_fact(report: dict[str, Any]) -> str:
    """Return how many questions have a subgraph, and how large they are."""
    return (
        f"{report['num_subgraphs']:,}, {report['num_with_answer']:,} of them with an answer; "
        f"{report['num_triples']:,} triples in all, {report['largest']:,} in the largest"
    )


def question_facts(lint: dict[str, Any]) -> Iterator[Fact]:
    """Yield how many questions a split has, and for how many an answer is within reach."""
    splits: dict[str, list[dict[str, Any]]] = {}
    for row in lint["coverage"]:
        splits.setdefault(row["split"], []).append(row)
    for split, rows in splits.items():
        total = sum(row["num_questions"] for row in rows)
        reached = sum(row["num_questions"] * row["any_gold"] for row in rows) / total if total else 0.0
        yield f"questions, {split}", f"{total:,}; an answer within {lint['max_steps']} steps for {reached:.1f} %"


def _read(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return report
