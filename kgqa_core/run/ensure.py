"""Making what a run lacks: the stages that are asked for, and first whatever they read.

A new build of graph and questions is compared with the last accepted one: what changed is kept as an artifact, and too
much change stops the run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from kgqa_core.artifacts import Artifact, Recipe, hash_json, write_json
from kgqa_core.config_base import FileDataset
from kgqa_core.errors import DriftError, InputError
from kgqa_core.questions.diff import BuildDiff, Moved, compare_builds, find_drift, moved_table
from kgqa_core.run.pipeline import Pipeline, StageOutcome, content_of
from kgqa_core.run.stages import known_stages
from kgqa_core.tracking import Recorder, write_record

CHANGES = "changes"  # the stage of the comparison
VERSION = 2  # raised whenever the same builds would give other tables
DOCUMENT, RELATIONS, QUESTIONS = "changes.json", "relations.parquet", "questions.parquet"
COMPARED = ("graph", "subgraphs", "questions")
NEEDED = {"graph", "questions"}
ASKING = {  # stage -> what it does with the questions of its split, and what helps where there are none
    "evaluation": ("score", "set evaluation.split"),
    "system": ("answer", "set evaluation.split"),
    "choice": ("choose settings on", "leave systems.choose out"),
    "fusion": ("fuse on", "leave ours out of systems.run"),
}
_log = logging.getLogger(__name__)

R = TypeVar("R")


class Worker(Protocol):
    """What does a piece of work, such as a Prefect task: it adds a name, retries and a place in a UI."""

    def __call__(self, work: Callable[[], R], *, title: str, key: str, io: bool) -> R:
        """Return what ``work`` returns; ``io``: try again after an OSError."""


def work_here(work: Callable[[], R], *, title: str, key: str, io: bool) -> R:
    """Do a piece of work in this process, with nothing around it."""
    return work()


def ensure(
    pipeline: Pipeline, goals: Iterable[str], *, accept: bool = False, worker: Worker = work_here
) -> list[StageOutcome]:
    """Make the stages ``goals`` (keys) and all that they read, where the store lacks them; ``worker`` does the work.

    Graph and questions are compared with the last accepted build before anything is made of them. Where more changed
    than the configuration allows, DriftError is raised; ``accept`` goes on all the same. Returns all stages in order,
    and the comparison of the builds where something changed. InputError: a stage of ``goals`` would ask no question.
    """
    stages = known_stages()
    data = [key for key, spec in pipeline.specs.items() if stages[spec.stage].is_data]
    rest = [key for key in pipeline.needed_for(goals) if key not in data]
    outcomes = _make_all(pipeline, data, worker)
    outcomes += _guard(pipeline, outcomes, accept, worker)
    _require_asked(pipeline, rest)
    return [*outcomes, *_make_all(pipeline, rest, worker)]


def _require_asked(pipeline: Pipeline, keys: Iterable[str]) -> None:
    """Raise InputError where a stage would find no question in its split: said before hours of training."""
    asking = [spec for key in keys if (spec := pipeline.specs[key]).stage in ASKING]
    if asking:
        path = pipeline.artifact("questions").folder / "questions.parquet"
        splits = pq.read_table(path, columns=["split"])["split"].unique().to_pylist()
        for spec in asking:
            if (split := spec.section.get("split", "dev")) not in splits:  # a fusion's is always dev
                what, cure = ASKING[spec.stage]
                raise InputError(f"there are no {split} questions to {what}; {cure}, or add some")


def _make_all(pipeline: Pipeline, keys: Sequence[str], worker: Worker) -> list[StageOutcome]:
    made: dict[str, StageOutcome] = {}
    lent = f" of {pipeline.config.name}" if pipeline.needed_by else ""  # two runs may have stages of one key
    for key in keys:
        if key in made:
            continue
        if found := pipeline.find(key):
            pipeline.remember(key, found)
            made[key] = StageOutcome(key, found, built=False)
            continue
        spec = pipeline.specs[key]
        stage = known_stages()[spec.stage]
        for other in spec.depends_on_run.values():
            ensure(pipeline.other_run(other.conf), [other.key], worker=worker)
        if stage.build_all is None:
            made[key] = worker(partial(pipeline.make, key), title=stage.title, key=f"{key}{lent}", io=stage.io)
            continue
        alike = [each for each in keys if pipeline.specs[each].stage == stage.name and not pipeline.find(each)]
        work = partial(stage.build_all, pipeline, alike)
        name = key if len(alike) == 1 else f"{stage.name} ({len(alike)})"
        made |= {outcome.key: outcome for outcome in worker(work, title=stage.title, key=f"{name}{lent}", io=stage.io)}
    return [made[key] for key in keys]


# ------ The new build against the last accepted one.


def _guard(pipeline: Pipeline, data: Sequence[StageOutcome], accept: bool, worker: Worker) -> list[StageOutcome]:
    """Accept the build that the data stages made; return its comparison with the last one, where they differ."""
    now = {outcome.key: outcome.artifact for outcome in data if outcome.key in COMPARED}
    if not now:
        return []
    last = pipeline.accepted()
    both = [key for key in COMPARED if key in last and key in now]  # a run may come to cut subgraphs, or cease to
    is_whole = set(both) >= NEEDED
    if last and not is_whole:
        _log.warning("the last accepted build is not whole any more: nothing to compare with")
    said, when = pipeline.last_said(content_of(now))
    if not accept and (said == "left" or (said == "refused" and not is_whole)):
        what = "readers were taken back from it" if said == "left" else "it was refused"
        raise DriftError(
            f"this build of {pipeline.config.name!r} is not to be used: {what} at {when} (kgqa builds list CONF). "
            "To go on from it all the same: kgqa build CONF --accept"
        )
    if not is_whole or all(last[key].content == now[key].content for key in both):
        pipeline.accept(now)
        return []
    compare = partial(_compare, pipeline, *({key: build[key] for key in both} for build in (last, now)))
    changes = worker(compare, title="compare builds", key=CHANGES, io=False)
    moved = [] if accept else _find_moved(pipeline, changes.artifact, last, now)
    if moved:
        pipeline.note_build("refused", now)
        raise DriftError(
            f"the new build of {pipeline.config.name!r} differs from the last one by more than dataset.drift allows:\n"
            f"{moved_table(moved)}\n"
            f"All differences: {changes.artifact.folder}. What was built is kept. To go on from it: "
            "kgqa build CONF --accept; to let such changes pass, raise the limits"
        )
    pipeline.accept(now)
    return [changes]


def _compare(pipeline: Pipeline, last: dict[str, Artifact], now: dict[str, Artifact]) -> StageOutcome:
    """Write what differs between two builds, unless it is there: so it is found once, and shown."""
    hops = pipeline.config.exploration.steps
    inputs = {f"{when} {key}": build[key].content for when, build in (("last", last), ("now", now)) for key in build}
    recipe = Recipe(CHANGES, VERSION, {"hops": hops}, inputs)

    def write(folder: Path) -> None:
        recorder = Recorder(CHANGES)
        old, new = ({key: artifact.folder for key, artifact in build.items()} for build in (last, now))
        diff, questions = compare_builds(old, new, hops=hops, memory_limit=pipeline.config.runtime.memory_limit)
        write_json(folder / DOCUMENT, asdict(diff))
        rows = [{"relation": label, **asdict(change)} for label, change in diff.graph.per_relation.items()]
        counts = [(name, pa.int64()) for name in ("before", "after", "came", "gone")]
        relations = pa.Table.from_pylist(rows, schema=pa.schema([("relation", pa.string()), *counts]))
        pq.write_table(relations, folder / RELATIONS, compression="zstd")
        pq.write_table(questions, folder / QUESTIONS, compression="zstd")
        _record(diff, recorder)
        write_record(folder, recorder.record(recipe.fingerprint))

    artifact, built = pipeline.store.build(recipe, write)
    pipeline.remember(CHANGES, artifact)
    return StageOutcome(CHANGES, artifact, built)


def _find_moved(
    pipeline: Pipeline, changes: Artifact, last: dict[str, Artifact], now: dict[str, Artifact]
) -> list[Moved]:
    """Return what moved beyond the limits; what other settings or another version made is not held against the data."""
    dataset = pipeline.config.dataset
    if not isinstance(dataset, FileDataset) or dataset.drift is None:
        return []
    diff = TypeAdapter(BuildDiff).validate_json((changes.folder / DOCUMENT).read_bytes())
    before, after = (
        {key: hash_json([one.recipe.version, one.recipe.config]) for key, one in build.items()} for build in (last, now)
    )
    same_graph = before["graph"] == after["graph"]
    return find_drift(diff, dataset.drift, guard_graph=same_graph, guard_questions=before == after)


def _record(diff: BuildDiff, recorder: Recorder) -> None:
    graph = diff.graph
    for name in ("triples", "entities", "relations", "questions"):
        change = getattr(diff if name == "questions" else graph, name)
        recorder.metric(f"{name}_in", change.came)
        recorder.metric(f"{name}_out", change.gone)
    recorder.metric("entities_renamed", graph.num_renamed)
    recorder.metric("questions_reworded", diff.num_reworded)
    recorder.metric("questions_moved", diff.num_moved)
    recorder.metric("subgraphs_changed", diff.num_subgraphs_changed)
    for row in diff.coverage:
        recorder.metric(f"coverage_gained.{row.split}.{row.hops or 'all'}", row.any_after - row.any_before)
