"""Hard pools in place of an explorer: one candidate of each plan of a pool, all as probable, in the pool's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kgqa_core.instructions.evidence import end_of, gather_evidence
from kgqa_core.systems.walk import Walk
from kgqa_core.types import LabelPath, Prediction, Question, ReasoningPath


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
