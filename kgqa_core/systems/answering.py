"""From names that a model gave to a prediction: which entities are meant, in which order, on what evidence."""

from __future__ import annotations

from collections.abc import Sequence

from kgqa_core.instructions.answers import Answers, match_answers
from kgqa_core.instructions.evidence import end_of
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.systems.types import SystemAnswer
from kgqa_core.systems.walk import Walk
from kgqa_core.types import Prediction, Question, ReasoningPath


def abstain(question: Question, paths: Sequence[ReasoningPath] = ()) -> SystemAnswer:
    """Return the answer of who has none; what was retrieved still counts as covered."""
    return answer_with(question, (), paths)


def answer_by_name(
    walk: Walk,
    question: Question,
    answers: Answers | ParseFailure,
    paths: Sequence[ReasoningPath],
    *,
    on_rows: bool = False,
) -> SystemAnswer:
    """Return what a model's names mean: ends of the paths that it was shown first, then entities of that name.

    A failure to read the text is an abstention. ``on_rows``: as of the system (see ``systems.types.System``).
    """
    if isinstance(answers, ParseFailure) or answers.abstained:
        return abstain(question, paths)
    names = walk.names if on_rows else walk.entities
    shown = {end: names.name_of(end) for end in map(end_of, paths)}
    # A graph of rows knows no names: there only what was shown can be meant.
    matched = match_answers(answers, shown, None if on_rows and walk.subgraphs else walk.entities)
    found = answer_with(question, matched.entities, paths)
    return SystemAnswer(found.prediction, matched.unmatched, {"num_unsupported": len(matched.unsupported)})


def answer_with(question: Question, answers: Sequence[int], paths: Sequence[ReasoningPath]) -> SystemAnswer:
    """Return a prediction of ``answers``, best first, then all else that the paths end at.

    A model gives no probabilities: the answers are scored by their places, 1, 1/2, 1/3, ..., what was retrieved and not
    taken by 0. Each candidate has the first path that ends in it as evidence. Without an answer nothing is ranked: what
    was retrieved is not what the model said, and would be a hit where it is a gold.
    """
    evidence: dict[int, ReasoningPath] = {}
    for path in paths:
        evidence.setdefault(end_of(path), path)
    taken = dict.fromkeys(answers)
    reached = (*taken, *(end for end in sorted(evidence) if end not in taken))
    candidates = reached if taken else ()
    scores = [1 / (place + 1) for place in range(len(taken))] + [0.0] * (len(candidates) - len(taken))
    golds = set(question.answers)
    return SystemAnswer(
        Prediction(
            question_id=question.id,
            candidates=candidates,
            scores=tuple(scores),
            answers=tuple(taken),
            paths=tuple(evidence.get(candidate, ()) for candidate in candidates),
            covered=not golds.isdisjoint(reached),
            verdict=decide(question, tuple(taken)),
            abstained=not taken,
        )
    )


def decide(question: Question, answers: Sequence[int]) -> bool | None:
    """Return the verdict on a true/false question's claim; None without one, and where nothing was answered."""
    return question.claim in answers if question.claim is not None and answers else None
