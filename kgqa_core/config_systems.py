"""The section about systems: which are compared, how each is set, who answers for them, and under which limits.

A system keeps its settings in its own module, which is imported only where a configuration names the system.
"""

from __future__ import annotations

import itertools
import math
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, ValidationError, ValidationInfo, create_model, model_validator

from kgqa_core.addresses import resolve_path
from kgqa_core.config_base import Section, Seeds, Share, name_in, open_entry
from kgqa_core.config_lm import ROLES, Role, RolesSection
from kgqa_core.errors import ConfigError, with_nearest

SYSTEMS: dict[str, str] = {  # name: module and its SystemType
    "etd": "kgqa_core.systems.etd:ETD",
    "dualr": "kgqa_core.systems.etd:DUALR",
    "rog": "kgqa_core.systems.rog:ROG",
    "eperm": "kgqa_core.systems.eperm:EPERM",
    "fiske": "kgqa_core.systems.fiske:FISKE",
    "direct": "kgqa_core.systems.baselines:DIRECT",
    "cot": "kgqa_core.systems.baselines:COT",
    "tog": "kgqa_core.systems.baselines:TOG",
    "kaping": "kgqa_core.systems.baselines:KAPING",
    "explorer": "kgqa_core.systems.etd:EXPLORER",
    "ours": "kgqa_core.systems.ours:OURS",
    "given": "kgqa_core.systems.given:GIVEN",
}
# by default: given needs a file of paths, kaping encodes every triple around a topic
COMPARED = tuple(name for name in SYSTEMS if name not in ("given", "kaping"))
PlanSourceName = Literal["lm", "generator", "dense", "encoder", "random", "none"]
Answerer = Literal["lm", "oracle", "random", "first"]
"""Who plays the language model: the run's own; one that knows the golds but says only what its prompt shows; one that
picks at random from what its prompt shows; one that always picks the first."""

PLACES = {"explorer", "file"}  # settings of systems that name what is on this machine: recipes have its content
Grid = Annotated[dict[str, Annotated[tuple[Any, ...], Field(strict=False, min_length=2)]], Field(min_length=1)]
TAKEN = {"dense", "generator", "reasoner", "fusion", "explorer alone"}  # MLflow shows stages of their own by these
MAX_POINTS = 32  # of a grid: each is an evaluation of its own


@dataclass(frozen=True, slots=True)
class SystemType:
    """A kind of system: how one is opened, and what of a run it stands on."""

    open: Callable[[Any], Any]  # run.compare.Parts -> systems.types.System
    settings: type[Section] | None = None  # None: it has none
    # Of its settings: the roles in which it asks a language model, plans that ``plan_source`` gives aside.
    roles: Callable[[Any], tuple[Role, ...]] = lambda settings: tuple(ROLES)
    explores: bool = False  # the run's explorer and encodings
    encodes: bool = False  # with the run's text encoder, itself
    hard_negatives: bool = False  # may be given them in place of what it retrieves; others search by themselves
    plan_source: Callable[[Any], str] = lambda settings: "none"  # of its settings: who plans for it
    fuses: bool = False  # explorer and planner, by what was chosen on dev
    depends_on_run: Callable[[Any], Path | None] = lambda settings: None  # of its settings: the run of its explorer
    files: Callable[[Any, Any], dict[str, Path]] = lambda config, settings: {}  # external ones, by portable names


def system_type(name: str) -> SystemType:
    """Return what the table says of a system; ConfigError where it has no such line, or one to no SystemType."""
    found = open_entry(SYSTEMS, name, what="system")
    if not isinstance(found, SystemType):
        raise ConfigError(f"config_systems.SYSTEMS: {SYSTEMS[name]} is no SystemType")
    return found


SystemName = Annotated[str, AfterValidator(name_in(SYSTEMS))]


class OracleSection(Section):
    """Plays a large model: answers from its prompt alone, right with probability 1 - error."""

    error: Share = 0.0  # e
    knows: Share = 0.0  # share of the questions that it can answer without any fact in the prompt
    fill_budget: bool = False  # name as many relations as it may, those that are not right with low scores
    seed: Annotated[int, Field(ge=0)] = 0


def _resolve_places(settings: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    """Read a row's paths as those of the system's own section are read."""
    return {name: resolve_path(value, info) if name in PLACES else value for name, value in settings.items()}


class VariantSection(Section):
    """A system under other settings, as a row of its own: an ablation, or one point of a sweep."""

    system: SystemName
    # Over those of the system's section:
    settings: Annotated[dict[str, Any], AfterValidator(_resolve_places)] = Field(default_factory=dict)
    answered_by: Annotated[tuple[Answerer, ...], Field(strict=False, min_length=1)] | None = None  # None: as all
    roles: RolesSection = RolesSection()  # over those of the run


class ChooseSection(Section):
    """Settings that the run chooses on dev questions, before a row of the comparison answers."""

    num_questions: Annotated[int, Field(ge=1)] | None = 60  # dev questions at most, drawn by seed; None: all
    draw: Annotated[int, Field(ge=0)] = 0  # the seed of that draw
    grids: dict[str, Grid] = Field(default_factory=dict)  # by row: settings, and the values to choose from

    def points(self, row: str) -> list[dict[str, Any]]:
        """Return each combination of a row's values, those of its last setting fastest."""
        grid = self.grids[row]
        return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


VariantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._/-]{0,59}$")]  # a legal name in MLflow


class SystemsSection(Section):
    """The comparison of systems: ``kgqa evaluate --systems``. Beside these keys: a section per system, by its name."""

    model_config = ConfigDict(extra="allow")  # the systems' own sections; any other key is an error all the same

    run: Annotated[tuple[SystemName, ...], Field(strict=False)] = COMPARED
    answered_by: Annotated[tuple[Answerer, ...], Field(strict=False, min_length=1)] = ("lm",)
    variants: dict[VariantName, VariantSection] = Field(default_factory=dict)  # further rows, by name
    topics: Literal["gold", "linked"] = "gold"  # linked: topic entities from the text alone, for every system
    pool: Literal["none", "hard"] = "none"  # hard: the gold plan and two wrong ones that exist, in place of retrieval
    num_questions: Annotated[int, Field(ge=1)] | None = None  # asked at most, drawn by seed; None: all
    draw: Annotated[int, Field(ge=0)] = 0  # the seed of that draw
    seeds: Seeds | None = None  # each system answers once per seed; None: those of the explorer
    max_calls: Annotated[int, Field(ge=1)] | None = 30  # per question and system (FiSKE §4.1); None: no limit
    answers: Literal["free", "shown"] = "free"  # shown: reasoning on paths may name only what they show, by constraint
    max_new_tokens: Annotated[int, Field(ge=1)] | None = None  # of a text at most; None: what each instruction may need
    choose: ChooseSection = ChooseSection()  # settings of rows that are chosen on dev
    abstain_below: dict[str, Share] = Field(default_factory=dict)  # row: its least confidence, chosen on dev (docs)
    chunk: Annotated[int, Field(ge=1)] = 256  # questions answered together: what a killed run loses at most
    max_traces: Annotated[int, Field(ge=0)] = 50  # questions per system whose calls MLflow shows, failures first
    oracle: OracleSection = OracleSection()

    @classmethod
    def legal_keys(cls) -> list[str]:
        """Return the legal keys: its own, and the systems that have settings."""
        return [*cls.model_fields, *(name for name in SYSTEMS if system_type(name).settings)]

    @classmethod
    def type_of(cls, key: str) -> Any:
        """Return the annotation of a key; None where there is no such key."""
        return system_type(key).settings if key in SYSTEMS else super().type_of(key)

    @model_validator(mode="before")
    @classmethod
    def _systems_own(cls, given: Any, info: ValidationInfo) -> Any:
        """Read the sections of systems by their own models; keys of neither a setting nor a system are errors."""
        if not isinstance(given, Mapping):
            return given
        own = {key: value for key, value in given.items() if key not in cls.model_fields}
        fields: dict[str, Any] = {key: (kind, ...) for key in own if (kind := cls.type_of(key)) is not None}
        read = create_model("OwnSections", __base__=Section, **fields).model_validate(own, context=info.context)
        return {**given, **{key: getattr(read, key) for key in own}}

    @model_validator(mode="after")
    def _variants_fit(self) -> SystemsSection:
        if not self.run and not self.variants:
            raise ValueError("run: name at least one system, or a variant")
        if stray := sorted(set(self.abstain_below) - {*self.run, *self.variants}):
            raise ValueError(f"abstain_below: {stray[0]!r} is no row of this comparison")
        # A stage is named by its row and who answers, ``rog-oracle``, and in MLflow ``rog by oracle``.
        pairs = [(row, who) for row, (_, players) in self.rows().items() for who in players if who != "lm"]
        played = {f"{row}{by}{who}" for row, who in pairs for by in ("-", " by ")}
        for row, own in self.variants.items():
            if posixpath.normpath(row) != row or " ".join(row.split()) != row:  # MLflow takes no such path
                raise ValueError(
                    f"variants.{row}: a name has no '//', '/./' or '/../', ends in no '/', and has one blank at a time"
                )
            if row in TAKEN | played | SYSTEMS.keys() or "-seed" in row:
                raise ValueError(
                    f"variants.{row}: a variant has a name of its own, that no system, stage or "
                    "row by an answerer has, without '-seed'"
                )
            if (own.settings or any(told for _, told in own.roles)) and system_type(own.system).fuses:
                raise ValueError(f"variants.{row}: what ours fuses is chosen once for a run; set systems.ours, roles")
            self.settings_of(row)
        for row in self.choose.grids:
            self._check_grid(row)
        return self

    def _check_grid(self, row: str) -> None:
        """Raise ValueError unless a row's grid is small, and all its points ask the models and planners of the row."""
        where, rows, grid = f"choose.grids.{row}", self.rows(), self.choose.grids[row]
        if row not in rows and row not in SYSTEMS:  # the grid of a system that a command leaves out waits
            raise ValueError(f"{where}: rows are {with_nearest(row, rows)}")
        system = rows[row][0] if row in rows else row
        kind = system_type(system)
        legal = [name for name in kind.settings.model_fields if name not in PLACES] if kind.settings else []
        if kind.fuses or not legal:  # a fusion is chosen as it is, in a stage of its own
            raise ValueError(f"{where}: {system} has no settings that can be chosen here")
        if strange := [name for name in grid if name not in legal]:
            raise ValueError(f"{where}.{strange[0]}: legal are {with_nearest(strange[0], legal)}")
        if (many := math.prod(map(len, grid.values()))) > MAX_POINTS:
            raise ValueError(f"{where}: {many} points, each an evaluation; legal are {MAX_POINTS} at most")
        tried = [self, *(self.with_settings(row, point) for point in self.choose.points(row))]
        if len({(one.roles_of(row), kind.plan_source(one.settings_of(row))) for one in tried}) > 1:
            raise ValueError(f"{where}: its points ask other models or planners; make them rows of variants")

    def rows(self) -> dict[str, tuple[str, tuple[Answerer, ...]]]:
        """Return the rows of the comparison by name: which system each is, and who answers for it (lm if nobody)."""
        nobody: tuple[Answerer, ...] = ("lm",)
        named = {name: (name, self.answered_by) for name in self.run}
        named |= {row: (one.system, one.answered_by or self.answered_by) for row, one in self.variants.items()}
        return {row: (name, who if self.roles_of(row) else nobody) for row, (name, who) in named.items()}

    def is_answered_by(self, who: Answerer) -> bool:
        """Say whether somebody answers for any system that asks a language model."""
        return any(who in answerers for row, (_, answerers) in self.rows().items() if self.roles_of(row))

    def roles_of(self, row: str) -> tuple[Role, ...]:
        """Return the roles in which a row's system asks whoever answers under its settings; none: it asks no model."""
        kind, own = system_type(self.variants[row].system if row in self.variants else row), self.settings_of(row)
        asked = set(kind.roles(own))
        if kind.plan_source(own) == "lm" and self.pool == "none":
            asked.add("plan")
        return tuple(role for role in ROLES if role in asked)

    def settings_of(self, row: str) -> Any:
        """Return the settings of a row, or of a system by its name; None where it has none. ValueError: not its own."""
        variant = self.variants.get(row)
        name = variant.system if variant else row
        kind = system_type(name).settings
        if kind is None:
            if variant and variant.settings:
                raise ValueError(f"variants.{row}.settings: {name} has no settings")
            return None
        own: Section = (self.model_extra or {}).get(name) or kind()
        return _changed(own, variant.settings, f"variants.{row}.settings", name) if variant else own

    def with_settings(self, row: str, given: Mapping[str, Any]) -> SystemsSection:
        """Return the section with other values of a row's settings; ValueError where they are not legal."""
        changed = _changed(self.settings_of(row), given, f"settings of {row}", row)
        if row not in self.variants:
            return self.model_copy(update={row: changed})
        variant = self.variants[row].model_copy(update={"settings": {**self.variants[row].settings, **given}})
        return self.model_copy(update={"variants": {**self.variants, row: variant}})


def _changed(own: Section, given: Mapping[str, Any], where: str, name: str) -> Section:
    """Return settings of system ``name`` with some of ``given`` values; ValueError: they are not its own."""
    try:
        return type(own).model_validate({**own.model_dump(), **given})
    except ValidationError as problem:
        first, legal = problem.errors(include_url=False)[0], ", ".join(type(own).model_fields)
        named = ".".join(map(str, (where, *first["loc"])))
        said = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{named}: {said}. Settings of {name}: {legal}") from None
