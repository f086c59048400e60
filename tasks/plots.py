"""The plots of runs: learning curves, Hits@1 by hops, and a sweep's figures against what it varied. No display."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from kgqa_core.tracking import HOP_METRIC, Point
from tasks import sweep_config as sweeps
from tasks.sweep_config import PlotSection
from tasks.sweep_points import WHOLE_FROM, PointRow, Spread, short_names, show_spread, show_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_PANELS = 8  # as many as an explorer has figures
PANEL_INCHES = (7.0, 2.4)
HITS = "hits1"


def draw_learning_curves(curves: Mapping[str, Sequence[Point]], title: str) -> Figure | None:
    """Return one panel per figure (the last part of a curve's name: ``train.loss`` and ``dev.loss`` share one).

    The loss comes first: of too many panels the last are left out. None where there are no curves.
    """
    panels: dict[str, list[str]] = {}
    for name in sorted(curves, key=lambda name: (not name.endswith("loss"), name)):
        if curves[name]:
            panels.setdefault(re.split("[./]", name)[-1], []).append(name)
    if not panels:
        return None
    shown = list(panels)[:MAX_PANELS]
    figure = _figure((PANEL_INCHES[0], PANEL_INCHES[1] * len(shown) + 0.6), title)
    figure.subplots(len(shown), 1, sharex=True)
    for axes, panel in zip(figure.axes, shown, strict=True):
        for name in panels[panel]:
            points = sorted(curves[name])
            axes.plot([step for step, _, _ in points], [value for _, value, _ in points], marker=".", label=name)
        axes.set_ylabel(panel)
        axes.legend(fontsize="small")
    figure.axes[-1].set_xlabel("step")
    return figure


def draw_hits_by_hops(metrics: Mapping[str, float], system: str) -> Figure | None:
    """Return Hits@1 in percent by the number of hops, one line per system; None where no metric says it.

    ``metrics`` are named as ``kgqa_core.tracking.hop_metric`` names them; a name before that is a control's.
    """
    lines: dict[str, dict[int, float]] = {}
    for name, value in metrics.items():
        found = HOP_METRIC.fullmatch(name)
        if found and found["metric"] == HITS:
            lines.setdefault(found["series"] or system, {})[int(found["hops"])] = value
    if not lines:
        return None
    figure = _figure((PANEL_INCHES[0], PANEL_INCHES[1] + 0.6), f"{system}: Hits@1 by hops")
    axes = figure.subplots()
    for series in sorted(lines, key=lambda name: (name != system, name)):
        hops = sorted(lines[series])
        axes.plot(hops, [lines[series][hop] for hop in hops], marker="o", label=series)
    axes.set_xticks(sorted({hop for line in lines.values() for hop in line}))
    axes.set_xlabel("hops")
    axes.set_ylabel("Hits@1, percent")
    axes.legend(fontsize="small")
    return figure


def _figure(inches: tuple[float, float], title: str, **options: Any) -> Figure:
    """Return an empty figure outside pyplot, which keeps every figure alive."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=inches, layout="constrained", **options)
    figure.suptitle(title)
    return figure


SWEEP_PANEL_INCHES = (4.6, 3.4)
LEGEND_INCHES = 0.3  # per line of the legend
MAX_COLUMNS = 3
LEGEND_FONT = 0.085  # inches of a letter
MARKERS = "osD^vP*X"
DODGE = 0.7, 0.22  # of the distance between two names on the x axis: all dots of a name share it, two are no further
LETTERS = 45  # that fit along the x axis of a panel; more are turned
MAX_VALUES = 9  # that stand beside each other without being turned
APART = 1.18  # ticks of a logarithmic axis that are nearer than this factor would print over each other
DASHED_DOTS = {"template_control": ("_", 15), "ceiling": ("o", 13)}  # marker and its size
DASHES = {"template_control": (0, (4, 2)), "ceiling": (0, (1, 1.5))}


class Dot(NamedTuple):
    """One dot of a line."""

    x: float
    y: Spread


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: lines of dots by their names; ``names`` are on the x axis where it has no numbers."""

    title: str
    y_label: str
    figure: str
    lines: Mapping[str, Sequence[Dot]]
    beside: Mapping[tuple[str, str], Sequence[Dot]]  # (line, control) -> dots


def draw_sweep(plot: PlotSection, rows: Sequence[PointRow], sweep: str) -> Figure | None:
    """Return the figure of one plot; None where no run has anything of what it shows.

    Means are drawn, and where a row stands for several explorers, bars (or a band) of one standard deviation.
    ``sweep`` is the title of a plot that has none.
    """
    panels = [panel for panel in _panels(plot, rows) if any(panel.lines.values())]
    if not panels:
        return None
    columns = min(len({panel.title for panel in panels}) if plot.panels else len(panels), MAX_COLUMNS)
    num_rows = -(-len(panels) // columns)
    lines = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    height = num_rows * SWEEP_PANEL_INCHES[1] + LEGEND_INCHES * (2 + len(lines) // 2)
    figure = _figure((columns * SWEEP_PANEL_INCHES[0], height), plot.title or sweep, dpi=120)
    axes = list(figure.subplots(num_rows, columns, squeeze=False).flatten())
    for place, panel in zip(axes, panels, strict=False):
        _draw_panel(place, panel, plot, lines, _ticks(plot, rows))
    for place in axes[len(panels) :]:
        place.set_axis_off()
    shown = axes[: len(panels)]
    note, dimensions = _note(plot, rows), _line_dimensions(plot, rows[0])
    named = sweeps.SETTINGS.get(dimensions[0], dimensions[0]) if len(dimensions) == 1 else ""
    has_legend = _add_legend(figure, shown, "\n".join(filter(None, (note, named))), plot)
    label = "training step"
    if plot.x is not None:
        varied = all(plot.x in row.place for row in rows)
        label = sweeps.SETTINGS.get(plot.x, plot.x) if varied else sweeps.label_of(plot.x)
    for place in shown[-columns:]:
        place.set_xlabel("\n".join(filter(None, (label, "" if has_legend else note))))
    return figure


def _panels(plot: PlotSection, rows: Sequence[PointRow]) -> Iterable[Panel]:
    """Yield a panel per figure in ``y`` and, side by side, value of the dimension that ``panels`` names."""
    values = list(dict.fromkeys(show_value(row.place[plot.panels]) for row in rows)) if plot.panels else [""]
    for figure, value in itertools.product(plot.y, values):
        shown = [row for row in rows if not plot.panels or show_value(row.place[plot.panels]) == value]
        if plot.kind == "curves":
            curves = {_line_name(plot, row): [Dot(step, y) for step, y in row.curves.get(figure, ())] for row in shown}
            yield Panel(value, sweeps.curve_label(figure), figure, curves, {})
        else:
            beside: dict[tuple[str, str], list[Dot]] = {}
            for control in plot.beside if sweeps.is_score(figure) else ():
                found = _lines(plot, shown, rows, f"{control}.{figure}")
                beside |= {(line, control): dots for line, dots in found.items()}
            yield Panel(value, sweeps.label_of(figure), figure, _lines(plot, shown, rows, figure), beside)


def _lines(plot: PlotSection, shown: Sequence[PointRow], rows: Sequence[PointRow], figure: str) -> dict[str, list[Dot]]:
    """Return the dots of each line, by ascending x; ``rows`` are those of all panels, which share their x axis."""
    ticks = _ticks(plot, rows)
    lines: dict[str, list[Dot]] = {}
    name = plot.x or ""
    for row in shown:
        line = lines.setdefault(_line_name(plot, row), [])
        x = row.place[name] if name in row.place else row.figures[name].mean if name in row.figures else None
        if x is not None and figure in row.figures:
            line.append(Dot(float(ticks.index(show_value(x)) if ticks else x), row.figures[figure]))
    return {name: sorted(dots, key=lambda dot: dot.x) for name, dots in lines.items()}


def _ticks(plot: PlotSection, rows: Sequence[PointRow]) -> list[str]:
    if plot.x is None or not all(plot.x in row.place for row in rows):
        return []
    values = [row.place[plot.x] for row in rows]
    if plot.kind == "lines" and not plot.even_x and all(map(sweeps.is_number, values)):
        return []
    return list(dict.fromkeys(map(show_value, values)))


def _line_dimensions(plot: PlotSection, row: PointRow) -> list[str]:
    chosen = plot.lines if plot.lines is not None else tuple(row.place)
    return [name for name in chosen if name not in (plot.x, plot.panels)]


def _line_name(plot: PlotSection, row: PointRow) -> str:
    dimensions = _line_dimensions(plot, row)
    if len(dimensions) == 1:
        return show_value(row.place[dimensions[0]])
    short = short_names(name for name in dimensions if name not in (sweeps.BASE, sweeps.POINT))
    starts = {name: f"{shown}=" for name, shown in short.items()}
    return ", ".join(starts.get(name, "") + show_value(row.place[name]) for name in dimensions)


def _draw_panel(axes: Axes, panel: Panel, plot: PlotSection, lines: Sequence[str], ticks: Sequence[str]) -> None:
    dodge = min(DODGE[0] / len(lines), DODGE[1]) if plot.kind == "points" else 0.0
    for number, name in enumerate(lines):
        style = (f"C{number % 10}", MARKERS[number % len(MARKERS)], (number - (len(lines) - 1) / 2) * dodge)
        _draw_line(axes, panel, name, plot, style)
        for control in plot.beside if panel.beside else ():
            dots = panel.beside.get((name, control), ())
            xs, ys = [dot.x + style[2] for dot in dots], [dot.y.mean for dot in dots]
            axes.plot(xs, ys, color=style[0], alpha=0.8, **_control_style(plot, control))
        if plot.kind == "points":
            _write_values(axes, panel, name, style[2], len(lines) * len(ticks))
    axes.set_title(panel.title, fontsize="medium")
    axes.set_ylabel(panel.y_label)
    axes.grid(alpha=0.3)
    _set_y_axis(axes, panel, plot)
    _set_x_axis(axes, panel, plot, ticks)


def _control_style(plot: PlotSection, control: str) -> dict[str, Any]:
    """Return how a control is drawn: dashed, or where lines are not joined, by marks of its own."""
    if plot.kind != "points":
        return {"linestyle": DASHES[control]}
    marker, size = DASHED_DOTS[control]
    return {"linestyle": "none", "marker": marker, "markersize": size, "markeredgewidth": 1.4, "fillstyle": "none"}


def _draw_line(axes: Axes, panel: Panel, name: str, plot: PlotSection, style: tuple[str, str, float]) -> None:
    """Draw one line with its bars or its band; ``style`` is colour, marker and how far the dots are moved aside."""
    color, marker, shift = style
    dots = panel.lines.get(name, ())
    xs, means = [dot.x + shift for dot in dots], [dot.y.mean for dot in dots]
    deviations = [dot.y.deviation for dot in dots]
    joined = "none" if plot.kind == "points" else "-"
    size = 4 if plot.kind == "curves" else 6
    axes.plot(xs, means, color=color, marker=marker, markersize=size, linestyle=joined, label=name or "explorer")
    if plot.kind == "curves" and any(deviations):
        low, high = ([mean + sign * by for mean, by in zip(means, deviations, strict=True)] for sign in (-1, 1))
        axes.fill_between(xs, low, high, color=color, alpha=0.15, linewidth=0)
    elif any(deviations):
        axes.errorbar(xs, means, yerr=deviations, fmt="none", ecolor=color, capsize=3)


def _write_values(axes: Axes, panel: Panel, name: str, shift: float, crowd: int) -> None:
    """Write its value at each dot of a line, where there is room for it; ``crowd`` is how many dots a panel has."""
    alone, turned = len(panel.lines) == 1, crowd > MAX_VALUES
    for dot in panel.lines.get(name, ()):
        axes.annotate(
            show_spread(panel.figure, Spread(dot.y.mean, 0.0, 1)),
            (dot.x + shift, dot.y.mean + (0.0 if alone else dot.y.deviation)),
            (10, 0) if alone else (0, 9),
            textcoords="offset points",
            ha="left" if alone or turned else "center",
            va="center" if alone else "baseline",
            rotation=45 if turned and not alone else 0,
            rotation_mode="anchor",
            fontsize="x-small",
        )


def _set_y_axis(axes: Axes, panel: Panel, plot: PlotSection) -> None:
    from matplotlib.ticker import StrMethodFormatter

    if plot.kind == "points":
        axes.margins(y=0.18)  # room for the values
    if plot.log_y:
        axes.set_yscale("log")
    high = max((abs(dot.y.mean) for dots in panel.lines.values() for dot in dots), default=0.0)
    if high >= WHOLE_FROM or (plot.log_y and high > 1):
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    elif not plot.log_y:
        axes.ticklabel_format(axis="y", useOffset=False, style="plain")


def _set_x_axis(axes: Axes, panel: Panel, plot: PlotSection, ticks: Sequence[str]) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

    if ticks:
        long = sum(len(tick) + 2 for tick in ticks) > LETTERS
        axes.set_xticks(range(len(ticks)), ticks, rotation=20 if long else 0, ha="right" if long else "center")
        axes.set_xlim(-0.5, len(ticks) - 0.5)
        return
    whole = all(dot.x == int(dot.x) for dots in panel.lines.values() for dot in dots)
    if plot.log_x:
        axes.set_xscale("log")
        if whole:
            kept: list[float] = []
            for value in sorted({dot.x for dots in panel.lines.values() for dot in dots}):
                kept += [value] if not kept or value >= APART * kept[-1] else []
            axes.set_xticks(kept)
        else:
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_locator(NullLocator())
    elif whole:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}" if whole else "{x:,g}"))


def _note(plot: PlotSection, rows: Sequence[PointRow]) -> str:
    counts = sorted({row.count for row in rows})
    if counts[-1] == 1:
        return ""
    several = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"mean of {several} explorers; {'bands' if plot.kind == 'curves' else 'bars'}: ± one standard deviation"


def _add_legend(figure: Figure, panels: Sequence[Axes], title: str, plot: PlotSection) -> bool:
    """Add one legend for all panels below them, unless there is but one line; say whether there is one."""
    from matplotlib.lines import Line2D

    found: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        found |= {label: handle for handle, label in zip(handles, labels, strict=True) if label not in found}
    for control in plot.beside:
        found[sweeps.CONTROLS[control]] = Line2D([], [], color="0.4", **_control_style(plot, control))
    if len(found) < 2:
        return False
    longest = (max(map(len, found)) + 6) * LEGEND_FONT
    columns = max(1, min(len(found), int(figure.get_figwidth() / longest)))
    style = {"loc": "outside lower center", "fontsize": "small", "title_fontsize": "small", "frameon": False}
    figure.legend(found.values(), found.keys(), ncols=columns, title=title or None, **style)
    return True
