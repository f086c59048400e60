"""A new build against the last accepted one: shown where something changed, stopped where too much did."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kgqa_core.artifacts import Artifact, hash_json
from kgqa_core.config import FileDataset
from kgqa_core.errors import DriftError
from kgqa_core.questions.diff import BuildDiff, DriftLimits, Moved, find_drift, moved_table
from kgqa_core.run.pipeline import Pipeline
from tasks.stage import StageOutcome

COMPARED = ("graph", "subgraphs", "questions")
NEEDED = {"graph", "questions"}
_log = logging.getLogger(__name__)


def check_changes(pipeline: Pipeline, outcomes: Sequence[StageOutcome], *, accept: bool = False) -> list[StageOutcome]:
    """Compare a build with the last accepted one, and accept it where the configured limits allow.

    Args:
        pipeline: the run.
        outcomes: its stages, graph and questions among them.
        accept: whatever changed, go on.

    Returns:
        the comparison; nothing where there was no build before, or it was the same.

    Raises:
        DriftError: more changed than the limits allow. The new artifacts are kept; the last build stays the accepted.
    """
    from tasks.changes import compare_with_last, read_diff

    now = {outcome.key: outcome.artifact for outcome in outcomes if outcome.key in COMPARED}
    last = pipeline.accepted()
    both = [key for key in COMPARED if key in last and key in now]  # a run may come to cut subgraphs, or cease to
    if last and not set(both) >= NEEDED:
        _log.warning("the last accepted build is not whole any more: nothing to compare with")
    if not set(both) >= NEEDED or all(last[key].content == now[key].content for key in both):
        pipeline.accept(now)
        return []
    outcome = compare_with_last(pipeline, {key: last[key] for key in both}, {key: now[key] for key in both})
    moved = find_moved(pipeline, read_diff(outcome.artifact), last, now)
    if moved and not accept:
        raise DriftError(
            f"the new build of {pipeline.config.name!r} differs from the last one by more than dataset.drift allows:\n"
            f"{moved_table(moved)}\n"
            f"All differences: {outcome.artifact.folder}. What was built is kept. To go on from it: "
            "kgqa build CONF --accept; to let such changes pass, raise the limits"
        )
    pipeline.accept(now)
    return [outcome]


def find_moved(pipeline: Pipeline, diff: BuildDiff, last: dict[str, Artifact], now: dict[str, Artifact]) -> list[Moved]:
    """Return what moved beyond the limits; what other settings made is not held against the data."""
    dataset = pipeline.config.dataset
    if not isinstance(dataset, FileDataset) or dataset.drift is None:
        return []
    settings = [{key: hash_json(artifact.recipe.config) for key, artifact in build.items()} for build in (last, now)]
    limits = DriftLimits(**dataset.drift.model_dump())
    same_graph = settings[0]["graph"] == settings[1]["graph"]
    return find_drift(diff, limits, guard_graph=same_graph, guard_questions=settings[0] == settings[1])
