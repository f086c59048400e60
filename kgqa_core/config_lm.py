"""The sections about language models: which one, how it is tuned, and the planners made of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kgqa_core.config_base import FilePath, Section, Seeds, Share

Planner = Literal["generator", "dense", "mixture"]


class EmbeddedLmSection(Section):
    """The small model that the pipeline makes itself, of the graph and the training questions."""

    kind: Literal["embedded"]
    width: Annotated[int, Field(ge=16)] = 128  # D
    layers: Annotated[int, Field(ge=1)] = 4
    heads: Annotated[int, Field(ge=1)] = 4
    seed: Annotated[int, Field(ge=0)] = 0


class LocalLmSection(Section):
    """A local transformers folder of any causal language model."""

    kind: Literal["local"]
    path: FilePath
    adapter: FilePath | None = None  # a folder in peft's format
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"  # auto: as config.json says
    quantise: Literal["none", "8bit", "4bit"] = "none"  # needs bitsandbytes and a GPU


class EndpointLmSection(Section):
    """An OpenAI-compatible HTTP endpoint: vLLM, llama.cpp, Ollama and others."""

    kind: Literal["endpoint"]
    url: Annotated[str, Field(pattern=r"^https?://")]  # with its /v1
    model: Annotated[str, Field(min_length=1)]


LmSection = EmbeddedLmSection | LocalLmSection | EndpointLmSection


class PlansSection(Section):
    """Planning: supervision from the graph, planners, and how their plans are scored."""

    planners: Annotated[tuple[Planner, ...], Field(strict=False, min_length=1)] = ("generator",)
    supervision: Literal["best", "all_shortest", "precise"] = "best"  # which of the shortest paths teach
    precision_threshold: Share = 0.5  # t of EPERM Eq. 5, with supervision: precise
    num_plans: Annotated[int, Field(ge=1)] = 3  # per question
    seeds: Seeds = (0,)  # each planner is trained, and scored, once per seed

    @property
    def trained(self) -> set[Planner]:
        """The planners that are needed: a mixture needs both others."""
        return {*self.planners, *(("generator", "dense") if "mixture" in self.planners else ())}


class ReasonerSection(Section):
    """Adapters on the language model, trained on instructions (RoG Eq. 7, EPERM Eq. 8)."""

    objective: Literal["rog", "eperm", "direct"] = "rog"
    tuning: Literal["lora", "full"] = "lora"
    epochs: Annotated[float, Field(gt=0)] = 3.0


class DensePlannerSection(Section):
    """The dense planner: a bi-encoder over relation paths."""

    epochs: Annotated[int, Field(ge=1)] = 3
