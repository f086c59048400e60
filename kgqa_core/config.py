"""Run configurations: strict models, and errors that say what is legal.

One YAML file is one complete run. Paths in it resolve against the file; ``${KGQA_DATA}`` and ``${KGQA_HOME}`` come
from the environment or from ``local.yaml`` beside the file (ignored by git), so a run file never names a machine.
Sections other than ``runtime``, ``cluster`` and ``tracking`` say what is computed and are hashed into the artifacts
that they shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from kgqa_core.config_base import (
    SHIPPED,
    EdgeBudget,
    EmbeddedDataset,
    FileDataset,
    FilePath,
    Name,
    PlansDataset,
    Section,
    Seeds,
    Share,
    Size,
)
from kgqa_core.config_lm import (
    PAPERS,
    DensePlannerSection,
    LmSection,
    OwnModelSection,
    PlansSection,
    ReasonerSection,
    Role,
    RolesSection,
)
from kgqa_core.config_systems import SystemsSection
from kgqa_core.errors import ConfigError
from kgqa_core.types import Split


class MiniLmSection(Section):
    """all-MiniLM-L6-v2 from the installed package."""

    kind: Literal["minilm"]


class LocalEncoderSection(Section):
    """Any local transformers folder with safetensors weights."""

    kind: Literal["local"]
    path: FilePath
    pooling: Literal["last", "first_last"] = "last"  # EtD: last layer; DualR: first and last


class HashEncoderSection(Section):
    """Hashed words and letter triples; for tests and as a lower bound."""

    kind: Literal["hash"]
    dim: Annotated[int, Field(ge=8)] = 256


EncoderSection = MiniLmSection | LocalEncoderSection | HashEncoderSection

PAPER = {
    "width": 256,
    "epochs": 30,
    "batch_size": 20,
    "learning_rate": 1e-4,
    "weight_decay": 1e-3,
    "warmup_steps": 0,
    "mask_topics": False,
    "loss": "per_answer",
    "prune_below": 0.0,
    "question_noise": 0.0,
    "init_attention": 1.0,
}
"""The defaults of ``variant: paper``: EtD appendix B.4, and what its equations say; K and L go by dataset."""


class ExplorerSection(Section):
    """The explorer (EtD §3.2) and its training."""

    variant: Literal["ours", "paper"] = "ours"  # paper: the defaults below become the papers' own, see PAPER
    steps: Annotated[int, Field(ge=1, le=8)]  # L
    width: Annotated[int, Field(ge=4)] = 64  # D
    edge_budget: Annotated[int, Field(ge=1)] = 40  # K: edges per head, whole (head, relation) groups
    epochs: Annotated[int, Field(ge=1)] | None = None  # None: until dev gains no more, and cpu_minutes at most
    cpu_minutes: Annotated[float, Field(gt=0)] = 2.0  # of one training, about: counted in edges, so always the same
    learn_dev: bool = False  # learn from dev questions as well, and choose nothing: few would choose by chance
    batch_size: Annotated[int, Field(ge=1)] = 32
    learning_rate: Annotated[float, Field(gt=0)] = 0.002
    warmup_steps: Annotated[int, Field(ge=0)] = 100
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    mask_topics: bool = True  # read questions with a placeholder where they name a topic
    loss: Literal["per_question", "per_answer"] = "per_question"  # one target per question, or a term per gold
    prune_after: Annotated[int, Field(ge=0)] = 100  # optimiser steps; from then on training does not enter groups
    prune_below: Share = 0.01  # of less attention than this, and explores again what lost its golds by it
    question_noise: Annotated[float, Field(ge=0)] = 0.6  # on encodings (of norm 1) in training: for unseen wordings
    patience: Annotated[int, Field(ge=1)] | None = None  # stop after so many epochs without a gain on dev
    precision: Literal["float32", "bfloat16"] = "float32"  # of matrix products in training
    init_from: FilePath | None = None  # start from this explorer: a run configuration, a folder, models:/NAME@champion
    init_attention: Share = 0.1  # factor on that explorer's attention weights, so that they can be unlearned; 1: as is
    also_train_on: Annotated[tuple[FilePath, ...], Field(strict=False)] = ()  # run configurations to learn from as well
    seeds: Seeds = (0,)  # one trained explorer per seed; the report shows their mean

    @model_validator(mode="before")
    @classmethod
    def _as_in_the_papers(cls, given: Any) -> Any:
        return {**PAPER, **given} if isinstance(given, dict) and given.get("variant") == "paper" else given


class EvaluationSection(Section):
    """What is scored and kept."""

    split: Split = "test"
    evidence_paths: Annotated[int, Field(ge=0)] = 3  # candidates per question whose evidence path is kept
    edge_budget: EdgeBudget | None = None  # K while answering, or all edges; by default what the checkpoint says
    passes: Annotated[int, Field(ge=1)] = 1  # how often all is answered: the fastest pass is what answering costs
    attention_threshold: Share | None = None  # groups of less attention are not entered; by default as the checkpoint


class GateSection(Section):
    """What a retrained release has to show before it takes the champion's place (docs/operations.md); in points."""

    systems: Annotated[tuple[str, ...], Field(strict=False)] = ()  # rows of the comparison that are judged as well
    share: Annotated[float, Field(ge=0, lt=1)] = 0.1  # of the questions that are not for testing: the gate's own split
    margin: Annotated[float, Field(gt=0, lt=3)] = 1.5  # lost at most, over all questions, where it may be chance
    slice_margin: Annotated[float, Field(gt=0)] = 10.0  # and in a slice; more where chance alone loses more
    min_slice: Annotated[int, Field(ge=1)] = 50  # questions of a slice that is judged
    min_gain: Annotated[float, Field(ge=0)] = 0.0  # of Hits@1 over the champion; 0: none is asked for
    min_lift: float = 0.0  # of Hits@1 over the template control: it has to be more than this
    max_seconds: Annotated[float, Field(gt=0)] = 5.0  # of any of 20 questions, asked in a fresh process
    max_memory: Size = "4GB"  # of that process
    max_cpu_hours: Annotated[float, Field(ge=0)] | None = None  # of the whole retraining; over it nothing is promoted
    max_gpu_hours: Annotated[float, Field(ge=0)] | None = None
    max_calls: Annotated[int, Field(ge=0)] | None = None  # that it pays of language models


class TrackingSection(Section):
    """MLflow. Where it lives is MLFLOW_TRACKING_URI, else sqlite under KGQA_HOME."""

    enabled: bool = True
    register_models: bool = True  # every new explorer becomes a version of the registered model kgqa-<run name>


class RuntimeSection(Section):
    """How and where the work is done; never part of a fingerprint."""

    home: FilePath  # artifacts, caches, servers: KGQA_HOME, see config_file.machine_paths
    threads: Annotated[int, Field(ge=1)] = 1  # of torch; batches are small, so a second thread costs more than it gives
    batch_size: Annotated[int, Field(ge=1)] = 256  # questions per inference batch; halved where memory asks for it
    memory_limit: Size = "2GB"  # of DuckDB
    device: Literal["auto", "cpu", "cuda"] = "auto"  # of training and answering; auto: a GPU where there is one
    processes: Annotated[int, Field(ge=1)] = 1  # that tune a language model together, each on a GPU of its own
    sharded: bool = False  # these divide its weights, gradients and moments (FSDP2), where all weights are tuned


class ClusterSection(Section):
    """Dask, on which shard-sized work runs where the input is large; never part of a fingerprint. docs/cluster.md."""

    address: Annotated[str, Field(min_length=1)] | None = None  # of a running scheduler, tcp://host:8786; None: local
    # Files of a scheduler that asks who one is, tls://host:8786: the authority, our certificate and its key.
    tls_ca: FilePath | None = None
    tls_cert: FilePath | None = None
    tls_key: FilePath | None = None
    workers: Annotated[int, Field(ge=1)] = 2  # of the local cluster: processes of one thread each
    memory_limit: Size = "2GB"  # per local worker: one that outgrows it is ended, and its task is tried again
    spill_folder: FilePath | None = None  # scratch space of local workers; None: run/dask in runtime.home
    fan_out_bytes: Annotated[int, Field(ge=1)] = 256 * 2**20  # inputs above this size go to the cluster
    fan_out_questions: Annotated[int, Field(ge=1)] = 20_000  # so many questions of a system go to the cluster

    @model_validator(mode="after")
    def _tls_is_whole(self) -> ClusterSection:
        given = [self.tls_ca, self.tls_cert, self.tls_key]
        if any(given) and not (all(given) and (self.address or "").startswith("tls://")):
            raise ValueError("tls_ca, tls_cert and tls_key go together, with an address that begins with tls://")
        return self


class RunConfig(Section):
    """One complete run."""

    name: Name  # of the run; by default the file's name
    dataset: Annotated[EmbeddedDataset | FileDataset | PlansDataset, Field(discriminator="source")]
    encoder: Annotated[EncoderSection, Field(discriminator="kind")] | None  # None: a dataset of plans has no graph
    explorer: ExplorerSection | None
    plans: PlansSection | None = None
    lm: Annotated[LmSection, Field(discriminator="kind")] | None = None
    roles: RolesSection = RolesSection()  # models that play single roles in its place, or adapters of it
    reasoner: ReasonerSection | None = None
    dense: DensePlannerSection | None = None
    prompts: FilePath | None = None  # a folder with wordings of one's own for some prompts, or all
    evaluation: EvaluationSection = EvaluationSection()
    systems: SystemsSection | None = None  # systems compared side by side; None: the explorer beside its controls
    gate: GateSection | None = None  # None: no release is judged, and nothing moves the alias champion
    tracking: TrackingSection = TrackingSection()
    cluster: ClusterSection = ClusterSection()
    runtime: RuntimeSection

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, given: Any) -> Any:
        dataset = given.get("dataset") if isinstance(given, dict) else None
        if isinstance(dataset, dict) and dataset.get("source") == "plans":
            return {"encoder": None, "explorer": None, **given}
        tuned, explorer = (given.get("reasoner"), given.get("explorer")) if dataset else (None, None)
        if isinstance(tuned, dict) and str(tuned.get("variant")) in PAPERS and isinstance(explorer, dict):
            return {**given, "explorer": {"mask_topics": False, **explorer}}  # RoG and EPERM read the question itself
        return given

    @model_validator(mode="after")
    def _fits_together(self) -> RunConfig:
        if fault := next(self._faults(), None):
            raise ValueError(fault)
        return self

    def _faults(self) -> Iterator[str]:
        planners = set(self.plans.planners) if self.plans else set()
        lm = self.lm
        if not isinstance(self.dataset, PlansDataset):
            yield from (f"missing key {name!r}" for name in ("encoder", "explorer") if getattr(self, name) is None)
        else:
            for name in ("encoder", "explorer", "systems"):
                if getattr(self, name) is not None:
                    what = "answer from" if name == "systems" else "explore"
                    yield f"{name}: a dataset of plans has no graph to {what}; leave it out"
            if self.plans is None:
                yield "missing key 'plans': a dataset of plans is for planners"
        if self.explorer and self.explorer.learn_dev and self.evaluation.split == "dev":
            cure = "set another evaluation.split, or explorer.learn_dev: false, which trains again"
            yield f"explorer.learn_dev: dev questions teach, so they cannot be scored; {cure}"
        if self.explorer and self.explorer.learn_dev and self.systems and self.systems.choose.grids:
            yield "explorer.learn_dev: dev questions teach, so nothing can be chosen on them; leave systems.choose out"
        if "generator" in planners and lm is None:
            yield "plans.planners: a generator needs a language model: give 'lm'"
        if "dense" in planners and self.dense is None:
            yield "plans.planners: give 'dense', how the dense planner is trained (an empty section will do)"
        if self.reasoner is not None and (lm is None or not lm.is_tunable):
            yield "reasoner: adapters are trained on a model that is here: lm.kind packaged or local"
        runtime = self.runtime
        if self.reasoner is not None and runtime.sharded and (self.reasoner.tuning != "full" or runtime.processes == 1):
            yield (
                "runtime.sharded divides a tuning of all weights over processes: give reasoner.tuning full and "
                f"runtime.processes 2 or more (now {self.reasoner.tuning} and {runtime.processes}), or leave it out"
            )
        if self.reasoner is not None and self.plans is None:
            yield "missing key 'plans': a reasoner learns from the relation paths that it says how to find"
        if lm is None and self.systems is not None and self.systems.is_answered_by("lm"):
            yield (
                "systems.answered_by: give 'lm', the language model that answers; or let one answer that needs no "
                "model: systems.answered_by: [oracle]"
            )
        if self.gate is not None:
            if isinstance(self.dataset, PlansDataset):
                yield "gate: a dataset of plans has no explorer to release; leave it out"
            elif isinstance(self.dataset, FileDataset) and self.dataset.subgraphs.method != "none":
                yield "gate: an explorer of subgraphs is not released, since a new question has none; leave it out"
            rows = self.systems.rows() if self.systems else {}
            if unknown := [name for name in self.gate.systems if name not in rows]:
                yield f"gate.systems = {unknown[0]}: the rows of systems are {', '.join(rows) or 'none'}"
            if self.systems and (apart := self.systems.choose.grids.keys() & set(self.gate.systems)):
                yield f"gate.systems = {min(apart)}: two releases may choose other settings; leave its grid out"
        rows_roles = (one.roles for one in self.systems.variants.values()) if self.systems else ()
        for role, own in (pair for roles in (self.roles, *rows_roles) for pair in roles):
            if not isinstance(own, OwnModelSection):
                continue
            where = f"roles.{role}.adapter = {own.adapter}"
            if isinstance(own.adapter, Path) and (lm is None or not lm.is_tunable):
                yield f"{where}: an adapter is put on a model that is here: lm.kind packaged or local"
            if own.adapter == SHIPPED and lm is not None and lm.kind != "packaged":
                yield f"{where}: the shipped adapter is for lm.kind packaged, not {lm.kind}"

    def player(self, role: Role, row: str = "") -> Any:
        """Return the section of the model that plays a role, in a row of the comparison or else in the run.

        Unless told otherwise it is an OwnModelSection: tuned, but for ``direct``, which shows what was known before.
        """
        variant = self.systems.variants.get(row) if self.systems else None
        told = (variant and getattr(variant.roles, role)) or getattr(self.roles, role)
        return told or OwnModelSection(kind="own", adapter="none" if role == "direct" else "tuned")

    @property
    def comparison(self) -> SystemsSection:
        """The section about systems; ConfigError in a run that compares none."""
        if self.systems is None:
            raise ConfigError(f"run {self.name!r} compares no systems: give its configuration a section 'systems'")
        return self.systems

    @property
    def exploration(self) -> ExplorerSection:
        """The explorer's section; ConfigError in a run without a graph."""
        if self.explorer is None:
            raise ConfigError(f"run {self.name!r} has no explorer: its dataset holds plans, and no graph")
        return self.explorer

    @property
    def encoding(self) -> EncoderSection:
        """The encoder's section; ConfigError in a run without a graph."""
        if self.encoder is None:
            raise ConfigError(f"run {self.name!r} has no encoder: its dataset holds plans, and no graph")
        return self.encoder
