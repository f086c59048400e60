"""Instruction data: what the graph supervises, rendered (RoG Eq. 7, EPERM Eq. 8, DualR's tuned choose)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core.artifacts import written_whole
from kgqa_core.errors import ConfigError, InputError, nearest, shorten
from kgqa_core.graph.kg import golds_of
from kgqa_core.graph.supervision import TaughtPath, takes
from kgqa_core.instructions.example_cases import CASES, Asked, Source, random_of
from kgqa_core.instructions.types import Example, Instruction
from kgqa_core.schemas import INSTRUCTIONS
from kgqa_core.types import Question

ROWS = 20_000  # of one row group: what is held in memory


def make_examples(
    source: Source,
    questions: Iterable[Question],
    supervision: Mapping[str, Sequence[TaughtPath]],
    *,
    skipped: Counter[str] | None = None,
) -> Iterator[Example]:
    """Yield the examples of each question in turn; every draw depends on the question id alone.

    Args:
        source: the graph, the prompts and what is made of them.
        questions: of any split, placed in the graph that is walked; an example carries its question's split.
        supervision: question id -> its shortest paths, see ``read_supervision``.
        skipped: gets "instruction: reason" -> questions that made no such example.

    Raises:
        ConfigError: an instruction that has no target.
        InputError: an instruction that needs a graph, without one.
    """
    counts: Counter[str] = Counter() if skipped is None else skipped
    weights, shares = source.reasoner.mixture, source.reasoner.shares
    _check(weights, shares, has_graph=source.search is not None)
    reenter = source.search is not None and source.search.reenter_topic
    for question in questions:
        rows = tuple(supervision.get(question.id, ()))
        taught = tuple(row for row in rows if takes(row, source.mode, source.threshold))
        asked = Asked(question, golds_of(question, reenter_topic=reenter), rows, taught)
        for name, factor in sorted(weights.items()):
            share = shares.get(name, 1.0)
            if share < 1 and random_of(question.id, f"share of {name}").random() >= share:
                continue
            made = 0
            for instruction, case, weight in CASES[name](source, asked):
                example = _example(instruction, case, question, weight * factor)
                made += example is not None
                if example is not None:
                    yield example
            counts[f"{name}: nothing to teach"] += not made


def _check(weights: Mapping[str, float], shares: Mapping[str, float], *, has_graph: bool) -> None:
    for name in (*weights, *shares):
        if name not in CASES:
            guess = nearest(name, list(CASES))
            hint = f" Did you mean {guess[0]}?" if guess else ""
            raise ConfigError(f"{shorten(name)} cannot be taught: it has no target.{hint} Legal: {', '.join(CASES)}")
    if not has_graph and (needy := sorted(set(weights) - {"plan"})):
        raise InputError(f"examples of {', '.join(needy)} need a graph; without one there is only: plan")


def _example(instruction: Instruction[Any, Any], case: Any, question: Question, weight: float) -> Example | None:
    target = instruction.target(case)
    if target is None:
        return None
    prompt = instruction.render(case)
    return Example(instruction.name, question.id, question.split, prompt.system, prompt.text, target, weight)


def write_examples(examples: Iterable[Example], out: Path) -> dict[str, int]:
    """Write schemas.INSTRUCTIONS, whole or not at all; return how many examples each instruction has.

    Memory does not grow with their number.
    """
    counts: Counter[str] = Counter()
    waiting = iter(examples)
    with written_whole(out) as partial, pq.ParquetWriter(partial, INSTRUCTIONS) as writer:
        while batch := list(islice(waiting, ROWS)):
            columns = [[getattr(example, column.name) for example in batch] for column in INSTRUCTIONS]
            writer.write_table(pa.table(columns, schema=INSTRUCTIONS))
            counts.update(example.instruction for example in batch)
    return dict(sorted(counts.items()))
