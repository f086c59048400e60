"""A graph that is built again after its files changed: what is shown, what stops a run, what accepts it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flows.cli_output import CHANGES_TITLE, change_rows
from flows.report_about import data_tables
from flows.summary import RunSummary, summarise
from kgqa_core.config_file import read_config
from kgqa_core.errors import DriftError, InputError
from kgqa_core.graph.build import connect
from kgqa_core.questions import diff
from kgqa_core.run.ensure import ensure
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.tracking import read_record
from tests.conftest import kgqa, write_jsonl

RUN = """\
dataset:
  name: towns
  source: files
  graph: {format: tsv, path: triples.tsv, names: names.tsv}
  questions: {format: jsonl, files: {train: train.jsonl, test: test.jsonl}, max_reject_ratio: 0.5}
encoder: {kind: hash, dim: 16}
explorer: {steps: 2, edge_budget: 10, epochs: 1}
"""
TRIPLES = [
    "Aar flows_through Bern",
    "Aar flows_into Rhine",
    "Bern capital_of Switzerland",
    "Emme flows_into Aar",
    "Reuss flows_through Luzern",
    "Luzern twin_of Bournemouth",
    "Thur flows_into Rhine",
]
QUESTIONS = {"train": {"Bern": "Aar", "Luzern": "Reuss"}, "test": {"Switzerland": "Aar", "Bournemouth": "Luzern"}}

NO_FLOOR = "dataset.drift.min_changed=0"


@pytest.fixture
def towns(tmp_path: Path) -> Path:
    """A run file with its files beside it."""
    conf = tmp_path / "towns.yaml"
    conf.write_text(RUN, encoding="utf-8")
    write_triples(conf, TRIPLES)
    (tmp_path / "names.tsv").write_text("Aar\tthe Aare\n", encoding="utf-8")
    for split, asked in QUESTIONS.items():
        rows = [
            {"id": f"about-{topic}", "question": f"what of {topic}?", "topics": [topic], "answers": [answer]}
            for topic, answer in asked.items()
        ]
        write_jsonl(tmp_path / f"{split}.jsonl", rows)
    return conf


def build(conf: Path, *overrides: str, accept: bool = False) -> RunSummary:
    """Build graph and questions, without Prefect."""
    pipeline = Pipeline(read_config(conf, overrides))
    return summarise(pipeline, ensure(pipeline, ["questions"], accept=accept))


def stopped(conf: Path, *overrides: str) -> str:
    """Return with which words a build is stopped."""
    with pytest.raises(DriftError) as raised:
        build(conf, *overrides)
    return str(raised.value)


def write_triples(conf: Path, triples: list[str]) -> None:
    text = "".join("\t".join(triple.split()) + "\n" for triple in triples)
    (conf.parent / "triples.tsv").write_text(text, encoding="utf-8")


def edit(conf: Path, name: str, old: str, new: str) -> None:
    path = conf.parent / name
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def changed(summary: RunSummary) -> Any:
    assert summary.changes is not None
    return summary.changes


# What cannot be asked


@pytest.mark.parametrize(("goals", "verb"), [(("explorer", "evaluation"), "score"), (("system",), "answer")])
def test_a_run_without_questions_to_score_says_so_before_it_trains(
    towns: Path, goals: tuple[str, ...], verb: str
) -> None:
    compared = "systems={run: [direct], answered_by: [oracle]}"
    pipeline = Pipeline(read_config(towns, ["evaluation.split=dev", compared]))
    keys = [key for key, spec in pipeline.specs.items() if spec.stage in goals]
    with pytest.raises(InputError, match=f"there are no dev questions to {verb}; set evaluation.split, or add some"):
        ensure(pipeline, keys)
    made = [pipeline.find(key) is not None for key in ("questions", "encodings", "explorer-seed0")]
    assert made == [True, False, False]
    assert [outcome.key for outcome in ensure(pipeline, ["encodings"])][-1] == "encodings"  # which asks nothing


GRID = "systems={run: [etd], answered_by: [oracle], choose: {grids: {etd: {num_candidates: [1, 2]}}}}"


@pytest.mark.parametrize(
    ("compared", "said"),
    [
        ([GRID], r"to choose settings on; leave systems\.choose out, or add"),
        (["systems={run: [ours], answered_by: [oracle]}", "plans={planners: [dense]}", "dense={}"], "to fuse on; lea"),
    ],
)
def test_a_choice_without_dev_questions_says_so_before_anything_is_trained(
    towns: Path, compared: list[str], said: str
) -> None:
    pipeline = Pipeline(read_config(towns, compared))
    with pytest.raises(InputError, match=f"no dev questions {said}"):
        ensure(pipeline, ["comparison"])
    assert pipeline.find("explorer-seed0") is None


# What is shown


def test_the_first_build_and_one_with_nothing_new_show_no_changes(towns: Path) -> None:
    assert build(towns).changes is None
    assert build(towns).changes is None
    write_triples(towns, TRIPLES[::-1])  # another file, the same graph
    again = build(towns)
    assert (again.changes, again.built) == (None, ["graph"])


def test_changes_are_those_worked_out_by_hand(towns: Path) -> None:
    build(towns)
    write_triples(towns, [*TRIPLES[:4], "Luzern twin_of Bournemouth", "Thur flows_into Rhine", "Thur long 137"])
    edit(towns, "names.tsv", "the Aare", "the river Aare")
    edit(towns, "train.jsonl", '"answers": ["Reuss"]', '"answers": ["Bournemouth"]')
    edit(towns, "test.jsonl", "about-Switzerland", "about-the-country")
    found = changed(build(towns))
    graph = found["graph"]
    assert graph["triples"] == {"before": 7, "after": 7, "came": 1, "gone": 1}
    assert graph["entities"] == {"before": 9, "after": 9, "came": 1, "gone": 1}  # 137; Reuss
    assert graph["relations"] == {"before": 4, "after": 5, "came": 1, "gone": 0}
    assert (graph["new_relations"], graph["gone_relations"]) == (["long"], [])
    assert graph["per_relation"] == {
        "flows_through": {"before": 2, "after": 1, "came": 0, "gone": 1},
        "long": {"before": 0, "after": 1, "came": 1, "gone": 0},
    }
    assert graph["num_renamed"] == 1
    assert found["questions"] == {"before": 4, "after": 4, "came": 1, "gone": 1}
    assert found["num_reworded"] == 1
    # Reuss - Luzern went: within two hops of Luzern and of Bournemouth. Thur - 137 came: of no topic.
    assert (found["num_subgraphs_changed"], found["subgraphs_by"], found["hops"]) == (2, "walk", 2)


def test_subgraphs_of_their_own_are_compared_where_both_builds_have_them(towns: Path) -> None:
    build(towns)
    write_triples(towns, [*TRIPLES, "Thur long 137"])
    first = changed(build(towns, "dataset.subgraphs=expand"))
    assert (first["subgraphs_by"], first["num_subgraphs_changed"]) == ("walk", 0)
    assert build(towns, "dataset.subgraphs=expand").changes is None
    write_triples(towns, [*TRIPLES, "Thur long 137", "Zug twin_of Bern"])
    second = changed(build(towns, "dataset.subgraphs=expand"))
    # Bern's and Switzerland's are two hops around them; Zug, last by label, moves no id of an entity but its own.
    assert (second["subgraphs_by"], second["num_subgraphs_changed"]) == ("digest", 2)


def test_a_comparison_is_an_artifact_with_tables_and_figures_for_the_tracker(towns: Path) -> None:
    build(towns)
    write_triples(towns, TRIPLES[:5])
    outcome = build(towns, "dataset.drift=null").outcomes[-1]
    assert (outcome.key, outcome.built) == ("changes", True)
    folder = outcome.artifact.folder
    relations = pq.read_table(folder / "relations.parquet").to_pylist()
    assert relations == [
        {"relation": "flows_into", "before": 3, "after": 2, "came": 0, "gone": 1},
        {"relation": "twin_of", "before": 1, "after": 0, "came": 0, "gone": 1},
    ]
    questions = {tuple(row.values()) for row in pq.read_table(folder / "questions.parquet").to_pylist()}
    assert questions == {("about-Bournemouth", "gone"), ("about-Luzern", "subgraph")}
    done = kgqa("sql", str(towns), "select relation from changes_relations order by 1", "--json")
    assert json.loads(done.stdout)["rows"] == [["flows_into"], ["twin_of"]]
    metrics = read_record(folder).metrics
    assert (metrics["triples_in"], metrics["triples_out"], metrics["questions_out"]) == (0, 2, 1)


def test_the_report_shows_no_changes_that_led_to_another_build(towns: Path) -> None:
    """Builds are noted by the run's name, which another folder's run may have too."""
    first = towns.with_name("first.tsv")
    first.write_text("".join(f"{line.replace(' ', chr(9))}\n" for line in TRIPLES), encoding="utf-8")
    there = f"dataset.graph.path={first}"
    build(towns, there)
    write_triples(towns, [*TRIPLES, "Sihl flows_through Luzern"])
    build(towns)
    for settings, shown in (([], True), ([there], False)):
        titles = [table["title"] for table in data_tables(Pipeline(read_config(towns, settings)))]
        assert (CHANGES_TITLE in titles) is shown


def test_people_see_a_line_for_everything_that_changed_and_for_nothing_else(towns: Path) -> None:
    build(towns)
    with (towns.parent / "triples.tsv").open("a") as stream:
        stream.write("half a line\n")
    lenient = "dataset.graph.max_reject_ratio=0.5"
    assert list(change_rows(changed(build(towns, lenient)))) == []
    titles = [table["title"] for table in data_tables(Pipeline(read_config(towns, [lenient])))]  # of the report
    assert titles and CHANGES_TITLE not in titles
    write_triples(towns, [*TRIPLES, "Sihl flows_through Luzern"])
    rows = list(change_rows(changed(build(towns))))
    assert rows[:3] == [
        ("triples", "7", "8", "+1", "-0"),
        ("entities", "9", "10", "+1", "-0"),
        ("triples of flows_through", "2", "3", "+1", "-0"),
    ]
    assert {row[0] for row in rows[3:]} == {
        "entities with a name, percent",
        "questions whose subgraph changed within 2 hops",
    }


# The guard


def test_a_change_beyond_a_limit_stops_with_what_moved_until_it_is_accepted(towns: Path) -> None:
    build(towns, NO_FLOOR)
    write_triples(towns, [line for line in TRIPLES if "flows_into" not in line])
    said = stopped(towns, NO_FLOOR)
    assert "triples: 7 -> 4 (+0 -3), 42.9 percent changed, max_triples_change allows 20" in said
    assert "entities: 9 -> 6 (+0 -3)" in said
    assert "kgqa build CONF --accept" in said
    assert "relation flows_into" not in said  # it has fewer than a thousand triples
    pipeline = Pipeline(read_config(towns))
    assert pipeline.find("graph") and pipeline.find("questions")  # what was built is kept
    write_triples(towns, TRIPLES)
    assert build(towns, NO_FLOOR).changes is None  # to go back to the accepted build needs no accepting
    write_triples(towns, [line for line in TRIPLES if "flows_into" not in line])
    assert stopped(towns, NO_FLOOR) == said
    accepted = build(towns, NO_FLOOR, accept=True)
    assert changed(accepted)["graph"]["triples"]["gone"] == 3
    assert accepted.built == []  # nothing is made twice, the comparison neither
    assert build(towns, NO_FLOOR).changes is None


@pytest.mark.parametrize(
    ("limit", "what"),
    [
        ("max_triples_change=0.42", "triples"),
        ("max_entities_change=0.33", "entities"),
        ("max_relation_change=0.99", "relation flows_into"),
        ("max_questions_change=0.1", "questions"),
        ("max_coverage_drop=49", "questions with an answer within reach, test, percent"),
        ("max_name_coverage_drop=5", "entities with a name, percent"),
    ],
)
def test_each_limit_guards_one_figure(towns: Path, limit: str, what: str) -> None:
    none = ("triples_change", "entities_change", "relation_change", "questions_change", "coverage_drop")
    settings = [*(f"max_{name}=null" for name in (*none, "name_coverage_drop")), "min_changed=0"]
    drift = [f"dataset.drift.{setting}" for setting in (*settings, "relation_min_triples=1")]
    (towns.parent / "names.tsv").write_text("Aar\tthe Aare\nReuss\tthe Reuss\n", encoding="utf-8")
    build(towns, *drift)
    write_triples(towns, [line for line in TRIPLES if "flows_into" not in line])
    edit(towns, "names.tsv", "Aar", "Inn")
    edit(towns, "test.jsonl", '["Luzern"]', '["Bern"]')
    (moved,) = [line for line in stopped(towns, *drift, f"dataset.drift.{limit}").splitlines() if line[:2] == "  "]
    assert moved.startswith(f"  {what}: ")
    assert build(towns, *drift).changes is not None


def test_one_question_in_another_split_stops_the_build_until_that_is_accepted(towns: Path) -> None:
    """What was trained on would be tested on, however few there are."""
    build(towns)
    train, test = (towns.parent / f"{split}.jsonl" for split in ("train", "test"))
    first, *others = train.read_text().splitlines(keepends=True)
    train.write_text("".join(others))
    test.write_text(test.read_text() + first)
    said = stopped(towns)
    assert "questions in another split: 4 -> 4 (1 moved), 25.0 percent changed, max_questions_moved allows 0" in said
    assert changed(build(towns, accept=True))["num_moved"] == 1
    assert build(towns).changes is None


def test_builds_are_compared_in_the_memory_that_is_set(towns: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was 1 GB whatever was set, and the advice of its error changed nothing."""
    limits = list[str]()

    def noted(memory_limit: str, *others: Any) -> Any:
        limits.append(memory_limit)
        return connect(memory_limit, *others)

    monkeypatch.setattr(diff, "connect", noted)
    build(towns)
    write_triples(towns, TRIPLES[:6])
    build(towns, "dataset.drift=null", "runtime.memory_limit=3GB")
    assert limits == ["3GB"]


def test_few_changes_pass_whatever_their_share_and_without_limits_all_do(towns: Path) -> None:
    build(towns)
    write_triples(towns, TRIPLES[:5])
    assert changed(build(towns, "dataset.drift.max_coverage_drop=null"))["graph"]["triples"]["gone"] == 2
    write_triples(towns, TRIPLES[:3])
    assert changed(build(towns, "dataset.drift=null"))["graph"]["triples"]["gone"] == 2


def test_what_other_settings_made_stops_nothing_and_where_the_last_build_is_gone_the_next_is_the_first(
    towns: Path,
) -> None:
    build(towns, NO_FLOOR)
    assert build(towns, NO_FLOOR, "dataset.graph.max_reject_ratio=0.1").changes is None
    write_triples(towns, TRIPLES[:3])
    assert changed(build(towns, NO_FLOOR))["graph"]["triples"]["gone"] == 4
    (Pipeline(read_config(towns)).artifact("graph").folder / "manifest.json").unlink()
    write_triples(towns, TRIPLES[:4])
    assert build(towns, NO_FLOOR).changes is None
    write_triples(towns, TRIPLES)
    assert stopped(towns, NO_FLOOR)  # the settings are the same again


# The command


def test_kgqa_build_prints_changes_stops_with_its_own_exit_code_and_accepts(
    towns: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_flow(name: str, config: Any, **options: bool) -> RunSummary:
        assert name == "build_graph"
        pipeline = Pipeline(config)
        return summarise(pipeline, ensure(pipeline, ["questions"], **options))

    monkeypatch.setattr("flows.run.run_flow", run_flow)

    def kgqa_build(*arguments: str) -> Any:
        return kgqa("build", str(towns), "--set", NO_FLOOR, *arguments)

    assert "Changes" not in kgqa_build().stdout
    write_triples(towns, TRIPLES[:3])
    refused = kgqa_build()
    assert (refused.exit_code, refused.stdout) == (6, "")
    assert "triples: 7 -> 3" in refused.stderr
    asked = ["sql", str(towns), "select count(*) from triples", "--json"]
    for more, count in (((), 7), (("--refused",), 3)):  # readers get what was accepted
        told = kgqa(*asked, *more)
        assert json.loads(told.stdout)["rows"] == [[count]]
        assert ("The last build is not the accepted one" in told.stderr) == (not more)
    status = kgqa("status", str(towns)).stdout
    assert "graph is not the accepted one: that is graph/" in status and f"(kgqa build {towns} --accept)" in status
    linted = json.loads(kgqa("lint", str(towns), "--json").stdout)
    assert linted["graph"]["num_triples"] == 7
    accepted = kgqa_build("--accept")
    assert "not accepted" not in kgqa("status", str(towns)).stdout
    assert accepted.exit_code == 0
    assert "Changes since the last build" in accepted.stdout
    moved, *_ = data_tables(Pipeline(read_config(towns, [NO_FLOOR])))  # of the report
    assert moved["title"] == "Changes since the last build" and ["triples", "7", "3", "+0", "-4"] in moved["rows"]
    write_triples(towns, TRIPLES)
    document = json.loads(kgqa_build("--accept", "--json").stdout)
    assert document["changes"]["graph"]["triples"] == {"before": 3, "after": 7, "came": 4, "gone": 0}
    assert json.loads(kgqa_build("--json").stdout)["changes"] is None


def test_the_relations_that_moved_most_are_shown_and_the_others_counted() -> None:
    def moved(came: int) -> dict[str, int]:
        return {"before": 10, "after": 10 + came, "came": came, "gone": 0}

    graph = {**dict.fromkeys(("triples", "entities", "relations"), moved(0)), "new_relations": [], "gone_relations": []}
    graph |= {"per_relation": {f"r{n:02}": moved(n) for n in range(1, 14)}, "num_renamed": 0}
    graph |= {"named_before": None, "named_after": None}
    changes = {
        "graph": graph,
        "questions": moved(0),
        "num_reworded": 0,
        "num_moved": 0,
        "num_subgraphs_changed": 0,
        "coverage": [],
    }
    rows = [row[0] for row in change_rows(changes)]
    assert rows == [*(f"triples of r{number:02}" for number in range(13, 3, -1)), "triples of 3 more relations"]
