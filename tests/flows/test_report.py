"""``kgqa report``: what its folder holds, that it is the same each time, and that no name runs in a browser."""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import decompress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.cli_report import build_report
from flows.report import Beside, build, lost_at, read_paths, verdict_of
from flows.report_about import curves, keep_report, published_table, runs_over_time, sweep_curves
from flows.score import score_file
from kgqa_core.artifacts import ArtifactStore, Recipe, write_json
from kgqa_core.config import RunConfig
from kgqa_core.errors import InputError
from kgqa_core.evaluation.predictions import Source, SystemSource, open_predictions
from kgqa_core.evaluation.tables import show_figure
from kgqa_core.run.open import graph_of, open_system, read_with_hops
from kgqa_core.run.pipeline import Pipeline, StageOutcome
from kgqa_core.run.stages.systems import COMPARISON
from kgqa_core.systems.etd import AnswerCost
from kgqa_core.types import Prediction, Question, Step
from tasks.mlflow_store import tracking_uri
from tasks.release import Releases, model_name, release_id
from tasks.run_content import FlowRun
from tasks.sweep import STAGE as SWEEP
from tests.conftest import kgqa
from tests.flows.conftest import Configure
from tests.tasks.published import publish

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">"
NAMES = SimpleNamespace(entity_names=["Italy", "Rome", "Monster, Inc.", HOSTILE], relation_names=["capital", "seen_in"])
NOTHING: dict[str, Any] = {"tables": [], "sentences": [], "points": []}
PATH = (Step(0, 0, 1), Step(1, 1, 2))


def write_run(
    folder: Path, name: str, *answers: tuple[int, ...], path: Any = PATH, names: Any = NAMES, what: str = HOSTILE
) -> Path:
    """Write what a system answers to one question after the other; the gold of each is Rome."""
    asked = [Question(f"q{n:02}", f"which {what} is {n}?", "", (0,), (1,), "test", hops=1) for n in range(len(answers))]
    replies = [Prediction(f"q{n:02}", own, (1.0,) * len(own), own, (path,) * len(own)) for n, own in enumerate(answers)]
    with open_predictions(folder / f"{name}.parquet", names, Source("a" * 64, name)) as write_rows:
        write_rows(asked, replies)
    return folder / f"{name}.parquet"


@pytest.fixture
def runs(tmp_path: Path) -> list[tuple[str, Path]]:
    """Two runs of 25 questions, which is more than one data file; the second asked a model about the first question."""
    right, wrong = write_run(tmp_path, "right", *[(1,)] * 25), tmp_path / "asked" / "predictions.parquet"
    wrong.parent.mkdir()
    write_run(tmp_path, "wrong", *[(3, 1)] * 24, ()).rename(wrong)
    call = {"question_id": "q00", "round": 0, "number": 0, "instruction": "reason", "prompt": f"Read.\n\n{HOSTILE}"}
    call |= {"system_prompt": "", "texts": ["Rome"], "problem": "", "num_tokens": 3}
    pq.write_table(pa.Table.from_pylist([call]), wrong.with_name("calls.parquet"))
    return [("right", right), ("wrong", wrong)]


def data(folder: Path, name: str) -> Any:
    """Return what a data file hands over."""
    text = (folder / "data" / f"{name}.js").read_text(encoding="utf-8").strip()
    found = json.loads(text.removeprefix(f'kgqa("{name}",').removesuffix(")"))
    return json.loads(decompress(b64decode(found))) if isinstance(found, str) else found


def test_a_report_has_the_pages_an_overview_a_list_and_what_each_system_did(
    runs: list[tuple[str, Path]], tmp_path: Path
) -> None:
    page = build(runs, tmp_path / "report", title="two", beside=Beside(NOTHING))
    assert page == tmp_path / "report" / "index.html"
    files = {"index.html", "viewer.css", "viewer.js", "data", "kgqa-report.json"}
    assert {path.name for path in page.parent.iterdir()} == files
    overview, listed = data(page.parent, "overview"), data(page.parent, "questions")
    assert (overview["num_questions"], overview["chunk"]) == (25, 20)
    assert overview["lost"][1] == {
        "not searched": 0, "no path": 0, "not planned": 0, "pruned": 1, "not chosen": 24, "failed": 0,
    }  # fmt: skip
    assert listed["verdicts"] == ["R" * 25, "W" * 24 + "A"]
    assert (listed["f1"][0][0], listed["f1"][1][0], listed["f1"][1][24]) == (100, 67, 0)
    first = data(page.parent, "q0000")["questions"][0]
    assert (first["id"], first["golds"]) == ("q00", ["Rome"])
    assert first["runs"][1]["answers"] == [HOSTILE, "Rome"] and first["runs"][1]["right"] == [False, True]
    assert first["runs"][1]["ranks"] == [2]
    assert first["runs"][0]["paths"] == [[["Italy", "capital", "Rome"], ["Rome", "seen_in", "Monster, Inc."]]]
    strings, (call,) = data(page.parent, "q0000")["strings"], first["runs"][1]["calls"]
    assert [strings[piece] for piece in call["prompt"]] == ["Read.", HOSTILE]
    assert len(data(page.parent, "q0001")["questions"]) == 5


def test_the_same_runs_give_the_same_bytes_and_replace_an_older_report(
    runs: list[tuple[str, Path]], tmp_path: Path
) -> None:
    def contents() -> dict[str, bytes]:
        folder = build(runs, tmp_path / "report", title="two", beside=Beside(NOTHING)).parent
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    assert contents() == contents()
    assert not list(tmp_path.glob(".report*"))


def test_a_folder_that_is_no_report_is_left_alone(runs: list[tuple[str, Path]], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="is no report"):
        build(runs, tmp_path / "mine", title="two", beside=Beside(NOTHING))
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_runs_of_other_questions_are_refused(runs: list[tuple[str, Path]], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did not answer the same questions"):
        build([*runs, ("few", write_run(tmp_path, "few", (1,)))], tmp_path / "report", title="", beside=Beside(NOTHING))


def test_one_file_holds_all_and_no_name_ends_its_script(runs: list[tuple[str, Path]], tmp_path: Path) -> None:
    page = build(runs, tmp_path / "one.html", title="two", beside=Beside(NOTHING), single=True).read_text("utf-8")
    assert page.count("</script>") == 1 and 'kgqa("overview"' in page
    assert "viewer.js" not in page.partition("<script>")[0]


# Of a true/false question only the claim is known.
BARE = {"gold_ids": [], "ground_truth": [], "hops": None, "claim": 3}


@pytest.mark.parametrize(
    ("row", "verdict", "lost"),
    [
        ({"answer_ids": [1, 2]}, "R", ""),
        ({"answer_ids": [1], "faithful": [False]}, "r", ""),
        ({"answer_ids": [2], "candidate_ids": [2, 1]}, "W", "not chosen"),
        ({"answer_ids": [2], "candidate_ids": [2], "counts": [("num_plans", 3.0)]}, "W", "not planned"),
        ({"candidate_ids": [2]}, "A", "pruned"),
        ({"hops": None}, "A", "no path"),
        ({"has_path": False}, "A", "no path"),  # though the file gives hops
        ({"has_path": False, "counts": [("num_plans", 3.0)]}, "A", "no path"),
        ({"has_path": True, "hops": None}, "A", "pruned"),
        ({"status": "failed", "has_path": True}, "A", "failed"),  # who never got so far pruned nothing
        ({"status": "skipped", "has_path": True}, "A", "no path"),  # no topic was linked, so nothing was searched
        ({"gold_verdict": True, "verdict": True, "decided": True}, "R", ""),
        ({"gold_verdict": True, "verdict": True, "decided": False}, "w", "pruned"),
        ({"gold_verdict": True, "verdict": None}, "A", "pruned"),
        (BARE | {"gold_verdict": True, "verdict": None}, "A", "pruned"),
        (BARE | {"gold_verdict": True, "verdict": None, "candidate_ids": [3]}, "A", "not chosen"),
        (BARE | {"gold_verdict": False, "verdict": True, "decided": False, "candidate_ids": [3, 4]}, "W", "not chosen"),
        (BARE | {"gold_verdict": False, "verdict": True, "decided": False, "candidate_ids": [3]}, "W", "pruned"),
    ],
)
def test_each_wrong_answer_was_lost_in_one_place(row: dict[str, Any], verdict: str, lost: str) -> None:
    whole = {"answer_ids": [], "gold_ids": [1], "candidate_ids": [], "prediction": [], "ground_truth": [], "hops": 2}
    assert (verdict_of(whole | row), lost_at(whole | row)) == (verdict, lost)


def test_a_true_false_question_is_judged_as_in_all_figures(tmp_path: Path) -> None:
    asked = [Question(f"q{n}", "is it?", "", (0,), (1, 2), "test", hops=1, claim=1, verdict=True) for n in range(2)]
    shown = Prediction("q0", (1,), (1.0,), (1,), (PATH,), verdict=True)
    with open_predictions(tmp_path / "claims.parquet", NAMES) as write_rows:
        write_rows(asked, [shown, Prediction("q1", (), (), (), verdict=True)])  # the second guessed
    strict = score_file(tmp_path / "claims.parquet")["strict"]
    build([("claims", tmp_path / "claims.parquet")], tmp_path / "report", title="", beside=Beside(NOTHING))
    listed = data(tmp_path / "report", "questions")
    assert (listed["verdicts"], listed["f1"]) == (["Rw"], [[100, 0]]) and strict["f1"] == strict["hits1"] == 50


def test_what_a_model_says_from_memory_was_lost_by_no_search(tmp_path: Path) -> None:
    path = write_run(tmp_path, "memory", (3,), (1,))
    pq.write_table(pq.read_table(path).replace_schema_metadata(SystemSource("a" * 64, "direct").metadata()), path)
    build([("memory", path)], tmp_path / "report", title="", beside=Beside(NOTHING))
    assert data(tmp_path / "report", "overview")["lost"][0]["not searched"] == 1
    first, second = data(tmp_path / "report", "q0000")["questions"]
    assert [first["runs"][0]["lost"], second["runs"][0]["lost"]] == ["not searched", ""]


def test_an_answer_without_evidence_has_no_path(tmp_path: Path) -> None:
    build([("a", write_run(tmp_path, "a", (1,), path=()))], tmp_path / "bare", title="", beside=Beside(NOTHING))
    assert data(tmp_path / "bare", "q0000")["questions"][0]["runs"][0]["paths"] == []


def test_names_with_commas_and_brackets_stay_whole_where_a_relation_tells(runs: list[tuple[str, Path]]) -> None:
    texts = ["(Up, made_by, Pixar)", "(Monster, Inc., made_by, Pixar, Emeryville)", "(a, b, c, d)", "nothing"]
    films = "(Ada, played_in, Up (2009)) → ((500) Days, sequel_of^, Up (2009)) → ((500) Days, set_in, Paris (Texas))"
    ends = [["Ada", "played_in", "Up (2009)"], ["(500) Days", "sequel_of^", "Up (2009)"]]
    assert read_paths([*texts, films]) == {
        films: [*ends, ["(500) Days", "set_in", "Paris (Texas)"]],
        texts[0]: [["Up", "made_by", "Pixar"]],
        texts[1]: [["Monster, Inc.", "made_by", "Pixar, Emeryville"]],
        texts[2]: [["a", "b", "c, d"]],
        "nothing": [],
    }


@pytest.mark.slow
def test_one_system_of_two_runs_keeps_two_names(compared: Pipeline, tmp_path: Path) -> None:
    folder = compared.artifact("system-explorer-seed0").folder
    words = [str(folder), str(folder / "predictions.parquet")]
    overview = data(build_report(words, tmp_path / "report").parent, "overview")
    assert [run["name"] for run in overview["runs"]] == [f"A {words[0]}", f"B {words[1]}"]
    assert [row[0] for row in overview["tables"][0]["rows"]] == ["A explorer alone", "B explorer alone"]


def test_the_command_writes_the_report_and_says_what_to_open(runs: list[tuple[str, Path]], tmp_path: Path) -> None:
    paths = [str(path) for _, path in runs]
    shown = kgqa("report", *paths, "--out", str(tmp_path / "seen"))
    assert shown.stdout.strip() == f"open {tmp_path / 'seen' / 'index.html'}"
    again = kgqa("report", *paths, "--single", "--out", str(tmp_path / "seen.html"))
    assert again.stdout.strip() == f"open {tmp_path / 'seen.html'}"


def test_a_run_that_overrode_settings_is_shown_by_giving_them_again(compared: Pipeline, tmp_path: Path) -> None:
    conf, out = compared.home.parent / "places.yaml", tmp_path / "seen"
    shown = kgqa("report", str(conf), f"--set=runtime.home={compared.home}", "--out", str(out))
    assert shown.exit_code == 0, shown.stderr
    assert data(out, "overview")["num_questions"] == 23


def report_of(compared: Pipeline, out: Path, *runs: object, part: str = "") -> Path:
    """Write the report of some runs, and of the configuration whose systems are compared; return its folder."""
    words = [*map(str, runs), f"{compared.home.parent / 'places.yaml'}{part}"]
    return build_report(words, out, settings=[f"runtime.home={compared.home}"]).parent


def test_the_data_are_those_of_the_first_run_that_is_a_configuration(compared: Pipeline, tmp_path: Path) -> None:
    file = compared.artifact("system-explorer-seed0").folder / "predictions.parquet"
    folder = report_of(compared, tmp_path / "seen", file, part="@explorer")
    assert data(folder, "overview")["about"] and data(folder, "about")["tables"]


def test_a_configuration_is_shown_with_what_its_run_compared(compared: Pipeline, tmp_path: Path) -> None:
    folder = report_of(compared, tmp_path / "report")
    overview = data(folder, "overview")
    assert overview["tables"][0]["header"][:2] == ["system", "answered by"] and overview["points"]
    names = [run["name"].partition(" (")[0] for run in overview["runs"]]
    assert {*names} >= {"fiske", "explorer alone"}
    first = data(folder, "q0000")["questions"][0]["runs"]
    assert first[names.index("rog")]["plans"] and not first[names.index("fiske")]["plans"]
    calls = first[names.index("rog")]["calls"]
    assert sum(call["read"] for call in calls) == first[names.index("rog")]["num_prompt_tokens"] > 0


def test_the_pages_of_a_configuration_show_its_data_its_curves_and_what_the_explorer_walked(
    compared: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.report_about.MOST_EDGES", 6)
    folder = report_of(compared, tmp_path / "report")
    about, graph = data(folder, "about"), graph_of(compared)
    assert "Graph" in [table["title"] for table in about["tables"]]
    assert {"dev.hits1"} <= {curve["figure"] for curve in about["curves"] if curve["stage"] == "explorer-seed0"}
    files = sorted(compared.artifact("graph").folder.glob("triples-*.parquet"))
    stored = {
        (graph.name_of(row["head"]), graph.relation_text(row["relation"]), graph.name_of(row["tail"]))
        for file in files
        for row in pq.read_table(file).to_pylist()
    }
    shown = {one["id"]: one["explored"] for one in data(folder, "q0000")["questions"]}
    answered, system = {one.id: one for one in read_with_hops(compared, "test")}, open_system(compared)
    wider = {id: data(folder, found["more"]) for id, found in shown.items() if "more" in found}
    assert wider and all(len(shown[id]["edges"]) < len(found["edges"]) for id, found in wider.items())
    for id, found in [*shown.items(), *wider.items()]:
        names, reached = {graph.name_of(topic) for topic in answered[id].topics}, set[str]()
        assert set(found["topics"]) == names
        for head, relation, tail, step, attention in found["edges"]:
            assert (head, relation, tail) in stored and 0 <= attention <= 100 and 1 <= step <= 3
            assert {head, tail} & (names | reached)  # each goes on from what is drawn
            reached |= {head, tail}
        cost = AnswerCost()
        system.answer([answered[id]], cost=cost)
        stays = cost.num_nodes - cost.num_candidates + len(answered[id].topics)  # identity edges, of every node
        assert len(found["edges"]) <= found["num_edges"] == cost.num_edges - stays
        assert sum(found["nodes"].values()) <= 100 + 0.05 * len(found["nodes"])  # each is rounded


@pytest.mark.slow
def test_the_overview_of_explorers_has_what_their_evaluations_found_beside_the_controls(
    tiny_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KGQA_HOME", str(tiny_config.runtime.home))
    conf = str(tiny_config.runtime.home.parent / "tiny.yaml")
    scores = json.loads((Pipeline(tiny_config).artifact("evaluation-seed0").folder / "scores.json").read_bytes())
    shown = {row["system"]: show_figure(row["overall"], "hits1") for row in scores}
    assert {"explorer (seed 0)", "template control"} < shown.keys()
    overview = data(build_report([conf], tmp_path / "one").parent, "overview")
    main, by_answers = overview["tables"]
    assert main["header"][:4] == ["hops", "system", "n", "Hits@1"] and by_answers["header"][0] == "answers"
    assert {row[1]: row[3] for row in main["rows"] if row[0] == "all"} == shown
    assert all(len(row) == len(main["header"]) for row in main["rows"])
    both = data(build_report([conf, f"{conf}@0"], tmp_path / "two").parent, "overview")
    of_all = {row[1]: row[3] for row in both["tables"][0]["rows"] if row[0] == "all"}
    assert of_all == {f"{letter} {name}": cell for letter in "AB" for name, cell in shown.items()}
    scopes = [row[0] for row in both["tables"][0]["rows"]]
    assert scopes == sorted(scopes, key=list(dict.fromkeys(scopes)).index)  # rows of one number of hops together


def test_a_curve_that_is_thinned_out_keeps_its_last_point(compared: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = list(curves(compared))
    monkeypatch.setattr("flows.report_about.MOST_POINTS", 1)
    thin = list(curves(compared))
    assert max(len(one["points"]) for one in whole) > max(len(one["points"]) for one in thin)
    assert [one["points"][-1] for one in thin] == [one["points"][-1] for one in whole]


@pytest.fixture
def apart(compared: Pipeline, places: Configure, tmp_path: Path) -> Pipeline:
    """The run that has compared its systems, with notes and reports of its own."""
    assert compared.find(COMPARISON)
    run = places()
    run.home = tmp_path / "home"
    return run


def test_systems_that_need_no_explorer_leave_a_report_where_none_is_trained(
    apart: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = apart.find  # what hangs on the explorer still finds it, else it would be stale
    monkeypatch.setattr(
        apart, "find", lambda key, *own: None if (key, own) == ("explorer-seed0", ()) else find(key, *own)
    )
    folder = keep_report(apart)
    assert folder and 'kgqa("about"' in (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_run_leaves_its_report_in_mlflow_and_each_system_links_to_its_answers(apart: Pipeline) -> None:
    from mlflow import MlflowClient

    folder = keep_report(apart)
    assert folder and [path.name for path in folder.iterdir()] == ["report.html"]
    before = (folder / "report.html").stat().st_mtime_ns
    assert keep_report(apart) == folder and (folder / "report.html").stat().st_mtime_ns == before
    run = FlowRun("run-1", "places 1", "places", "places", "c0ffee", "", "0123abcd", 1_000_000, report=str(folder))
    stages = [StageOutcome(key, apart.artifact(key), True) for key in apart.specs]
    for again in (run, replace(run, id="run-2", name="places 2")):
        told = publish(apart.home, again, stages)
        assert told and told.report == f"{told.page}/artifacts/report.html"
        client = MlflowClient(tracking_uri=tracking_uri(apart.home))
        experiment = client.get_experiment_by_name("places")
        assert "report.html" in [file.path for file in client.list_artifacts(told.parent_run_id)]
        listed = client.search_runs([experiment.experiment_id], f"tags.`mlflow.parentRunId` = '{told.parent_run_id}'")
        notes = {one.data.tags["system"]: one.data.tags.get("mlflow.note.content", "") for one in listed}
        for place, key in enumerate(key for key in apart.specs if key.startswith("system-")):
            note = notes[str(apart.specs[key].system)]
            assert f"{told.parent_run_id}/artifacts/report.html" in note and f"#/questions?system={place}`" in note


def test_runs_over_time_name_the_champion(apart: Pipeline) -> None:
    compared = f"{COMPARISON}/{apart.artifact(COMPARISON).fingerprint}"
    system, explorer = (apart.artifact(key).fingerprint for key in ("system-explorer-seed0", "explorer-seed0"))
    lines = [[compared], [compared, f"explorer/{explorer}", f"system/{system}"], [f"{COMPARISON}/gone"]]
    (apart.home / "runs" / "history").mkdir(parents=True)
    write_json(apart.home / "runs" / "history" / "places.json", lines)
    releases = Releases(apart.home, model_name("places"))
    stages = {"explorer-seed0": explorer}
    release = release_id(stages)
    (releases.folder / release).mkdir(parents=True)
    manifest = {"run": "places", "made_of": {}, "parent": None, "stages": stages, "made": "now"}
    write_json(releases.folder / release / "release.json", manifest)
    releases.move("promoted", release, "it is better")
    found = list(runs_over_time(apart))
    assert [(one["release"], one["state"]) for one in found] == [("–", "–"), (release, "champion")]
    assert [one["questions"] for one in found] == ["23", "23 test"]  # figures of other questions do not compare
    assert found[0]["explorer alone"] == found[1]["explorer alone"] != ""


def test_a_sweep_over_the_same_graph_is_drawn(apart: Pipeline) -> None:
    own = Recipe(SWEEP, 1, {"plots": [{"x": "edges", "y": ["hits1"]}]}, {})
    points = [
        {"place": {"edges": edges, "base": "places"}, "figures": {"hits1": {"mean": 90.0 + edges}}} for edges in (5, 3)
    ]

    def write(folder: Path) -> None:
        write_json(folder / "sweep.json", {"sweep": "edges", "points": points})
        rows = {"fingerprint.evaluation": [apart.artifact("evaluation-seed0").fingerprint]}
        pq.write_table(pa.table(rows), folder / "rows.parquet")

    ArtifactStore(apart.home / "artifacts").build(own, write)
    (line,) = sweep_curves(apart)
    assert line == {"stage": "sweep edges", "figure": "hits1 by edges, places", "points": [[3, 93.0], [5, 95.0]]}


def test_published_figures_stand_beside_ours_with_what_differs() -> None:
    row = {"system": "etd", "about": {"answered_by": "oracle"}, "by_hops": {"1": {"hits1": 97.0}, "2": {"hits1": 99.5}}}
    table = {"header": ["system", "published Hits@1"], "rows": [["etd", "98.1 / 99.7 (EtD-ChatGPT)"], ["rog", ""]]}
    table["rows"] += [["tog", "98.1 / 99.7 / 99.7 (ToG)"]]  # whose questions here are of one number of hops
    few = {"system": "tog", "about": {"answered_by": "oracle"}, "by_hops": {"2": {"hits1": 97.0}}}
    (found,) = published_table({"rows": [row, few], "tables": [table], "num_questions": 1000})
    differs = "theirs: EtD-ChatGPT, all questions; ours: oracle, 1,000 questions"
    assert found["rows"] == [["etd", "Hits@1", differs, "98.1 / 99.7", "97.0 / 99.5", "-1.1 / -0.2"]]
