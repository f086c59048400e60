"""What a built graph holds, in short: sizes, relations, names, capped hubs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from kgqa_core.graph.diff import name_coverage, triples_per_relation

NUM_SHOWN = 20  # relations and hubs


@dataclass(frozen=True, slots=True)
class Hub:
    """A group of triples of one entity and relation of which only some were walked; a row of schemas.HUBS."""

    label: str
    relation: str
    direction: str
    hop: int
    degree: int
    kept: int


@dataclass(frozen=True, slots=True)
class GraphLint:
    """Of one graph."""

    num_entities: int
    num_relations: int
    num_triples: int
    num_duplicates: int
    kinds: dict[str, int]  # entity, cvt, foreign, literal -> entities; empty where the format does not tell
    named: float | None  # percent of entities with a name, literals left out; None where no names were given
    num_shared_names: int  # names that several entities have
    largest_relations: dict[str, int]  # label -> triples, at most NUM_SHOWN
    num_hubs: int  # groups that were capped
    largest_hubs: tuple[Hub, ...]  # at most NUM_SHOWN
    num_topics_missing: int | None  # topics in no triple of a dump; None where the graph was not made for topics


def lint_graph(folder: Path) -> GraphLint:
    """Return what ``folder``, a graph artifact, holds; OSError, ValueError or KeyError where it is damaged."""
    facts = json.loads((folder / "graph.json").read_text(encoding="utf-8"))
    closure = folder / "closure.json"
    reached = json.loads(closure.read_text(encoding="utf-8")) if closure.is_file() else {}
    hubs = folder / "hubs.parquet"
    capped = pq.read_table(hubs).sort_by([("degree", "descending")]) if hubs.is_file() else None
    largest = sorted(triples_per_relation(folder).items(), key=lambda item: (-item[1], item[0].encode()))
    return GraphLint(
        num_entities=facts["num_entities"],
        num_relations=facts["num_relations"],
        num_triples=facts["num_triples"],
        num_duplicates=facts["num_duplicates"],
        kinds=facts.get("kinds", {}),
        named=name_coverage(folder),
        num_shared_names=facts["num_shared_names"],
        largest_relations=dict(largest[:NUM_SHOWN]),
        num_hubs=capped.num_rows if capped else 0,
        largest_hubs=tuple(Hub(**row) for row in capped.slice(0, NUM_SHOWN).to_pylist()) if capped else (),
        num_topics_missing=reached.get("num_topics_missing"),
    )
