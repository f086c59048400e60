"""The sections about language models: which one, how it is tuned, and the planners made of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from kgqa_core.config_base import FilePath, Section, Seeds, Share
from kgqa_core.errors import ConfigError, shorten

Planner = Literal["generator", "dense", "mixture"]


class EmbeddedLmSection(Section):
    """The small model that the pipeline makes itself, of the graph and the training questions."""

    kind: Literal["embedded"]
    width: Annotated[int, Field(ge=8)] = 128  # D
    layers: Annotated[int, Field(ge=1)] = 4
    heads: Annotated[int, Field(ge=1)] = 4
    feed_forward: Annotated[float, Field(gt=0)] = 2.6875  # width of the layers' middle, in widths
    vocabulary: Annotated[int, Field(ge=300)] = 2048  # tokens at most, relations and frames of prompts included
    relations: Literal["single", "pieces"] = "single"  # a step of a plan is one token, or spelled like any text
    context: Annotated[int, Field(ge=32)] = 1024  # tokens of prompt and answer together
    train_on: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] = ("plan",)  # instructions it learns
    steps: Annotated[int, Field(ge=1)] = 250  # of the optimiser
    batch_size: Annotated[int, Field(ge=1)] = 64  # examples drawn per step
    flatten: Share = 0.5  # a prompt is drawn by its weight to this power: 1 as the data has it, 0 evenly
    learning_rate: Annotated[float, Field(gt=0)] = 3e-3
    warmup: Share = 0.05  # share of the steps
    weight_decay: Annotated[float, Field(ge=0)] = 0.05
    gradient_norm: Annotated[float, Field(gt=0)] = 1.0  # gradients are clipped to it
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> EmbeddedLmSection:
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise ValueError(f"width {self.width} must be an even number for each of {self.heads} heads")
        return self


class LocalLmSection(Section):
    """A local transformers folder of any causal language model."""

    kind: Literal["local"]
    path: FilePath
    adapter: FilePath | None = None  # a folder in peft's format
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"  # auto: as config.json says
    quantise: Literal["none", "int8", "int4"] = "none"  # needs bitsandbytes and a GPU


def _address(url: str) -> str:
    """Return the address of a server without a slash at its end.

    Raises:
        ConfigError: a part of it may be a secret, which pydantic's own error would repeat; or it is no address.
    """
    if any(sign in url for sign in "@?#"):
        raise ConfigError(
            "lm.url holds a user, a password, a query or a fragment. Put the key into an environment variable and its "
            "name into lm.key_variable"
        )
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise ConfigError(f"lm.url = {shorten(url)} is no address such as http://127.0.0.1:8000/v1")
    return url.rstrip("/")


def _additions(extra: dict[str, Any]) -> dict[str, Any]:
    own = {"model", "messages", "prompt", "stream", "n"}.intersection(extra)
    if own:
        raise ValueError(f"must be without {', '.join(sorted(own))}, which are set here")
    return extra


class EndpointLmSection(Section):
    """An OpenAI-compatible HTTP endpoint: vLLM, llama.cpp, Ollama and others."""

    kind: Literal["endpoint"]
    url: Annotated[str, AfterValidator(_address)]  # with its /v1: http://127.0.0.1:8000/v1
    model: str = ""  # as the server calls it; empty: the only one that it serves
    identity: str = ""  # stands for the url in the call store, where a model moves between hosts; say its revision too
    key_variable: str = ""  # environment variable that holds the key; empty: the server wants none
    api: Literal["chat", "completions"] = "chat"  # completions: no chat template; the only one that can score
    choices: Literal["none", "structured_outputs", "guided_choice", "grammar"] = "none"  # how constraints are passed on
    beams: bool = False  # does the server search with beams (vLLM's use_beam_search)?
    log_probs: bool = True  # ask for them
    context: Annotated[int, Field(ge=0)] = 0  # tokens of prompt and answer; 0: as the server tells
    limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    extra: Annotated[dict[str, Any], AfterValidator(_additions)] = Field(default_factory=dict)
    # ^ added to each request: chat_template_kwargs, top_k
    concurrency: Annotated[int, Field(ge=1)] = 8  # requests at a time
    attempts: Annotated[int, Field(ge=1)] = 5  # per request, the first included
    first_wait: Annotated[float, Field(ge=0)] = (
        0.5  # seconds before the second attempt, doubled before each further one
    )
    longest_wait: Annotated[float, Field(ge=0)] = 60.0  # seconds; a server that asks for more is not waited for
    connect_timeout: Annotated[float, Field(gt=0)] = 10.0  # seconds
    read_timeout: Annotated[float, Field(gt=0)] = 120.0  # seconds of silence
    total_timeout: Annotated[float, Field(gt=0)] = 600.0  # seconds per attempt, however slowly the bytes come


ENDPOINT_ANSWERS = {"kind", "model", "identity", "api", "choices", "beams", "context", "extra"}
"""Settings of an endpoint that may change what it says; the others are about how it is reached."""

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


class PhaseSection(Section):
    """A part of the training with a mixture of its own."""

    until: Annotated[float, Field(gt=0, le=1)]  # share of the optimiser steps after which it ends; the last ends at 1
    weights: dict[str, Annotated[float, Field(ge=0)]] = Field(
        default_factory=dict
    )  # instruction -> share drawn; empty: by number of examples

    @model_validator(mode="after")
    def _draws_something(self) -> PhaseSection:
        if self.weights and not sum(self.weights.values()):
            raise ValueError(f"the weights {self.weights} of a phase must not be all 0")
        return self


OBJECTIVES: dict[str, dict[str, float]] = {
    "plan": {"plan": 1.0},
    "rog": {"plan": 1.0, "reason": 1.0},
    "eperm": {"plan": 1.0, "score_relations": 1.0, "score_entities": 1.0, "reason": 1.0},
    "direct": {"direct": 1.0},
}
"""Instructions and their weights: RoG Eq. 7, EPERM Eq. 8 (find + reason), and the baseline without any graph."""

PAPERS: dict[str, dict[str, Any]] = {
    "rog": {"epochs": 3.0, "batch_size": 4, "learning_rate": 2e-5, "warmup": 0.03, "tuning": "full", "answers": "all"},
    "eperm": {
        "objective": "eperm",
        "epochs": 5.0,
        "batch_size": 4,
        "learning_rate": 2e-5,
        "warmup": 0.03,
        "tuning": "full",
    },
}
"""The defaults of ``variant: rog`` (A.6) and ``variant: eperm`` (which gives its epochs alone; the rest as RoG)."""


class ReasonerSection(Section):
    """Tuning of the language model on instructions (RoG Eq. 7, EPERM Eq. 8), on top of what ``lm`` names."""

    variant: Literal["ours", "rog", "eperm"] = "ours"  # a paper's: the defaults below become its own, see PAPERS
    objective: Literal["plan", "rog", "eperm", "direct"] = "rog"  # plan; plan + reason; find + reason; no graph at all
    instructions: dict[str, Annotated[float, Field(gt=0)]] | None = None  # instruction -> weight, not the objective's
    shares: dict[str, Share] = Field(default_factory=dict)  # instruction -> share of the questions; else all
    paths_per_question: Annotated[int, Field(ge=1)] = 3  # K: plans whose paths a reason example shows
    wrong_plans: Annotated[int, Field(ge=0)] = 0  # paths that do not teach, shown among them: to learn to select
    max_paths: Annotated[int, Field(ge=1)] = 40  # reasoning paths shown per example
    num_candidates: Annotated[int, Field(ge=1, le=26)] = 3  # N of choose
    folds: Annotated[int, Field(ge=2)] = (
        5  # of choose: its candidates come from explorers that did not see the question
    )
    answers: Literal["shown", "all"] = "shown"  # what reason teaches: golds that its paths end at, or all (RoG)
    tuning: Literal["lora", "full"] = "lora"
    rank: Annotated[int, Field(ge=1)] = 16  # of LoRA's update
    alpha: Annotated[float, Field(gt=0)] = 32.0  # LoRA's update is scaled by alpha / rank
    dropout: Share = 0.0  # of what enters LoRA's update
    targets: Literal["all-linear"] | Annotated[tuple[str, ...], Field(strict=False)] = "all-linear"  # modules with one
    path_tokens: bool = False  # make <PATH>, <SEP> and </PATH> single tokens where they are not
    epochs: Annotated[float, Field(gt=0)] = 3.0
    max_steps: Annotated[int, Field(ge=1)] | None = None  # optimiser steps, in place of epochs
    batch_size: Annotated[int, Field(ge=1)] = 32  # examples per optimiser step, all processes together
    micro_batch: Annotated[int, Field(ge=1)] | None = None  # per forward pass; None: all of a process's share
    max_length: Annotated[int, Field(ge=8)] = 2048  # tokens of prompt and target; longer examples are counted out
    batching: Literal["buckets", "packed", "random"] = "buckets"
    learning_rate: Annotated[float, Field(gt=0)] = 5e-4
    lr_schedule: Literal["cosine", "linear", "constant_with_warmup"] = "cosine"
    warmup: Share = 0.03  # share of the steps
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    adam_beta2: Annotated[float, Field(gt=0, lt=1)] = 0.999
    gradient_norm: Annotated[float, Field(ge=0)] = 1.0  # gradients are clipped to it; 0: never
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # of matrix products; auto: bfloat16 on a GPU
    gradient_checkpointing: bool = False
    phases: Annotated[tuple[PhaseSection, ...], Field(strict=False)] = ()  # such as planning first; empty: one
    loss_mean: Literal["token", "example"] = "token"  # what counts the same: each target token, or each target
    keep: Literal["last", "best"] = "last"  # best: of the lowest loss on dev
    num_evaluations: Annotated[int, Field(ge=1)] = 3  # on dev, evenly over the training
    dev_examples: Annotated[int, Field(ge=1)] = 500  # per instruction, at most

    @model_validator(mode="after")
    def _phases_follow_each_other(self) -> ReasonerSection:
        ends = [phase.until for phase in self.phases]
        if ends and (ends != sorted(set(ends)) or ends[-1] != 1):
            raise ValueError(f"phases end at {ends}: each must end later than the one before, the last at 1")
        return self

    @model_validator(mode="before")
    @classmethod
    def _as_in_the_papers(cls, given: Any) -> Any:
        return {**PAPERS.get(str(given.get("variant")), {}), **given} if isinstance(given, dict) else given

    @property
    def mixture(self) -> dict[str, float]:
        """Instruction -> weight of its examples."""
        return OBJECTIVES[self.objective] if self.instructions is None else self.instructions

    @property
    def mixtures(self) -> tuple[PhaseSection, ...]:
        """The phases; without any, one of every instruction by its number of examples (RoG Eq. 7, EPERM Eq. 8).

        The baseline that needs no graph does not read plans, which may be there for a model that is made here.
        """
        baseline = self.mixture if self.objective == "direct" else {}
        return self.phases or (PhaseSection(until=1.0, weights=baseline),)


class DensePlannerSection(Section):
    """The dense planner: questions and relation paths as vectors of one text encoder. Defaults: see docs/results.md."""

    members: Annotated[int, Field(ge=1)] = 1  # encoders trained from different seeds, and averaged
    epochs: Annotated[float, Field(gt=0)] = 4.0  # passes over the training questions, of each member
    max_steps: Annotated[int, Field(ge=1)] | None = None  # optimiser steps of a member at most; None: no limit
    batch_size: Annotated[int, Field(ge=1)] = 32  # questions
    learning_rate: Annotated[float, Field(gt=0)] = 2e-4  # of the encoder's upper layers
    path_learning_rate: Annotated[float, Field(gt=0)] = 5e-3  # of the free part of the path vectors
    warmup: Share = 0.1  # share of the steps
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    dropout: Share = 0.1  # in the upper layers
    frozen_layers: Annotated[int, Field(ge=0)] = 3  # lower layers of the encoder that stay as they are
    max_tokens: Annotated[int, Field(ge=8)] = 48  # of a question or a path; longer ones are cut
    scale: Annotated[float, Field(gt=0)] = 20.0  # of the cosine of question and path
    neighbour_weight: Annotated[float, Field(ge=0)] = 1.0  # of the neighbours' vote beside a path's own probability
    neighbour_temperature: Annotated[float, Field(gt=0)] = 0.05  # of the cosine of two questions
    neighbour_loss: Annotated[float, Field(ge=0)] = 0.0  # weight of the loss of the neighbours' vote
    spread: Share = 0.9  # how much a further plan has to serve neighbours that the plans before it miss
    num_unseen: Annotated[int, Field(ge=0)] = 8  # width of the beam for paths that no training question has
    guess_unseen: bool = False  # propose such paths also where no graph tells that they exist
    unseen_penalty: Annotated[float, Field(ge=0)] = 3.0  # natural log: how much less probable than their text says
