"""Releases: what answers together and is promoted together, pinned in the home, and every move of the champion.

``KGQA_HOME/releases/<model>/`` holds a folder per release, and ``moves.json``. A release names its artifacts by their
fingerprints and holds hard links to them: they cost no space, and outlive the artifact store's own. Whoever reads
``moves.json`` sees one champion or the other, never a mixture; MLflow's aliases follow it (registry.py).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from kgqa_core.artifacts import (
    DIGITS,
    Artifact,
    exclusive_lock,
    hash_file,
    hash_json,
    inspect_artifact,
    read_artifact,
    write_json,
    written_whole,
)
from kgqa_core.config import EvaluationSection, RunConfig
from kgqa_core.config_file import config_hash
from kgqa_core.errors import ArtifactError, ConfigError, InputError, with_nearest
from kgqa_core.run.ask import EXPLORER_FILES, ServedCard, read_card, read_encoder_name, write_served
from kgqa_core.run.open import planner_seed
from kgqa_core.run.pipeline import Pipeline

MoveKind = Literal["promoted", "refused", "rolled back"]
PINNED = ("graph", "explorer", "lm", "dense", "reasoner")  # stages that answering needs
MANIFEST, MOVES, SERVED, ARTIFACTS = "release.json", "moves.json", "served", "artifacts"
LOCK_SECONDS = 60.0
UNSERVED = {"split", "passes"}  # settings of evaluation that decide no answer
CHAMPION = "champion"
MODELS = "models:/"


@dataclass(frozen=True, slots=True)
class Release:
    """What answers together; ``folder`` holds it all."""

    folder: Path
    run: str  # name of the run configuration
    made_of: Mapping[str, str]  # content hashes of graph and questions, hash of the configuration
    parent: str | None  # the release from whose explorer this one's training started; no part of the identity
    stages: Mapping[str, str]  # key -> fingerprint
    made: str  # when

    @property
    def id(self) -> str:
        """Name of the release, ``release_id`` of what it holds."""
        return self.folder.name

    @property
    def served(self) -> Path:
        """The folder of the explorer as it is served: weights and card."""
        return self.folder / SERVED

    @property
    def card(self) -> ServedCard:
        """What the explorer needs where it is served."""
        return read_card(self.served)

    @property
    def explorer(self) -> str:
        """Fingerprint of the explorer, by which MLflow's registry knows its version."""
        return next(fingerprint for key, fingerprint in self.stages.items() if key.startswith("explorer-"))


@dataclass(frozen=True, slots=True)
class Move:
    """One decision about the champion."""

    kind: MoveKind
    when: str
    why: str
    from_release: str | None  # the champion before
    to_release: str  # the champion after; of a refusal: who was refused
    told: bool = False  # do MLflow's aliases show it?
    announced: bool = True  # was the webhook told, or does it not have to be?


def model_name(run_name: str) -> str:
    """Return the name under which the explorers of a run configuration are registered."""
    return "kgqa-" + re.sub(r"[^\w-]+", "-", run_name)  # MLflow refuses slashes, colons, dots and quotes


def require_own(run: str, owner: str) -> None:
    """Raise ConfigError where the registered model of a run is that of another one."""
    if run != owner:
        raise ConfigError(
            f"the runs {run!r} and {owner!r} would share the model {model_name(run)}, and its champion, as names of "
            f"models hold neither dots nor blanks. {owner!r} came first: give {run!r} another name"
        )


def releases_of(config: RunConfig) -> Releases:
    """Return the releases of a run configuration; ConfigError where those of its model are another run's."""
    releases = Releases(config.runtime.home, model_name(config.name))
    for first in releases.ids()[:1]:
        require_own(config.name, releases.read(first).run)
    return releases


def release_id(stages: Mapping[str, str], card: ServedCard | None = None) -> str:
    """Return the name of the release of some stages, served so; without a card: as releases were once named."""
    shaping: Any = {"encoder": True, "batch_size": True, "evaluation": {*EvaluationSection.model_fields} - UNSERVED}
    served = {"served": card.model_dump(mode="json", include=shaping)} if card else {}
    return hash_json({**stages, **served})[:DIGITS]


def made_of(config: RunConfig, pipeline: Pipeline) -> dict[str, str]:
    """Return what a release is made of: where that is equal there is nothing new. The data has to be built."""
    contents = {key: pipeline.artifact(key).content for key in ("graph", "questions")}
    return contents | {"configuration": config_hash(config)}


def pinned_stages(pipeline: Pipeline) -> dict[str, Artifact]:
    """Return the artifacts that a release of this run holds, by key: those of the first seed."""
    config = pipeline.config
    seed = config.exploration.seeds[0]
    seeds = {"explorer": seed, "dense": planner_seed(config, seed), "reasoner": planner_seed(config, seed)}
    chosen = [
        key
        for key, spec in pipeline.specs.items()
        if spec.stage in PINNED and (spec.stage not in seeds or key == f"{spec.stage}-seed{seeds[spec.stage]}")
    ]
    return {key: pipeline.artifact(key) for key in chosen}


def starts_from_release(config: RunConfig) -> bool:
    """Say whether ``explorer.init_from`` names a release: ``models:/NAME@champion``."""
    return config.explorer is not None and str(config.explorer.init_from).startswith(MODELS)


def without_start(config: RunConfig, folder: Path | None = None) -> RunConfig:
    """Return the configuration with another ``explorer.init_from`` where that names a release: none, or a folder."""
    if not starts_from_release(config):
        return config
    return config.model_copy(update={"explorer": config.exploration.model_copy(update={"init_from": folder})})


def resolve_start(config: RunConfig) -> tuple[RunConfig, str | None]:
    """Return the configuration with the folder of the explorer where ``init_from`` names a release, and its id.

    That is the champion of the model or, where a release of this run was made of the same data and configuration, the
    one that it started from, if it is still there: so nothing new means nothing done. ``models:/NAME@champion`` of this
    run itself starts afresh while there is none. Raises InputError for another release that there is not.
    """
    if not starts_from_release(config):
        return config, None
    bare, start = without_start(config), config.exploration.init_from
    model, _, name = str(start).removeprefix(MODELS).partition("@")
    own, other = Releases(config.runtime.home, model_name(config.name)), Releases(config.runtime.home, model)
    pipeline = Pipeline(bare)
    if pipeline.find("questions") and pipeline.find("graph"):
        same = made_of(config, pipeline)
        release = next((one for one in map(own.read, reversed(own.ids())) if one.made_of == same), None)
        if release and release.parent in (None, *other.ids()):  # else it was deleted: that start cannot be had again
            parent = release.parent and other.read(release.parent)
            return without_start(config, parent.served if parent else None), release.parent
    if name == CHAMPION and champion_of(other.moves()) is None and other.model == own.model:
        return bare, None
    chosen = other.champion() if name == CHAMPION else other.read(name)
    if chosen is None:
        models = sorted(path.name for path in other.folder.parent.glob("*"))
        near = with_nearest(model, models) if models else "none"
        raise InputError(f"explorer.init_from: {start} is no release here. Models with releases: {near}")
    return without_start(config, chosen.served), chosen.id


class Releases:
    """The releases of one registered model, and the moves of its champion."""

    def __init__(self, home: Path, model: str) -> None:
        self.home, self.model = home, model
        self.folder = home / "releases" / model

    def moves(self) -> list[Move]:
        """Return every decision, the first one first; ArtifactError where the file is damaged."""
        path = self.folder / MOVES
        try:
            return [Move(**one) for one in json.loads(path.read_text(encoding="utf-8"))]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError) as problem:
            raise ArtifactError(f"{path} is damaged: {problem}. Put back a copy of it, or move it away") from None

    def champion(self) -> Release | None:
        """Return the release that answers now; None where none was promoted, ArtifactError where its folder is gone."""
        now = champion_of(self.moves())
        if now is not None and now not in (there := self.ids()):
            raise ArtifactError(
                f"the champion {now} of {self.model} is not in {self.folder}, with {', '.join(there) or 'none'}: "
                f"make one of these champion, kgqa promote CONF --to RELEASE. Without any, move {MOVES} away, and the "
                "next run makes a first champion"
            )
        return None if now is None else self.read(now)

    def ids(self) -> list[str]:
        """Return the releases that there are, the oldest first."""
        found = [path.parent for path in self.folder.glob(f"[!.]*/{MANIFEST}")]  # .*: half made
        return [folder.name for folder in sorted(found, key=lambda one: (read_manifest(one)["made"], one.name))]

    def read(self, name: str) -> Release:
        """Return the release of an id, or of its first characters; InputError with those that there are."""
        found = [one for one in self.ids() if one.startswith(name)]
        if len(found) != 1:
            what = f"{len(found)} releases begin with" if found else "there is no release"
            raise InputError(f"{what} {name!r} of {self.model}; there are {', '.join(self.ids()) or 'none'}")
        return Release(self.folder / found[0], **read_manifest(self.folder / found[0]))

    def make(self, config: RunConfig, pipeline: Pipeline, parent: str | None, kgqa: str) -> Release:
        """Pin what a finished run made, unless it is pinned; ``config``: as the user gave it."""
        stages = pinned_stages(pipeline)
        fingerprints = {key: artifact.fingerprint for key, artifact in stages.items()}
        explorer = next(one for one in stages.values() if one.recipe.stage == "explorer")
        card = card_of(config, explorer, stages["graph"], kgqa)
        name, old = release_id(fingerprints, card), release_id(fingerprints)
        with suppress(ArtifactError):  # there is none of the old name, or nobody can serve it
            if release_id(fingerprints, read_card(self.folder / old / SERVED)) == name:
                name = old
        folder = self.folder / name
        if not (folder / MANIFEST).is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(folder, ignore_errors=True)  # somebody deleted a part of it
            with written_whole(folder) as partial:
                for artifact in stages.values():
                    link_folder(artifact.folder, partial / ARTIFACTS / artifact.recipe.stage / artifact.fingerprint)
                write_served(partial / SERVED, card, explorer)
                manifest = dict(run=config.name, made_of=made_of(config, pipeline), parent=parent, stages=fingerprints)
                write_json(partial / MANIFEST, {**manifest, "made": now()})
        return self.read(folder.name)

    def restore(self, release: Release) -> list[str]:
        """Put back what a release needs and the artifact store has lost; return the keys of these stages.

        What the release lost, and the store has as it was, is put back there, too. Raises ArtifactError where the files
        of both are damaged, as one file is under two links, and where what is served is not what was trained.
        """
        lost = []
        for key, fingerprint in release.stages.items():
            stage = key.partition("-")[0]
            target, kept = (one / ARTIFACTS / stage / fingerprint for one in (self.home, release.folder))
            whole, faults = inspect_artifact(kept)
            if stored := read_artifact(target):
                if faults and whole and whole.content == stored.content:  # a disk lost it, and a run made it again
                    link_folder(target, kept)
                continue
            whole, faults = inspect_artifact(kept, whole=True)  # linked, the next run would take it for whole
            if whole is None or faults:
                raise damaged(release, kept / (faults or ["manifest.json"])[0])
            link_folder(kept, target)
            lost.append(key)
        trained = read_artifact(self.home / "artifacts" / "explorer" / release.explorer)
        for entry in trained.files if trained else ():  # what is served is a copy, of which no manifest tells
            copy = release.served / entry.name
            if entry.name in EXPLORER_FILES and not (copy.is_file() and hash_file(copy) == entry.sha256):
                raise damaged(release, copy)
        return lost

    def move(self, kind: MoveKind, to: str, why: str, *, expected: str | Literal["any"] | None = "any") -> Move | None:
        """Note a decision; None where nothing is to be moved, as ``to`` is champion already.

        Raises InputError where the champion is not the ``expected`` one: somebody moved it while this was decided.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(self.folder / "moves.lock", timeout=LOCK_SECONDS):
            moves = self.moves()
            before = champion_of(moves)
            if kind != "refused" and before == to:
                return None
            if expected not in ("any", before):
                raise InputError(
                    f"the champion of {self.model} is {before} now, and was {expected} when this was judged. Run again"
                )
            made = Move(kind, now(), why, before, to, announced=False)
            if kind == "refused" and moves and replace(moves[-1], when=made.when, told=False, announced=False) == made:
                return None  # the same refusal again
            self._write([*moves, made])
            return made

    def tell(self, shown: int) -> list[Move]:
        """Note that MLflow's aliases showed the last of the first ``shown`` moves; return all that there are by now."""
        with exclusive_lock(self.folder / "moves.lock", timeout=LOCK_SECONDS):
            moves = self.moves()
            self._write([replace(move, told=move.told or number < shown) for number, move in enumerate(moves)])
            return moves

    def take_unannounced(self) -> list[Move]:
        """Return the moves that the webhook was not told of, and note that it was: so none is announced twice."""
        with exclusive_lock(self.folder / "moves.lock", timeout=LOCK_SECONDS):
            moves = self.moves()
            self._write([replace(move, announced=True) for move in moves])
            return [move for move in moves if not move.announced]

    def _write(self, moves: Sequence[Move]) -> None:
        write_json(self.folder / MOVES, [asdict(move) for move in moves])

    def rolled_back(self, release: str) -> Move | None:
        """Return the move that took the championship from a release, unless it was promoted again since."""
        moves = [move for move in self.moves() if move.kind != "refused"]
        last = next((move for move in reversed(moves) if release in (move.from_release, move.to_release)), None)
        return last if last and last.kind == "rolled back" and last.from_release == release else None

    def last_challenger(self) -> str:
        """Return who was refused since the last promotion, or the newest; InputError where there is none."""
        if not (ids := self.ids()):
            raise InputError(f"there is no release of {self.model} yet: a run of a configuration with a gate makes one")
        last = next((move for move in reversed(self.moves()) if move.kind != "rolled back"), None)
        return last.to_release if last and last.kind == "refused" else ids[-1]

    def before_champion(self) -> str:
        """Return the release that a rollback returns to; InputError where there is none.

        That is the champion that the present one replaced; a second rollback goes one further back. Releases that were
        rolled back are passed over.
        """
        stack: list[str] = []
        for move in self.moves():
            if move.kind == "promoted":
                stack.append(move.to_release)
            elif move.kind == "rolled back":
                at = stack[::-1].index(move.to_release) if move.to_release in stack else None  # from the end
                stack = [*stack, move.to_release] if at is None else stack[: len(stack) - at]
        if not (before := [one for one in stack[:-1] if not self.rolled_back(one)]):
            why = "no champion before this one, but for any that were rolled back: there is nothing to return to"
            raise InputError(f"{self.model} had {why}. Another release: kgqa rollback CONF --to RELEASE")
        return before[-1]


def champion_of(moves: Sequence[Move]) -> str | None:
    """Return the release that is champion after some moves."""
    return next((move.to_release for move in reversed(moves) if move.kind != "refused"), None)


def damaged(release: Release, path: Path) -> ArtifactError:
    """Return the error of a release that is not whole."""
    return ArtifactError(
        f"the release {release.id} is damaged: {path} is missing or not as it was written. Take another release: "
        "--to RELEASE"
    )


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a release; ArtifactError where it is damaged."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return {name: found[name] for name in ("run", "made_of", "parent", "stages", "made")}
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise ArtifactError(f"the release {folder} is damaged: {problem}. Remove its folder, and run again") from None


def card_of(config: RunConfig, explorer: Artifact, graph: Artifact, kgqa: str) -> ServedCard:
    """Return what an explorer of a run needs where it is served."""
    return ServedCard(
        kgqa=kgqa,
        run=config.name,
        config_hash=config_hash(config),
        dataset=config.dataset.name,
        seed=int(explorer.recipe.config["seed"]),
        fingerprint=explorer.fingerprint,
        graph=graph.content,
        graph_fingerprint=graph.fingerprint,
        encoder=config.encoding,
        encoder_name=read_encoder_name(explorer),
        evaluation=config.evaluation,
        batch_size=config.runtime.batch_size,
    )


def link_folder(source: Path, target: Path) -> None:
    """Put a folder in the place of another, its files linked, or copied where the file system has no links."""

    def link(path: str, to: str) -> str:
        try:
            os.link(path, to)
        except OSError:
            shutil.copy2(path, to)
        return to

    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(target) as partial:
        shutil.copytree(source, partial, copy_function=link)


def now() -> str:
    """Return the time in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
