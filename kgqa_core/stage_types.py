"""One stage of a run, as the configuration describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Borrowed:
    """One stage of another run."""

    conf: Path  # its run configuration
    key: str


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One stage of a run, as the configuration describes it."""

    key: str  # unique in the run: "graph", "explorer-seed0"
    stage: str  # folder in the store
    section: Mapping[str, Any]  # what of the configuration shapes the artifact
    needs: tuple[str, ...] = ()  # keys of the stages it reads
    files: Mapping[str, Path] = field(default_factory=dict)  # external files it reads, by a name free of the machine
    borrows: Mapping[str, Borrowed] = field(default_factory=dict)  # stages of other runs that it reads, by such a name
