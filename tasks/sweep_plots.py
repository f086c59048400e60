"""The plots of a sweep: figures against what was varied, and learning curves side by side. Matplotlib, no display."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kgqa_core.sweeps.config import BASE, POINT, PlotSection, is_number
from kgqa_core.sweeps.figures import CONTROLS, curve_label, is_score, label_of
from kgqa_core.sweeps.points import short_names, show_value
from kgqa_core.sweeps.rows import PointRow, Spread
from kgqa_core.sweeps.table import show_spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_INCHES = (4.6, 3.4)
LEGEND_INCHES = 0.3  # per line of the legend
MAX_COLUMNS = 3
LEGEND_COLUMNS = 3
MARKERS = "osD^vP*X"
DODGE = 0.12  # of the distance between two names on the x axis, between the dots of two lines
APART = 1.18  # ticks of a logarithmic axis that are nearer than this factor would print over each other
DASHES = {"template_control": (0, (4, 2)), "ceiling": (0, (1, 1.5))}
NAMES = {BASE: "run", POINT: ""}


@dataclass(frozen=True, slots=True)
class Dot:
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


def draw_sweep(plot: PlotSection, rows: Sequence[PointRow], title: str) -> Figure | None:
    """Return the figure of one plot of a sweep; None where no run has anything of what it shows.

    Means are drawn, and where a row stands for several explorers, bars (or a band) of one standard deviation.
    """
    from matplotlib.figure import Figure

    panels = [panel for panel in _panels(plot, rows) if any(panel.lines.values())]
    if not panels:
        return None
    columns = min(len(panels), MAX_COLUMNS)
    lines = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    height = -(-len(panels) // columns) * PANEL_INCHES[1] + LEGEND_INCHES * (2 + -(-len(lines) // LEGEND_COLUMNS))
    figure = Figure(figsize=(columns * PANEL_INCHES[0], height), layout="constrained", dpi=120)
    axes = list(figure.subplots(-(-len(panels) // columns), columns, squeeze=False).flatten())
    for place, panel in zip(axes, panels, strict=False):
        _draw_panel(place, panel, plot, lines, _ticks(plot, rows))
    for place in axes[len(panels) :]:
        place.set_axis_off()
    figure.suptitle(plot.title or title)
    shown = axes[: len(panels)]
    has_legend = _add_legend(figure, shown, "\n".join(filter(None, (_note(plot, rows), _legend_title(plot, rows)))))
    for place in shown[-columns:]:
        place.set_xlabel("\n".join(filter(None, (_x_label(plot, rows), "" if has_legend else _note(plot, rows)))))
    return figure


def _panels(plot: PlotSection, rows: Sequence[PointRow]) -> Iterable[Panel]:
    """Yield a panel per value of the dimension that ``panels`` names, and figure in ``y``."""
    values = list(dict.fromkeys(show_value(row.place[plot.panels]) for row in rows)) if plot.panels else [""]
    for value in values:
        shown = [row for row in rows if not plot.panels or show_value(row.place[plot.panels]) == value]
        for figure in plot.y:
            if plot.kind == "curves":
                lines = {
                    _line_name(plot, row): [Dot(step, y) for step, y in row.curves.get(figure, ())] for row in shown
                }
                yield Panel(value, curve_label(figure), figure, lines, {})
            else:
                own = _lines(plot, shown, rows, figure)
                beside: dict[tuple[str, str], list[Dot]] = {
                    (line, control): dots
                    for control in plot.beside
                    if is_score(figure)
                    for line, dots in _lines(plot, shown, rows, f"{control}.{figure}").items()
                }
                yield Panel(value, label_of(figure), figure, own, beside)


def _lines(plot: PlotSection, shown: Sequence[PointRow], rows: Sequence[PointRow], figure: str) -> dict[str, list[Dot]]:
    """Return the dots of each line, by ascending x; ``rows`` are those of all panels, which share their x axis."""
    ticks = _ticks(plot, rows)
    lines: dict[str, list[Dot]] = {}
    for row in shown:
        line = lines.setdefault(_line_name(plot, row), [])
        x = _x_value(plot, row, ticks)
        if x is not None and figure in row.figures:
            line.append(Dot(x, row.figures[figure]))
    return {name: sorted(dots, key=lambda dot: dot.x) for name, dots in lines.items()}


def _ticks(plot: PlotSection, rows: Sequence[PointRow]) -> list[str]:
    """Return the names along the x axis, empty where it has numbers."""
    if plot.x is None or not all(plot.x in row.place for row in rows):
        return []
    values = [row.place[plot.x] for row in rows]
    if plot.kind == "lines" and all(map(is_number, values)):
        return []
    return list(dict.fromkeys(map(show_value, values)))


def _x_value(plot: PlotSection, row: PointRow, ticks: Sequence[str]) -> float | None:
    x = plot.x or ""
    if x in row.place:
        return float(ticks.index(show_value(row.place[x]))) if ticks else float(row.place[x])
    found = row.figures.get(x)
    return None if found is None else found.mean


def _line_dimensions(plot: PlotSection, row: PointRow) -> list[str]:
    chosen = plot.lines if plot.lines is not None else tuple(row.place)
    return [name for name in chosen if name not in (plot.x, plot.panels)]


def _line_name(plot: PlotSection, row: PointRow) -> str:
    dimensions = _line_dimensions(plot, row)
    if len(dimensions) == 1:
        return show_value(row.place[dimensions[0]])
    short = short_names(name for name in dimensions if name not in NAMES)
    return ", ".join(
        f"{short[name]}={show_value(row.place[name])}" if name in short else show_value(row.place[name])
        for name in dimensions
    )


def _draw_panel(axes: Axes, panel: Panel, plot: PlotSection, lines: Sequence[str], ticks: Sequence[str]) -> None:
    for number, name in enumerate(lines):
        color, marker = f"C{number % 10}", MARKERS[number % len(MARKERS)]
        shift = (number - (len(lines) - 1) / 2) * DODGE if plot.kind == "points" else 0.0
        _draw_line(axes, panel, name, plot, (color, marker, shift))
        for control in plot.beside if panel.beside else ():
            dots = panel.beside.get((name, control), ())
            label = f"{name}, {CONTROLS[control]}" if name else CONTROLS[control]
            xs, ys = [dot.x + shift for dot in dots], [dot.y.mean for dot in dots]
            if plot.kind == "points":
                axes.plot(xs, ys, "_", color=color, markersize=16, label=label, markeredgewidth=1.6, alpha=0.8)
            else:
                axes.plot(xs, ys, color=color, linestyle=DASHES[control], label=label, alpha=0.8)
    axes.set_title(panel.title, fontsize="medium")
    axes.set_ylabel(panel.y_label)
    axes.grid(alpha=0.3)
    if plot.log_y:
        axes.set_yscale("log")
    else:
        axes.ticklabel_format(axis="y", useOffset=False, style="plain")
    _set_x_axis(axes, panel, plot, ticks)


def _draw_line(axes: Axes, panel: Panel, name: str, plot: PlotSection, style: tuple[str, str, float]) -> None:
    color, marker, shift = style
    dots = panel.lines.get(name, ())
    xs, means = [dot.x + shift for dot in dots], [dot.y.mean for dot in dots]
    deviations = [dot.y.deviation for dot in dots]
    joined = "none" if plot.kind == "points" else "-"
    size = 4 if plot.kind == "curves" else 6
    axes.plot(xs, means, color=color, marker=marker, markersize=size, linestyle=joined, label=name or "explorer")
    if any(deviations):
        if plot.kind == "curves":
            low, high = ([mean + sign * by for mean, by in zip(means, deviations, strict=True)] for sign in (-1, 1))
            axes.fill_between(xs, low, high, color=color, alpha=0.15, linewidth=0)
        else:
            axes.errorbar(xs, means, yerr=deviations, fmt="none", ecolor=color, capsize=3)
    if plot.kind == "points":
        for x, dot in zip(xs, dots, strict=True):
            text = show_spread(panel.figure, Spread(dot.y.mean, 0.0, 1))
            axes.annotate(text, (x, dot.y.mean), (6, 4), textcoords="offset points", fontsize="x-small", color=color)


def _set_x_axis(axes: Axes, panel: Panel, plot: PlotSection, ticks: Sequence[str]) -> None:
    from matplotlib.ticker import NullLocator, StrMethodFormatter

    if ticks:
        long = max(map(len, ticks)) * len(ticks) > 40
        axes.set_xticks(range(len(ticks)), ticks, rotation=20 if long else 0, ha="right" if long else "center")
        axes.set_xlim(-0.5, len(ticks) - 0.4)
        return
    if plot.log_x:
        axes.set_xscale("log")
        axes.set_xticks(_apart({dot.x for dots in panel.lines.values() for dot in dots}))
        axes.xaxis.set_minor_locator(NullLocator())
    whole = all(dot.x == int(dot.x) for dots in panel.lines.values() for dot in dots)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}" if whole else "{x:,g}"))


def _apart(values: Iterable[float]) -> list[float]:
    """Return the values that are far enough from the one before to be printed side by side on a logarithmic axis."""
    kept: list[float] = []
    for value in sorted(values):
        if not kept or value >= APART * kept[-1]:
            kept.append(value)
    return kept


def _x_label(plot: PlotSection, rows: Sequence[PointRow]) -> str:
    if plot.x is None:
        return "training step"
    if not all(plot.x in row.place for row in rows):
        return label_of(plot.x)
    return NAMES.get(plot.x, plot.x)


def _note(plot: PlotSection, rows: Sequence[PointRow]) -> str:
    """Say what bars and bands are, where there are any."""
    counts = sorted({row.count for row in rows})
    if counts[-1] == 1:
        return ""
    several = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"mean of {several} explorers; {'bands' if plot.kind == 'curves' else 'bars'}: ± one standard deviation"


def _legend_title(plot: PlotSection, rows: Sequence[PointRow]) -> str:
    dimensions = _line_dimensions(plot, rows[0])
    return NAMES.get(dimensions[0], dimensions[0]) if len(dimensions) == 1 else ""


def _add_legend(figure: Figure, panels: Sequence[Axes], title: str) -> bool:
    """Add one legend for all panels below them, unless there is but one line; say whether there is one."""
    found: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        found |= {label: handle for handle, label in zip(handles, labels, strict=True) if label not in found}
    if len(found) < 2:
        return False
    figure.legend(
        found.values(),
        found.keys(),
        loc="outside lower center",
        ncols=min(LEGEND_COLUMNS, len(found)),
        title=title or None,
        fontsize="small",
        title_fontsize="small",
        frameon=False,
    )
    return True
