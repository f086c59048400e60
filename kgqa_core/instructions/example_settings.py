"""Which examples are made of a question, and how the paths that teach are chosen."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Literal

import pyarrow.parquet as pq

from kgqa_core.errors import ConfigError, nearest, shorten
from kgqa_core.types import LabelPath

Mode = Literal["best", "all_shortest", "precise"]

TAUGHT = (
    "plan",
    "reason",
    "score_relations",
    "score_entities",
    "choose",
    "explain",
    "enough_information",
    "direct",
)
"""Instructions with targets: eight of twelve. No graph says how to think, or which words of a question count."""


@dataclass(frozen=True, slots=True)
class ExampleSettings:
    """What instruction data is made of."""

    weights: Mapping[str, float] = field(default_factory=lambda: {"plan": 1.0, "reason": 1.0})
    """Instruction -> factor of its examples' weights; only those in it are made."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Instruction -> share of the questions that make its examples, by hash; all, where it is not in it."""
    mode: Mode = "best"  # which shortest paths teach: the best-executing, all (RoG's Z*), or those of precision >= t
    threshold: float = 0.5  # t of EPERM Eq. 5
    share: bool = True  # a planning example weighs 1/|Z*| (RoG Eq. 4); False: 1 each (EPERM Eq. 6)
    num_plans: int = 3  # K: plans whose paths a reason, explain or enough_information example shows
    wrong_plans: int = 0  # shortest paths that do not teach, shown among them: so that selecting is learnt
    max_paths: int = 40  # reasoning paths shown per example
    answers: Literal["shown", "all"] = "shown"  # what reason teaches: the golds that its paths end at, or all (RoG)
    scored: bool = False  # show path scores (EPERM); else none (RoG)
    signed: bool = True  # "^" before relations walked backward; False: as published checkpoints were trained
    mask_topics: bool = True  # planners read a placeholder where the question names a topic
    reenter_topic: bool = False  # may a plan arrive at a topic again?
    budget: int = 3  # relations that score_relations asks for
    max_relations: int = 40  # of those offered to it; those that lead to golds always are
    num_entities: int = 2  # examples of score_entities per question
    max_triples: int = 10  # around each of their candidates
    num_candidates: int = 3  # N of choose
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse an instruction that has no target.

        Raises:
            ConfigError: with what is legal.
        """
        for name in (*self.weights, *self.shares):
            if name not in TAUGHT:
                guess = nearest(name, TAUGHT)
                hint = f" Did you mean {guess[0]}?" if guess else ""
                raise ConfigError(
                    f"{shorten(name)} cannot be taught: it has no target.{hint} Legal: {', '.join(TAUGHT)}"
                )


@dataclass(frozen=True, slots=True)
class PathRow:
    """One shortest relation path of a question: a row of schemas.SUPERVISION."""

    path: LabelPath
    num_reached: int | None  # by following it from the topics; None: no graph
    num_right: int | None  # of them golds
    best: bool

    @property
    def precision(self) -> float:
        """Return the share of right entities among those reached; 1 where nothing is known."""
        return 1.0 if not self.num_reached or self.num_right is None else self.num_right / self.num_reached


def read_path_rows(path: Path) -> dict[str, tuple[PathRow, ...]]:
    """Return question id -> its shortest paths, in the table's order."""
    found: dict[str, list[PathRow]] = {}
    columns = ["question_id", "path", "num_reached", "num_right", "best"]
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=columns):
            for row in batch.to_pylist():
                kept = PathRow(tuple(row["path"]), row["num_reached"], row["num_right"], row["best"])
                found.setdefault(row["question_id"], []).append(kept)
    return {question_id: tuple(rows) for question_id, rows in found.items()}


def teaching(rows: Iterable[PathRow], settings: ExampleSettings) -> tuple[PathRow, ...]:
    """Return the paths that teach: see ``ExampleSettings.mode``. Those of files without a graph all do."""
    return tuple(row for row in rows if _teaches(row, settings))


def _teaches(row: PathRow, settings: ExampleSettings) -> bool:
    if settings.mode == "all_shortest" or row.num_reached is None:
        return True
    return row.best if settings.mode == "best" else row.precision >= settings.threshold


def random_of(question_id: str, purpose: str, seed: int) -> Random:
    """Return the draws of one question for one purpose: the same whatever else is made, and in whichever order."""
    digest = hashlib.sha256(f"{seed}\x1f{purpose}\x1f{question_id}".encode("utf-8", "surrogatepass")).digest()
    return Random(int.from_bytes(digest[:8], "big"))


def is_drawn(question_id: str, instruction: str, settings: ExampleSettings) -> bool:
    """Say whether a question makes examples of an instruction: see ``ExampleSettings.shares``."""
    share = settings.shares.get(instruction, 1.0)
    return share >= 1 or random_of(question_id, f"share of {instruction}", settings.seed).random() < share


def fold_of(question_id: str, folds: int, *, seed: int = 0) -> int:
    """Return the fold, 0..folds-1, of a question: its candidates come from an explorer that was trained on the others.

    Candidates of an explorer that has seen the question are nearly always led by the gold, and a ``choose`` tuned on
    them learns to answer "A".
    """
    digest = hashlib.sha256(f"{seed}\x1ffold\x1f{question_id}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % folds
