"""A few questions about films with their plans, and a model that learned them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kgqa_core.lm.embedded.make import EmbeddedReport, make_embedded
from kgqa_core.lm.embedded.settings import EmbeddedSettings
from kgqa_core.schemas import INSTRUCTIONS

FRAME = "Give a chain of relations.\n\nQuestion: "
PLANS = {
    "who directed [topic]": "<PATH>directed_by</PATH>",
    "which films did [topic] direct": "<PATH>^directed_by</PATH>",
    "who is in films by the director of [topic]": "<PATH>directed_by<SEP>^directed_by<SEP>starred_actors</PATH>",
    "when was [topic] released": "<PATH>release_year</PATH>",
    "name the year of [topic]": "<PATH>release_year</PATH>",
}
STEPS = ["directed_by", "^directed_by", "starred_actors", "^starred_actors", "release_year", "^release_year"]
MARKERS = ["<PATH>", "<SEP>", "</PATH>"]
TINY = EmbeddedSettings(width=24, layers=2, heads=2, vocabulary=331, steps=60, batch_size=7, learning_rate=1e-2)


def write_examples(path: Path) -> Path:
    """Each question of PLANS asked thrice; one has another plan once."""
    rows = [(question, plan, 1.0) for question, plan in PLANS.items() for _ in range(3)]
    rows.append(("who directed [topic]", "<PATH>^starred_actors</PATH>", 0.5))
    table = [
        {
            "instruction": "plan",
            "question_id": str(number),
            "split": "train",
            "system": "",
            "prompt": FRAME + question,
            "target": plan,
            "weight": weight,
        }
        for number, (question, plan, weight) in enumerate(rows)
    ]
    pq.write_table(pa.Table.from_pylist(table, schema=INSTRUCTIONS), path)
    return path


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_examples(tmp_path_factory.mktemp("embedded") / "instructions.parquet")


@pytest.fixture(scope="session")
def made(examples: Path, tmp_path_factory: pytest.TempPathFactory) -> EmbeddedReport:
    out = tmp_path_factory.mktemp("embedded") / "model"
    return make_embedded(examples, TINY, out, steps=STEPS, markers=MARKERS, names=["Ada Lovelace", "Vertigo"])
