"""A local transformers folder of any causal language model, with an adapter or without."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kgqa_core.config_base import FilePath, ModelSection
from kgqa_core.lm.backends import Machine, Weights

if TYPE_CHECKING:
    from kgqa_core.lm.types import LanguageModel


class LocalLmSection(ModelSection):
    """A local transformers folder of any causal language model."""

    kind: Literal["local"]
    path: FilePath
    adapter: FilePath | None = None  # a folder in peft's format
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"  # auto: as config.json says
    quantise: Literal["none", "int8", "int4"] = "none"  # needs bitsandbytes and a GPU


class Local:
    """Opens it with transformers."""

    section = LocalLmSection
    is_made_here = False
    is_tunable = True

    def recipe(self, section: LocalLmSection) -> dict[str, Any]:
        """Return how its weights are read; the hashes of its files say the rest."""
        return section.model_dump(mode="json", exclude={"path", "adapter"})

    def weights(self, section: LocalLmSection, made: Path | None) -> Weights:
        """Return the folders that the section names."""
        return Weights(section.path, section.adapter)

    def open(self, section: LocalLmSection, weights: Weights | None, machine: Machine) -> LanguageModel:
        """Load it."""
        from kgqa_core.lm.local import open_local

        assert weights is not None
        return open_local(
            weights.folder,
            adapter=weights.adapter,
            dtype=section.dtype,
            quantise=section.quantise,
            device=machine.device(),
            hash_file=machine.hash_file,
        )

    def facts(self, section: LocalLmSection, weights: Weights | None, machine: Machine) -> dict[str, Any]:
        """Load and time it, where it fits the free memory."""
        from kgqa_core.lm.local import describe

        assert weights is not None
        found = describe(
            weights.folder,
            adapter=weights.adapter,
            dtype=section.dtype,
            quantise=section.quantise,
            device=machine.device(),
        )
        return {"kind": section.kind, **asdict(found)}

    def price_name(self, section: LocalLmSection) -> str:
        """Return nothing: it runs here."""
        return ""


BACKEND = Local()
