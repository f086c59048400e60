"""The published evaluator's figures, from the authors' own predictions."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.measure import data_folder, kgqa_json, write_section

NAMES = {"accuracy": "Accuracy", "hit": "Hit", "hit1": "Hit1", "f1": "F1", "precision": "Precision", "recall": "Recall"}


def run(home: Path) -> None:
    """Score every file in peer_predictions and put the authors' printed figures beside ours."""
    rows = ["| predictions | metric | printed by its authors | ours | equal | strict |", "|---|---|---:|---:|---|---:|"]
    for folder in sorted((data_folder() / "peer_predictions").iterdir()):
        found, _ = kgqa_json(["score", str(folder / "predictions.jsonl")], home)
        printed = dict(re.findall(r"(\w+): (\S+)", (folder / "eval_result.txt").read_text(encoding="utf-8")))
        for name, theirs in NAMES.items():
            ours, strict = found["rog"][name], found["strict"].get("hits1" if name == "hit1" else name)
            shown = "" if strict is None else f"{strict:.2f}"
            equal = "yes" if str(ours) == printed[theirs] else "NO"
            which = f"{folder.name} (n = {found['n']})"
            rows.append(f"| {which} | {name} | {printed[theirs]} | {ours} | {equal} | {shown} |")
    write_section("Published evaluator", "\n".join(rows), "python -m benchmarks published")
