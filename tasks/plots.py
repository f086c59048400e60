"""The plots of a system's run: learning curves, and Hits@1 by the number of hops. Matplotlib only, and no display."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kgqa_core.tracking import HOP_METRIC, Point

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_PANELS = 6
PANEL_INCHES = (7.0, 2.4)
HITS = "hits1"


def draw_learning_curves(curves: Mapping[str, Sequence[Point]], title: str) -> Figure | None:
    """Return one panel per figure (the last part of a curve's name: ``train.loss`` and ``dev.loss`` share one).

    None where there are no curves.
    """
    panels: dict[str, list[str]] = {}
    for name in sorted(curves):
        if curves[name]:
            panels.setdefault(re.split("[./]", name)[-1], []).append(name)
    if not panels:
        return None
    shown = list(panels)[:MAX_PANELS]
    figure = _figure(len(shown), title)
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
    figure = _figure(1, f"{system}: Hits@1 by hops")
    axes = figure.axes[0]
    for series in sorted(lines, key=lambda name: (name != system, name)):
        hops = sorted(lines[series])
        axes.plot(hops, [lines[series][hop] for hop in hops], marker="o", label=series)
    axes.set_xticks(sorted({hop for line in lines.values() for hop in line}))
    axes.set_xlabel("hops")
    axes.set_ylabel("Hits@1, percent")
    axes.legend(fontsize="small")
    return figure


def _figure(num_panels: int, title: str) -> Figure:
    """Return an empty figure of panels above each other, outside pyplot, which keeps every figure alive."""
    from matplotlib.figure import Figure

    width, height = PANEL_INCHES
    figure = Figure(figsize=(width, height * num_panels + 0.6), layout="constrained")
    figure.subplots(num_panels, 1, sharex=True)
    figure.suptitle(title)
    return figure
