"""The plots say what was recorded: one panel per figure, one line per system."""

from __future__ import annotations

import io

import pytest

from kgqa_core.tracking import Point
from tasks.plots import MAX_PANELS, draw_hits_by_hops, draw_learning_curves


def curve(*values: float) -> list[Point]:
    return [(20 * step, value, 0) for step, value in enumerate(values, start=1)]


def test_curves_of_one_figure_share_a_panel_and_steps_are_in_order() -> None:
    late_first = [*curve(3.0, 2.0, 1.0)[1:], *curve(3.0)]
    curves = {"train.loss": late_first, "dev.loss": curve(5.0, 4.0), "dev.hits1": curve(97.0), "empty": []}
    figure = draw_learning_curves(curves, "explorer seed 7")
    assert figure is not None
    panels = {axes.get_ylabel(): axes for axes in figure.axes}
    assert set(panels) == {"loss", "hits1"}
    lines = {line.get_label(): line for line in panels["loss"].lines}
    assert set(lines) == {"train.loss", "dev.loss"}
    assert list(lines["train.loss"].get_xdata()) == [20, 40, 60]
    assert list(lines["train.loss"].get_ydata()) == [3, 2, 1]
    assert figure.get_suptitle() == "explorer seed 7"


def test_hits_by_hops_puts_the_controls_beside_the_system() -> None:
    metrics = {
        "hits1.hop2": 99.0,
        "hits1.hop1": 97.0,
        "hits1.hopunknown": 13.0,
        "hits1": 98.0,
        "f1.hop1": 90.0,
        "template_control.hits1.hop1": 80.0,
    }
    figure = draw_hits_by_hops(metrics, "explorer")
    assert figure is not None
    (axes,) = figure.axes
    lines = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines}
    assert lines == {"explorer": ([1, 2], [97.0, 99.0]), "template_control": ([1], [80.0])}
    assert list(axes.get_xticks()) == [1, 2]


def test_nothing_recorded_is_nothing_drawn() -> None:
    assert draw_learning_curves({}, "explorer") is None
    assert draw_learning_curves({"loss": []}, "explorer") is None
    assert draw_hits_by_hops({"hits1": 97.0}, "explorer") is None


@pytest.mark.parametrize("num_figures", [1, MAX_PANELS, MAX_PANELS + 3])
def test_many_figures_stay_readable_and_draw_without_a_display(num_figures: int) -> None:
    figure = draw_learning_curves({f"figure{number}": curve(1.0, 2.0) for number in range(num_figures)}, "explorer")
    assert figure is not None
    assert len(figure.axes) == min(num_figures, MAX_PANELS)
    image = io.BytesIO()
    figure.savefig(image)
    assert image.getvalue().startswith(b"\x89PNG")
