"""Instruction data to tune on: short plans and longer reasonings, some of them for dev; and how tests tune on it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core import schemas
from kgqa_core.config_lm import ReasonerSection
from kgqa_core.instructions.types import Example
from kgqa_core.lm.tune_data import TuneJob

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


def make_job(base: Path, examples: Path, out: Path, **changed: Any) -> TuneJob:
    """Return a short tuning; what is changed is a field of the job or of its section."""
    own = {name: changed.pop(name) for name in list(changed) if name in TuneJob.model_fields}
    section = {"max_steps": 12, "batch_size": 4, "rank": 3, "learning_rate": 2e-2, "max_length": 250, **changed}
    return TuneJob(base=base, examples=(examples,), out=out, section=ReasonerSection(**section), **own)
