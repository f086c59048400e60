"""What the dense planner makes of its vectors: probabilities of paths, and the vote of the nearest training questions.

Shape letters: B questions, P paths, n training questions, m of them near, C candidate paths, D width. All vectors have
unit length.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core.artifacts import written_whole
from kgqa_core.config_lm import DensePlannerSection
from kgqa_core.errors import ArtifactError, shorten
from kgqa_core.planners.types import LabelPath, PlanQuestion

Floats = npt.NDArray[np.float32]
FLOOR = 1e-3  # added to votes before their log: a path that no neighbour has is not impossible
TINY = 1e-6
NUM_NEIGHBOURS = 64  # training questions that plans are spread over


@dataclass(frozen=True, slots=True)
class View:
    """How the planner sees one question."""

    vectors: tuple[Floats, ...]  # [D] of each member
    totals: tuple[float, ...]  # log of the sum of exponentials of each member's path scores
    scores: Floats  # [P] log-linear, of the training paths
    near: npt.NDArray[np.int64]  # [m] the nearest training questions
    weights: Floats  # [m] of their votes


def log_sum(scores: Floats) -> Floats:
    """Return the logs of the sums of exponentials over the last axis."""
    high = scores.max(axis=-1)
    total: Floats = high + np.log(np.exp(scores - high[..., None]).sum(axis=-1))
    return total


def neighbour_weights(questions: Floats, bank: Floats, temperature: float) -> Floats:
    """Return the weights [B, n] of the votes of the training questions ``bank`` [n, D]: a softmax of cosines."""
    cosines: Floats = questions @ bank.T / np.float32(temperature)
    weights: Floats = np.exp(cosines - log_sum(cosines)[:, None])
    return weights


def see(model: DenseModel, questions: Sequence[Floats]) -> list[View]:
    """Return the views of a batch, whose vectors [B, D] each member of ``model`` has given.

    A path's score is log P(path) + ``neighbour_weight`` log(vote), of both the mean over the members.
    """
    settings, members = model.settings, list(zip(questions, model.members, strict=True))
    raw: list[Floats] = [(settings.scale * (own @ one.paths.T) + one.bias).astype(np.float32) for own, one in members]
    totals = [log_sum(scores) for scores in raw]
    log_probs = np.mean([scores - total[:, None] for scores, total in zip(raw, totals, strict=True)], axis=0)
    temperature = settings.neighbour_temperature
    weights = np.mean([neighbour_weights(own, one.bank, temperature) for own, one in members], axis=0)
    votes = (model.taught.targets.T @ weights.T).T
    scores = log_probs + np.float32(settings.neighbour_weight) * np.log(votes + FLOOR)
    num_near = min(NUM_NEIGHBOURS, weights.shape[1])
    near = np.argsort(-weights, axis=1, kind="stable")[:, :num_near]
    return [
        View(
            vectors=tuple(own[row] for own in questions),
            totals=tuple(float(total[row]) for total in totals),
            scores=scores[row],
            near=near[row],
            weights=weights[row, near[row]],
        )
        for row in range(len(scores))
    ]


def unseen_scores(model: DenseModel, view: View, texts: Floats) -> Floats:
    """Return the scores [C] of paths that no training question has, by the vectors [C, D] of their texts."""
    settings = model.settings
    found = np.zeros(len(texts), dtype=np.float32)
    for member, vector, total in zip(model.members, view.vectors, view.totals, strict=True):
        mapped = texts @ member.map
        cosines = (mapped @ vector) / np.maximum(np.linalg.norm(mapped, axis=1), TINY)
        found += (settings.scale * cosines - total) / len(model.members)
    return found + np.float32(settings.neighbour_weight * np.log(FLOOR) - settings.unseen_penalty)


def spread_first(probabilities: Floats, weights: Floats, rows: Any, *, num_plans: int, strength: float) -> list[int]:
    """Return the columns to propose first: a hit is any right plan, so a further one counts where the others miss.

    Each next plan is the one of the greatest probability times the share of its votes that come from neighbours none
    of whose paths is proposed yet (a greedy cover).

    Args:
        probabilities: [C] of candidate paths.
        weights: [m] of neighbours.
        rows: [m, C], 1 where a neighbour has a path.
        num_plans: to choose; fewer where there are fewer candidates.
        strength: 0: by probability alone; 1: as told.
    """
    chosen: list[int] = []
    missed = np.ones(len(weights), dtype=np.float32)  # of neighbours: is none of their paths proposed?
    votes = weights @ rows + TINY
    while len(chosen) < min(num_plans, len(probabilities)):
        share = ((weights * missed) @ rows + TINY / 2) / votes if chosen else np.ones_like(votes)
        gains = probabilities * (1 - strength + strength * share)
        gains[chosen] = -1.0
        chosen.append(int(gains.argmax()))
        missed = missed * (1 - rows[:, chosen[-1]])
    return chosen


# ------ A trained dense planner at rest: a folder of JSON, Parquet and safetensors.


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

    settings: DensePlannerSection
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
        settings = model.settings.model_dump(mode="json")
        facts = {"version": VERSION, "settings": settings, "seed": model.seed, "encoder": model.encoder}
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
        settings = DensePlannerSection(**facts["settings"])
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
