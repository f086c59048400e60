"""``kgqa lint``: doubts about a dataset, what its graph holds, and the lines that were not used."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.cli_init import propose_walk
from flows.cli_output import PERCENT, print_json, print_table, say, show_percent
from flows.cli_session import Conf, Json, Settings, open_run, run_missing, working

if TYPE_CHECKING:
    from kgqa_core.run.pipeline import Pipeline

NUM_SHOWN, NUM_KEPT = 10, 20  # relations and hubs that are printed, and those of --json
HUB = ("label", "relation", "direction", "hop", "degree", "kept")
KINDS = {
    "entity": "entities with a name",
    "cvt": "nodes without a name in any language",
    "foreign": "entities named in other languages only",
    "iri": "IRIs without a name",
    "blank": "blank nodes",
    "literal": "literals",
}
REACH = {
    "questions": "num_questions",
    "topic in graph": "num_with_topic",
    "answer in graph": "num_with_answer",
    "any answer reached": "num_any",
    "all reached": "num_all",
}


def lint(conf: Conf, settings: Settings = None, as_json: Json = False) -> None:
    """Check the dataset: doubtful questions, shared names, answers out of reach, lines not used.

    Builds the graph and links the questions where that is not done.

    \b
    Example:
      kgqa lint conf/metaqa-1hop.yaml --json
    """
    pipeline = open_run(conf, settings)
    with working("checking"):
        run_missing(pipeline, "graph", "questions")
        if pipeline.use_accepted():
            say("The last build is not the accepted one: this is the accepted one.", err=True)
        report = read_lint(pipeline)
    if as_json:
        print_json(report)
        return
    for title, header, rows, figures_from in lint_tables(report):
        print_table(title, header, rows, figures_from=figures_from)


def read_lint(pipeline: Pipeline) -> dict[str, Any]:
    """Return findings and coverage (see ``questions.coverage.LintReport``), what the graph holds, and rejected lines.

    Of the graph (see ``lint_graph``) it also says how many topics of questions have no triple in it.
    Rejected lines are counted by reason. Raises ``ArtifactError`` where graph or questions are not built.
    """
    graph, questions = (pipeline.artifact(key).folder for key in ("graph", "questions"))
    report = json.loads((questions / "lint.json").read_text(encoding="utf-8"))
    rejects = {"graph": count_rejects(graph), "questions": count_rejects(questions)}
    dumps = {key: artifact for key in pipeline.specs if key.startswith("dump-") and (artifact := pipeline.find(key))}
    rejects |= {key: count_rejects(artifact.folder) for key, artifact in dumps.items()}
    graph_facts = {**lint_graph(graph), **count_topics(pipeline)}
    return {**report, "graph": graph_facts, "rejects": rejects, "proposed": propose(pipeline)}


def propose(pipeline: Pipeline) -> dict[str, Any]:
    """Return settings that fit the questions, each with its value and why; none for subgraphs and dumps."""
    from kgqa_core.questions.build import read_questions
    from kgqa_core.run.open import graph_of

    if "subgraphs" in pipeline.specs or "topics" in pipeline.specs:
        return {}
    walk = propose_walk(graph_of(pipeline), read_questions(pipeline.artifact("questions").folder))
    return {name: {"value": value, "why": why} for name, (value, why) in walk.settings().items()}


def lint_graph(folder: Path) -> dict[str, Any]:
    """Return what a graph artifact holds; OSError, ValueError or KeyError where it is damaged.

    ``kinds``: as in schemas.ENTITIES -> entities; empty where the format does not tell. ``named``: percent, see
    ``questions.diff.name_coverage``. ``num_hubs``, ``largest_hubs``: groups of triples that were walked in part, as in
    schemas.HUBS. ``num_topics_missing``: topics in no triple of a dump; None where the graph was not made for topics.
    """
    import pyarrow.parquet as pq

    from kgqa_core.questions.diff import name_coverage, triples_per_relation

    facts = json.loads((folder / "graph.json").read_text(encoding="utf-8"))
    closure, hubs = folder / "closure.json", folder / "hubs.parquet"
    reached = json.loads(closure.read_text(encoding="utf-8")) if closure.is_file() else {}
    capped = pq.read_table(hubs).sort_by([("degree", "descending")]) if hubs.is_file() else None
    largest = sorted(triples_per_relation(folder).items(), key=lambda item: (-item[1], item[0].encode()))
    counted = ("num_entities", "num_relations", "num_triples", "num_duplicates", "num_shared_names")
    return {
        **{name: facts[name] for name in counted},
        "kinds": facts.get("kinds", {}),
        "named": name_coverage(folder),
        "largest_relations": dict(largest[:NUM_KEPT]),
        "num_hubs": capped.num_rows if capped else 0,
        "largest_hubs": capped.slice(0, NUM_KEPT).to_pylist() if capped else [],
        "num_topics_missing": reached.get("num_topics_missing"),
    }


def count_rejects(folder: Path) -> dict[str, int]:
    """Return reason -> rejected lines of a stage's folder; there may be millions."""
    import pyarrow.parquet as pq

    counts: dict[str, int] = {}
    for batch in pq.ParquetFile(folder / "rejects.parquet").iter_batches(columns=["reason"]):
        for found in batch.column(0).value_counts().to_pylist():
            counts[found["values"]] = counts.get(found["values"], 0) + found["counts"]
    return dict(sorted(counts.items()))


def count_topics(pipeline: Pipeline) -> dict[str, int]:
    """Return how many topics the linked questions have, and how many of these are in no triple."""
    import numpy as np
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from kgqa_core.graph.csr import sorted_distinct
    from kgqa_core.run.open import graph_of

    column = pq.read_table(pipeline.artifact("questions").folder / "questions.parquet", columns=["topics"])["topics"]
    topics = sorted_distinct(pc.list_flatten(column).to_numpy())
    has_triple = np.diff(graph_of(pipeline).group_ptr) > 0
    return {"num_topics": len(topics), "num_topics_isolated": int((~has_triple[topics]).sum())}


def lint_tables(report: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str], list[tuple[str, ...]], int]]:
    """Yield what the graph holds, doubts about the dataset, how many answers are within reach, lines that are not used.

    Each is a table: title, header, rows, and the first column that holds figures.
    """
    graph = report["graph"]
    yield "Graph", ("of", "count", "percent"), [*graph_rows(graph)], 1
    if hubs := graph["largest_hubs"]:
        rows = [tuple(str(hub[name]) for name in HUB) for hub in hubs[:NUM_SHOWN]]
        yield f"Groups of triples of which not all were walked, {graph['num_hubs']} in all", HUB, rows, len(HUB)
    doubts = [(one["kind"], one["split"], str(one["count"]), ", ".join(one["examples"])) for one in report["findings"]]
    yield "Findings", ("kind", "split", "count", "examples"), doubts, 4
    covered = [
        (str(row["hops"] or "?"), row["split"], str(row["num_questions"]), *map(show_percent, share))
        for row in report["coverage"]
        for share in ((row["any_gold"], row["all_golds"]),)
    ]
    title = f"Answers within {report['max_steps']} step{'s' * (report['max_steps'] != 1)}, {PERCENT} of questions"
    yield title, ("hops", "split", "questions", "any answer", "all answers"), covered, 2
    reach = [(row["split"], str(row["steps"]), *(str(row[name]) for name in REACH.values())) for row in report["reach"]]
    yield "Questions within so many steps", ("split", "steps", *REACH), reach, 1
    names = [
        (row["split"], *(f"{row[f'num_{one}_named']} of {row[f'num_{one}']}" for one in ("topics", "answers")))
        for row in report["names"]
    ]
    yield "Entities with a name", ("split", "topics", "answers"), names, 1
    proposed = [(name, json.dumps(one["value"]), one["why"]) for name, one in report["proposed"].items()]
    yield "Settings that fit the questions", ("setting", "value", "why"), proposed, 3
    reasons = [(kind, *item) for kind, found in report["rejects"].items() for item in found.items()]
    rejects = [(kind, reason, str(count)) for kind, reason, count in reasons]
    yield "Lines that were not used", ("of", "reason", "lines"), rejects, 2


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
    num_topics, isolated = graph["num_topics"], graph["num_topics_isolated"]
    yield ("topics of questions", str(num_topics), "")
    yield ("  of them in no triple", str(isolated), _share(isolated, num_topics))
    if graph["num_topics_missing"] is not None:
        yield ("topics asked for that the dump has not", str(graph["num_topics_missing"]), "")
    for relation, count in list(graph["largest_relations"].items())[:NUM_SHOWN]:
        yield (f"triples of {relation}", str(count), _share(count, graph["num_triples"]))


def _share(count: int, whole: int) -> str:
    return f"{100 * count / whole:.2f}" if whole else ""
