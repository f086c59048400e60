"""Relation paths that no training question has, step by step: a beam over what may follow, by the paths' texts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from kgqa_core.planners.dense_rank import Floats
from kgqa_core.planners.types import LabelPath, PlanQuestion

if TYPE_CHECKING:
    from kgqa_core.instructions.path_constraint import PathConstraints

Exists = Callable[[PlanQuestion, LabelPath], Collection[str]]
"""(question, path) -> the steps that may follow it around the question's topics; none where nothing does."""


def steps_around(space: PathConstraints) -> Exists:
    """Return what exists in a graph: steps that lead somewhere from the topics."""
    from kgqa_core.graph.label_paths import to_relations, write_step

    labels, num = space.graph.relation_labels, space.graph.num_relations
    steps = [write_step(label, backward) for backward in (False, True) for label in labels]

    def exists(question: PlanQuestion, path: LabelPath) -> Collection[str]:
        relations = to_relations(space.graph, path)
        if relations is None or len(path) >= space.max_hops:
            return ()
        ending, _ = space.around(question.topics).next_relations(relations)
        return [steps[relation] for relation in ending.tolist() if relation < 2 * num]

    return exists


def steps_of(paths: Iterable[LabelPath]) -> Exists:
    """Return what may exist where there is no graph: a step follows another as it does in some training path."""
    after: dict[str, set[str]] = {}
    for path in paths:
        for before, step in zip(("", *path), path, strict=False):
            after.setdefault(before, set()).add(step)
    kept = {before: tuple(sorted(steps)) for before, steps in after.items()}
    return lambda _, path: kept.get(path[-1] if path else "", ())


def path_exists(path: LabelPath, allowed: Callable[[LabelPath], Collection[str]]) -> bool:
    """Say whether every step of ``path`` is allowed after those before it."""
    return all(step in allowed(path[:place]) for place, step in enumerate(path))


def beam(
    allowed: Callable[[LabelPath], Collection[str]],
    weigh: Callable[[Sequence[LabelPath]], Floats],
    *,
    width: int,
    max_hops: int,
) -> dict[LabelPath, float]:
    """Return the scores of all paths that a beam of ``width`` visits, of 1 to ``max_hops`` steps.

    Args:
        allowed: the steps that may follow a path.
        weigh: scores of paths, as if they ended there.
        width: paths that are gone on from, after each step.
        max_hops: steps of the longest path.
    """
    found: dict[LabelPath, float] = {}
    front: list[LabelPath] = [()]
    for _ in range(max_hops):
        longer = [(*path, step) for path in front for step in sorted(allowed(path))]
        if not longer:
            break
        scores = dict(zip(longer, weigh(longer).tolist(), strict=True))
        front = sorted(scores, key=lambda path: (-scores[path], path))[:width]
        found |= {path: scores[path] for path in front}
    return found
