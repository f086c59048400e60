"""explorer: the explorer alone, without a language model (EtD and DualR without answer determination, Table 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kgqa_core.systems.explorer_system import ExplorerSystem
from kgqa_core.systems.types import Steps, SystemAnswer
from kgqa_core.types import Prediction, Question


@dataclass(frozen=True, slots=True)
class ExplorerAlone:
    """The answer set of the checkpoint's threshold, each answer with its evidence path. Implements ``System``."""

    explorer: ExplorerSystem
    name: str = "explorer"
    needs_topic: bool = True
    on_rows: bool = False  # the explorer turns rows back into entities itself

    def prepare(self, questions: Sequence[Question]) -> Sequence[Prediction]:
        """Return the explorer's predictions."""
        return replace(self.explorer, evidence_of_answers=True).answer(questions)

    def steps(self, question: Question, prepared: Prediction) -> Steps:
        """Answer without a call."""
        return SystemAnswer(prepared)
        yield  # what makes this a generator: it asks nothing
