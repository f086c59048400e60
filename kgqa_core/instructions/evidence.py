"""What plans lead along, as prompts show it: reasoning paths with scores, and the entities that they end at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from kgqa_core.graph.follow import end_of, reasoning_paths
from kgqa_core.graph.kg import to_relations
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.render import ScoredPath, show_path
from kgqa_core.types import LabelPath, ReasoningPath


@dataclass(frozen=True, slots=True)
class Evidence:
    """The reasoning paths of one question's plans."""

    paths: tuple[ScoredPath, ...]  # distinct texts
    steps: tuple[ReasoningPath, ...]  # parallel to paths
    ends: tuple[int, ...]  # entity ids, distinct, in the order of the paths
    num_left_out: int  # plans that have more paths than are listed


def gather_evidence(
    search: SearchGraph, topics: Sequence[int], plans: Sequence[tuple[LabelPath, float]], *, max_paths: int
) -> Evidence:
    """Return the paths of all plans in turns, one of each plan, so that a cap starves none of them.

    A path's score is its plan's weight shared out over the plan's paths, so that those of a question sum to 1 (EPERM
    Fig. 4, with all entities on the way scored alike).

    Args:
        search: what is walked.
        topics: entity ids.
        plans: distinct relation paths by label, with weights; those that the graph cannot follow give nothing.
        max_paths: listed at most.
    """
    graph, reenter = search.graph, search.reenter_topic
    known = [(relations, weight) for path, weight in plans if (relations := to_relations(graph, path))]
    walks = [reasoning_paths(graph, topics, relations, reenter_topic=reenter) for relations, _ in known]
    listed: dict[str, tuple[ReasoningPath, int, ScoredPath]] = {}
    counts = [0] * len(walks)
    cut = 0
    for turn in zip_longest(*walks):
        for plan, path in enumerate(turn):
            if path is not None and len(listed) < max_paths:
                shown = show_path(search, path)
                counts[plan] += shown.text not in listed
                listed.setdefault(shown.text, (path, plan, shown))
        if len(listed) >= max_paths:
            cut = sum(next(walk, None) is not None for walk in walks)
            break
    total = sum(weight for count, (_, weight) in zip(counts, known, strict=True) if count) or 1.0
    shares = [weight / total / max(count, 1) for count, (_, weight) in zip(counts, known, strict=True)]
    return Evidence(
        tuple(replace(shown, score=shares[plan]) for _, plan, shown in listed.values()),
        tuple(path for path, _, _ in listed.values()),
        tuple(dict.fromkeys(end_of(path) for path, _, _ in listed.values())),
        cut,
    )
