"""What ``kgqa lint`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flows.cli_output import PERCENT, print_table

NUM_SHOWN = 10  # relations and hubs; --json has more
HUB = ("label", "relation", "direction", "hop", "degree", "kept")
KINDS = {
    "entity": "entities with a name",
    "cvt": "nodes without a name in any language",
    "foreign": "entities named in other languages only",
    "literal": "literals",
}
REACH = {
    "questions": "num_questions",
    "topic in graph": "num_with_topic",
    "answer in graph": "num_with_answer",
    "any answer reached": "num_any",
    "all reached": "num_all",
}


def print_lint(report: Mapping[str, Any]) -> None:
    """Print what the graph holds, the doubts about the dataset, and how many of its answers are within reach."""
    print_graph(report["graph"])
    doubts = [
        (found["kind"], found["split"], str(found["count"]), ", ".join(found["examples"]))
        for found in report["findings"]
    ]
    print_table("Findings", ("kind", "split", "count", "examples"), doubts)
    covered = [
        (
            str(row["hops"] or "?"),
            row["split"],
            str(row["num_questions"]),
            _figure(row["any_gold"]),
            _figure(row["all_golds"]),
        )
        for row in report["coverage"]
    ]
    title = f"Answers within {report['max_steps']} steps, {PERCENT} of questions"
    print_table(title, ("hops", "split", "questions", "any answer", "all answers"), covered, figures_from=2)
    reach = [(row["split"], str(row["steps"]), *(str(row[name]) for name in REACH.values())) for row in report["reach"]]
    print_table("Questions within so many steps", ("split", "steps", *REACH), reach, figures_from=1)
    names = [
        (
            row["split"],
            f"{row['num_topics_named']} of {row['num_topics']}",
            f"{row['num_answers_named']} of {row['num_answers']}",
        )
        for row in report["names"]
    ]
    print_table("Entities with a name", ("split", "topics", "answers"), names, figures_from=1)
    rejects = [
        (kind, reason, str(count)) for kind, reasons in report["rejects"].items() for reason, count in reasons.items()
    ]
    print_table("Lines that were not used", ("of", "reason", "lines"), rejects, figures_from=2)


def print_graph(graph: Mapping[str, Any]) -> None:
    """Print what the graph holds: sizes, names, its largest relations, capped hubs."""
    print_table("Graph", ("of", "count", "percent"), graph_rows(graph), figures_from=1)
    if hubs := graph["largest_hubs"]:
        rows = [[str(hub[name]) for name in HUB] for hub in hubs[:NUM_SHOWN]]
        print_table(f"Groups of triples of which not all were walked, {graph['num_hubs']} in all", HUB, rows)


def graph_rows(graph: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what is counted, how many there are, and what part of the whole that is."""
    for name in ("entities", "relations", "triples"):
        yield (name, str(graph[f"num_{name}"]), "")
    yield ("repeated lines dropped", str(graph["num_duplicates"]), "")
    for kind, count in graph["kinds"].items():
        yield (KINDS.get(kind, kind), str(count), _share(count, graph["num_entities"]))
    if graph["named"] is not None:
        yield ("entities with a name (literals left out)", "", f"{graph['named']:.2f}")
    yield ("names that several entities have", str(graph["num_shared_names"]), "")
    yield ("topics of questions", str(graph["num_topics"]), "")
    yield ("  of them in no triple", str(graph["num_topics_isolated"]), _share(*_isolated(graph)))
    if graph["num_topics_missing"] is not None:
        yield ("topics asked for that the dump has not", str(graph["num_topics_missing"]), "")
    for relation, count in list(graph["largest_relations"].items())[:NUM_SHOWN]:
        yield (f"triples of {relation}", str(count), _share(count, graph["num_triples"]))


def _isolated(graph: Mapping[str, Any]) -> tuple[int, int]:
    return graph["num_topics_isolated"], graph["num_topics"]


def _share(count: int, whole: int) -> str:
    return f"{100 * count / whole:.2f}" if whole else ""


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
