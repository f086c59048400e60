"""Every table and figure that the papers report has a run configuration here, or a reason why it has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgqa_core.config_file import read_config
from kgqa_core.errors import InputError
from kgqa_core.evaluation.published import METRICS, TOPIC_SOURCES, PublishedTable, read_published

PAPERS = Path(__file__).resolve().parents[1] / "conf" / "papers"
COVERED = {
    "etd": "Table 2, Table 3, Table 4, Table 5, Table 6, Table 10, Table 11, Figure 3, Figure 4, Figure 5",
    "dualr": "Table 2, Table 3, Table 4, Table 5, Table 6, Table 10, Table 11, Table 12, Table 13, Figure 3, Figure 4, "
    "Figure 5",
    "rog": "Table 1, Table 2, Table 3, Table 12, Table 13, Table 14, Table 15, Table 16, Table 17, Table 18, Figure 3, "
    "Figure 4",
    "eperm": "Table 2, Table 3, Table 4, Figure 3",
    "fiske": "Table 1, Table 2, Table 3, Table 4, Table 5, Table 6",
}


@pytest.fixture(scope="module")
def tables() -> tuple[PublishedTable, ...]:
    return read_published(PAPERS / "tables.yaml")


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let run files name a data folder; none of what they name has to be there to be read."""
    monkeypatch.setenv("KGQA_DATA", str(tmp_path))


def table(tables: tuple[PublishedTable, ...], paper: str, item: str) -> PublishedTable:
    (found,) = [one for one in tables if (one.paper, one.item) == (paper, item)]
    return found


@pytest.mark.parametrize("paper", COVERED)
def test_every_table_and_figure_has_runs_or_a_reason(tables: tuple[PublishedTable, ...], paper: str) -> None:
    of_paper = {one.item: one for one in tables if one.paper == paper}
    assert list(of_paper) == COVERED[paper].split(", ")
    assert all(one.about and (one.runs or one.reason) for one in of_paper.values())


@pytest.mark.slow
def test_so_is_every_run_with_its_settings(tables: tuple[PublishedTable, ...], data: None) -> None:
    for config, settings in sorted({(run.config, run.set) for one in tables for run in one.runs}):
        read_config(PAPERS / config, settings)


def test_every_run_file_is_used_is_a_usable_configuration_and_says_what_it_is_for(
    tables: tuple[PublishedTable, ...], data: None
) -> None:
    files = {path.name: path for path in PAPERS.glob("*.yaml")}
    assert files.keys() - {run.config for one in tables for run in one.runs} == {"tables.yaml"}
    del files["tables.yaml"]
    for name, path in files.items():
        assert read_config(path).dataset.name == path.stem
        header = path.read_text(encoding="utf-8").split("\n\n")[0]
        assert all(f"# {what} " in header for what in ("Purpose", "Prerequisites", "Command", "Time, memory")), path
        assert f"conf/papers/{name}" in header


def test_every_figure_says_metric_denominator_and_topics(tables: tuple[PublishedTable, ...]) -> None:
    figures = [figure for one in tables for figure in one.figures]
    assert len(figures) > 500
    for figure in figures:
        assert figure.metric in METRICS and figure.topics in TOPIC_SOURCES
        assert figure.denominator is None or figure.denominator > 0
        assert 0 < figure.value <= 100


def test_hit_and_hits1_are_never_in_one_column(tables: tuple[PublishedTable, ...]) -> None:
    rog = [figure for one in tables for figure in one.figures if (figure.dataset, figure.method) == ("WebQSP", "RoG")]
    hits = [figure.value for figure in rog if figure.metric == "hit"]
    assert hits == [85.7, 85.7, 85.75, 85.7]  # DualR's Table 5, RoG's 1 and 16, EPERM's 2
    assert [figure.value for figure in rog if figure.metric == "hits1"] == [80.0]
    (plugged,) = [one for one in table(tables, "etd", "Table 2").figures if one.value == 74.2]
    assert (plugged.method, plugged.metric, plugged.note) == ("RoG-Llama2-7B", "hit", "plug-and-play")


def test_what_is_odd_in_the_papers_is_noted_and_their_splits_are_kept_apart(tables: tuple[PublishedTable, ...]) -> None:
    assert "swapped" in table(tables, "rog", "Table 3").care
    assert "97.6" in table(tables, "etd", "Table 6").care and "97.8" in table(tables, "etd", "Table 5").care
    assert "85.7" in table(tables, "etd", "Table 2").care
    assert "three variants" in table(tables, "eperm", "Table 3").care
    sizes = {(one.paper, figure.denominator) for one in tables for figure in one.figures if figure.dataset == "WebQSP"}
    assert sizes == {("etd", 1639), ("dualr", 1639), ("rog", 1628), ("eperm", 1628), ("fiske", 300)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("p: {items: {Table 1: {about: x}}}", "Table 1: give 'runs', or the 'reason'"),
        ("p: {items: {Table 1: {reason: x, colums: []}}}", "items.Table 1.colums: Extra inputs are not permitted"),
        ("p: {topics: gold, items: {T: {reason: x, columns: [A hits], rows: {m: [1]}}}}", "'hits' is no metric"),
        (
            "p: {topics: gold, denominators: {A: 1}, items: {T: {reason: x, columns: [A hit], rows: {m: [1, 2]}}}}",
            "expected 1 values",
        ),
        ("p: {denominators: {A: 1}, items: {T: {reason: x, columns: [A hit], rows: {m: [1]}}}}", "topics are missing"),
        ("p: {topics: gold, items: {T: {reason: x, columns: [A hit], rows: {m: [1]}}}}", "does not name 'A'"),
        ("p: {items: {T: {runs: [{set: [a]}]}}}", "items.T.runs.0.config: Field required"),
        ("- p", "is no index"),
        ("p: {", "is no index"),
    ],
)
def test_an_index_that_does_not_say_what_it_must_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "tables.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        read_published(tmp_path / "tables.yaml")
    with pytest.raises(InputError, match="nowhere"):
        read_published(tmp_path / "nowhere.yaml")
