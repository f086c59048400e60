"""Who answered the questions of a file: the system, whoever played its language model, and what both were given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core.errors import InputError, shorten
from kgqa_core.evaluation.predictions import GRAPH_KEY, SYSTEM_KEY

ABOUT_KEY = b"kgqa.about"  # of the Parquet schema's metadata
STAND_INS = ("random", "first")  # answerers that know nothing: what does not beat them is not the model's merit


@dataclass(frozen=True, slots=True)
class SystemSource:
    """Where the predictions of a system come from; kept in the file, so that it can be compared wherever it is."""

    graph: str  # content hash of the graph, whose ids the file is full of
    system: str  # as the configuration calls it: "rog"
    seed: int | None = None
    answered_by: str = ""  # lm, oracle, random, first; empty: the system asks no language model
    model: str = ""  # identity of that model, by content
    prompts: str = ""  # content hash of the prompts
    topics: str = "gold"  # where topic entities come from: gold, linked, none (the system uses none)
    pool: str = "none"  # hard: the right plan and wrong ones in place of what the system retrieves
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the system, JSON: {"num_candidates": 3}

    @property
    def row(self) -> str:
        """Return the name of its row in tables, which the runs of several seeds share: ``rog (oracle, hard pool)``."""
        return _named(self.system, self._notes())

    @property
    def name(self) -> str:
        """Return the name of the one run: ``rog (oracle, seed 1)``."""
        return _named(self.system, [*self._notes(), *([] if self.seed is None else [f"seed {self.seed}"])])

    def _notes(self) -> list[str]:
        """Return in words what is unusual about it."""
        player = [self.answered_by] if self.answered_by not in ("", "lm") else []
        pool = [f"{self.pool} pool"] if self.pool != "none" else []
        return [*player, *(["linked topics"] if self.topics == "linked" else []), *pool]

    def metadata(self) -> dict[bytes, bytes]:
        """Return what the Parquet schema carries; ``predictions.read_source`` reads graph and name of it."""
        about = json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)
        return {GRAPH_KEY: self.graph.encode(), SYSTEM_KEY: self.name.encode(), ABOUT_KEY: about.encode()}


def _named(system: str, notes: Sequence[str]) -> str:
    shown = "explorer alone" if system == "explorer" else system
    return f"{shown} ({', '.join(notes)})" if notes else shown


def read_system_source(path: Path) -> SystemSource | None:
    """Return who answered the questions of ``path``; None where the file is no system's.

    Raises:
        InputError: no readable Parquet file, or what it says of its source is damaged.
    """
    try:
        written = (pq.read_schema(path).metadata or {}).get(ABOUT_KEY)
        if written is None:
            return None
        known = json.loads(written)
        return SystemSource(**{name: known[name] for name in (one.name for one in fields(SystemSource))})
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{shorten(str(path))} is not readable as predictions: {shorten(str(error))}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{shorten(str(path))} does not say rightly which system it is of ({shorten(str(error))}); "
            "evaluate that system again"
        ) from error
