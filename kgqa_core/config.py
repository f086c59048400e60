"""Run configurations: strict models, and errors that say what is legal.

One YAML file is one complete run. Paths in it resolve against the file; ``${KGQA_DATA}`` and ``${KGQA_HOME}`` come
from the environment or from ``local.yaml`` beside the file (ignored by git), so a run file never names a machine.
Sections other than ``runtime``, ``cluster`` and ``tracking`` say what is computed and are hashed into the artifacts
that they shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from kgqa_core.config_base import (
    EdgeBudget,
    FilePath,
    Hops,
    Name,
    Section,
    Seeds,
    Share,
    Size,
    name_in,
    open_entry,
)
from kgqa_core.config_lm import BACKENDS, DensePlannerSection, LmSection, PlansSection, ReasonerSection
from kgqa_core.config_systems import SystemsSection
from kgqa_core.errors import ConfigError
from kgqa_core.types import Split

# Format of triples -> what reads it (a graph.formats.GraphFormat). A format of your own is a module and a line here.
GRAPH_FORMATS = {
    "wikimovies": "kgqa_core.graph.formats:WIKIMOVIES",
    "tsv": "kgqa_core.graph.formats:TSV",
    "csv": "kgqa_core.graph.formats:CSV",
    "parquet": "kgqa_core.graph.formats:PARQUET",
    "nsm": "kgqa_core.graph.nsm:FORMAT",
    "rog": "kgqa_core.graph.rog:FORMAT",
    "rdf": "kgqa_core.graph.rdf:FORMAT",
}
if TYPE_CHECKING:
    GraphFormatName = str
else:
    GraphFormatName = Literal[tuple(GRAPH_FORMATS)]


class GraphSection(Section):
    """The triples."""

    format: GraphFormatName
    path: FilePath | None = None  # left out with formats nsm and rog alone: the question files hold the triples
    names: FilePath | None = None  # label -> name, where triples use ids; several labels may share a name
    inverse_suffix: Annotated[str, Field(min_length=1)] | None = None  # X + suffix is X walked backwards
    max_reject_ratio: Share = 0.001  # more rejected lines than this share stop the build

    @model_validator(mode="after")
    def _has_source(self) -> GraphSection:
        if self.path is None and self.format not in ("nsm", "rog"):
            raise ValueError("give 'path'; only triples of format nsm or rog may come from the question files instead")
        return self


class FreebaseSection(Section):
    """A dump of Freebase. The graph is what the questions' topics reach in it."""

    format: Literal["freebase"]
    path: FilePath  # N-Triples, gzipped or plain: one file, or a folder of *.nt and *.gz
    hops: Annotated[int, Field(ge=1, le=9)] | None = 2  # steps from a topic; None: the whole dump
    cvt_is_hop: bool = True  # does a step to a CVT node count?
    hub_cap: Annotated[int, Field(ge=1)] | None = None  # triples per (entity, relation, direction) that are walked
    language: Annotated[str, Field(pattern=r"^[a-z]{2,3}$")] = "en"  # of names and of literals that have one
    keep_types: bool = False  # are type.object.type triples walked as well?
    noise: Annotated[tuple[str, ...], Field(strict=False)] | None = None  # prefixes of relations left out; None: ours
    max_reject_ratio: Share = 0.001


# Format of questions -> what reads it (a questions.formats.QuestionFormat). Your own is a module, and a line here.
QUESTION_FORMATS = {
    "metaqa": "kgqa_core.questions.metaqa:FORMAT",
    "jsonl": "kgqa_core.questions.jsonl:FORMAT",
    "nsm": "kgqa_core.questions.nsm:FORMAT",
    "wc2014": "kgqa_core.questions.wc2014:FORMAT",
    "webqsp": "kgqa_core.questions.webqsp:FORMAT",
    "cwq": "kgqa_core.questions.webqsp:CWQ",
    "webquestions": "kgqa_core.questions.webqsp:WEBQUESTIONS",
    "mooc": "kgqa_core.questions.mooc:FORMAT",
    "rog": "kgqa_core.questions.nsm:ROG",
}


class QuestionSection(Section):
    """The questions."""

    format: Annotated[str, AfterValidator(name_in(QUESTION_FORMATS))]
    path: FilePath | None = None  # a folder of splits, or one file to be split 80/10/10
    files: Annotated[dict[Split, FilePath], Field(min_length=1)] | None = None  # or one file per split
    hops: Hops | None = None  # MetaQA and WorldCup2014: which of their folders or files 1-hop, 2-hop, 3-hop
    variant: Literal["official", "etd", "rog"] = "official"  # WebQSP and CWQ: which questions, in which splits
    dev_ids: FilePath | None = None  # of a variant: the training questions that are its dev split; None: drawn by hash
    max_reject_ratio: Share = 0.001
    train_size: Annotated[int, Field(ge=1)] | None = None  # training questions, drawn at random; None: all
    hold_out_templates: Annotated[float, Field(gt=0, lt=1)] | None = None  # share of masked texts that only test asks
    draw: Annotated[int, Field(ge=0)] = 0  # the seed of both

    @model_validator(mode="after")
    def _one_source(self) -> QuestionSection:
        if (self.path is None) == (self.files is None):
            raise ValueError("give either 'path' or 'files'")
        if self.hops is not None and not self._format.has_hops:
            raise ValueError(
                "'hops' chooses folders of MetaQA or files of WorldCup2014; leave it out for another format"
            )
        if self.variant != "official" and not self._format.has_variants:
            raise ValueError("'variant' is one of WebQSP or ComplexWebQuestions; leave it out for another format")
        if self.dev_ids is not None and self.variant == "official":
            raise ValueError("'dev_ids' is the dev split of a variant: say 'variant: etd' or 'variant: rog' as well")
        return self

    @property
    def _format(self) -> Any:
        """The format's module is imported where a setting goes with some formats only."""
        return open_entry(QUESTION_FORMATS, self.format, what="question format")


def _as_section(given: Any) -> Any:
    return {"method": given} if isinstance(given, str) else given


class SubgraphSection(Section):
    """A subgraph for each question, to explore instead of the graph. A word stands for a section with that method."""

    method: Literal["none", "question", "expand", "pagerank"] = "none"  # question: what its file gives it; else cut
    hops: Annotated[int, Field(ge=1, le=9)] = 2  # k: steps from the topics, in both directions
    group_cap: Annotated[int, Field(ge=1)] | None = 200  # triples walked per (entity, relation, direction); None: all
    cvt_is_hop: bool = True  # does a step to a CVT node count? (graphs of format freebase know them)
    drop_relations: Annotated[
        tuple[str, ...], Field(strict=False)
    ] = ()  # labels, or starts of labels with a last . or /
    max_triples: Annotated[int, Field(ge=1)] | None = (
        None  # of one question: walking ends with the entity that has more
    )
    max_entities: Annotated[int, Field(ge=1)] | None = None  # pagerank keeps so many per question; None: 2,000, as NSM

    @property
    def is_cut(self) -> bool:
        """Are they cut from the graph?"""
        return self.method in ("expand", "pagerank")

    @model_validator(mode="after")
    def _says_what_counts(self) -> SubgraphSection:
        others = [name for name in type(self).model_fields if name not in ("method", "max_entities")]
        changed = [name for name in others if getattr(self, name) != type(self).model_fields[name].default]
        if not self.is_cut and changed:
            raise ValueError("settings of subgraphs that are cut go with 'method: expand' or 'method: pagerank'")
        if self.method != "pagerank" and self.max_entities is not None:
            raise ValueError("'max_entities' goes with 'method: pagerank'")
        return self


class DriftSection(Section):
    """How much a new build may differ from the last one before a run stops; None: not checked."""

    max_triples_change: Annotated[float, Field(ge=0)] | None = 0.2  # that came or went, as a share of the last build's
    max_entities_change: Annotated[float, Field(ge=0)] | None = 0.2
    max_relation_change: Annotated[float, Field(ge=0)] | None = 0.5  # of one relation's triples
    relation_min_triples: Annotated[int, Field(ge=1)] = 1000  # relations that had fewer are not checked
    max_questions_change: Annotated[float, Field(ge=0)] | None = 0.2  # that came, went or were reworded
    max_coverage_drop: Annotated[float, Field(ge=0)] | None = 5.0  # points: questions with an answer within reach
    max_name_coverage_drop: Annotated[float, Field(ge=0)] | None = 5.0  # points: entities with a name
    min_changed: Annotated[int, Field(ge=0)] = 100  # fewer changed triples, entities or questions pass at any share


def _only_zero(seed: int) -> int:
    if seed:
        raise ValueError("must be 0: the dataset comes as files, and is no longer drawn from a seed. Leave it out")
    return seed


class EmbeddedDataset(Section):
    """The demo's small dataset, which the package carries."""

    name: Name
    source: Literal["embedded"]
    seed: Annotated[int, AfterValidator(_only_zero)] = 0
    reenter_topic: bool = False


class FileDataset(Section):
    """A graph and questions from files."""

    name: Name  # the MLflow experiment
    source: Literal["files"]
    graph: Annotated[GraphSection | FreebaseSection, Field(discriminator="format")]
    questions: QuestionSection
    reenter_topic: bool = False  # may a path come back to a topic entity? (on MetaQA 3-hop only "no" keeps golds exact)
    subgraphs: Annotated[SubgraphSection, BeforeValidator(_as_section)] = SubgraphSection()
    drift: DriftSection | None = DriftSection()  # None: whatever changes, runs go on

    @model_validator(mode="after")
    def _fits_together(self) -> FileDataset:
        if self.graph.path is None and self.questions.format != self.graph.format:
            raise ValueError("graph: give 'path'; only questions of its own format, nsm or rog, hold triples")
        if self.subgraphs.method == "question" and self.graph.path is not None:
            raise ValueError("subgraphs: 'question' needs graph: {format: nsm} or {format: rog}, without a path")
        return self


class PlansDataset(Section):
    """Questions with the relation paths that answer them, from files; no graph."""

    name: Name
    source: Literal["plans"]
    plan_files: Annotated[dict[Split, FilePath], Field(min_length=1)]  # JSON lines: id, question, relation_paths
    max_reject_ratio: Share = 0.001
    reenter_topic: Literal[False] = False  # paths are as the files have them


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
"""The defaults of ``variant: paper``: EtD appendix C.1, and what its equations say; K and L go by dataset."""


class ExplorerSection(Section):
    """The explorer (EtD §3.2) and its training."""

    variant: Literal["ours", "paper"] = "ours"  # paper: the defaults below become the papers' own, see PAPER
    steps: Annotated[int, Field(ge=1, le=8)]  # L
    width: Annotated[int, Field(ge=4)] = 64  # D
    edge_budget: Annotated[int, Field(ge=1)]  # K: edges per head, whole (head, relation) groups
    epochs: Annotated[int, Field(ge=1)]
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
    init_from: FilePath | None = None  # start from this explorer: a run configuration, or a folder with model.json
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


class ClusterSection(Section):
    """Dask, on which shard-sized work runs where the input is large; never part of a fingerprint. docs/cluster.md."""

    address: Annotated[str, Field(min_length=1)] | None = None  # of a running scheduler, tcp://host:8786; None: local
    workers: Annotated[int, Field(ge=1)] = 2  # of the local cluster: processes of one thread each
    memory_limit: Size = "2GB"  # per local worker: one that outgrows it is ended, and its task is tried again
    spill_folder: FilePath | None = None  # scratch space of local workers; None: run/dask in runtime.home
    fan_out_bytes: Annotated[int, Field(ge=1)] = 256 * 2**20  # inputs above this size go to the cluster
    fan_out_questions: Annotated[int, Field(ge=1)] = 20_000  # so many questions of a system go to the cluster


def _backend(lm: LmSection) -> Any:
    return open_entry(BACKENDS, lm.kind, what="kind of lm")


class RunConfig(Section):
    """One complete run."""

    name: Name  # of the run; by default the file's name
    dataset: Annotated[EmbeddedDataset | FileDataset | PlansDataset, Field(discriminator="source")]
    encoder: Annotated[EncoderSection, Field(discriminator="kind")] | None  # None: a dataset of plans has no graph
    explorer: ExplorerSection | None
    plans: PlansSection | None = None
    lm: Annotated[LmSection, Field(discriminator="kind")] | None = None
    reasoner: ReasonerSection | None = None
    dense: DensePlannerSection | None = None
    prompts: FilePath | None = None  # a folder with wordings of one's own for some prompts, or all
    evaluation: EvaluationSection = EvaluationSection()
    systems: SystemsSection | None = None  # systems compared side by side; None: the explorer beside its controls
    tracking: TrackingSection = TrackingSection()
    cluster: ClusterSection = ClusterSection()
    runtime: RuntimeSection

    @model_validator(mode="before")
    @classmethod
    def _without_a_graph(cls, given: Any) -> Any:
        dataset = given.get("dataset") if isinstance(given, dict) else None
        has_none = isinstance(dataset, dict) and dataset.get("source") == "plans"
        return {"encoder": None, "explorer": None, **given} if has_none else given

    @model_validator(mode="after")
    def _fits_together(self) -> RunConfig:
        has_graph = not isinstance(self.dataset, PlansDataset)
        for name in ("encoder", "explorer"):
            if has_graph and getattr(self, name) is None:
                raise ValueError(f"missing key '{name}'")
            if not has_graph and getattr(self, name) is not None:
                raise ValueError(f"{name}: a dataset of plans has no graph to explore; leave it out")
        if not has_graph and self.systems is not None:
            raise ValueError("systems: a dataset of plans has no graph to answer from; leave them out")
        if not has_graph and self.plans is None:
            raise ValueError("missing key 'plans': a dataset of plans is for planners")
        wanted = set(self.plans.planners) if self.plans else set()
        if wanted & {"generator", "mixture"} and self.lm is None:
            raise ValueError("plans.planners: a generator needs a language model: give 'lm'")
        if wanted & {"dense", "mixture"} and self.dense is None:
            raise ValueError(
                "plans.planners: give 'dense', how the dense planner is trained (an empty section will do)"
            )
        if self.reasoner is not None and (self.lm is None or not _backend(self.lm).is_tunable):
            raise ValueError("reasoner: adapters are trained on a model that is here: lm.kind embedded or local")
        if self.reasoner is not None and self.plans is None:
            raise ValueError("missing key 'plans': a reasoner learns from the relation paths that it says how to find")
        self._check_systems()
        return self

    def _check_systems(self) -> None:
        systems = self.systems
        if systems is None or not systems.is_answered_by("lm"):
            return
        if self.lm is None:
            raise ValueError(
                "systems.answered_by: give 'lm', the language model that answers; or let one answer that needs no "
                "model: systems.answered_by: [oracle]"
            )
        if _backend(self.lm).is_made_here and (self.plans is None or "generator" not in self.plans.trained):
            raise ValueError("systems: the embedded model is trained on plans: give 'plans' with a generator")

    @property
    def exploration(self) -> ExplorerSection:
        """The explorer's section.

        Raises:
            ConfigError: a run without one.
        """
        if self.explorer is None:
            raise ConfigError(f"run {self.name!r} has no explorer: its dataset holds plans, and no graph")
        return self.explorer

    @property
    def encoding(self) -> EncoderSection:
        """The encoder's section; raises as ``exploration``."""
        if self.encoder is None:
            raise ConfigError(f"run {self.name!r} has no encoder: its dataset holds plans, and no graph")
        return self.encoder
