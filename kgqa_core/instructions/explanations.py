"""Where explanations to learn from come from: a template over the paths, or a teacher model (RoG's third task)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kgqa_core.evaluation.normalise import normalise_name
from kgqa_core.instructions.asking import ask
from kgqa_core.instructions.escapes import escape
from kgqa_core.instructions.explain import ExplainCase, ExplainInstruction
from kgqa_core.instructions.render import Names
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.lm.types import GREEDY, Decoding, LanguageModel
from kgqa_core.types import ReasoningPath

MAX_EXPLAINED = 3  # paths that a template's text goes through


@dataclass(frozen=True, slots=True)
class Taught:
    """What a teacher gave."""

    cases: tuple[ExplainCase, ...]  # with explanation and answers
    refused: dict[str, int]  # reason -> cases without a usable explanation


def explain_paths(names: Names, paths: Sequence[ReasoningPath]) -> str:
    """Return sentences that walk along the first few paths; empty for none."""
    return "\n".join(_sentence(names, path) for path in paths[:MAX_EXPLAINED] if path)


def _sentence(names: Names, path: ReasoningPath) -> str:
    parts: list[str] = []
    for step in path:
        start, end = (step.tail, step.head) if step.reverse else (step.head, step.tail)
        words = names.relation_text(step.relation)
        way = f'"{words}", read backward,' if step.reverse else f'"{words}"'
        begin = f"From {escape(names.name_of(start))}, " if not parts else "and from there "
        parts.append(f"{begin}{way} leads to {escape(names.name_of(end))}")
    return ", ".join(parts) + "."


def ask_teacher(
    model: LanguageModel,
    instruction: ExplainInstruction,
    cases: Iterable[ExplainCase],
    *,
    decoding: Decoding = GREEDY,
) -> Taught:
    """Return the cases with the teacher's explanations; kept are those that end in exactly the right answers.

    The teacher sees question and paths, not the answers: an explanation that argues towards a known answer need not
    follow from the paths.
    """
    cases = tuple(cases)
    kept: list[ExplainCase] = []
    refused: Counter[str] = Counter()
    for case, result in zip(cases, ask(model, instruction, cases, decoding=decoding).results, strict=True):
        if isinstance(result, ParseFailure):
            refused[result.reason] += 1
        elif _folded(result.answers.names) != _folded(case.answers):
            refused["other answers"] += 1
        elif not result.explanation:
            refused["no explanation"] += 1
        else:
            kept.append(replace(case, explanation=result.explanation))
    return Taught(tuple(kept), dict(refused))


def by_question(cases: Iterable[ExplainCase]) -> Mapping[str, str]:
    """Return question id -> explanation, for ``make_examples``."""
    return {case.question_id: case.explanation for case in cases if case.explanation}


def _folded(names: Iterable[str]) -> set[str]:
    return {normalise_name(name) for name in names}
