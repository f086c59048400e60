"""How tests ask a system: without meters, and in no run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kgqa_core.evaluation.predictions import SystemSource
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.systems.runner import Bench
from kgqa_core.systems.types import Answered, System
from kgqa_core.types import Question


def answer_all(
    system: System, questions: Sequence[Question], search: SearchGraph, model: Any, **limits: Any
) -> list[Answered]:
    """Return what a system answers to each question, in order; ``limits`` as a bench has them."""
    bench = Bench(system, search, model, (), SystemSource("", "asked"), **limits)
    return list(bench.answer(questions).answered)
