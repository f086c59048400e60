"""The runs that a user names, for commands that compare what was evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kgqa_core.errors import ConfigError, InputError, nearest, shorten

if TYPE_CHECKING:
    from kgqa_core.run.pipeline import Pipeline

PREDICTIONS = "predictions.parquet"


def find_predictions(run: str) -> list[tuple[str, Path]]:
    """Return what to call the runs that a user named, and their predictions tables.

    One run is named by the folder of an evaluation, by a predictions table, or as CONF@SEED (of the explorer). A
    configuration that compares systems stands for all of them, CONF@SYSTEM for the seeds of one; any other for its
    explorer of the first seed.

    Raises:
        ConfigError: a configuration that cannot be read, or has no such seed or system.
        ArtifactError: a configuration whose evaluation is not done.
        InputError: no such file or folder.
    """
    path = Path(run)
    if path.is_dir():
        return [(run, path / PREDICTIONS)]
    if path.is_file() and not _is_configuration(path):
        return [(run, path)]
    base, at, part = run.rpartition("@")
    if at and not path.exists() and _is_configuration(Path(base)):
        return _evaluations(Path(base), part)
    if _is_configuration(path):
        return _evaluations(path, None)
    beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = nearest(path.name, beside)
    hint = f" (did you mean {path.with_name(near[0])}?)" if near else ""
    raise InputError(
        f"there is no run {shorten(run)}{hint}. A run is a configuration (conf/demo.yaml, conf/demo.yaml@1 or "
        "conf/demo.yaml@etd), the folder of an evaluation, or a predictions.parquet"
    )


def names_several(run: str) -> bool:
    """Say whether a name may stand for several runs: a configuration, which may compare systems, or one of those."""
    return _is_configuration(Path(run)) or _is_configuration(Path(run.rpartition("@")[0]))


def _is_configuration(path: Path) -> bool:
    return path.suffix in (".yaml", ".yml")


def _evaluations(conf: Path, part: str | None) -> list[tuple[str, Path]]:
    """Return the names and the predictions of a configuration's runs, or of the ``part`` of them that is named."""
    from kgqa_core.config_file import read_config
    from kgqa_core.run.pipeline import Pipeline

    pipeline = Pipeline(read_config(conf))
    systems = [key for key, spec in pipeline.specs.items() if spec.stage == "system"]
    seeds = [str(number) for number in pipeline.config.exploration.seeds]
    if part is None and systems:
        return [(f"{conf}@{_short(key)}", _predictions(pipeline, key)) for key in systems]
    chosen = [key for key in systems if part in (_short(key), _short(key).rpartition("-seed")[0])]
    if chosen:
        return [(f"{conf}@{_short(key)}", _predictions(pipeline, key)) for key in chosen]
    seed = seeds[0] if part is None else part
    if seed not in seeds:
        known = list(dict.fromkeys(_short(key).rpartition("-seed")[0] for key in systems))
        near = nearest(seed, known)
        more = f", and its systems are {', '.join(known)}" if known else ""
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"{conf} has no seed {shorten(seed)}; its explorer.seeds are {', '.join(seeds)}{more}{hint}")
    return [(f"{conf}@{seed}", _predictions(pipeline, f"evaluation-seed{seed}"))]


def _short(key: str) -> str:
    """Return the name of a system's stage as a user writes it: ``etd-oracle-seed0``."""
    return key.removeprefix("system-")


def _predictions(pipeline: Pipeline, key: str) -> Path:
    return pipeline.artifact(key).folder / PREDICTIONS
