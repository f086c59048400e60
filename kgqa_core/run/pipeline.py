"""The stages of a run: what each is made of, which are done, and why one is not.

Nothing here builds anything: a stage's recipe follows from the configuration, the content of the artifacts it reads
and the external files; whether it has to run follows from whether the store has that recipe's artifact.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from kgqa_core.artifacts import Artifact, ArtifactStore, Recipe, hash_json, read_artifact, read_note, write_json
from kgqa_core.config import RunConfig
from kgqa_core.config_file import read_config
from kgqa_core.errors import ArtifactError, ConfigError, InputError, shorten
from kgqa_core.run.inputs import FileHashes, local_inputs, origin_of, write_note
from kgqa_core.run.stages import REQUIRED, Build, StageSpec, known_stages, stage_specs
from kgqa_core.tracking import Recorder, write_record

Progress = Callable[[str, int, int], None]
"""Called with (what is going on, done, total)."""
PROGRESS: ContextVar[Progress | None] = ContextVar("progress", default=None)
"""Who is told of progress. Not a parameter: a flow's parameters are data, which Prefect stores."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StageStatus:
    """Where one stage stands."""

    key: str
    stage: str
    state: Literal["done", "stale", "missing"]
    why: str
    folder: Path | None  # of the artifact, where there is one


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """One stage of a finished run."""

    key: str
    artifact: Artifact
    built: bool  # False: it was there already


class Pipeline:
    """The stages of one configuration over the artifact store of its home."""

    def __init__(self, config: RunConfig, *, needed_by: tuple[Path, ...] = ()) -> None:
        (config, self.fetched), self.needed_by = local_inputs(config), needed_by
        self.config, self.home = config, config.runtime.home
        self.specs = {spec.key: spec for spec in stage_specs(config)}
        self.store = ArtifactStore(self.home / "artifacts")
        self.hashes = FileHashes(self.home / "cache" / "file_hashes.json")
        self._others: dict[Path, Pipeline] = {}
        self._last = self.home / "runs" / f"{config.name}.json"
        self._accepted = self.home / "runs" / "accepted" / f"{config.name}.json"
        self._builds = self.home / "runs" / "builds" / f"{config.name}.json"
        self._noting = Lock()  # parts of a dump end in threads of their own
        self._instead: dict[str, Artifact] = {}  # stages of the accepted build, where readers want these
        for conf in {other.conf for spec in self.specs.values() for other in spec.depends_on_run.values()}:
            self.other_run(conf)  # what is wrong there is found before anything is made here

    def progress(self, what: str, done: int, total: int) -> None:
        """Tell whoever listens."""
        if listener := PROGRESS.get():
            listener(what, done, total)

    def recipe(self, key: str, found: dict[str, Artifact | None] | None = None) -> Recipe | None:
        """Return the recipe of a stage, or None while a stage that it reads is not done.

        ``found`` keeps what is known of other stages, so that a stage that several read is looked up once. Raises
        InputError where an external file is missing.
        """
        spec, inputs = self.specs[key], dict[str, str]()
        for name, artifact in self._read_by(spec, {} if found is None else found):
            if artifact is None:
                return None  # what comes after a missing one is not looked up
            inputs[name] = artifact.content
        inputs |= {name: self._hash(path, name) for name, path in spec.files.items()}
        return Recipe(spec.stage, known_stages()[spec.stage].version, spec.section, inputs)

    def _read_by(self, spec: StageSpec, found: dict[str, Artifact | None]) -> Iterator[tuple[str, Artifact | None]]:
        """Yield the artifacts that a stage reads, by their names in its recipe; None where a stage is not done."""
        names = set[str]()
        for need in spec.needs:
            name = need.partition("-seed")[0]
            yield need if name in names else name, self.find(need, found)  # a comparison reads several seeds
            names.add(name)
        for name, other in spec.depends_on_run.items():
            yield name, self.other_run(other.conf).find(other.key)

    def find(self, key: str, found: dict[str, Artifact | None] | None = None) -> Artifact | None:
        """Return a stage's artifact if it is done; ``found`` as in ``recipe``."""
        found = {} if found is None else found
        if key not in found:
            recipe = None if key in self._instead else self.recipe(key, found)
            found[key] = self.store.find(recipe) if recipe else self._instead.get(key)
        return found[key]

    def artifact(self, key: str) -> Artifact:
        """Return a stage's artifact; ArtifactError where it is not done."""
        found = self.find(key)
        if found is None:
            raise ArtifactError(
                f"stage {key!r} of {self.config.name!r} is not done: make it with kgqa run CONF; "
                "kgqa status CONF says more"
            )
        return found

    def other_run(self, conf: Path) -> Pipeline:
        """Return the stages of another run that this one depends on, in the same home; ConfigError for a circle."""
        if conf in self.needed_by:
            raise ConfigError(f"explorer.init_from, also_train_on: {conf} depends on itself through other runs")
        if conf not in self._others:
            here = {"runtime": self.config.runtime, "cluster": self.config.cluster}
            config = read_config(conf).model_copy(update=here)
            self._others[conf] = Pipeline(config, needed_by=(*self.needed_by, conf))
        return self._others[conf]

    def needed_for(self, goals: Iterable[str]) -> list[str]:
        """Return the stages ``goals`` with all that they read, each after what it reads."""
        wanted = set(goals)
        for key in reversed(self.specs):  # each comes after what it reads
            if key in wanted:
                wanted.update(self.specs[key].needs)
        return [key for key in self.specs if key in wanted]

    def make(self, key: str, build: Build | None = None) -> StageOutcome:
        """Build one stage whose inputs are done, unless it is there, and keep what it recorded beside its files.

        ``build`` stands in for how its kind of stage is built. Raises as ``ArtifactStore.build``; InputError: a file
        changed meanwhile.
        """
        recipe, spec = self.recipe(key), self.specs[key]
        if recipe is None:
            raise ArtifactError(
                f"stage {key!r} reads {', '.join(spec.needs)}, of which not all are done: was an input "
                "changed meanwhile? Run again; kgqa status says more"
            )
        build = build or known_stages()[spec.stage].build

        def fill(folder: Path) -> None:
            recorder = Recorder(spec.stage, system=spec.system, seed=spec.seed if spec.system else None)
            for name, value in spec.section.items():
                recorder.param(name, value if isinstance(value, str | int | float | bool | None) else str(value))
            build(self, spec, folder, recorder)
            write_record(folder, recorder.record(recipe.fingerprint))
            for name, path in spec.files.items():
                if self._hash(path, name) != recipe.inputs[name]:
                    raise InputError(f"{name}: {path} was changed while stage {key!r} read it. Run again")
            moved: list[str] = []
            with suppress(InputError):  # a file of theirs is gone, and nothing else came in its place
                moved.extend(name for name, it in self._read_by(spec, {}) if it and it.content != recipe.inputs[name])
            if moved:  # a file of theirs is another, which was built as well: some of that may have been read
                raise InputError(f"{moved[0]} was changed while stage {key!r} read it. Run again")
            for pattern in REQUIRED.get(recipe.stage, ()):
                if not any(file.stat().st_size for file in folder.glob(pattern)):
                    raise ArtifactError(
                        f"stage {key!r} ended, and {folder} has no {pattern}: was it written to another disk, or "
                        "removed? Nothing was published. See that every worker has KGQA_HOME on one disk; run again"
                    )

        origins = {name: origin for name, path in spec.files.items() if (origin := origin_of(path, self.home))}
        artifact, built = self.store.build(recipe, fill, origins)
        self.remember(key, artifact)
        return StageOutcome(key, artifact, built)

    def remember(self, key: str, artifact: Artifact) -> None:
        """Note what this run's stage is made of now, so that ``status`` can say later what changed."""
        with self._noting:
            last = read_note(self._last)
            if last.get(key) != artifact.fingerprint:
                write_note(self._last, {**last, key: artifact.fingerprint})

    def used(self) -> set[str]:
        """Return the fingerprints of what this run used last, and of the build that it accepted last."""
        return {str(value) for note in (self._last, self._accepted) for value in read_note(note).values()}

    def remembered(self, stage: str) -> Artifact | None:
        """Return what ``remember`` noted of a stage that has no spec, such as the last comparison of two builds."""
        return self._read(stage, read_note(self._last).get(stage))

    def accept(self, artifacts: Mapping[str, Artifact]) -> None:
        """Note these stages' artifacts as the build that the next one is compared with."""
        note = _fingerprints(artifacts)
        if note != read_note(self._accepted):
            self.note_build("accepted", artifacts)
            write_note(self._accepted, note)

    def builds(self) -> list[dict[str, Any]]:
        """Return what became of this run's builds, the oldest first.

        Each line: ``when`` (UTC; None: not known), ``what`` (accepted, refused, rolled back), ``stages`` (key ->
        fingerprint), ``content`` (a hash of what they hold, which another recipe may hold, too) and, of a rollback,
        ``left`` and ``left_content``: the same of the build that readers had before.
        """
        lines: list[dict[str, Any]] = read_note(self._builds).get("builds", [])
        now = read_note(self._accepted)
        known = not now or any(line["stages"] == now for line in lines)
        first = {"when": None, "what": "accepted", "stages": now, "content": content_of(self.accepted())}
        return lines if known else [first, *lines]  # accepted before there was a list

    def note_build(self, what: str, build: Mapping[str, Artifact], **more: Any) -> None:
        """Add a line to ``builds``: ``what`` became of these stages' artifacts."""
        line = {"what": what, "stages": _fingerprints(build), "content": content_of(build), **more}
        lines = self.builds()
        if not lines or {**lines[-1], "when": None} != {"when": None, **line}:
            when = datetime.now(UTC).isoformat(timespec="seconds")
            write_note(self._builds, {"builds": [*lines, {"when": when, **line}]})

    def last_said(self, content: str) -> tuple[str, str | None]:
        """Return what was said last of a build of this content, and when: accepted, refused, left, or nothing ("").

        *Left* is a build from which readers were taken back.
        """
        about = [line for line in self.builds() if content in (line["content"], line.get("left_content"))]
        if not about:
            return "", None
        is_left = about[-1].get("left_content") == content
        return "left" if is_left else "refused" if about[-1]["what"] == "refused" else "accepted", about[-1]["when"]

    def roll_back(self, to: str | None = None) -> dict[str, str]:
        """Let readers have an earlier accepted build, the last one or that whose id begins with ``to``; return it.

        Only notes change. Raises ConfigError where there is no such build, ArtifactError where its files are gone.
        """
        now = read_note(self._accepted)
        earlier = {  # the last one first
            build_id(line["stages"]): line
            for line in reversed(self.builds())
            if line["what"] != "refused" and line["stages"] != now
        }
        left = {name for name, line in earlier.items() if self.last_said(line["content"])[0] == "left"}
        wanted = [name for name in earlier if (name.startswith(to) if to else name not in left)]
        if not wanted or (to and len(wanted) > 1):
            ids = ", ".join(f"{name} (rolled back from)" if name in left else name for name in earlier) or "none"
            what = f"{len(wanted) or 'none'} of them begin with {shorten(to)}" if to else "there is none to go back to"
            raise ConfigError(f"builds accepted before: {ids}; {what}. Name one: --to BUILD")
        stages: dict[str, str] = earlier[wanted[0]]["stages"]
        build = self.read_build(stages)
        if gone := stages.keys() - build.keys():
            raise ArtifactError(f"build {wanted[0]} is not whole any more; deleted: {', '.join(sorted(gone))}")
        about = {"left": now, "left_content": content_of(self.accepted())}
        self.note_build("rolled back", build, **about)  # first: killed after it, the next run does not go back unseen
        write_json(self._accepted, stages)
        return stages

    def read_build(self, stages: Mapping[str, Any]) -> dict[str, Artifact]:
        """Return what is still there of a build: of stages by key, given by fingerprint."""
        found = {key: self._read(self.specs[key].stage, one) for key, one in stages.items() if key in self.specs}
        return {key: artifact for key, artifact in found.items() if artifact}

    def accepted_note(self) -> dict[str, str]:
        """Return the fingerprint of each stage of the last accepted build, be it there or not."""
        return read_note(self._accepted)

    def accepted(self) -> dict[str, Artifact]:
        """Return the stages of the last accepted build that are still there."""
        return self.read_build(self.accepted_note())

    def accepted_instead(self) -> dict[str, Artifact]:
        """Return the stages of the last accepted build where what is there now is another one: it was not accepted.

        A build that other settings made is another one, and was accepted. Raises ArtifactError where the accepted
        build is not whole any more: half of it and half of another make no graph.
        """
        note, found = read_note(self._accepted), dict[str, Artifact | None]()
        now = {key: it for key in note if key in self.specs and (it := self.find(key, found))}
        if not now or (now.keys() == note.keys() and self.last_said(content_of(now))[0] == "accepted"):
            return {}
        last = self.accepted()
        if gone := sorted(note.keys() - last.keys()):
            raise ArtifactError(
                f"the last build of {self.config.name!r} was not accepted, and {', '.join(gone)} of the accepted one is"
                " gone or damaged. kgqa builds rollback CONF goes back to an earlier one, kgqa build CONF --accept"
                " takes the last one, and kgqa sql --refused reads it"
            )
        return {key: it for key, it in last.items() if key in now and now[key].content != it.content}

    def use_accepted(self) -> dict[str, Artifact]:
        """Find the accepted build, and what was made of it, from now on; return ``accepted_instead``."""
        self._instead = self.accepted_instead()
        return self._instead

    def status(self) -> list[StageStatus]:
        """Say of every stage whether it is done, stale (built once for this run, of something else) or missing."""
        last = read_note(self._last)
        found: dict[str, Artifact | None] = {}
        return [self._status(spec, last.get(spec.key), found) for spec in self.specs.values()]

    def _read(self, stage: str, fingerprint: Any) -> Artifact | None:
        """Return an artifact that a note names; a note that was tampered with names none."""
        return read_artifact(self.store.root / stage / fingerprint) if isinstance(fingerprint, str) else None

    def _status(self, spec: StageSpec, last: Any, found: dict[str, Artifact | None]) -> StageStatus:
        """Say where one stage stands; ``found`` has all that it reads, and gets this one."""
        waits = [need for need in spec.needs if found[need] is None]
        others = spec.depends_on_run.values()
        recipe, why = None, ""
        try:
            waits += [f"{it.key} of {it.conf.name}" for it in others if not self.other_run(it.conf).find(it.key)]
            recipe, why = None if waits else self.recipe(spec.key, found), f"waits for {', '.join(waits)}"
        except InputError as problem:
            why = str(problem)
        found[spec.key] = done = self.store.find(recipe) if recipe else None
        if done:
            return StageStatus(spec.key, spec.stage, "done", "", done.folder)
        old = self._read(spec.stage, last)
        if recipe and old:
            why = "; ".join(differences(old.recipe, recipe))
        elif recipe:
            why = "its artifact is gone or damaged" if last else "never built"
        return StageStatus(spec.key, spec.stage, "stale" if old else "missing", why, old.folder if old else None)

    def _hash(self, path: Path, name: str) -> str:
        try:
            return self.hashes.hash(path)
        except OSError as problem:
            if isinstance(problem, FileNotFoundError):
                if origin := origin_of(path, self.home):
                    raise InputError(f"{name}: {origin['address']} is not fetched yet: kgqa build fetches it") from None
                from kgqa_core.graph.input_files import require_file

                require_file(path, what=name)  # says what is beside it
            raise InputError(f"{name}: cannot read {path}: {problem.strerror or problem}") from None


def build_id(stages: Mapping[str, str]) -> str:
    """Return what to call a build: a hash of the fingerprints of its stages."""
    return hash_json(dict(stages))[:12]


def content_of(build: Mapping[str, Artifact]) -> str:
    """Return a hash of what a build's stages hold, whatever recipes made it."""
    return hash_json({key: artifact.content for key, artifact in build.items()})


def _fingerprints(artifacts: Mapping[str, Artifact]) -> dict[str, str]:
    return {key: artifact.fingerprint for key, artifact in artifacts.items()}


def differences(old: Recipe, new: Recipe) -> list[str]:
    """Say in words how two recipes of one stage differ."""
    found = [] if old.version == new.version else [f"the stage's code is version {new.version}, was {old.version}"]
    for name in sorted({*old.config, *new.config}):
        was, now = old.config.get(name), new.config.get(name)
        if json.dumps(was) != json.dumps(now):  # a tuple comes back from a manifest as a list
            found.append(f"{name} is {shorten(now, 60)}, was {shorten(was, 60)}")
    for name in sorted({name for name, _ in old.inputs.items() ^ new.inputs.items()}):
        what = "is gone" if name not in new.inputs else "changed" if name in old.inputs else "is new"
        found.append(f"input {name} {what}")
    return found
