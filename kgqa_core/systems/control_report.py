"""The controls' figures on a set of questions, as rows of the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kgqa_core.evaluation.metrics import score_predictions
from kgqa_core.evaluation.report import report_row
from kgqa_core.questions.coverage import find_answerable
from kgqa_core.systems.controls import TemplateControl, gold_chain_ceiling
from kgqa_core.types import Question


def score_controls(control: TemplateControl, questions: Sequence[Question], *, max_hops: int) -> list[dict[str, Any]]:
    """Return the report rows (as plain dictionaries) of the template control and of the ceiling."""
    ceiling = gold_chain_ceiling(control.graph, questions, max_hops=max_hops, reenter_topic=control.reenter_topic)
    answered = score_predictions(questions, control.answer(questions))
    bound = score_predictions(questions, ceiling.predictions)
    answerable = find_answerable(questions, control.graph)
    rows = (
        report_row("template control", "template control", answered, answerable),
        report_row(ceiling.name, "ceiling", bound, answerable),
    )
    return [asdict(row) for row in rows]
