"""Two run configurations, and a sweep file beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

TOWNS = """\
dataset:
  name: towns
  source: files
  graph: {format: tsv, path: triples.tsv}
  questions: {format: jsonl, path: questions.jsonl}
encoder: {kind: hash}
explorer: {steps: 2, edge_budget: 10, epochs: 1}
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a sweep file beside two run configurations, and return its path."""
    for name in ("towns", "rivers"):
        (tmp_path / f"{name}.yaml").write_text(TOWNS.replace("towns", name), encoding="utf-8")

    def write_sweep(text: str) -> Path:
        path = tmp_path / "sweeps" / "sizes.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write_sweep
