"""A dense planner in the making: how it is trained, questions towards their relation paths, and what is saved of it.

Shape letters: B questions of a batch, T tokens, D width, n training questions, P their paths. All vectors have unit
length.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.torch
import scipy.sparse
import torch
from torch import Tensor

from kgqa_core import schemas
from kgqa_core.artifacts import write_tensors, written_whole
from kgqa_core.config_lm import DensePlannerSection
from kgqa_core.errors import ArtifactError, InputError, shorten
from kgqa_core.graph.kg import read_step
from kgqa_core.instructions.plan import PlanQuestion
from kgqa_core.text.transformer import Floats, SplitEncoder, checked_minilm
from kgqa_core.types import LabelPath

MEMBER_SEEDS = 1000  # between the seeds of the members of one planner
LENGTHS_SORTED = 8  # batches that are drawn together and sorted by length
MAX_NORM = 1.0  # of the encoder's gradient
LAST_RATE = 0.02  # share of the learning rate that the last steps have
TINY = 1e-6
Parts = dict[str, Tensor]
Progress = Callable[[int, int, float], None]
"""(steps done, steps in all, loss of the last one)"""

_BREAKS = re.compile(r"[\W_]+")
BACKWARD = "of"  # "directed by of": what a step walked backward is told by
STAY = "itself"  # the empty path


def render_path_text(path: LabelPath) -> str:
    """Return the words of a path's steps, each once: ``people.person.birth_place`` is people person birth place."""
    texts = []
    for label, backward in map(read_step, path):
        words = list(dict.fromkeys(word for word in _BREAKS.split(label) if word))
        texts.append(" ".join([*(words or [label]), *([BACKWARD] if backward else [])]))
    return " ; ".join(texts) or STAY


def fit_dense(
    train: Sequence[PlanQuestion],
    settings: DensePlannerSection,
    out: Path,
    *,
    seed: int = 0,
    progress: Progress = lambda step, total, loss: None,
) -> dict[str, float]:
    """Train a dense planner and write it to the new folder ``out``; equal seeds give equal planners.

    Returns num_questions, num_without_paths (left out), num_paths and cpu_seconds. Raises InputError where no question
    has a path.
    """
    started = process_time()
    used = [question for question in train if question.paths]
    if not used:
        raise InputError(f"none of the {len(train)} training questions has a relation path: the planner needs some")
    paths = tuple(sorted({path for question in used for path in question.paths}))
    place = {path: number for number, path in enumerate(paths)}
    targets = _matrix([[place[path] for path in question.paths] for question in used], len(paths))
    base = open_encoder(settings)
    states = base.lower_states([question.text for question in used])
    texts = base.encode_published([render_path_text(path) for path in paths])
    path_texts = torch.from_numpy(texts)
    members: list[Member] = []

    def of_all(step: int, total: int, loss: float) -> None:
        progress(len(members) * total + step, settings.members * total, loss)

    for number in range(settings.members):
        base.publish()
        own_seed = seed + MEMBER_SEEDS * number
        parts = train_vectors(base, states, path_texts, targets, settings=settings, seed=own_seed, progress=of_all)
        vectors = path_vectors(path_texts, parts)
        bank = base.encode_all(states)
        upper = {name: weight.clone() for name, weight in base.upper.state_dict().items()}
        arrays = [part.numpy() for part in (vectors, parts["bias"], parts["map"], bank)]
        members.append(Member(upper, *arrays))
    model = DenseModel(settings, base.name, paths, targets, tuple(members))
    save_dense(model, out, seed=seed, texts=texts, question_ids=[question.id for question in used])
    return {
        "num_questions": len(used),
        "num_without_paths": len(train) - len(used),
        "num_paths": len(paths),
        "cpu_seconds": process_time() - started,
    }


def open_encoder(settings: DensePlannerSection) -> SplitEncoder:
    """Return the encoder that a planner of these settings stands on."""
    return SplitEncoder(checked_minilm(), frozen_layers=settings.frozen_layers, max_tokens=settings.max_tokens)


# ------ Training: questions towards their paths.


def train_vectors(
    encoder: SplitEncoder,
    states: Sequence[Tensor],
    path_texts: Tensor,
    targets: Any,
    *,
    settings: DensePlannerSection,
    seed: int,
    progress: Progress,
) -> Parts:
    """Train the upper layers of ``encoder``, which are as published, in place, and the path vectors.

    ``states`` are the n questions' lower ones, ``path_texts`` [P, D] the unit vectors of the paths' texts, ``targets``
    those of ``DenseModel``. Returns map [D, D], free [P, D] and bias [P]: what ``path_vectors`` and scores are made of.
    """
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    for module in encoder.upper.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = settings.dropout
    num_paths, width = path_texts.shape
    parts = {
        "map": torch.eye(width, requires_grad=True),
        "free": torch.zeros((num_paths, width), requires_grad=True),
        "bias": torch.zeros(num_paths, requires_grad=True),
    }
    upper = list(encoder.upper.parameters())
    num_steps = count_steps(len(states), settings)
    optimiser, schedule = _plan_updates(upper, parts, settings, num_steps)
    encoder.upper.train()
    batches = _batches([len(one) for one in states], settings.batch_size, random)
    for step, rows in enumerate(islice(batches, num_steps)):
        vectors = encoder.encode_states([states[row] for row in rows])  # [B, D]
        right = torch.from_numpy(targets[rows].toarray())  # [B, P]
        scores = settings.scale * vectors @ path_vectors(path_texts, parts).T + parts["bias"]
        loss = set_loss(scores, right)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(upper, MAX_NORM)
        optimiser.step()
        schedule.step()
        progress(step + 1, num_steps, float(loss.detach()))
    encoder.upper.eval()
    return {name: part.detach() for name, part in parts.items()}


def _plan_updates(upper: list[Any], parts: Parts, settings: DensePlannerSection, num_steps: int) -> tuple[Any, Any]:
    """Return the optimiser, and its learning rates by step: up, then linearly down."""
    decay, rate = settings.weight_decay, settings.learning_rate
    groups: list[dict[str, Any]] = [  # the free parts of the path vectors have a rate of their own
        {"params": upper, "lr": rate, "weight_decay": decay},
        {"params": [parts["map"]], "lr": rate, "weight_decay": 0.0},
        {"params": [parts["free"], parts["bias"]], "lr": settings.path_learning_rate, "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups)
    shares = [
        min(1.0, (step + 1) / max(1.0, settings.warmup * num_steps)) * max(LAST_RATE, 1 - step / num_steps)
        for step in range(num_steps + 1)
    ]
    return optimiser, torch.optim.lr_scheduler.LambdaLR(optimiser, shares.__getitem__)


def path_vectors(path_texts: Tensor, parts: Parts) -> Tensor:
    """Return unit vectors [P, D] of the training paths."""
    return torch.nn.functional.normalize(path_texts @ parts["map"] + parts["free"], dim=1)


def set_loss(scores: Tensor, right: Tensor) -> Tensor:
    """Return the mean over the batch of -log P(any right column), P the softmax of ``scores`` [B, P]."""
    log_probs = torch.log_softmax(scores, dim=1)
    return -torch.logsumexp(log_probs.masked_fill(right == 0, -math.inf), dim=1).mean()


def count_steps(num_questions: int, settings: DensePlannerSection) -> int:
    """Return the optimiser steps of a training."""
    steps = math.ceil(settings.epochs * math.ceil(num_questions / settings.batch_size))
    return steps if settings.max_steps is None else min(steps, settings.max_steps)


def _batches(lengths: Sequence[int], size: int, random: np.random.Generator) -> Iterator[list[int]]:
    """Yield rows for ever: each question once per epoch, those of like length together."""
    while True:
        order = random.permutation(len(lengths))
        batches = []
        for start in range(0, len(order), size * LENGTHS_SORTED):
            rows = sorted(order[start : start + size * LENGTHS_SORTED].tolist(), key=lambda row: lengths[row])
            batches += [rows[first : first + size] for first in range(0, len(rows), size)]
        for place in random.permutation(len(batches)):
            yield batches[place]


# ------ A trained planner at rest: a folder of JSON, Parquet and safetensors.


VERSION = 1
FACTS, PATHS, QUESTIONS, TEXTS = "dense.json", "paths.parquet", "questions.parquet", "texts.safetensors"
UPPER = "upper."  # before the names of the upper layers' weights


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
    encoder: str  # hash of what the upper layers belong on
    paths: tuple[LabelPath, ...]  # P, sorted: those of the training questions
    targets: Any  # scipy CSR matrix [n, P], float32: 1 where a training question has a path
    members: tuple[Member, ...]


def save_dense(model: DenseModel, out: Path, *, seed: int, texts: Floats, question_ids: Sequence[str]) -> None:
    """Write the folder ``out``, whole or not at all; with the vectors [P, D] of the paths' texts."""

    def write(arrays: dict[str, Any], name: str) -> None:
        write_tensors(folder / name, {key: torch.as_tensor(array) for key, array in arrays.items()})

    with written_whole(out) as folder:
        folder.mkdir(parents=True)
        settings = model.settings.model_dump(mode="json")
        facts = {"version": VERSION, "settings": settings, "seed": seed, "encoder": model.encoder}
        (folder / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        pq.write_table(pa.table({"path": list(map(list, model.paths))}, schema=schemas.DENSE_PATHS), folder / PATHS)
        rows = np.split(model.targets.indices, model.targets.indptr[1:-1])
        questions = pa.table([list(question_ids), rows], schema=schemas.DENSE_QUESTIONS)
        pq.write_table(questions, folder / QUESTIONS)
        write({"texts": texts}, TEXTS)
        for number, member in enumerate(model.members):
            upper = {f"{UPPER}{name}": weight for name, weight in member.upper.items()}
            vectors = {"paths": member.paths, "bias": member.bias, "map": member.map, "bank": member.bank}
            write(upper | vectors, f"member-{number}.safetensors")


def read_dense(folder: Path) -> DenseModel:
    """Read what ``save_dense`` wrote; ArtifactError where it is missing or damaged."""
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        settings = DensePlannerSection(**facts["settings"])
        paths = tuple(map(tuple, pq.read_table(folder / PATHS)["path"].to_pylist()))
        rows = pq.read_table(folder / QUESTIONS)["paths"].to_pylist()
        members: list[Member] = []
        for number in range(settings.members):
            tensors = safetensors.torch.load_file(str(folder / f"member-{number}.safetensors"))
            upper = {name.removeprefix(UPPER): tensors.pop(name) for name in list(tensors) if name.startswith(UPPER)}
            members.append(Member(upper, **{name: tensor.numpy() for name, tensor in tensors.items()}))
    except (OSError, KeyError, TypeError, ValueError, safetensors.SafetensorError) as error:
        raise ArtifactError(f"{folder} holds no dense planner: {shorten(str(error))}. Train it again") from error
    targets = _matrix(rows, len(paths))
    return DenseModel(settings, facts["encoder"], paths, targets, tuple(members))


def _matrix(rows: Sequence[Sequence[int]], num_paths: int) -> Any:
    pointers = np.cumsum([0, *map(len, rows)])
    places = np.array([place for row in rows for place in row], dtype=np.int32)
    values = np.ones(len(places), dtype=np.float32)
    return scipy.sparse.csr_matrix((values, places, pointers), shape=(len(rows), num_paths))
