"""The stages of a run. Each is declared once, in a module of this package: what it is made of, and how it is built.

A new stage is one new module that exports ``STAGES``, and its name in ``MODULES``. Everything else follows from the
declaration: when it is stale, what is made before it, its Prefect task, its record for MLflow, its line in
``kgqa status``. What loads torch, scipy or DuckDB is imported where it is used: looking at a run stays cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgqa_core.config import RunConfig
from kgqa_core.errors import ConfigError

if TYPE_CHECKING:
    from kgqa_core.run.pipeline import Pipeline, StageOutcome
    from kgqa_core.tracking import Recorder

MODULES = [f"kgqa_core.run.stages.{name}" for name in ("data", "explorer", "tuning", "planning", "systems")]
"""In the order of a run, where what a stage reads leaves a choice."""


# What some stages must have written, whoever wrote it, as patterns: looked for before an artifact is published.
REQUIRED = {
    "dump": ("relations.parquet", "dump.json"),
    "graph": ("entities.parquet", "relations.parquet", "graph.json", "*_ptr.npy", "edge_tail.npy"),
    "subgraphs": ("blocks.parquet", "subgraphs.json", "*_ptr.npy", "edge_tail.npy"),
    "questions": ("questions.parquet", "lint.json"),
    "encodings": ("encodings.parquet",),
    "explorer": ("model.safetensors", "model.json"),
    "system": ("predictions.parquet", "scores.json"),
}


@dataclass(frozen=True, slots=True)
class OtherStage:
    """A stage of another run."""

    conf: Path  # its run configuration
    key: str


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One stage of a run, as the configuration describes it."""

    key: str  # unique in the run: its kind, and after a hyphen which one of them: "graph", "explorer-seed0"
    section: Mapping[str, Any]  # what of the configuration shapes the artifact
    needs: tuple[str, ...] = ()  # keys of the stages it reads
    files: Mapping[str, Path] = field(default_factory=dict)  # external files it reads, by a name free of the machine
    depends_on_run: Mapping[str, OtherStage] = field(default_factory=dict)  # stages of other runs, by such a name
    system: str | None = None  # what MLflow calls the trained or evaluated system that its figures belong to

    @property
    def stage(self) -> str:
        """Its kind, which names the folder in the store."""
        return self.key.partition("-")[0]

    @property
    def seed(self) -> int:
        """The seed of a stage that has one."""
        return int(self.section["seed"])


Build = Callable[["Pipeline", StageSpec, Path, "Recorder"], None]
"""Fill an empty folder, and tell the recorder what is worth a look."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One kind of stage."""

    name: str  # folder in the store
    version: int  # of its code: raised when the same input gives other bytes; tests/test_golden.py holds the proof
    title: str  # of its Prefect task
    specs: Callable[[RunConfig], Iterable[StageSpec]]  # what of it a run has
    build: Build
    asked_for: str = ""  # how a configuration asks for it: a hint where another stage needs it
    io: bool = False  # is it tried again after an OSError?
    is_data: bool = False  # graph and questions: compared with the last accepted build
    build_all: Callable[[Pipeline, Sequence[str]], list[StageOutcome]] | None = None  # several of a run at once


def known_stages() -> dict[str, Stage]:
    """Return all kinds of stages by name, in the order of a run."""
    return {stage.name: stage for module in MODULES for stage in import_module(module).STAGES}


def stage_specs(config: RunConfig) -> list[StageSpec]:
    """Return the stages of a run, each after those that it reads; ConfigError where one needs a stage not made here."""
    stages = known_stages()
    by_key = {spec.key: spec for stage in stages.values() for spec in stage.specs(config)}
    placed: dict[str, StageSpec] = {}

    def place(spec: StageSpec) -> None:
        for need in spec.needs:
            if need not in by_key:
                hint = stages[need.partition("-")[0]].asked_for
                raise ConfigError(f"{config.name}: {spec.key} needs {need!r}, which this run does not make: {hint}")
            if need not in placed:
                place(by_key[need])
        placed.setdefault(spec.key, spec)

    for spec in by_key.values():
        place(spec)
    return list(placed.values())
