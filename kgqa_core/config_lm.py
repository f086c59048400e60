"""The sections about language models: which one, how it is tuned, and the planners made of it."""

from __future__ import annotations

from datetime import date
from functools import reduce
from itertools import chain
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from kgqa_core.config_base import AdapterPath, Section, Seeds, Share, name_in, open_entry

Planner = Literal["generator", "dense"]

# Kind of language model -> its settings and how it is opened: an lm.types.ModelSection. A kind of your own is a
# module and a line here.
BACKENDS = {
    "packaged": "kgqa_core.lm.gguf:PackagedLmSection",
    "local": "kgqa_core.lm.types:LocalLmSection",
    "endpoint": "kgqa_core.lm.types:EndpointLmSection",
}
if TYPE_CHECKING:
    LmSection: TypeAlias = Any
else:  # their modules are light: they import what they open when they open it
    LmSection = reduce(or_, (open_entry(BACKENDS, kind, what="kind of lm") for kind in BACKENDS))

Role = Literal["plan", "score", "reason", "clues", "direct"]
ROLES: dict[Role, tuple[str, ...]] = {
    "plan": ("plan",),
    "score": ("score_relations", "score_entities", "enough_information"),
    "reason": ("reason", "explain", "choose"),
    "clues": ("extract_clues", "map_relations", "map_entities"),
    "direct": ("direct", "chain_of_thought"),
}
"""What a language model is asked as, and by which instructions. Any other instruction is asked of ``reason``."""


class OwnModelSection(Section):
    """The run's own model in one role: with the run's adapter, or with another one, or with none."""

    kind: Literal["own"]
    # none: the model before any tuning. tuned: what ``reasoner`` makes of it, else with the adapter that ``lm`` names.
    adapter: Annotated[Literal["none", "tuned"] | AdapterPath, Field(union_mode="left_to_right")] = "tuned"


if TYPE_CHECKING:
    RoleSection: TypeAlias = Any
else:
    RoleSection = Annotated[OwnModelSection | LmSection, Field(discriminator="kind")] | None


class RolesSection(Section):
    """Which language model plays each role. None: the run's own, tuned; untuned where it answers out of its head.

    So the lift over ``direct`` is what graph and tuning add.
    """

    plan: RoleSection = None
    score: RoleSection = None
    reason: RoleSection = None
    clues: RoleSection = None
    direct: RoleSection = None

    @model_validator(mode="before")
    @classmethod
    def _own_unless_told(cls, given: Any) -> Any:
        """Let ``{adapter: PATH}`` stand for the run's own model with that adapter."""
        if not isinstance(given, dict):
            return given
        return {role: {"kind": "own", **one} if isinstance(one, dict) else one for role, one in given.items()}


class PlansSection(Section):
    """Planning: supervision from the graph, planners, and how their plans are scored."""

    planners: Annotated[tuple[Planner, ...], Field(strict=False, min_length=1)] = ("generator",)
    supervision: Literal["best", "all_shortest", "precise"] = "best"  # which of the shortest paths teach
    precision_threshold: Share = 0.5  # t of EPERM Eq. 5, with supervision: precise
    num_plans: Annotated[int, Field(ge=1)] = 3  # per question
    only_existing: bool = True  # of what a language model says: held to paths around the topics; False: any text
    seeds: Seeds = (0,)  # each planner is trained, and scored, once per seed


OBJECTIVES: dict[str, dict[str, float]] = {
    "plan": {"plan": 1.0},
    "rog": {"plan": 1.0, "reason": 1.0},
    "eperm": {"plan": 1.0, "score_relations": 1.0, "score_entities": 1.0, "reason_scored": 1.0},
    "direct": {"direct": 1.0},
}
"""Instructions and their weights: RoG Eq. 7, EPERM Eq. 8 (find + reason), and the baseline without any graph."""

TAUGHT = sorted({"reason_scored", *chain(*ROLES.values())} - {"explain", "chain_of_thought"})  # these have targets
Taught = Annotated[str, AfterValidator(name_in(TAUGHT))]

_SHARED = {"batch_size": 4, "learning_rate": 2e-5, "warmup": 0.03, "tuning": "full", "keep": "last"}
PAPERS: dict[str, dict[str, Any]] = {
    "rog": {**_SHARED, "epochs": 3.0, "answers": "all", "wrong_plans": 0},
    "eperm": {**_SHARED, "epochs": 5.0, "objective": "eperm"},
}
"""The defaults of ``variant: rog`` (A.6) and ``variant: eperm`` (which gives its epochs alone; the rest as RoG).

EPERM's predictor is taught on pools with wrong plans: what it is asked at inference holds them, too.
"""


class ReasonerSection(Section):
    """Tuning of the language model on instructions (RoG Eq. 7, EPERM Eq. 8), on top of what ``lm`` names."""

    variant: Literal["ours", "rog", "eperm"] = "ours"  # a paper's: the defaults below become its own, see PAPERS
    objective: Literal["plan", "rog", "eperm", "direct"] = "rog"  # plan; plan + reason; find + reason; no graph at all
    instructions: dict[Taught, Annotated[float, Field(gt=0)]] | None = None  # with weights, not the objective's
    shares: dict[Taught, Share] = Field(default_factory=dict)  # instruction -> share of the questions; else all
    paths_per_question: Annotated[int, Field(ge=1)] = 3  # K: plans whose paths a reason example shows
    wrong_plans: Annotated[int, Field(ge=0)] = 2  # at most, shown among them: such as exist and miss; to select from
    meant_only: bool = False  # of paths that teach, only the one that the question's words mean; none by chance
    abstain: Share = 0.0  # share of the pools that show wrong plans alone
    max_paths: Annotated[int, Field(ge=1)] = 40  # reasoning paths shown per example
    num_candidates: Annotated[int, Field(ge=1, le=26)] = 3  # N of choose
    candidates: Literal["explorer", "pool"] = "explorer"  # of choose: out of fold, or ends of plans, right and wrong
    folds: Annotated[int, Field(ge=2)] = 5  # of choose: candidates come from explorers that did not see the question
    answers: Literal["shown", "all"] = "shown"  # what reason teaches: golds that its paths end at, or all (RoG)
    tuning: Literal["lora", "qlora", "full"] = "lora"  # an adapter; one over a base in four bits; all weights
    rank: Annotated[int, Field(ge=1)] = 16  # of LoRA's update
    alpha: Annotated[float, Field(gt=0)] = 32.0  # LoRA's update is scaled by alpha / rank
    dropout: Share = 0.0  # of what enters LoRA's update
    targets: Literal["all-linear"] | Annotated[tuple[str, ...], Field(strict=False)] = "all-linear"  # modules with one
    epochs: Annotated[float, Field(gt=0)] = 3.0
    max_steps: Annotated[int, Field(ge=1)] | None = None  # optimiser steps, in place of epochs
    batch_size: Annotated[int, Field(ge=1)] = 32  # examples per optimiser step, all processes together
    micro_batch: Annotated[int, Field(ge=1)] | None = None  # per forward pass; None: all of a process's share
    max_length: Annotated[int, Field(ge=8)] = 2048  # tokens of prompt and target; longer examples are counted out
    batching: Literal["buckets", "random"] = "buckets"  # of like length together, or as drawn
    learning_rate: Annotated[float, Field(gt=0)] = 5e-4
    lr_schedule: Literal["cosine", "linear", "constant_with_warmup"] = "cosine"
    warmup: Share = 0.03  # share of the steps
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    adam_beta2: Annotated[float, Field(gt=0, lt=1)] = 0.999
    gradient_norm: Annotated[float, Field(ge=0)] = 1.0  # gradients are clipped to it; 0: never
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # of matrix products; auto: bfloat16 on a GPU
    gradient_checkpointing: bool = False
    num_evaluations: Annotated[int, Field(ge=1)] = 3  # on dev, evenly over the training
    # The weights kept: of the evaluation with the least dev loss (instructions by share), or the last.
    keep: Literal["best", "last"] = "best"
    dev_examples: Annotated[int, Field(ge=1)] = 500  # per instruction, at most

    @model_validator(mode="before")
    @classmethod
    def _as_in_the_papers(cls, given: Any) -> Any:
        return {**PAPERS.get(str(given.get("variant")), {}), **given} if isinstance(given, dict) else given

    @property
    def mixture(self) -> dict[str, float]:
        """Instruction -> weight of its examples."""
        return OBJECTIVES[self.objective] if self.instructions is None else self.instructions


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
    spread: Share = 0.9  # how much a further plan has to serve neighbours that the plans before it miss
    num_unseen: Annotated[int, Field(ge=0)] = 8  # width of the beam for paths that no training question has
    unseen_penalty: Annotated[float, Field(ge=0)] = 3.0  # natural log: how much less probable than their text says


class Price(Section):
    """The price of one model, in the file's currency per million tokens."""

    input: Annotated[float, Field(ge=0)]
    output: Annotated[float, Field(ge=0)]
    as_of: date  # when it was looked up
    source: str = ""  # where

    def of(self, prompt_tokens: int, tokens: int) -> float:
        """Return what reading and giving so many tokens costs."""
        return (self.input * prompt_tokens + self.output * tokens) / 1_000_000


class Prices(Section):
    """The file ``conf/prices.yaml``. The calls of a model that is not there have no price."""

    currency: Annotated[str, Field(min_length=1)]
    models: Annotated[dict[str, Price], BeforeValidator(lambda given: given or {})]  # by the name that servers give
