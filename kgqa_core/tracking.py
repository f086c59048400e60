"""What a stage recorded while it ran, at rest as ``tracking.json`` inside its artifact.

The record travels with the artifact, so a tracker can be told about a stage long after it ran: a skipped stage still
shows its figures, and a tracker that was away is caught up. Nothing here knows which tracker that is.
"""

from __future__ import annotations

import json
import math
import posixpath
import re
import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from pydantic import TypeAdapter, ValidationError

from kgqa_core.errors import ArtifactError, KgqaError, shorten

FILE_NAME = "tracking.json"

Param = str | int | float | bool | None
Point = tuple[int, float, int]
"""One point of a curve: step, value, milliseconds since the epoch at which it was measured."""

# What every tracker we know accepts as a name; '@' and '%' are not among it, so Hits@1 is recorded as hits1.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-. /]{0,199}")
MAX_FAULTS_SHOWN = 3
HOP_METRIC = re.compile(r"(?:(?P<series>.+)[./])?(?P<metric>[^./]+)[./]hop(?P<hops>\d+)")


@dataclass(frozen=True, slots=True)
class TrackingRecord:
    """Everything one stage has to say about itself; ``system`` and ``seed`` are None where it works for all systems."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True, "allow_inf_nan": False}

    stage: str  # e.g. "train_explorer"
    fingerprint: str  # of the artifact that holds this record
    system: str | None = None
    seed: int | None = None
    params: dict[str, Param] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)  # final figures; shares are in percent
    curves: dict[str, list[Point]] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)  # name -> Parquet file inside the artifact folder
    started_ms: int = 0  # milliseconds since the epoch
    ended_ms: int = 0


def write_record(folder: Path, record: TrackingRecord) -> Path:
    """Write ``record`` as ``folder/tracking.json`` and return that path; ``ArtifactError`` for NaN or a wrong type."""
    path = folder / FILE_NAME
    try:
        text = json.dumps(asdict(record), allow_nan=False, sort_keys=True, ensure_ascii=False)
    except (TypeError, ValueError) as problem:
        raise ArtifactError(f"Stage {record.stage!r} recorded something that JSON cannot hold: {problem}.") from problem
    _parse(text, path)  # refuse now what could not be read later
    path.write_text(text + "\n", encoding="utf-8")
    return path


def read_record(folder: Path) -> TrackingRecord:
    """Return the record of the artifact in ``folder``; ``ArtifactError`` where it is missing or damaged."""
    path = folder / FILE_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        cure = "Remove the artifact folder; the next run rebuilds it."
        raise ArtifactError(f"Cannot read {str(path)!r}: {problem}. {cure}") from problem
    return _parse(text, path)


_adapter = cache(lambda: TypeAdapter(TrackingRecord))  # late: building it costs more than reading a record


def _parse(text: str, path: Path) -> TrackingRecord:
    try:
        return _adapter().validate_json(text)
    except ValidationError as problem:
        faults = [
            f"{'.'.join(map(str, fault['loc'])) or 'the file'}: {fault['msg']}, given {shorten(fault['input'], 60)}"
            for fault in problem.errors(include_url=False)[:MAX_FAULTS_SHOWN]
        ]
        raise ArtifactError(
            f"{str(path)!r} is no record of a stage ({problem.error_count()} faults): {'; '.join(faults)}."
        ) from problem


class Recorder:
    """Collects a stage's figures while it runs; ``record`` turns them into a ``TrackingRecord``.

    Every method raises ``KgqaError`` on a name that trackers refuse, and on a figure that is no finite number: a loss
    that became NaN should stop the stage where it happened, not at its end.
    """

    def __init__(self, stage: str, *, system: str | None = None, seed: int | None = None) -> None:
        self._so_far = TrackingRecord(stage, "", system, seed, started_ms=_now())

    def param(self, name: str, value: Param) -> None:
        """Record a setting that the stage ran with."""
        self._so_far.params[_legal(name)] = value

    def metric(self, name: str, value: float) -> None:
        """Record a final figure."""
        self._so_far.metrics[_legal(name)] = _finite(name, value)

    def metrics(self, report: Any, *names: str, prefix: str = "") -> None:
        """Record figures that a report has as attributes, or a mapping as values: all of them where none is named."""
        for name in names or report:
            self.metric(f"{prefix}{name}", report[name] if isinstance(report, Mapping) else getattr(report, name))

    def curve(self, name: str, step: int, value: float) -> None:
        """Record one point of a figure that changes while the stage runs."""
        point = (int(step), _finite(f"{name}, step {step}", value), _now())
        self._so_far.curves.setdefault(_legal(name), []).append(point)

    def curves(self) -> dict[str, list[Point]]:
        """Return the curves recorded so far."""
        return {name: list(points) for name, points in self._so_far.curves.items()}

    def restore_curves(self, curves: dict[str, list[Point]]) -> None:
        """Go on with the curves of a stage that was killed; points come back from JSON as lists."""
        self._so_far.curves.clear()
        for name, points in curves.items():
            self._so_far.curves[_legal(name)] = [(int(step), value, int(ms)) for step, value, ms in points]

    def table(self, name: str, file_name: str) -> None:
        """Record that ``file_name`` in the artifact folder is a Parquet table worth showing."""
        self._so_far.tables[_legal(name)] = file_name

    def record(self, fingerprint: str) -> TrackingRecord:
        """Return all that was recorded so far, ended now."""
        return replace(deepcopy(self._so_far), fingerprint=fingerprint, ended_ms=_now())


def _now() -> int:
    return round(time.time() * 1000)


def _legal(name: str) -> str:
    if not NAME.fullmatch(name) or posixpath.normpath(name) != name:
        raise KgqaError(
            f"{shorten(name)} cannot name a recorded figure: letters, digits, '_', '-', '.', ' ' and '/' are legal, "
            "up to 200 of them."
        )
    return name


def _finite(name: str, value: float) -> float:
    if math.isfinite(value):
        return float(value)
    raise KgqaError(f"{name} became {value!r}, and only finite numbers are recorded. Is the learning rate too high?")


def hop_metric(metric: str, hops: int | str) -> str:
    """Return the name of ``metric`` over the questions of ``hops`` hops; ``HOP_METRIC`` takes such names apart."""
    return f"{metric}.hop{hops}"


def answers_metric(metric: str, bucket: str) -> str:
    """Return the name of ``metric`` over one bucket of numbers of answers: ``hits1.answers2-4``, ``answers10-up``."""
    return f"{metric}.answers{f'{bucket[2:]}-up' if bucket.startswith('>=') else bucket}"
