"""Run files: one with a small graph and questions of its own beside it, one that plans and tunes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import write_jsonl
from tests.run.specs import TUNED_RUN

NUM_FILMS = 17
RUN = """\
dataset:
  name: films
  source: files
  graph: {format: tsv, path: data/triples.tsv}
  questions: {format: jsonl, path: data/questions}
encoder: {kind: hash, dim: 31}
explorer: {steps: 1, width: 7, edge_budget: 5, epochs: 1}
"""


@pytest.fixture
def films(tmp_path: Path) -> Path:
    triples = [f"Film {n}\tdirected_by\tPerson {n % 5}\nFilm {n}\treleased\t{1950 + n % 3}" for n in range(NUM_FILMS)]
    for split, numbers in {"train": range(11), "dev": range(11, 13), "test": range(13, 17)}.items():
        asked = [
            {"question": f"who directed Film {n}?", "topics": [f"Film {n}"], "answers": [f"Person {n % 5}"]}
            for n in numbers
        ]
        write_jsonl(tmp_path / "data" / "questions" / f"{split}.jsonl", asked)
    (tmp_path / "data/triples.tsv").write_text("\n".join(triples) + "\n", encoding="utf-8")
    (tmp_path / "films.yaml").write_text(RUN, encoding="utf-8")
    return tmp_path / "films.yaml"


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    """A run that plans and tunes, and compares nothing."""
    (tmp_path / "tuned.yaml").write_text(TUNED_RUN, encoding="utf-8")
    return tmp_path / "tuned.yaml"
