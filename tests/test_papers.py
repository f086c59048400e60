"""Every table and figure that the papers report has a run configuration here, or a reason why it has none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from kgqa_core.config_file import read_config
from kgqa_core.evaluation.tables import Metric, PublishedFigure, TopicSource, read_published
from kgqa_core.instructions.render import read_prompts

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


INDEX: dict[str, dict[str, Any]] = yaml.safe_load((PAPERS / "tables.yaml").read_text(encoding="utf-8"))
TABLES = {(paper, name): table for paper, content in INDEX.items() for name, table in content["items"].items()}
RUNS = [run for table in TABLES.values() for run in table.get("runs", ())]
KEYS = {"about", "runs", "reason", "care", "topics", "columns", "rows"}


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let run files name a data folder; none of what they name has to be there to be read."""
    monkeypatch.setenv("KGQA_DATA", str(tmp_path))


@pytest.mark.parametrize("paper", COVERED)
def test_every_table_and_figure_has_runs_or_a_reason(paper: str) -> None:
    assert INDEX[paper].keys() <= {"topics", "denominators", "items"}
    assert list(INDEX[paper]["items"]) == COVERED[paper].split(", ")
    for name, table in INDEX[paper]["items"].items():
        assert table["about"] and (table.get("runs") or table["reason"]), name
        assert table.keys() <= KEYS, name
        assert all(run.keys() <= {"config", "set", "row"} for run in table.get("runs", ())), name


@pytest.mark.slow
def test_so_is_every_run_with_its_settings(data: None) -> None:
    for config, settings in sorted({(run["config"], tuple(run.get("set", ()))) for run in RUNS}):
        read_config(PAPERS / config, settings)


METHOD = {"explorer": r"(EtD|DualR)-w\.o\.-AD", "etd": "EtD", "dualr": "DualR", "rog": "RoG", "eperm": "EPERM"}
METHOD |= {"fiske": "FiSKE", "tog": "ToG", "direct": "IO|LLaMA2|Llama2", "cot": "CoT", "kaping": "KAPING"}


@pytest.mark.slow
def test_every_table_has_a_row_that_one_of_its_run_files_makes(data: None) -> None:
    for (paper, name), table in TABLES.items():
        if "rows" not in table or "runs" not in table:
            assert "rows" not in table or table["reason"], (paper, name)
            continue
        configs = [read_config(PAPERS / run["config"], run.get("set", ())) for run in table["runs"]]
        made = {system for config in configs if config.systems for system, _ in config.systems.rows().values()}
        assert any(re.match(METHOD[system], row) for system in made for row in table["rows"]), (paper, name)


def test_without_pruning_lifts_the_budget_and_the_threshold() -> None:
    runs = [run for run in RUNS if run.get("row") == "without pruning"]
    assert len(runs) == 6
    assert all({"evaluation.edge_budget=all", "evaluation.attention_threshold=0"} < {*run["set"]} for run in runs)


def test_runs_of_rog_and_eperm_read_the_question_itself_and_plan_freely_as_published(data: None) -> None:
    for name in ("rog-webqsp", "rog-cwq", "rog-metaqa-3hop", "eperm-webqsp", "eperm-cwq"):
        config = read_config(PAPERS / f"{name}.yaml")
        assert not config.exploration.mask_topics and not config.plans.only_existing, name
        ours = read_config(PAPERS / f"{name}.yaml", ["reasoner.variant=ours", "plans.only_existing=true"])
        assert ours.exploration.mask_topics
    assert read_config(PAPERS / "rog-cwq.yaml", ["explorer.mask_topics=true"]).exploration.mask_topics


def test_every_component_is_the_same_or_says_why_not_and_names_what_is_there() -> None:
    page = (PAPERS.parents[1] / "docs" / "papers.md").read_text(encoding="utf-8")
    for paper, title in (("etd", "EtD"), ("dualr", "DualR"), ("rog", "RoG"), ("eperm", "EPERM"), ("fiske", "FiSKE")):
        section = page.split(f"\n## {title}\n")[1].split("\n## ")[0]
        rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in section.splitlines() if line.startswith("| ")][1:]
        assert len(rows) >= 10, paper
        for component, _, where, verdict in rows:
            if re.match(r" (differs|ours|not )", verdict):
                assert "because" in verdict, component
            for file in re.findall(r"`(\w+/[\w/]+\.py)`", where):
                assert (PAPERS.parents[1] / "kgqa_core" / file).is_file(), file


def test_systems_of_paths_show_each_on_a_line_as_the_papers_do(data: None) -> None:
    names = [path.name for path in PAPERS.glob("*.yaml") if path.name.startswith(("rog", "eperm", "fiske"))]
    assert len(names) == 11
    for name in names:
        templates = read_prompts(read_config(PAPERS / name).prompts)
        assert all("{paths}" in templates[prompt].text for prompt in ("reason", "reason_scored")), name


def test_every_run_file_is_used_is_a_usable_configuration_and_says_what_it_is_for(data: None) -> None:
    files = {path.name: path for path in PAPERS.glob("*.yaml")}
    assert files.keys() - {run["config"] for run in RUNS} == {"tables.yaml"}
    del files["tables.yaml"]
    for name, path in files.items():
        assert read_config(path).dataset.name == path.stem
        header = path.read_text(encoding="utf-8").split("\n\n")[0]
        assert all(f"# {what} " in header for what in ("Purpose", "Prerequisites", "Command", "Time, memory")), path
        assert f"conf/papers/{name}" in header


def test_every_figure_says_metric_denominator_and_topics() -> None:
    figures = read_published(PAPERS / "tables.yaml")
    assert len(figures) > 500
    for figure in figures:
        assert figure.metric in get_args(Metric) and figure.topics in get_args(TopicSource)
        assert 0 < figure.value <= 100
    for (paper, name), table in TABLES.items():
        for column in table.get("columns", ()):
            dataset, _, metric = column.rpartition(" ")
            assert metric in get_args(Metric), (paper, name)
            num_questions = INDEX[paper]["denominators"][dataset]
            assert num_questions is None or num_questions > 0
        for row in table.get("rows", {}).values():
            assert isinstance(row, list) or row.keys() <= {"values", "metric", "topics", "note"}, (paper, name)


def test_hit_and_hits1_are_never_in_one_column() -> None:
    figures = read_published(PAPERS / "tables.yaml")
    rog = [figure for figure in figures if (figure.dataset, figure.method) == ("WebQSP", "RoG")]
    hits = [figure.value for figure in rog if figure.metric == "hit"]
    assert hits == [85.7, 85.7, 85.75, 85.7]  # DualR's Table 5, RoG's 1 and 16, EPERM's 2
    assert [figure.value for figure in rog if figure.metric == "hits1"] == [80.0]
    plugged = next(one for one in figures if one.value == 74.2)  # EtD's Table 2, in a column of Hits@1
    assert (plugged.method, plugged.metric) == ("RoG-Llama2-7B", "hit")
    assert TABLES["etd", "Table 2"]["rows"]["RoG-Llama2-7B"]["note"] == "plug-and-play"


def test_what_is_odd_in_the_papers_is_noted_and_their_splits_are_kept_apart() -> None:
    odd = {("rog", "Table 3"): "swapped", ("etd", "Table 6"): "97.6", ("etd", "Table 5"): "97.8"}
    odd |= {("etd", "Table 2"): "85.7", ("eperm", "Table 3"): "three variants"}
    assert all(words in TABLES[place]["care"] for place, words in odd.items())
    sizes = {paper: content["denominators"]["WebQSP"] for paper, content in INDEX.items()}
    assert sizes == {"etd": 1639, "dualr": 1639, "rog": 1628, "eperm": 1628, "fiske": 300}


def test_a_row_may_say_metric_and_topics_of_its_own(tmp_path: Path) -> None:
    first = "{columns: [A hits1, B f1], rows: {m: {values: [1, 2], metric: hit, topics: none}, n: [null, 3]}}"
    second = "{topics: linked, columns: [A hit], rows: {m: [4]}}"
    (tmp_path / "tables.yaml").write_text(f"p: {{topics: gold, items: {{T: {first}, U: {second}, V: {{reason: x}}}}}}")
    assert read_published(tmp_path / "tables.yaml") == [
        PublishedFigure("m", "A", "hit", 1, "none"),
        PublishedFigure("m", "B", "f1", 2, "none"),
        PublishedFigure("n", "B", "f1", 3, "gold"),
        PublishedFigure("m", "A", "hit", 4, "linked"),
    ]
