"""Where language models come from: a module per kind, with its settings and its backend. ``config_lm`` has the table.

The modules are imported with the configuration, so they import torch, transformers and httpx only when they open
something.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kgqa_core.config_base import ModelSection

if TYPE_CHECKING:
    from kgqa_core.lm.types import LanguageModel


@dataclass(frozen=True, slots=True)
class Weights:
    """The files of a model that is on this machine."""

    folder: Path  # as transformers saves it
    adapter: Path | None = None  # in peft's format


@dataclass(frozen=True, slots=True)
class Machine:
    """What opening a model may ask of the machine."""

    device: Callable[[], str]  # "cpu" or "cuda"; loads torch
    hash_file: Callable[[Path], str]  # from memory where a file did not change


class Backend(Protocol):
    """One kind of language model. Each method gets the section of the configuration that it is the backend of."""

    @property
    def section(self) -> type[ModelSection]:
        """Its settings."""

    @property
    def is_made_here(self) -> bool:
        """Is it made by the run, in the stage ``lm``, of the plans that it is to find?"""

    @property
    def is_tunable(self) -> bool:
        """Can adapters be trained on it?"""

    def recipe(self, section: Any) -> dict[str, Any]:
        """Return the settings that may change what it says, its files apart; empty where a stage makes it."""

    def weights(self, section: Any, made: Path | None) -> Weights | None:
        """Return its files: those of the configuration, or ``made`` by the run; None where it is elsewhere."""

    def open(self, section: Any, weights: Weights | None, machine: Machine) -> LanguageModel:
        """Open it on ``weights``, which may have been tuned since. Raises InputError where it cannot be used."""

    def facts(self, section: Any, weights: Weights | None, machine: Machine) -> dict[str, Any]:
        """Return what ``kgqa lm-info`` prints. Raises as ``open``."""

    def price_name(self, section: Any) -> str:
        """Return what the list of prices calls it; empty where asking it costs no money."""
