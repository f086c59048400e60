"""A trained dense planner at rest: a folder of JSON, Parquet and safetensors.

``dense.json``: settings, seed, and the hash of the encoder that the upper layers belong on. ``paths.parquet``: the
training paths, in the order of the vectors. ``questions.parquet``: the training questions with the places of their
paths. ``texts.safetensors``: vectors of the paths' texts. ``member-K.safetensors``: one per member of the ensemble.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core.disk import written_whole
from kgqa_core.errors import ArtifactError, shorten
from kgqa_core.planners.dense_rank import Floats
from kgqa_core.planners.dense_settings import DenseSettings
from kgqa_core.planners.types import LabelPath, PlanQuestion

VERSION = 1
FACTS, PATHS, QUESTIONS, TEXTS = "dense.json", "paths.parquet", "questions.parquet", "texts.safetensors"
UPPER = "upper."  # before the names of the upper layers' weights
_PATHS = pa.schema([pa.field("path", pa.list_(pa.string()), nullable=False)])
_QUESTIONS = pa.schema(
    [pa.field("question_id", pa.string(), nullable=False), pa.field("paths", pa.list_(pa.int32()), nullable=False)]
)


@dataclass(frozen=True, slots=True)
class Taught:
    """What a dense planner learned from, by number."""

    paths: tuple[LabelPath, ...]  # P, sorted
    targets: Any  # scipy CSR matrix [n, P], float32: 1 where a training question has a path

    @classmethod
    def of(cls, questions: Sequence[PlanQuestion]) -> Taught:
        """Number the paths of questions that have any."""
        paths = tuple(sorted({path for question in questions for path in question.paths}))
        place = {path: number for number, path in enumerate(paths)}
        return cls(paths, _matrix([[place[path] for path in question.paths] for question in questions], len(paths)))


@dataclass(frozen=True, slots=True)
class Member:
    """One trained encoder with its vectors."""

    upper: dict[str, Any]  # weights of the encoder's upper layers, by name
    paths: Floats  # [P, D], unit rows
    bias: Floats  # [P]
    map: Floats  # [D, D]: from a path's text to its vector
    bank: Floats  # [n, D], unit rows: the training questions


@dataclass(frozen=True, slots=True)
class DenseModel:
    """All of it."""

    settings: DenseSettings
    seed: int
    encoder: str  # hash of what the upper layers belong on
    taught: Taught
    texts: Floats  # [P, D]
    members: tuple[Member, ...]


def save_dense(model: DenseModel, question_ids: Sequence[str], out: Path) -> None:
    """Write the folder ``out``, whole or not at all."""
    import safetensors.torch
    import torch

    def write(arrays: dict[str, Any], name: str) -> None:
        tensors = {key: torch.as_tensor(array).contiguous() for key, array in arrays.items()}
        safetensors.torch.save_file(tensors, str(folder / name))

    with written_whole(out) as folder:
        folder.mkdir(parents=True)
        facts = {"version": VERSION, "settings": asdict(model.settings), "seed": model.seed, "encoder": model.encoder}
        (folder / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        pq.write_table(pa.table({"path": list(map(list, model.taught.paths))}, schema=_PATHS), folder / PATHS)
        rows = np.split(model.taught.targets.indices, model.taught.targets.indptr[1:-1])
        pq.write_table(
            pa.table({"question_id": list(question_ids), "paths": rows}, schema=_QUESTIONS), folder / QUESTIONS
        )
        write({"texts": model.texts}, TEXTS)
        for number, member in enumerate(model.members):
            upper = {f"{UPPER}{name}": weight for name, weight in member.upper.items()}
            vectors = {"paths": member.paths, "bias": member.bias, "map": member.map, "bank": member.bank}
            write(upper | vectors, f"member-{number}.safetensors")


def read_dense(folder: Path) -> DenseModel:
    """Read what ``save_dense`` wrote.

    Raises:
        ArtifactError: it is missing, damaged, or of another version.
    """
    import safetensors
    import safetensors.torch

    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        if facts["version"] != VERSION:
            raise ArtifactError(
                f"{folder} holds a dense planner of version {facts['version']}, not {VERSION}: train it again"
            )
        settings = DenseSettings(**facts["settings"])
        paths = tuple(map(tuple, pq.read_table(folder / PATHS)["path"].to_pylist()))
        rows = pq.read_table(folder / QUESTIONS)["paths"].to_pylist()
        texts = safetensors.torch.load_file(str(folder / TEXTS))["texts"].numpy()
        members = []
        for number in range(settings.members):
            tensors = safetensors.torch.load_file(str(folder / f"member-{number}.safetensors"))
            upper = {name.removeprefix(UPPER): tensors.pop(name) for name in list(tensors) if name.startswith(UPPER)}
            members.append(Member(upper, **{name: tensor.numpy() for name, tensor in tensors.items()}))
    except (OSError, KeyError, TypeError, ValueError, safetensors.SafetensorError) as error:
        raise ArtifactError(f"{folder} holds no dense planner: {shorten(str(error))}. Train it again") from error
    taught = Taught(paths, _matrix(rows, len(paths)))
    return DenseModel(settings, facts["seed"], facts["encoder"], taught, texts, tuple(members))


def _matrix(rows: Sequence[Sequence[int]], num_paths: int) -> Any:
    import scipy.sparse

    pointers = np.cumsum([0, *map(len, rows)])
    places = np.array([place for row in rows for place in row], dtype=np.int32)
    values = np.ones(len(places), dtype=np.float32)
    return scipy.sparse.csr_matrix((values, places, pointers), shape=(len(rows), num_paths))
