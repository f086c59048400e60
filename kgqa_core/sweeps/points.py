"""From a sweep file to its points: one run configuration each, all of them checked before any runs."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kgqa_core.config import RunConfig
from kgqa_core.config_errors import explain
from kgqa_core.config_file import Setting, configure, machine_paths, parse_setting, read_yaml, resolve_paths
from kgqa_core.errors import ConfigError
from kgqa_core.sweeps.config import BASE, POINT, PointSection, SweepFile

MAX_NAME = 90  # characters of a run's name; files are named by it
DEFAULT = "default"  # how a setting without a value is shown


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One run of a sweep."""

    label: str  # "metaqa-3hop, train_size=100"
    place: Mapping[str, Any]  # dimension -> value
    config: RunConfig


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep file and all that it asks for."""

    name: str
    path: Path
    file: SweepFile
    points: tuple[SweepPoint, ...]

    @property
    def home(self) -> Path:
        """Where all of its runs keep their artifacts."""
        return self.points[0].config.runtime.home


def read_sweep(path: Path, overrides: Iterable[str] = ()) -> Sweep:
    """Read a sweep file and every run configuration that it asks for.

    Args:
        path: the YAML file; its paths, and those in ``overrides``, resolve against it.
        overrides: ``section.key=value`` settings for all runs; those that the sweep varies cannot be set.

    Raises:
        ConfigError: the sweep file, or a run that it asks for, is not usable; every problem is named.
    """
    raw = resolve_paths(read_yaml(path), SweepFile, path.parent.resolve(), machine_paths(path.parent))
    try:
        file = SweepFile.model_validate(raw)
    except ValidationError as problem:
        raise ConfigError(explain(problem, str(path), SweepFile)) from None
    given = [parse_setting(override, path.parent) for override in overrides]
    _refuse_varied(given, file)
    points = tuple(_points(path, file, given))
    homes = {str(point.config.runtime.home): point.label for point in points}
    if len(homes) > 1:
        raise ConfigError(f"{path}: its runs have several homes, {' and '.join(homes)}; set KGQA_HOME")
    return Sweep(path.stem, path, file, points)


def _points(path: Path, file: SweepFile, given: Sequence[Setting]) -> Iterator[SweepPoint]:
    sweeps = f"the sweep {path}"
    names = short_names(file.vary)
    # Of many points' explorers none is one to serve; --set tracking.register_models=true registers them all the same.
    fixed = [Setting("tracking.register_models", False, sweeps), *_settings(file.set, path, sweeps), *given]
    several: tuple[PointSection | None, ...] = file.points or (None,)
    seen: set[str] = set()
    for base, point, *values in itertools.product(file.base, several, *file.vary.values()):
        varied = dict(zip(file.vary, values, strict=True))
        everywhere = {BASE: base.stem, POINT: point.label if point else None} | varied
        place = {name: everywhere[name] for name in file.dimensions}
        label = ", ".join(
            f"{names[name]}={show_value(value)}" if name in names else str(value) for name, value in place.items()
        )
        if label in seen:
            raise ConfigError(f"{path}: two runs are both called {label!r}; say what they are in 'points', with labels")
        seen.add(label)
        here = f"{sweeps}, run {label!r}"
        own = _settings({**(point.set if point else {}), **varied}, path, here)
        named = Setting("name", _run_name(f"{path.stem} {label or base.stem}"), here)
        base = Path(os.path.normpath(base))
        config = configure(base, [*fixed, *own, named], source=f"{base}, with what {here} sets,")
        yield SweepPoint(label or base.stem, place, config)


def _settings(values: Mapping[str, Any], path: Path, source: str) -> list[Setting]:
    return [Setting(key, value, f"{source}: {key}", path.parent) for key, value in values.items()]


def _refuse_varied(given: Iterable[Setting], file: SweepFile) -> None:
    for setting in given:
        for key in (*file.vary, *(key for point in file.points for key in point.set)):
            if f"{setting.key}.".startswith(f"{key}."):
                raise ConfigError(f"{setting.source}: the sweep itself sets {key}; change it in the sweep's file")


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Return each setting's last part, or as many as tell it from the others."""
    keys = list(keys)
    short = {}
    for key in keys:
        parts = key.split(".")
        for count in range(1, len(parts) + 1):
            tail = ".".join(parts[-count:])
            if sum(f".{other}".endswith(f".{tail}") for other in keys) == 1:
                break
        short[key] = tail
    return short


def show_value(value: Any) -> str:
    """Return a setting's value in words: of a section its values, of a path its last part."""
    if value is None:
        return DEFAULT
    if isinstance(value, Mapping):
        return " ".join(show_value(item) for item in value.values())
    if isinstance(value, list | tuple):
        return "+".join(map(show_value, value))
    if isinstance(value, str) and "/" in value:
        return Path(value).stem
    return f"{value:g}" if isinstance(value, float) else str(value)


def _run_name(text: str) -> str:
    """Return a run's name: legal as a file's name, and short; two texts never share one."""
    name = re.sub(r"[/\\\x00-\x1f]", "_", text).strip()
    if name == text and len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{name[:MAX_NAME]} {digest}"
