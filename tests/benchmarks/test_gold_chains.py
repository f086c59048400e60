"""What counts as an exact chain, with and without directions, and which restrictions a question has."""

from __future__ import annotations

from pathlib import Path

from benchmarks.gold_chains import figures, has_kinds, read_chains, restriction_table, table
from tests.conftest import write_jsonl

ROWS = [
    {"id": "1", "question": "Who made Up?", "topic": "Up", "chain": ["film.by"], "restrictions": ["?x -[a]-> Bo"]},
    {"id": "2", "question": "What is up?", "topic": "Up", "chain": ["~x.y", "z"], "restrictions": ["LIMIT 1"]},
]


def test_a_chain_is_met_step_by_step_directions_and_all(tmp_path: Path) -> None:
    rows = read_chains(write_jsonl(tmp_path / "chains.jsonl", ROWS))
    assert rows[0]["asked"].text == "Who made [topic]?"
    assert [row["asked"].paths for row in rows] == [((("film.by",),)), ((("^x.y", "z"),))]
    found = figures(rows, [[("z",), ("film.by",)], [("x.y", "z"), ("^x.y", "z")]])
    assert (found["n"], found["n forward"]) == (2, 1)
    assert [found[f"{name} @{k}"] for name in ("forward", "signed", "unsigned") for k in (1, 2)] == [
        0,
        100,
        0,
        100,
        50,
        100,
    ]
    assert table([found, found], found)[-2].startswith("| **mean ± sd** | 4 | 2 | 0.0 ± 0.0 | 100.0 ± 0.0 |")


def test_restrictions_are_told_by_kind(tmp_path: Path) -> None:
    rows = read_chains(write_jsonl(tmp_path / "chains.jsonl", ROWS))
    assert has_kinds(rows).tolist() == [[True, False, False, False], [False, False, False, True]]
    lines = restriction_table([(rows[0], [True, False, False, True]), (rows[1], [True, False, False, True])])
    assert lines[2] == "| entity | 50.0 | 50.0 | 50.0 | 100.0 |"
