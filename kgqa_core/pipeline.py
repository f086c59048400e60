"""The stages of a run: what each is made of, which are done, and why one is not.

Nothing here builds anything: a stage's recipe follows from the configuration, the content of the artifacts it reads
and the external files; whether it has to run follows from whether the store has that recipe's artifact.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kgqa_core.artifacts import Artifact, ArtifactStore, FileHashes, Recipe, read_artifact, write_json
from kgqa_core.config import EmbeddedDataset, LocalEncoderSection, QuestionSection, RunConfig
from kgqa_core.errors import ArtifactError, ConfigError, InputError

VERSIONS = {
    "dataset": 1,
    "graph": 1,
    "questions": 1,
    "encodings": 1,
    "explorer": 1,
    "controls": 1,
    "evaluation": 1,
}
"""Of each stage's code: raised whenever the same input would give other bytes (tests/test_golden.py holds the proof)."""

Progress = Callable[[str, int, int], None]
"""Called with (what is going on, done, total)."""

PROGRESS: ContextVar[Progress | None] = ContextVar("progress", default=None)
"""Who is told of progress. Not a parameter: a flow's parameters are data, which Prefect stores."""


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One stage of a run, as the configuration describes it."""

    key: str  # unique in the run: "graph", "explorer-seed0"
    stage: str  # folder in the store
    section: Mapping[str, Any]  # what of the configuration shapes the artifact
    needs: tuple[str, ...] = ()  # keys of the stages it reads
    files: Mapping[str, Path] = field(default_factory=dict)  # external files it reads


@dataclass(frozen=True, slots=True)
class StageStatus:
    """Where one stage stands."""

    key: str
    stage: str
    state: Literal["done", "stale", "missing"]
    why: str
    folder: Path | None  # of the artifact, where there is one


class Pipeline:
    """The stages of one configuration over the artifact store of its home."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.home = config.runtime.home
        self.specs = {spec.key: spec for spec in stage_specs(config)}
        self.store = ArtifactStore(self.home / "artifacts")
        self._hashes = FileHashes(self.home / "cache" / "file_hashes.json")
        self._last = self.home / "runs" / f"{config.name}.json"

    def progress(self, what: str, done: int, total: int) -> None:
        """Tell whoever listens."""
        if listener := PROGRESS.get():
            listener(what, done, total)

    def recipe(self, key: str) -> Recipe | None:
        """Return the recipe of a stage, or None while a stage that it reads is not done.

        Raises:
            InputError: an external file is missing.
        """
        spec = self.specs[key]
        inputs: dict[str, str] = {}
        for need in spec.needs:
            artifact = self.find(need)
            if artifact is None:
                return None
            inputs[need.partition("-")[0]] = artifact.content
        for name, path in spec.files.items():
            inputs[name] = self._hash(path, name)
        return Recipe(spec.stage, VERSIONS[spec.stage], spec.section, inputs)

    def find(self, key: str) -> Artifact | None:
        """Return a stage's artifact if it is done."""
        recipe = self.recipe(key)
        return self.store.find(recipe) if recipe else None

    def artifact(self, key: str) -> Artifact:
        """Return a stage's artifact.

        Raises:
            ArtifactError: the stage is not done.
        """
        found = self.find(key)
        if found is None:
            raise ArtifactError(f"stage {key!r} of {self.config.name!r} is not done; run it first: kgqa status says why")
        return found

    def inputs(self, key: str) -> dict[str, Artifact]:
        """Return the artifacts that a stage reads, by stage name."""
        return {need.partition("-")[0]: self.artifact(need) for need in self.specs[key].needs}

    def build(self, key: str, write: Callable[[Path], None]) -> tuple[Artifact, bool]:
        """Build a stage whose inputs are done; see ``ArtifactStore.build``."""
        recipe = self.recipe(key)
        if recipe is None:
            raise ArtifactError(f"stage {key!r} reads stages that are not done: {', '.join(self.specs[key].needs)}")
        artifact, made = self.store.build(recipe, write)
        self._remember(key, artifact)
        return artifact, made

    def status(self) -> list[StageStatus]:
        """Say of every stage whether it is done, stale (built once for this run, of something else) or missing."""
        last = self._read_last()
        return [self._status(spec, last.get(spec.key)) for spec in self.specs.values()]

    def _status(self, spec: StageSpec, last: str | None) -> StageStatus:
        old = read_artifact(self.store.root / spec.stage / last) if last else None
        folder = old.folder if old else None
        state: Literal["stale", "missing"] = "stale" if old else "missing"
        try:
            recipe = self.recipe(spec.key)
        except InputError as problem:
            return StageStatus(spec.key, spec.stage, state, str(problem), folder)
        if recipe is None:
            waits = [need for need in spec.needs if self.find(need) is None]
            return StageStatus(spec.key, spec.stage, state, f"waits for {', '.join(waits)}", folder)
        if found := self.store.find(recipe):
            return StageStatus(spec.key, spec.stage, "done", "", found.folder)
        why = "; ".join(differences(old.recipe, recipe)) if old else "never built"
        return StageStatus(spec.key, spec.stage, state, why or "its artifact is gone or damaged", folder)

    def _hash(self, path: Path, name: str) -> str:
        try:
            return self._hashes.hash(path)
        except OSError as problem:
            raise InputError(f"{name}: cannot read {path}: {problem.strerror or problem}") from None

    def _remember(self, key: str, artifact: Artifact) -> None:
        self._last.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._last, {**self._read_last(), key: artifact.fingerprint})

    def _read_last(self) -> dict[str, str]:
        try:
            last: dict[str, str] = json.loads(self._last.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return last


def differences(old: Recipe, new: Recipe) -> list[str]:
    """Say in words how two recipes of one stage differ."""
    found = [] if old.version == new.version else [f"the stage's code is version {new.version}, was {old.version}"]
    for what, before, after in (("setting", old.config, new.config), ("input", old.inputs, new.inputs)):
        for name in sorted({*before, *after}):
            was, now = before.get(name), after.get(name)
            if json.dumps(was, default=list) == json.dumps(now, default=list):
                continue
            found.append(f"input {name} changed" if what == "input" else f"{name} is {now!r}, was {was!r}")
    return found


def stage_specs(config: RunConfig) -> list[StageSpec]:
    """Return the stages of a run, each after those that it reads."""
    dataset, explorer = config.dataset, config.explorer
    base = ("graph", "questions", "encodings")
    walk = {"steps": explorer.steps, "reenter_topic": dataset.reenter_topic}
    encoder = config.encoder.model_dump(mode="json", exclude={"path"})
    specs = [*_source_specs(config, walk)]
    specs.append(StageSpec("encodings", "encodings", encoder, ("graph", "questions"), _encoder_files(config)))
    training = explorer.model_dump(mode="json", exclude={"seeds"})
    for seed in explorer.seeds:
        section = {**training, "seed": seed, "reenter_topic": dataset.reenter_topic}
        specs.append(StageSpec(f"explorer-seed{seed}", "explorer", section, base))
    split = {"split": config.evaluation.split}
    specs.append(StageSpec("controls", "controls", {**walk, **split}, ("graph", "questions")))
    judged = config.evaluation.model_dump(mode="json")
    for seed in explorer.seeds:
        needs = (*base, f"explorer-seed{seed}", "controls")
        specs.append(StageSpec(f"evaluation-seed{seed}", "evaluation", judged, needs))
    return specs


def _source_specs(config: RunConfig, walk: Mapping[str, Any]) -> list[StageSpec]:
    dataset = config.dataset
    if isinstance(dataset, EmbeddedDataset):
        return [
            StageSpec("dataset", "dataset", {"seed": dataset.seed}),
            StageSpec("graph", "graph", {"format": "tsv", "max_reject_ratio": 0.0}, ("dataset",)),
            StageSpec(
                "questions",
                "questions",
                {"format": "jsonl", "max_reject_ratio": 0.0, **walk},
                ("dataset", "graph"),
            ),
        ]
    graph, questions = dataset.graph, dataset.questions
    files = {"triples": graph.path} | ({"names": graph.names} if graph.names else {})
    asked = questions.model_dump(mode="json", exclude={"path", "files"})
    return [
        StageSpec("graph", "graph", graph.model_dump(mode="json", exclude={"path", "names"}), (), files),
        StageSpec("questions", "questions", {**asked, **walk}, ("graph",), question_files(questions)),
    ]


def question_files(section: QuestionSection) -> dict[str, Path]:
    """Return every file that the questions are read from, by a name that does not depend on the machine.

    Raises:
        ConfigError: a folder without question files.
    """
    if section.files is not None:
        return {f"questions/{split}": path for split, path in section.files.items()}
    assert section.path is not None  # QuestionSection checks it
    if not section.path.is_dir():
        return {"questions": section.path}
    if section.format == "metaqa":
        folders = [f"{hop}-hop" for hop in section.hops] if section.hops else ["*-hop"]
        found = [path for folder in folders for path in section.path.glob(f"{folder}/**/qa_*.txt")]
    else:
        found = list(section.path.glob("*.jsonl"))
    if not found:
        raise ConfigError(f"dataset.questions.path: {section.path} holds no {section.format} question files")
    return {f"questions/{path.relative_to(section.path).as_posix()}": path for path in sorted(found)}


def _encoder_files(config: RunConfig) -> dict[str, Path]:
    if not isinstance(config.encoder, LocalEncoderSection):
        return {}
    folder = config.encoder.path
    if not folder.is_dir():
        raise ConfigError(f"encoder.path: {folder} is no folder")
    return {f"encoder/{path.name}": path for path in sorted(folder.iterdir()) if path.is_file()}
