"""A small file in the NSM form: what its lines may look like, and what a plain reading says of their subgraphs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Neighbours = dict[tuple[str, str], set[str]]
"""(entity, relation, "~" before it: backwards) -> the entities reached."""


def line(
    id: str, question: str, topics: list[Any], answers: list[str], tuples: list[Any], **more: Any
) -> dict[str, Any]:
    """Return one line; answers are labels, with a text where one is given as ``label=text``."""
    pairs = [answer.partition("=") for answer in answers]
    subgraph = {"tuples": tuples, "entities": sorted({part for h, _, t in tuples for part in (h, t)})}
    return {
        "id": id,
        "question": question,
        "entities": topics,
        "answers": [{"kb_id": label, "text": text or None} for label, _, text in pairs],
        "subgraph": subgraph,
        **more,
    }


ROWS = [
    line(
        "q1",
        "who is the brother of ann",
        ["m.ann"],
        ["m.bob=Bob"],
        [["m.ann", "sibling", "m.s1"], ["m.s1", "sibling", "m.bob"], ["m.ann", "likes", "m.jazz"]],
        paths=["other keys are ignored"],
    ),
    # the same topic with another subgraph: nothing of q1's may be seen from here
    line("q2", "what does ann like", ["m.ann"], ["m.rock", "m.jazz=Jazz"], [["m.ann", "likes", "m.rock"]]),
    line("q3", "when was ann born", ["m.ann"], ["1971-10-13"], [["m.ann", "sibling", "m.s1"]]),  # answer in no triple
    line("q4", "who plays jazz", ["m.jazz"], ["m.bob"], [["m.bob", "plays", "m.jazz"], ["m.bob", "likes", "m.jazz"]]),
    line("q5", "what is unanswered", ["m.ann"], [], [["m.ann", "likes", "m.rock"]]),
    line("q6", "who is meant", [], ["m.bob"], [["m.bob", "likes", "m.rock"]]),
    line("q7", "what lies in an empty subgraph", ["m.zoe"], ["m.rock"], []),
    line("q8", "who likes rock", ["m.rock"], ["m.bob", "m.cat=Cat"], [["m.cat", "likes", "m.rock"]] * 2),
]


def write_nsm(path: Path, rows: Iterable[dict[str, Any] | str] = ROWS) -> Path:
    """Write rows as JSON lines; text is written as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def read_neighbours(tuples: Iterable[tuple[str, str, str]]) -> Neighbours:
    """Return what a plain reading of triples says: the oracle of every index."""
    found: Neighbours = defaultdict(set)
    for head, relation, tail in tuples:
        found[head, relation].add(tail)
        found[tail, f"~{relation}"].add(head)
    return dict(found)
