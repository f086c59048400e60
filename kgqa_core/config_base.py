"""What all sections of a run configuration are made of, and those about data: where triples and questions come from."""

from __future__ import annotations

import importlib
import operator
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from kgqa_core.addresses import resolve_input, resolve_path
from kgqa_core.errors import ConfigError, shorten, with_nearest
from kgqa_core.profiles import PROFILES, USES, Profile, label_of_iri
from kgqa_core.types import Split

_PACKAGED, _BESIDE = Path(__file__).parent / "conf", Path(__file__).parents[1] / "conf"
CONF = _PACKAGED if _PACKAGED.is_dir() else _BESIDE
"""The project's configurations, prompts and prices: inside the installed package, or beside it in a clone."""

SHIPPED = Path(__file__).parent / "lm" / "shipped"
"""The adapter of the packaged language model that comes with this package: what ``adapter: shipped`` means."""

MAX_NUMBER, MAX_SEED = 2**31 - 1, 2**63 - 1  # of any setting; of seeds and numbers of bytes
SIZE = r"([0-9]{1,9}(?:\.[0-9]+)?)\s?([KMGT])(i?)B"


def _adapter(given: Any, info: ValidationInfo) -> Any:
    return SHIPPED if given == "shipped" else resolve_path(given, info)


def _must(legal: Callable[[Any], object], be: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not legal(value):
            raise ValueError(f"must be {be}")
        return value

    return check


def size_in_bytes(size: str) -> int:
    """Return a size such as 2GB or 512MiB in bytes."""
    number, unit, binary = re.fullmatch(SIZE, size).groups()  # type: ignore[union-attr]  # checked when it was read
    return int(float(number) * (1024 if binary else 1000) ** (" KMGT".index(unit)))


# A table maps the names of one kind of thing to what defines it, as "module:ATTRIBUTE". It stands beside the section
# that names the thing, and reading it imports none of the modules: a new thing is a file and a line.


def open_entry(table: Mapping[str, str], name: str, *, what: str) -> Any:
    """Return what a table's entry names; ConfigError, with the nearest match, where the table lacks the name."""
    if name not in table:
        raise ConfigError(f"no {what} is called {shorten(name)}; legal are {with_nearest(name, table)}")
    module, _, attribute = table[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def name_in(table: Collection[str]) -> Callable[[str], str]:
    """Return a validator that lets only the names of a table or list pass."""

    def check(name: str) -> str:
        if name not in table:
            raise ValueError(f"legal are {with_nearest(name, table)}")
        return name

    return check


_is_number_or_all = _must(lambda k: k == "all" or (type(k) is int and k > 0), "a number of edges, 1 or more, or: all")
_is_name = _must(
    lambda name: re.fullmatch(r"(?!\.)[^/\\\x00-\x1f\ud800-\udfff]{1,100}", name) and len(os.fsencode(name)) <= 200,
    "1 to 100 characters of UTF-8, of 200 bytes at most, no slash among them and no dot first: files are named by it",
)
_is_size = _must(  # less is no limit at all to Dask
    lambda size: re.fullmatch(SIZE, size) and 10**6 <= size_in_bytes(size) <= MAX_SEED,
    "a number with a unit, such as 2GB or 512MiB, from 1MB to 8388607TiB",
)
_are_distinct = AfterValidator(
    _must(lambda numbers: 0 < len(numbers) == len(set(numbers)), "one number or more, each given once")
)

# strict=False where JSON and YAML have no such type: paths are text there, and tuples are lists.
FilePath = Annotated[Path, Field(strict=False), BeforeValidator(resolve_path)]
InputPath = Annotated[Path, Field(strict=False), BeforeValidator(resolve_input)]  # or an address
AdapterPath = Annotated[Path, Field(strict=False), BeforeValidator(_adapter)]  # in peft's format; shipped: see SHIPPED
Hops = Annotated[tuple[Annotated[int, Field(ge=1, le=9)], ...], Field(strict=False), _are_distinct]
Seeds = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False), _are_distinct]
Labels = Annotated[tuple[str, ...], Field(strict=False)]
Languages = Annotated[
    tuple[Annotated[str, Field(pattern=r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$")], ...],
    Field(strict=False, min_length=1, max_length=99),
    BeforeValidator(lambda given: [given] if isinstance(given, str) else given),
]
Share = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, AfterValidator(_is_name)]
Size = Annotated[str, AfterValidator(_is_size)]
EdgeBudget = Annotated[int | Literal["all"], BeforeValidator(_is_number_or_all)]


class Section(BaseModel):
    """Base of all sections: unknown keys and coerced types are errors, and nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _can_be_held(self) -> Self:
        for name in self.model_fields_set:
            value = getattr(self, name)
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, int) and number > (MAX_SEED if "bytes" in name or "seed" in name else MAX_NUMBER):
                    raise ValueError(f"{name} = {shorten(number, 40)} is more than anything here can hold")
        return self

    @classmethod
    def legal_keys(cls) -> list[str]:
        """Return the legal keys; a section whose keys a table says adds them."""
        return list(cls.model_fields)

    @classmethod
    def type_of(cls, key: str) -> Any:
        """Return the annotation of a key; None where there is no such key."""
        return cls.model_fields[key].annotation if key in cls.model_fields else None


# Format of triples -> what reads it (a graph.formats.GraphFormat). A format of your own is a module and a line here.
GRAPH_FORMATS = {
    "wikimovies": "kgqa_core.graph.formats:WIKIMOVIES",
    "tsv": "kgqa_core.graph.formats:TSV",
    "csv": "kgqa_core.graph.formats:CSV",
    "parquet": "kgqa_core.graph.formats:PARQUET",
    "nsm": "kgqa_core.graph.nsm:FORMAT",
    "rog": "kgqa_core.graph.nsm:ROG",
    "paths": "kgqa_core.graph.given:FORMAT",
}
if TYPE_CHECKING:
    GraphFormatName = str
else:
    GraphFormatName = Literal[tuple(GRAPH_FORMATS)]


class Layout(Section):
    """How a file of triples is laid out, where it is not head, relation and tail."""

    # which hold head, relation and tail: by the names in the first line or in Parquet, or by place from 1 on
    columns: Annotated[tuple[Annotated[int, Field(ge=1)] | str, ...], Field(strict=False, max_length=3)] = ()
    # one sign; None: by the format
    delimiter: Annotated[str, Field(pattern=r"^[\t !#-&(-/:-@\[\]^`{-~]$")] | None = None
    header: bool | None = None  # does the first line name the columns? None: only where it says head, relation, tail


class GraphSection(Layout):
    """The triples."""

    format: GraphFormatName
    path: InputPath | None = None  # left out with formats nsm, rog and paths alone: the question files hold the triples
    names: InputPath | None = None  # label -> name, where triples use ids, of relations too; several may share a name
    inverse_suffix: Annotated[str, Field(min_length=1)] | None = None  # X + suffix is X walked backwards
    max_reject_ratio: Share = 0.001  # more rejected lines than this share stop the build

    @model_validator(mode="after")
    def _has_source(self) -> GraphSection:
        if self.path is None and self.format not in ("nsm", "rog", "paths"):
            raise ValueError(
                "give 'path'; only triples of format nsm, rog or paths may come from the question files instead"
            )
        kinds = set(map(type, self.columns))
        if kinds and (len(set(self.columns)) != 3 or len(kinds) > 1 or (str in kinds and self.header is False)):
            raise ValueError("'columns' are three names of a header, or three places: [subject, predicate, object]")
        of_lines = self.delimiter is not None or self.header is not None
        if (of_lines or kinds) and self.format not in ("tsv", "csv", "wikimovies", "" if of_lines else "parquet"):
            raise ValueError("'columns' go with tsv, csv and parquet, 'delimiter' and 'header' with tsv and csv")
        return self


class DumpSection(Section):
    """RDF. The graph is what the questions' topics reach in it, or all of it.

    What None stands for is the format's: ``profiles``. Relations are given by label.
    """

    format: Literal["freebase", "wikidata", "rdf"]
    path: InputPath  # N-Triples, gzipped or plain, or what its suffix says: one file, or a folder
    hops: Annotated[int, Field(ge=1, le=9)] | None = 2  # steps from a topic; None, as with rdf: the whole of it
    cvt_is_hop: bool = True  # does a step to a CVT node of Freebase count?
    hub_cap: Annotated[int, Field(ge=1)] | None = None  # triples per (entity, relation, direction) that are walked
    max_reject_ratio: Share = 0.001
    namespaces: Labels | None = None  # starts of IRIs that labels leave out
    names: Labels | None = None  # relations whose literals are names
    aliases: Labels | None = None
    types: Labels | None = None
    keep_types: bool | None = None  # are lines that say types triples as well?
    noise: Labels | None = None  # prefixes of relations left out
    language: Languages | None = None  # of names, the best first
    keep_foreign: bool | None = None  # are literals in other languages nodes?
    names_relations: bool | None = None  # is a relation called by its name, else by the words of its IRI?

    @model_validator(mode="before")
    @classmethod
    def _whole(cls, given: Any) -> Any:
        if isinstance(given, dict) and isinstance(given.get("names"), str | Path):
            raise ValueError("'names' of RDF are relations, no file: put a file with the names beside the triples")
        return {"hops": None, **given} if isinstance(given, dict) and given.get("format") == "rdf" else given

    @model_validator(mode="after")
    def _walks(self) -> DumpSection:
        if self.hops is None and (self.hub_cap is not None or not self.cvt_is_hop):
            raise ValueError("'hub_cap' and 'cvt_is_hop: false' need 'hops': leave them out for the whole of the dump")
        return self

    @property
    def profile(self) -> Profile:
        """How the RDF is read."""
        usual = PROFILES[self.format]
        given = {one.name: getattr(self, one.name) for one in fields(usual)}
        made = replace(usual, **{name: value for name, value in given.items() if value is not None})
        # By label, as relations of lines are: whole IRIs may be given.
        labels: dict[str, Any] = {use: tuple(label_of_iri(one, made) for one in getattr(made, use)) for use in USES}
        return replace(made, **labels)


# Format of questions -> what reads it (a questions.formats.QuestionFormat). Your own is a module, and a line here.
QUESTION_FORMATS = {
    "metaqa": "kgqa_core.questions.closed_domains:METAQA",
    "jsonl": "kgqa_core.questions.formats:JSONL",
    "nsm": "kgqa_core.questions.webqsp:NSM",
    "wc2014": "kgqa_core.questions.closed_domains:WC2014",
    "webqsp": "kgqa_core.questions.webqsp:WEBQSP",
    "cwq": "kgqa_core.questions.webqsp:CWQ",
    "webquestions": "kgqa_core.questions.webqsp:WEBQUESTIONS",
    "simplequestions": "kgqa_core.questions.wikidata:SIMPLE_QUESTIONS",
    "qald": "kgqa_core.questions.wikidata:QALD",
    "mooc": "kgqa_core.questions.closed_domains:MOOC",
    "rog": "kgqa_core.questions.webqsp:ROG",
    "paths": "kgqa_core.questions.webqsp:PATHS",
}


class QuestionSection(Section):
    """The questions."""

    format: Annotated[str, AfterValidator(name_in(QUESTION_FORMATS))]
    path: InputPath | None = None  # a folder of splits, or one file to be split 80/10/10
    files: Annotated[dict[Split, InputPath], Field(min_length=1)] | None = None  # or one file per split
    hops: Hops | None = None  # MetaQA and WorldCup2014: which of their folders or files 1-hop, 2-hop, 3-hop
    variant: Literal["official", "etd", "rog"] = "official"  # WebQSP and CWQ: which questions, in which splits
    dev_ids: InputPath | None = None  # of a variant: the training questions that are its dev split; None: drawn by hash
    max_reject_ratio: Share = 0.001
    max_missing_ratio: Share = 0.01  # questions of which the graph lacks topic or answers: so many are no faults
    train_size: Annotated[int, Field(ge=1)] | None = None  # training questions, drawn at random; None: all
    hold_out_templates: Annotated[float, Field(gt=0, lt=1)] | None = None  # share of masked texts that only test asks
    draw: Annotated[int, Field(ge=0)] = 0  # the seed of both

    @model_validator(mode="after")
    def _one_source(self) -> QuestionSection:
        if (self.path is None) == (self.files is None):
            raise ValueError("give either 'path' or 'files'")
        if self.hops is not None and not self._format.has_hops:
            raise ValueError("'hops' chooses folders of MetaQA or files of WorldCup2014; leave it out otherwise")
        if self.files is not None and self.hops is not None and len(self.hops) > 1:
            raise ValueError("'hops' of 'files' is one number, that of all of them; 'path' has a folder for each")
        if self.variant != "official" and not self._format.has_variants:
            raise ValueError("'variant' is one of WebQSP or ComplexWebQuestions; leave it out for another format")
        if self.dev_ids is not None and self.variant == "official":
            raise ValueError("'dev_ids' is the dev split of a variant: say 'variant: etd' or 'variant: rog' as well")
        return self

    @property
    def _format(self) -> Any:
        """The format's module is imported where a setting goes with some formats only."""
        return open_entry(QUESTION_FORMATS, self.format, what="question format")


class SubgraphSection(Section):
    """A subgraph for each question, to explore instead of the graph. A word stands for a section with that method."""

    method: Literal["none", "question", "expand", "pagerank"] = "none"  # question: what its file gives it; else cut
    hops: Annotated[int, Field(ge=1, le=9)] = 2  # k: steps from the topics, in both directions
    group_cap: Annotated[int, Field(ge=1)] | None = 200  # triples walked per (entity, relation, direction); None: all
    cvt_is_hop: bool = True  # does a step to a CVT node count? (graphs of format freebase know them)
    # labels of relations, or starts of labels with a last . or /
    drop_relations: Annotated[tuple[str, ...], Field(strict=False)] = ()
    max_triples: Annotated[int, Field(ge=1)] | None = None  # of a question: walking ends with the entity that has more
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
    max_questions_moved: Annotated[int, Field(ge=0)] | None = 0  # to another split, where training meets the test
    max_coverage_drop: Annotated[float, Field(ge=0)] | None = 5.0  # points: questions with an answer within reach
    max_name_coverage_drop: Annotated[float, Field(ge=0)] | None = 5.0  # points: entities with a name
    min_changed: Annotated[int, Field(ge=0)] = 100  # fewer changed triples, entities or questions pass at any share


class EmbeddedDataset(Section):
    """The demo's small dataset, which the package carries."""

    name: Name
    source: Literal["embedded"]
    seed: Annotated[int, AfterValidator(_must(operator.not_, "0: the dataset comes as files. Leave it out"))] = 0
    reenter_topic: bool = False


class FileDataset(Section):
    """A graph and questions from files."""

    name: Name  # the MLflow experiment
    source: Literal["files"]
    graph: Annotated[GraphSection | DumpSection, Field(discriminator="format")]
    questions: QuestionSection
    reenter_topic: bool = False  # may a path come back to a topic entity? (on MetaQA 3-hop only "no" keeps golds exact)
    subgraphs: Annotated[
        SubgraphSection, BeforeValidator(lambda given: {"method": given} if isinstance(given, str) else given)
    ] = SubgraphSection()
    drift: DriftSection | None = DriftSection()  # None: whatever changes, runs go on

    @model_validator(mode="after")
    def _fits_together(self) -> FileDataset:
        if self.graph.path is None and self.questions.format != self.graph.format:
            raise ValueError("graph: give 'path'; only questions of its own format, nsm, rog or paths, hold triples")
        if self.questions.format == "simplequestions" and self.graph.format == "rdf":
            raise ValueError("graph: SimpleQuestions name Q42 and P19, so the triples are of 'format: wikidata'")
        if self.subgraphs.method == "question" and self.graph.path is not None:
            raise ValueError("subgraphs: 'question' needs graph: {format: nsm}, rog or paths, without a path")
        if not self.subgraphs.cvt_is_hop and isinstance(self.graph, GraphSection):
            raise ValueError("subgraphs: 'cvt_is_hop: false' needs a dump or RDF: no other format tells CVTs apart")
        return self


class PlansDataset(Section):
    """Questions with the relation paths that answer them, from files; no graph."""

    name: Name
    source: Literal["plans"]
    plan_files: Annotated[dict[Split, InputPath], Field(min_length=1)]  # JSON lines: id, question, relation_paths
    max_reject_ratio: Share = 0.001
    reenter_topic: Literal[False] = False  # paths are as the files have them
