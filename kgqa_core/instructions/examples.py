"""Instruction data: what the graph supervises, rendered (RoG Eq. 7, EPERM Eq. 8, DualR's tuned choose)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core.artifacts import written_whole
from kgqa_core.errors import InputError
from kgqa_core.graph.kg import KnowledgeGraph, golds_of
from kgqa_core.graph.supervision import TaughtPath, takes
from kgqa_core.instructions.example_cases import CASES, Asked, ExampleSettings, Maker, is_drawn
from kgqa_core.instructions.render import Names, Prompts
from kgqa_core.instructions.types import Example, Instruction
from kgqa_core.schemas import INSTRUCTIONS
from kgqa_core.types import LabelPath, Prediction, Question

ROWS = 20_000  # of one row group: what is held in memory


@dataclass(frozen=True, slots=True)
class Given:
    """What comes from elsewhere, by question id; a question that is not in it makes no such example."""

    plans: Mapping[str, Sequence[tuple[LabelPath, float]]] = field(default_factory=dict)
    """Plans with probabilities: shown by reason and explain in place of those that teach (RoG tried both)."""
    predictions: Mapping[str, Prediction] = field(default_factory=dict)
    """Out-of-fold predictions of an explorer, for choose (see ``fold_of``), in the ids of the graph that is walked."""
    names: Names | None = None  # what the graph's entities are called; None: as it says. Rows: ``SearchGraph``


NOTHING_GIVEN = Given()


def make_examples(
    graph: KnowledgeGraph | None,
    questions: Iterable[Question],
    supervision: Mapping[str, Sequence[TaughtPath]],
    *,
    prompts: Prompts,
    settings: ExampleSettings,
    given: Given = NOTHING_GIVEN,
    skipped: Counter[str] | None = None,
) -> Iterator[Example]:
    """Yield the examples of each question in turn; every draw depends on seed and question id alone.

    Args:
        graph: also a graph of rows, with questions of rows (``Subgraphs.to_rows``); None where questions come with
            paths alone: then only plan can be made.
        questions: of any split; an example carries its question's.
        supervision: question id -> its shortest paths, see ``read_supervision``.
        prompts: see ``read_prompts``.
        settings: which instructions, of which paths.
        given: plans, predictions and names from elsewhere.
        skipped: gets "instruction: reason" -> questions that made no such example.

    Raises:
        InputError: an instruction that needs a graph, without one.
    """
    counts: Counter[str] = Counter() if skipped is None else skipped
    if graph is None and (needy := sorted(set(settings.weights) - {"plan"})):
        raise InputError(f"examples of {', '.join(needy)} need a graph; without one there is only: plan")
    maker = Maker(graph, prompts, settings, given.plans, given.predictions, given.names)
    makers = [(name, CASES[name], factor) for name, factor in sorted(settings.weights.items()) if factor > 0]
    for question in questions:
        rows = tuple(supervision.get(question.id, ()))
        golds = golds_of(question, reenter_topic=settings.reenter_topic)
        taught = tuple(row for row in rows if takes(row, settings.mode, settings.threshold))
        asked = Asked(question, golds, rows, taught)
        for name, make, factor in makers:
            if not is_drawn(question.id, name, settings):
                continue
            made = 0
            for instruction, case, weight in make(maker, asked):
                example = _example(instruction, case, question, weight * factor)
                made += example is not None
                if example is not None:
                    yield example
            counts[f"{name}: nothing to teach"] += not made


def _example(instruction: Instruction[Any, Any], case: Any, question: Question, weight: float) -> Example | None:
    target = instruction.target(case)
    if target is None:
        return None
    prompt = instruction.render(case)
    return Example(instruction.name, question.id, question.split, prompt.system, prompt.text, target, weight)


def write_examples(
    examples: Iterable[Example], out: Path, *, progress: Callable[[int], None] = lambda num: None
) -> dict[str, int]:
    """Write schemas.INSTRUCTIONS, whole or not at all; return how many examples each instruction has.

    Memory does not grow with their number. ``progress`` is told how many are written.
    """
    counts: Counter[str] = Counter()
    waiting = iter(examples)
    with written_whole(out) as partial, pq.ParquetWriter(partial, INSTRUCTIONS) as writer:
        while batch := list(islice(waiting, ROWS)):
            columns = [[getattr(example, column.name) for example in batch] for column in INSTRUCTIONS]
            writer.write_table(pa.table(columns, schema=INSTRUCTIONS))
            counts.update(example.instruction for example in batch)
            progress(counts.total())
    return dict(sorted(counts.items()))
