"""Out-of-fold candidates at rest: what explorers that never saw a question propose for it (DualR's tuned choose).

An explorer that was trained on a question nearly always ranks its gold first, and a language model tuned on such
candidates learns to say "A".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core.artifacts import written_whole
from kgqa_core.graph.follow import end_of
from kgqa_core.instructions.evidence import gather_evidence
from kgqa_core.schemas import CANDIDATES
from kgqa_core.systems.walk import Walk
from kgqa_core.types import LabelPath, Prediction, Question, ReasoningPath, Step

CANDIDATES_FILE = "candidates.parquet"


def write_candidates(predictions: Iterable[Prediction], folder: Path, *, num_candidates: int) -> None:
    """Write the first candidates of each question with their evidence: schemas.CANDIDATES."""
    rows = [
        {
            "question_id": one.question_id,
            "candidates": list(one.candidates[:num_candidates]),
            "scores": list(one.scores[:num_candidates]),
            "paths": [[_as_row(step) for step in path] for path in one.paths[:num_candidates]],
        }
        for one in predictions
    ]
    with written_whole(folder / CANDIDATES_FILE) as partial:
        pq.write_table(pa.Table.from_pylist(rows, schema=CANDIDATES), partial)


def read_candidates(folder: Path) -> dict[str, Prediction]:
    """Return question id -> its out-of-fold prediction; of the answers nothing is kept."""
    return {
        row["question_id"]: Prediction(
            row["question_id"],
            tuple(row["candidates"]),
            tuple(row["scores"]),
            (),
            paths=tuple(tuple(Step(**step) for step in path) for path in row["paths"]),
        )
        for row in pq.read_table(folder / CANDIDATES_FILE).to_pylist()
    }


def _as_row(step: Step) -> dict[str, Any]:
    return {"head": step.head, "relation": step.relation, "tail": step.tail, "reverse": step.reverse}


# ------ Hard pools in place of an explorer: one candidate of each plan of a pool, all as probable, ...


@dataclass(frozen=True, slots=True)
class PooledCandidates:
    """Proposes where the plans of a pool end; the graph is that of the questions (no subgraphs)."""

    walk: Walk
    plans: Mapping[str, Sequence[LabelPath]]  # by question id

    def answer(self, questions: Sequence[Question]) -> list[Prediction]:
        """Return a prediction per question, in order: the first end of each plan that no plan before it has."""
        return [self._candidates(question) for question in questions]

    def _candidates(self, question: Question) -> Prediction:
        paths: dict[int, ReasoningPath] = {}
        for plan in self.plans.get(question.id, ()):
            found = gather_evidence(
                self.walk.graph,
                question.topics,
                [(plan, 1.0)],
                max_paths=len(paths) + 1,
                reenter_topic=self.walk.reenter_topic,
            )
            fresh = [path for path in found.steps if end_of(path) not in paths]
            if fresh:
                paths[end_of(fresh[0])] = fresh[0]
        num = len(paths)
        golds = set(question.answers)
        return Prediction(
            question.id,
            tuple(paths),
            tuple(1 / num for _ in paths),
            (),
            paths=tuple(paths.values()),
            covered=any(entity in golds for entity in paths),
            abstained=not paths,
        )
