"""The plots show what was recorded: where a dot is, what a line joins, what the axes say."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kgqa_core.tracking import Point
from tasks.plots import MAX_PANELS, draw_hits_by_hops, draw_learning_curves, draw_sweep
from tasks.sweep_config import PlotSection
from tasks.sweep_points import PointRow, Spread

SIZE, BUDGET = "dataset.questions.train_size", "evaluation.edge_budget"
Dots = dict[str, tuple[list[float], list[float]]]


def row(place: Mapping[str, Any], count: int = 1, **figures: float) -> PointRow:
    spreads = {name.replace("__", "."): Spread(value, 2.0 * (count > 1), count) for name, value in figures.items()}
    return PointRow(place, spreads, count=count)


def draw(rows: list[PointRow], **plot: Any) -> Figure:
    figure = draw_sweep(PlotSection(**plot), rows, "sizes")
    assert figure is not None
    image = io.BytesIO()
    figure.savefig(image)  # the layout is made when it is drawn
    assert image.getvalue().startswith(b"\x89PNG")
    return figure


def dots(axes: Axes) -> Dots:
    """Return the dots of each line by its name."""
    lines = [line for line in axes.lines if not str(line.get_label()).startswith("_")]
    return {str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata())) for line in lines}


def ticks(axes: Axes) -> list[str]:
    return [tick.get_text() for tick in axes.get_xticklabels()]


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for found in figure.legends for text in found.get_texts()]


def test_a_panel_per_figure_and_a_line_per_value_of_what_else_varies() -> None:
    rows = [
        row({"base": base, SIZE: size}, hits1=hits, f1=hits - 1)
        for base, size, hits in [("one", 700, 90.0), ("one", 300, 80.0), ("two", 300, 70.0), ("two", 700, 75.0)]
    ]
    figure = draw(rows, x=SIZE, y=["hits1", "f1"])
    hits1, f1 = figure.axes
    assert dots(hits1) == {"one": ([300.0, 700.0], [80.0, 90.0]), "two": ([300.0, 700.0], [70.0, 75.0])}
    assert dots(f1)["two"] == ([300.0, 700.0], [69.0, 74.0])
    assert (hits1.get_ylabel(), f1.get_ylabel()) == ("Hits@1, percent", "F1, percent")
    assert {axes.get_xlabel() for axes in figure.axes} == {"training questions"}
    assert legend(figure) == ["one", "two"]
    assert figure.get_suptitle() == "sizes"


@pytest.mark.parametrize(("even_x", "values"), [(False, (5, 40, "all")), (True, (0, 7, 1000))])
def test_names_along_the_axis_and_even_numbers_keep_the_order_of_the_sweep(even_x: bool, values: Any) -> None:
    rows = [row({BUDGET: budget}, hits1=hits) for budget, hits in zip(values, (90.0, 99.0, 98.0), strict=True)]
    (axes,) = draw(rows, x=BUDGET, y="hits1", even_x=even_x).axes
    assert dots(axes) == {"explorer": ([0.0, 1.0, 2.0], [90.0, 99.0, 98.0])}
    assert ticks(axes) == list(map(str, values))


def test_repetitions_have_bars_of_one_deviation_and_the_plot_says_so() -> None:
    rows = [row({SIZE: size}, count=5, hits1=value) for size, value in [(100, 50.0), (1000, 60.0)]]
    (axes,) = draw(rows, x=SIZE, y="hits1", log_x=True).axes
    (bars,) = axes.containers
    ends = [segment.tolist() for segment in bars[2][0].get_segments()]
    assert ends == [[[100.0, 48.0], [100.0, 52.0]], [[1000.0, 58.0], [1000.0, 62.0]]]
    assert "mean of 5 explorers; bars: ± one standard deviation" in axes.get_xlabel()
    assert axes.get_xscale() == "log"
    assert ticks(axes) == ["100", "1,000"]


def test_controls_are_beside_the_scores_alone() -> None:
    rows = [
        row({SIZE: size}, hits1=90.0, template_control__hits1=float(size), answer__edges_per_question=7.0)
        for size in (30, 70)
    ]
    figure = draw(rows, x=SIZE, y=["hits1", "answer.edges_per_question"], beside="template_control", log_y=True)
    scores, edges = figure.axes
    (dashed,) = [line for line in scores.lines if line.get_linestyle() == "--"]
    assert (list(dashed.get_xdata()), list(dashed.get_ydata())) == ([30.0, 70.0], [30.0, 70.0])
    assert legend(figure) == ["explorer", "template control"]
    assert dots(edges) == {"explorer": ([30.0, 70.0], [7.0, 7.0])}
    assert edges.get_yscale() == "log"


def test_a_figure_can_be_the_x_axis() -> None:
    rows = [
        row({"base": "one", BUDGET: budget}, hits1=hits, answer__questions_per_second=speed)
        for budget, hits, speed in [(5, 90.0, 900.0), (40, 99.0, 400.0)]
    ]
    (axes,) = draw(rows, x="answer.questions_per_second", y="hits1", lines="base").axes
    assert dots(axes) == {"one": ([400.0, 900.0], [99.0, 90.0])}
    assert axes.get_xlabel() == "questions per CPU second"


def test_points_are_not_joined_stand_beside_each_other_and_carry_their_value() -> None:
    rows = [
        row({"base": base, "point": point}, hits1=value)
        for base, point, value in [("a", "old", 50.0), ("a", "new", 60.0), ("b", "old", 70.0), ("b", "new", 71.0)]
    ]
    (axes,) = draw(rows, kind="points", x="base", y="hits1").axes
    old, new = dots(axes)["old"], dots(axes)["new"]
    assert {line.get_linestyle() for line in axes.lines} == {"None"}
    assert all(left < right for left, right in zip(old[0], new[0], strict=True))
    assert [text.get_text() for text in axes.texts] == ["50.00", "70.00", "60.00", "71.00"]
    assert ticks(axes) == ["a", "b"]


def test_learning_curves_have_a_band_and_a_panel_per_dataset() -> None:
    def curve(*values: float) -> dict[str, list[tuple[int, Spread]]]:
        return {"dev.hits1": [(7 * epoch, Spread(value, 3.0, 2)) for epoch, value in enumerate(values, start=1)]}

    rows = [
        PointRow({"base": "a", "point": "scratch"}, {}, curve(10.0, 20.0), 2),
        PointRow({"base": "a", "point": "pre-trained"}, {}, curve(30.0, 31.0), 2),
        PointRow({"base": "b", "point": "scratch"}, {}, curve(5.0), 2),
    ]
    figure = draw(rows, kind="curves", y="dev.hits1", panels="base")
    first, second = figure.axes
    assert (first.get_title(), second.get_title()) == ("a", "b")
    assert dots(first) == {"scratch": ([7, 14], [10.0, 20.0]), "pre-trained": ([7, 14], [30.0, 31.0])}
    assert dots(second)["scratch"] == ([7], [5.0])
    band = first.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (7.0, 23.0)
    assert first.get_xlabel() == "training step"


@pytest.mark.parametrize("plot", [{"x": SIZE, "y": "hits1.hop3"}, {"kind": "curves", "y": "dev.hits1"}])
def test_what_no_run_has_is_not_drawn(plot: dict[str, Any]) -> None:
    assert draw_sweep(PlotSection(**plot), [row({SIZE: 7}, hits1=1.0)], "sizes") is None
    for curves in ({}, {"loss": []}):
        assert draw_learning_curves(curves, "explorer") is None
    assert draw_hits_by_hops({"hits1": 97.0}, "explorer") is None


def test_many_panels_are_in_rows_of_three() -> None:
    rows = [row({SIZE: size}, hits1=1.0, hits3=2.0, f1=3.0, em=4.0) for size in (7, 9)]
    drawn = [axes for axes in draw(rows, x=SIZE, y=["hits1", "hits3", "f1", "em"]).axes if axes.axison]
    assert [axes.get_ylabel().partition(",")[0] for axes in drawn] == ["Hits@1", "Hits@3", "F1", "exact match"]
    assert len({round(axes.get_position().y0, 3) for axes in drawn}) == 2


def points(*values: float) -> list[Point]:
    return [(20 * step, value, 0) for step, value in enumerate(values, start=1)]


def test_curves_of_one_figure_share_a_panel_and_steps_are_in_order() -> None:
    late_first = [*points(3.0, 2.0, 1.0)[1:], *points(3.0)]
    curves = {"train.loss": late_first, "dev.loss": points(5.0, 4.0), "dev.hits1": points(97.0), "empty": []}
    figure = draw_learning_curves(curves, "explorer seed 7")
    assert figure is not None
    panels = {axes.get_ylabel(): dots(axes) for axes in figure.axes}
    assert panels.keys() == {"loss", "hits1"}
    assert panels["loss"] == {"train.loss": ([20, 40, 60], [3, 2, 1]), "dev.loss": ([20, 40], [5, 4])}
    assert figure.get_suptitle() == "explorer seed 7"


def test_hits_by_hops_puts_the_controls_beside_the_system() -> None:
    metrics = {"hits1.hop2": 99.0, "hits1.hop1": 97.0, "hits1.hopunknown": 13.0, "hits1": 98.0, "f1.hop1": 90.0}
    figure = draw_hits_by_hops({**metrics, "template_control.hits1.hop1": 80.0}, "explorer")
    assert figure is not None
    (axes,) = figure.axes
    assert dots(axes) == {"explorer": ([1, 2], [97.0, 99.0]), "template_control": ([1], [80.0])}
    assert list(axes.get_xticks()) == [1, 2]


@pytest.mark.parametrize("num_figures", [1, MAX_PANELS + 3])
def test_many_figures_stay_readable_without_a_display_and_the_loss_is_among_them(num_figures: int) -> None:
    names = [*(f"dev.figure{number}" for number in range(num_figures - 1)), "train.loss"]
    figure = draw_learning_curves({name: points(1.0, 2.0) for name in names}, "explorer")
    assert figure is not None
    assert len(figure.axes) == min(num_figures, MAX_PANELS) and figure.axes[0].get_ylabel() == "loss"
    figure.savefig(io.BytesIO())
