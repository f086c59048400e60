"""Instruction data to tune on: short plans and longer reasonings, some of them for dev."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from kgqa_core import schemas
from kgqa_core.instructions.types import Example


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Models this small are slower on several."""
    torch.set_num_threads(1)


RELATIONS = ("film.film.directed_by", "film.film.genre", "people.person.place_of_birth")


def make_examples(count: int = 30) -> list[Example]:
    """Return ``count`` plans and half as many reasonings; one in five is for dev."""
    generator = random.Random(3)
    examples = []
    for number in range(count):
        split = "dev" if number % 5 == 0 else "train"
        films = " ".join(generator.choices(["Heat", "Bath", "Spa", "Mann"], k=generator.randint(1, 7)))
        relation = generator.choice(RELATIONS)
        question, weight = f"q{number}", generator.choice([0.25, 0.5, 1.0])
        examples.append(
            Example("plan", question, split, "", f"plan {relation[-4:]} of {films}", f"<PATH>{relation}</PATH>", weight)
        )
        if number % 2 == 0:
            lines = "\n".join(f"{films} is {relation}" for _ in range(generator.randint(1, 3)))
            examples.append(Example("reason", question, split, "Be short.", f"{lines}\nwho ?", films, 1.0))
    return examples


def write_examples(path: Path, examples: list[Example]) -> Path:
    """Write instruction data as the pipeline does."""
    rows = [{name: getattr(example, name) for name in schemas.INSTRUCTIONS.names} for example in examples]
    pq.write_table(pa.Table.from_pylist(rows, schema=schemas.INSTRUCTIONS), path)
    return path


@pytest.fixture(scope="session")
def instructions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of instruction data."""
    return write_examples(tmp_path_factory.mktemp("instructions") / "instructions.parquet", make_examples())
