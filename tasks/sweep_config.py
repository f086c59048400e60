"""Sweep files, and the figures that a sweep can show: what each measures, in words that a plot's axis can carry.

Their names are those under which stages record them (``tracking.json``). ``.hop2`` at the end means the 2-hop questions
alone; ``template_control.`` or ``ceiling.`` before it, that control instead of the explorer; ``system.ROW.`` a row
of the comparison of systems.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from kgqa_core.config_base import FilePath, Name, Section
from kgqa_core.errors import shorten, with_nearest

CONTROLS = {"template_control": "template control", "ceiling": "ceiling"}
SCORES = {
    "hits1": "Hits@1, percent",
    "hits3": "Hits@3, percent",
    "hits10": "Hits@10, percent",
    "f1": "F1, percent",
    "precision": "precision, percent",
    "recall": "recall, percent",
    "em": "exact match, percent",
    "coverage": "coverage, percent",
    "mean_top_tie": "candidates tied at the top",
}
COSTS = {
    "answer.candidates_per_question": "candidates per question",
    "answer.edges_per_question": "edges per question",
    "answer.classes_per_node": "state classes per node",
    "answer.cpu_seconds": "answering, CPU seconds",
    "answer.questions_per_second": "questions per CPU second",
    "train.cpu_seconds": "training, CPU seconds",
    "dev.hits1": "Hits@1 on dev, percent",
    "dev.f1": "F1 on dev, percent",
    "tune.cpu_seconds": "choosing thresholds, CPU seconds",
    "dev.answer_threshold": "answer threshold chosen on dev",
    "dev.attention_threshold": "attention threshold chosen on dev",
    "num_train": "training questions",
    "num_test": "test questions",
    "num_masked_texts": "distinct masked texts",
    "num_masked_texts_held_out": "masked texts held out",
    "encoding_dim": "width of the encodings",
}
CURVES = {
    "dev.hits1": "Hits@1 on dev, percent",
    "dev.coverage": "coverage on dev, percent",
    "train.loss": "training loss",
    "train.coverage": "coverage in training, percent",
    "train.edges_per_question": "edges per question in training",
}
SETTINGS = {  # what is varied, in words; a setting that is not here is called by its key
    "base": "run",
    "point": "",
    "dataset.questions.train_size": "training questions",
    "evaluation.edge_budget": "edge budget K while answering",
    "evaluation.attention_threshold": "attention threshold while answering",
    "explorer.edge_budget": "edge budget K",
    "explorer.width": "width of the explorer",
    "explorer.init_from": "initial weights",
}

_SCORE = re.compile(r"(?:(?P<control>[a-z_]+)\.)?(?P<score>[a-z0-9_]+)(?:\.hop(?P<hops>\d+))?")
_OF_SYSTEM = re.compile(r"system\.(?P<row>.+)\.(?P<score>[a-z0-9_]+)")


def label_of(name: str) -> str:
    """Return what a figure measures, with its unit; raises ``ValueError`` for a name that is none."""
    if name in COSTS:
        return COSTS[name]
    if row := row_of(name):
        return f"{row}: {SCORES[name.removeprefix(f'system.{row}.')]}"
    found = _SCORE.fullmatch(name)
    if found is None or found["score"] not in SCORES or found["control"] not in (None, *CONTROLS):
        forms = f"{', '.join(f'{one}.<score>' for one in (*CONTROLS, 'system.ROW'))}, and <score>.hop<number>"
        legal = with_nearest(name, [*SCORES, *COSTS])
        raise ValueError(f"no stage records {shorten(name)}; legal: {legal}; scores also as {forms}")
    label = SCORES[found["score"]] + (f", {found['hops']}-hop" if found["hops"] else "")
    return f"{CONTROLS[found['control']]}: {label}" if found["control"] else label


def row_of(name: str) -> str | None:
    """Return which row of the comparison of systems a figure is of; None where it is of none."""
    found = _OF_SYSTEM.fullmatch(name)
    return found["row"] if found and found["score"] in SCORES else None


def curve_label(name: str) -> str:
    """Return what a curve of training shows; raises ``ValueError`` for a name that is none."""
    if name not in CURVES:
        raise ValueError(f"no curve is called {shorten(name)}; legal: {with_nearest(name, CURVES)}")
    return CURVES[name]


def is_score(name: str) -> bool:
    """Say whether a figure is one that the controls have too."""
    found = _SCORE.fullmatch(name)
    return name not in COSTS and found is not None and found["control"] is None


BASE, POINT = "base", "point"  # the dimensions that are no setting: which run configuration, which of ``points``


def _as_list(given: Any) -> Any:
    return [given] if isinstance(given, str | Path) else given


def _distinct_values(values: tuple[Any, ...]) -> tuple[Any, ...]:
    texts = [json.dumps(value, sort_keys=True, default=str) for value in values]
    if not texts or len(set(texts)) < len(texts):
        raise ValueError("must be one value or more, each given once")
    return values


def _figure(name: str) -> str:
    label_of(name)
    return name


Listed = BeforeValidator(_as_list)
Distinct = AfterValidator(_distinct_values)
Lax = Field(strict=False)
Texts = Annotated[tuple[str, ...], Lax, Listed]
Key = Annotated[str, Field(pattern=r"^[^.\s]+(\.[^.\s]+)*$")]
Settings = dict[Key, Any]
Control = Literal["template_control", "ceiling"]


class PointSection(Section):
    """One point of a sweep that a product of values cannot say."""

    label: Name
    set: Settings = Field(default_factory=dict)


class PlotSection(Section):
    """One picture: a panel per figure in ``y``; what one line joins lies along ``x``."""

    title: str | None = None
    # lines: x has an order. points: it has none (datasets, encoders). curves: what training recorded, by its steps.
    kind: Literal["lines", "points", "curves"] = "lines"
    x: str | None = None  # a dimension (a varied setting, base, point), or a figure
    y: Annotated[Texts, Distinct] = ("hits1", "f1")
    panels: str | None = None  # a dimension with a panel per value
    lines: Texts | None = None  # with a line per value; default: all others
    beside: Annotated[tuple[Control, ...], Lax, Listed] = ()  # dashed: same scores
    log_x: bool = False
    even_x: bool = False  # values of x at equal distances, as names are
    log_y: bool = False

    @model_validator(mode="after")
    def _whole(self) -> PlotSection:
        for name in self.y:
            (curve_label if self.kind == "curves" else label_of)(name)
        if (self.x is None) != (self.kind == "curves"):
            raise ValueError("curves run over training steps and have no 'x'; any other plot needs one")
        if self.beside and (self.kind == "curves" or not any(map(is_score, self.y))):
            raise ValueError("'beside' draws the controls' scores; no figure in 'y' is a score")
        return self


class SweepFile(Section):
    """One sweep: every combination of base, point and varied values is a run."""

    base: Annotated[tuple[FilePath, ...], Lax, Listed, Distinct]  # run configurations
    set: Settings = Field(default_factory=dict)  # the same for all runs
    points: Annotated[tuple[PointSection, ...], Lax] = ()
    vary: dict[Key, Annotated[tuple[Any, ...], Lax, Distinct]] = Field(default_factory=dict)
    repeat: Texts = ()  # varied settings that only repeat: mean and spread
    table: Annotated[tuple[Annotated[str, AfterValidator(_figure)], ...], Lax, Listed, Distinct] = ("hits1", "f1")
    plots: Annotated[tuple[PlotSection, ...], Lax] = ()

    @property
    def dimensions(self) -> list[str]:
        """What tells points apart, slowest first: bases and points where there are several, then varied settings."""
        several = {BASE: len(self.base) > 1, POINT: bool(self.points)}
        return [name for name, shown in several.items() if shown] + list(self.vary)

    @property
    def compared(self) -> list[str]:
        """The dimensions that are not repetitions."""
        return [name for name in self.dimensions if name not in self.repeat]

    @model_validator(mode="after")
    def _consistent(self) -> SweepFile:
        for what, names in (("base", [base.stem for base in self.base]), ("points", [p.label for p in self.points])):
            if len(set(names)) < len(names):
                raise ValueError(f"{what}: two have one name; the names are {', '.join(names)}")
        for name in self.repeat:
            _legal("repeat", name, self.vary)
        places = {"'set'": self.set} | {f"point {point.label!r}": point.set for point in self.points}
        for where, settings in places.items():
            for key in self.vary:
                if any(f"{given}.".startswith(f"{key}.") for given in settings):
                    raise ValueError(f"{key!r} is varied, and set in {where}: give it once")
        for number, plot in enumerate(self.plots):
            self._check_plot(f"plots.{number}", plot)
        return self

    def _check_plot(self, where: str, plot: PlotSection) -> None:
        for key, names in (("lines", plot.lines or ()), ("panels", (plot.panels,) if plot.panels else ())):
            for name in names:
                _legal(f"{where}.{key}", name, self.compared)
        if plot.x is None:
            return
        if plot.even_x and (plot.log_x or plot.x not in self.compared):
            raise ValueError(f"{where}.even_x: values at equal distances need a dimension as x, and no log_x")
        if plot.x in self.compared:
            values = self.vary.get(plot.x, ())
            if plot.log_x and not (values and all(is_number(value) and value > 0 for value in values)):
                raise ValueError(f"{where}.log_x: not every {plot.x} is a number above 0")
            return
        try:
            label_of(plot.x)
        except ValueError:
            _legal(f"{where}.x", plot.x, self.compared, "; so are the figures")
        if plot.lines is None:
            raise ValueError(f"{where}.x is a figure: say in 'lines' which dimensions have a line for each value")


def is_number(value: Any) -> bool:
    """Say whether a value of a dimension is a number, not a name."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _legal(where: str, name: str, legal: Iterable[str], more: str = "") -> None:
    if name not in legal:
        raise ValueError(f"{where} = {shorten(name)}: legal are {with_nearest(name, legal) or 'none here'}{more}")
