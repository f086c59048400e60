"""A graph of towns, rivers and lands with questions of one and two hops: small enough to evaluate within seconds."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

RUN = """\
dataset:
  name: places
  source: files
  graph: {format: tsv, path: triples.tsv}
  questions: {format: jsonl, path: questions}
encoder: {kind: hash, dim: 61}
explorer: {steps: 2, width: 13, edge_budget: 11, epochs: 3, batch_size: 31, warmup_steps: 3}
plans: {planners: [dense]}
dense: {max_steps: 3, num_unseen: 0}
tracking: {enabled: false}
"""
"""A run on it, planners barely trained; whoever evaluates adds a section ``systems``."""
NUM_TOWNS, NUM_RIVERS, NUM_LANDS = 47, 23, 11
TOWN, RIVER, LAND, MAYOR = "Ambery {}", "Brandling {}", "Corland {}", "Dorin {}"  # names by number
Edges = dict[str, dict[str, list[str]]]  # relation -> head -> tails
TEMPLATES = {
    "in which land does {} lie?": ("lies_in",),
    "who is the mayor of {}?": ("has_mayor",),
    "which towns does {} flow through?": ("flows_through",),
    "where was the mayor of {} born?": ("has_mayor", "born_in"),
    "in which lands are the towns on {}?": ("flows_through", "lies_in"),
    "which lands does the land of {} border?": ("lies_in", "borders"),
}  # question about a name -> relations from it to the answers


def draw_edges(seed: int = 0) -> Edges:
    """Return the graph."""
    chance = random.Random(seed)
    towns = [TOWN.format(number) for number in range(NUM_TOWNS)]
    lands = [LAND.format(number) for number in range(NUM_LANDS)]
    mayors = [MAYOR.format(number) for number in range(NUM_TOWNS)]
    return {
        "lies_in": {town: [chance.choice(lands)] for town in towns},
        "has_mayor": {town: [mayor] for town, mayor in zip(towns, mayors, strict=True)},
        "born_in": {mayor: [chance.choice(towns)] for mayor in mayors},
        "flows_through": {RIVER.format(number): chance.sample(towns, 3) for number in range(NUM_RIVERS)},
        "borders": {land: chance.sample([other for other in lands if other != land], 2) for land in lands},
    }


def write_places(folder: Path, *, seed: int = 0) -> None:
    """Write ``triples.tsv`` and ``questions/`` with train, dev and test in shares of 3 : 1 : 1."""
    edges, chance = draw_edges(seed), random.Random(seed)
    lines = [
        f"{head}\t{name}\t{tail}\n" for name, own in edges.items() for head, tails in own.items() for tail in tails
    ]
    (folder / "triples.tsv").write_text("".join(lines), encoding="utf-8")
    rows = [
        {"question": text.format(topic), "answers": follow(edges, topic, path), "hops": len(path), "chain": list(path)}
        for text, path in TEMPLATES.items()
        for topic in edges[path[0]]
    ]
    chance.shuffle(rows)
    (folder / "questions").mkdir()
    for split, own in {"train": rows[::5] + rows[1::5] + rows[2::5], "dev": rows[3::5], "test": rows[4::5]}.items():
        text = "".join(f"{json.dumps(row)}\n" for row in own)
        (folder / "questions" / f"{split}.jsonl").write_text(text, encoding="utf-8")


def follow(edges: Edges, start: str, path: Sequence[str]) -> list[str]:
    """Return what a relation path reaches, without its start, which no path comes back to."""
    reached = {start}
    for relation in path:
        reached = {tail for head in reached for tail in edges[relation].get(head, ())}
    return sorted(reached)
