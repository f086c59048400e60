"""What a reader gains by several orders of its paths: pools of WebQSP's training questions that taught nothing.

They are drawn as a retriever's prompts look: ``adapter_pools.RETRIEVED`` as they were taught, ``MANY`` with more ways
to an answer, as published prompts have them; its near misses are wrong plans of RoG's tuned 7B for the same question,
where it has any. Relations are shown without their directions.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from benchmarks.adapter_pools import MANY, RETRIEVED, Shape, draw_pool, is_dev, read_asked, read_names
from benchmarks.measure import data_folder, markdown, write_section
from benchmarks.systems import evaluate

SHAPES = {"as taught": (RETRIEVED, False), "more ways": (MANY, False), "near misses": (MANY, True)}
ORDERS = (1, 3)
FULL, SMALL = 80, 4  # questions
LM = "lm={kind: packaged, adapter: shipped}"
NOTE = (
    "WebQSP's training questions, one in ten, that taught the shipped adapter nothing; pools drawn as of a retriever, "
    "read by `given` in so many orders. All names that an order brings are answers; of whole ways the name of one end "
    "stands for all; weighed: all ends of the ways that are a tenth as probable as the best. "
    "Hits@1 / F1, and calls a question."
)


def run(home: Path, size: int = FULL) -> None:
    """Ask the shipped adapter about each kind of pool."""
    settings: dict[str, dict[str, Any]] = {f"orders {n}": {"orders": n} for n in ORDERS}
    settings |= {f"{name} whole ways": {**one, "whole_ways": True} for name, one in settings.items()}
    settings |= {f"orders {n} weighed": {"orders": n, "names": "weighed"} for n in ORDERS}
    settings["first end"], settings["all ends"] = {"reasoning": "first"}, {"reasoning": "none"}
    rows: dict[str, list[str]] = {name: [] for name in settings}
    for name, (shape, near) in SHAPES.items():
        folder = home / "orders" / name.replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "lines.jsonl").write_text(
            "".join(f"{json.dumps(one)}\n" for one in draw_lines(shape, near)), encoding="utf-8"
        )
        told = {
            "dataset": {
                "name": f"orders-{folder.name}",
                "source": "files",
                "graph": {"format": "paths"},
                "questions": {"format": "paths", "files": {"test": "lines.jsonl"}},
                "subgraphs": "question",
            },
            "encoder": {"kind": "hash"},
            "explorer": {"steps": 3, "edge_budget": 200, "epochs": 1},
        }
        conf = folder / f"orders-{folder.name}.yaml"  # a run is called like its file
        conf.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
        variants = json.dumps({row: {"system": "given", "settings": one} for row, one in settings.items()})
        asked = f"systems={{run: [], answers: shown, variants: {variants}}}"
        for row in evaluate(home, size, LM, asked, conf=str(conf))["rows"]:
            found = row["overall"]
            rows[row["system"]].append(f"{found['hits1']:.1f} / {found['f1']:.1f} ({found['calls_per_question']:.1f})")
    lines = markdown(["row", *SHAPES], [[name, *told] for name, told in rows.items()], 1 + len(SHAPES))
    write_section("Paths in several orders", "\n".join([NOTE, "", *lines]), "python -m benchmarks orders")


def draw_lines(shape: Shape, near: bool = False) -> Iterator[dict[str, Any]]:
    """Yield a line of a file of paths for each of WebQSP's training questions that is dev; ``near``: of near misses."""
    names, questions = read_names(data_folder() / "freebase" / "sample.nt.gz"), read_asked(data_folder())
    chains = [one.chain for one in questions]
    for asked in filter(is_dev, questions):
        walks, right = draw_pool(asked, chains, names, random.Random(f"orders {asked.id}"), shape, near)
        told = [[*zip_longest(walk.nodes, (step.lstrip("~") for step in walk.steps))] for walk in walks]
        paths = [list(chain.from_iterable(path))[:-1] for path in told]
        if right:
            yield {"id": asked.id, "question": asked.text, "answers": sorted(right), "paths": paths}
