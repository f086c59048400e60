"""Systems side by side, end to end: what an evaluation leaves, shows, resumes and survives, here and on workers."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import tasks.tracking
from benchmarks.killed_evaluation import LEDGER, copy_base, evaluate, kill_and_resume
from benchmarks.places import RUN
from flows.cli_output import MAX_ROWS, print_summary, summary_document
from flows.one_question import missing_facts
from flows.summary import RunSummary, summarise, write_report
from kgqa_core.config_systems import COMPARED
from kgqa_core.errors import KgqaError
from kgqa_core.lm.calls import Meter
from kgqa_core.oracle.player import Player
from kgqa_core.run import compare as worker
from kgqa_core.run.ask import link_asked
from kgqa_core.run.compare import Parts, read_asked
from kgqa_core.run.ensure import ensure
from kgqa_core.run.open import open_system, search_graph
from kgqa_core.run.pipeline import PROGRESS, Pipeline
from kgqa_core.run.stages import systems as answers
from kgqa_core.run.stages.systems import Chunk, answer_chunk
from tasks.run_content import SIDE_BY_SIDE, FlowRun
from tests.conftest import Build
from tests.conftest import kgqa as run_command
from tests.flows.conftest import Configure
from tests.tasks.published import publish

pytestmark = pytest.mark.slow

NUM, NUM_KILLS = 23, 3


def table_of(pipeline: Pipeline, key: str, table: str = "predictions") -> list[dict[str, Any]]:
    """Return a table of a system's stage, without what a call took, which no two runs share."""
    rows = pq.read_table(pipeline.artifact(key).folder / f"{table}.parquet").to_pylist()
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def compare(pipeline: Pipeline) -> dict[str, Any]:
    """Make what a run lacks, and return the document of its comparison."""
    ensure(pipeline, pipeline.specs)
    folder = pipeline.artifact("comparison").folder
    found: dict[str, Any] = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture
def summary(compared: Pipeline) -> RunSummary:
    """What a second run returns."""
    return summarise(compared, ensure(Pipeline(compared.config), compared.specs))


# The table


def test_every_system_answers_the_same_questions_and_a_second_run_does_nothing(
    compared: Pipeline, summary: RunSummary
) -> None:
    assert summary.built == []
    assert summary.comparison is not None
    assert summary.comparison["num_questions"] == NUM
    rows = {row["about"]["system"]: row for row in summary.comparison["rows"]}
    assert rows.keys() == set(COMPARED)
    systems = [key for key, spec in compared.specs.items() if spec.stage == "system"]
    assert len({tuple(row["question_id"] for row in table_of(compared, key)) for key in systems}) == 1
    calls = {name: row["overall"]["calls_per_question"] for name, row in rows.items()}
    assert (calls["etd"], calls["dualr"], calls["direct"], calls["cot"], calls["explorer"]) == (1, 1, 1, 1, 0)
    assert calls["rog"] == 1  # its plans are a planner's
    assert 1 < calls["fiske"] < calls["tog"]
    called = table_of(compared, "system-tog-oracle-seed0", "calls")
    for row in table_of(compared, "system-tog-oracle-seed0"):  # what it cost is what its calls say
        own = [call for call in called if call["question_id"] == row["question_id"]]
        assert (row["num_calls"], row["num_tokens"]) == (len(own), sum(call["num_tokens"] for call in own))
        assert [call["number"] for call in own] == list(range(1, len(own) + 1))
    assert rows["fiske"]["overall"]["hits1"] == 100
    assert rows["direct"]["overall"]["hits1"] == 0  # the oracle knows only what its prompt shows


def test_people_see_the_table_and_programs_its_rows(
    summary: RunSummary, compared: Pipeline, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    written = write_report(compared, summary)
    print_summary(written, "conf/places.yaml --set=systems.num_questions=23", "mlflow ui")
    title, *lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    assert title.startswith("Results of places")
    ours = [row[0] for row in rows if row[0][:8] in ("fiske (o", "explorer")]
    assert ours == ["fiske (oracle)", "explorer alone", "explorer (seed 0)"]  # the last on all questions
    assert {len(row) for row in rows} == {7}
    assert [row[0] for row in rows[-2:]] == ["template control", "gold-chain ceiling"]
    assert len(rows) == len(COMPARED) + 3 <= MAX_ROWS
    assert [line.partition(":")[0] for line in lines[-4:]] == ["All tables", "In MLflow", "Ask it", "Look at it"]
    assert lines[-1].endswith("kgqa view conf/places.yaml --set=systems.num_questions=23")
    assert len(lines) == len(rows) + 4 + 4  # the frame of one table, and four lines
    report = (compared.home / "runs" / "places.md").read_text("utf-8")
    for told in ("| fiske (oracle) | oracle | none |", "By the number of hops", "| answers | system |", "lift"):
        assert told in report
    document = json.loads(json.dumps(summary_document(summary, None), default=str))
    assert len(document["systems"]) == len(COMPARED)
    assert {"system", "overall", "lift", "about"} <= document["systems"][0].keys()


def test_nobody_is_told_to_ask_an_oracle(summary: RunSummary, capsys: pytest.CaptureFixture[str]) -> None:
    """It knows the answers of the run's own questions alone."""
    assert summary.comparison is not None
    rows = {row["about"]["system"]: row for row in summary.comparison["rows"]}
    for names in (["fiske"], ["fiske", "explorer"]):
        compared = summary.comparison | {"rows": [rows[name] for name in names]}
        print_summary(replace(summary, rows=(), comparison=compared), "CONF", None)
        told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Ask it")]
        assert told == ['Ask it:      kgqa ask CONF --system explorer "QUESTION"'] * ("explorer" in names)


def test_the_explorer_stands_beside_systems_that_were_asked_fewer_questions(summary: RunSummary) -> None:
    """Each row says on how many questions its figures stand."""
    assert summary.comparison is not None
    fewer = replace(summary, comparison=summary.comparison | {"num_questions": 3})
    told = {row[0]: row[2] for row in fewer.results}
    assert told["fiske (oracle)"] == "3"
    assert told["explorer (seed 0)"] == told["template control"] == f"{summary.rows[0].overall['n']:.0f}" != "3"


def test_the_explorer_has_a_row_where_no_system_is_the_explorer_alone(summary: RunSummary) -> None:
    assert summary.comparison is not None
    num, rows = int(summary.rows[0].overall["n"]), summary.comparison["rows"]
    for named in (rows, [row for row in rows if row["about"]["system"] != "explorer"]):
        told = replace(summary, comparison=summary.comparison | {"num_questions": num, "rows": named}).results
        assert ("explorer (seed 0)" in {row[0] for row in told}) == (named is not rows)


# One question at a time


@pytest.fixture
def conf(compared: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration file of the run, with its home."""
    monkeypatch.setenv("KGQA_HOME", str(compared.home))
    monkeypatch.setenv("COLUMNS", "200")
    return compared.home.parent / "places.yaml"


def kgqa(*arguments: object) -> str:
    """Return what a command that goes well prints."""
    done = run_command(*arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_a_trace_shows_prompt_by_prompt_what_happened(conf: Path) -> None:
    asked = "who is the mayor of Ambery 18?"
    shown = kgqa("ask", conf, asked, "--system", "rog", "--answered-by", "oracle", "--trace")
    assert "--- call 1 (round 1): reason" in shown
    assert "has_mayor" in shown and asked in shown
    assert ">>> Dorin 18" in shown
    assert "rog (oracle) from Ambery 18: answered (confidence " in shown and "); 1 call, " in shown
    document = json.loads(kgqa("ask", conf, asked, "--system", "fiske", "--answered-by", "oracle", "--json"))
    assert document["calls"][0]["instruction"] == "extract_clues"
    best = {"name": "Dorin 18", "label": "Dorin 18", "is_answer": True, "supported": True}
    best |= {"path": "(Ambery 18, has_mayor, Dorin 18)"}
    assert document["candidates"][0] == best | {"score": document["candidates"][0]["score"]}


def test_a_plan_that_leads_nowhere_says_which_fact_is_missing(compared: Pipeline) -> None:
    search = search_graph(compared)
    asked = link_asked("who is the mayor of Ambery 18?", (), search.entities)
    mayor = ("has_mayor",)
    assert not [*missing_facts(search, asked, [mayor, (*mayor, "^has_mayor")])]  # the second leads back alone
    assert [*missing_facts(search, asked, [(*mayor, *mayor), mayor, ("lies_on",), ()])] == [
        "no has_mayor of Dorin 18 (plan has_mayor → has_mayor)",
        "no lies_on of Ambery 18 (plan lies_on)",
    ]


def test_any_two_of_its_systems_can_be_compared_again(conf: Path) -> None:
    document = json.loads(kgqa("compare", f"{conf}@fiske-oracle", f"{conf}@direct-oracle", "--json"))
    assert document["comparisons"][0]["metrics"]["hits1"]["verdict"] == "better"
    assert [row["system"] for row in document["systems"]["rows"]] == ["A fiske (oracle)", "B direct (oracle)"]
    assert "A against B: Hits@1 better" in kgqa("compare", f"{conf}@fiske-oracle", f"{conf}@direct-oracle")
    assert len(json.loads(kgqa("compare", conf, "--json"))["systems"]["rows"]) == len(COMPARED)


# Other comparisons


def test_on_hard_negatives_the_table_says_whether_the_model_adds_something(places: Configure) -> None:
    found = compare(places("systems.run=[etd,rog]", "systems.pool=hard", "systems.answered_by=[oracle,random,first]"))
    hits = {row["system"]: row["overall"]["hits1"] for row in found["rows"]}
    assert len(hits) == 6
    for system in ("etd", "rog"):
        right, *controls = (figure for name, figure in hits.items() if name.startswith(system))
        assert right > 90 > 70 > max(controls)
    assert len(found["sentences"]) == 2
    assert all("the LM adds to chance" in sentence for sentence in found["sentences"])


def test_linked_topics_are_found_in_the_text_alone(places: Configure, compared: Pipeline) -> None:
    linked = places("systems.run=[tog]", "systems.topics=linked")
    compare(linked)
    gold, found = (table_of(one, "system-tog-oracle-seed0") for one in (compared, linked))
    assert {row["topic_source"] for row in gold} == {"gold"}
    assert {row["topic_source"] for row in found} == {"linked"}
    same = [row["prediction"] == other["prediction"] for row, other in zip(gold, found, strict=True)]
    assert sum(same) > 0.9 * NUM  # every name stands in its question


# Resuming


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Let whoever plays the model be gone at the third batch, once; the list has the prompts of every batch."""
    batches: list[int] = []
    generate = Player.generate

    def die(model: Player, prompts: Any, *decoding: Any) -> Any:
        batches.append(len(prompts))
        if len(batches) == 3:
            raise KgqaError("the model is gone")
        return generate(model, prompts, *decoding)

    monkeypatch.setattr(Player, "generate", die)
    return batches


def test_where_a_model_was_gone_the_next_run_goes_on_be_it_in_other_chunks(
    places: Configure, compared: Pipeline, dying: list[int]
) -> None:
    own = ["systems.run=[cot]", "systems.max_calls=5", "systems.oracle.seed=5"]
    with pytest.raises(KgqaError, match="the model is gone"):
        compare(places(*own))
    told: list[tuple[str, int, int]] = []
    token = PROGRESS.set(lambda *what: told.append(what))
    try:
        again = places(*own, "systems.chunk=5")
        compare(again)
    finally:
        PROGRESS.reset(token)
    assert dying == [8, 8, 7, 4, 3]  # what was answered is not asked again
    assert told == [("system-cot-oracle-seed0", done, 5) for done in range(1, 6)]
    key = "system-cot-oracle-seed0"
    assert table_of(again, key) == table_of(compared, key)


def test_killed_at_random_points_an_evaluation_ends_with_the_same_table_and_pays_no_completed_call_twice(
    compared: Pipeline, tmp_path: Path, record_testsuite_property: Callable[[str, object], None]
) -> None:
    settings = ["systems.run=[fiske,tog,rog]", "systems.rog.plans=lm", "systems.chunk=5", "systems.oracle.error=0.2"]
    conf, undisturbed = compared.home.parent / "places.yaml", tmp_path / "undisturbed"
    copy_base(compared.home, undisturbed)
    evaluate(conf, undisturbed, undisturbed / LEDGER, settings)
    found = kill_and_resume(conf, undisturbed, tmp_path, settings=settings, kills=NUM_KILLS, seed=3)
    record_testsuite_property("calls in flight at a kill", found.paid_again)
    assert (found.kills, found.compared, found.differing) == (NUM_KILLS, 3 * 3 + 2, ())
    assert found.half_made
    assert found.calls > 100
    assert found.kept_and_paid_again == 0
    assert found.paid_again <= NUM_KILLS  # the one call in flight
    assert found.paid == found.calls + found.paid_again


# On Dask workers


def watched(chunk: Chunk, *, notes: Path, victim: int | None) -> int:
    """Answer a chunk on a worker, note what that worker is like, and end the worker at the victim, once."""
    mark = notes / "killed"
    if chunk.number == victim and not mark.exists():
        mark.touch()
        import kgqa_core.systems.tables as file

        write = file.write_answered

        def die(path: Path, *arguments: Any, **options: Any) -> None:
            write(path.with_name(f".{path.name}.partial"), *arguments, **options)
            os.kill(os.getpid(), signal.SIGKILL)

        file.write_answered = die  # all is answered, and the last part about to be there
    before = list(worker._cached.values())
    number = answer_chunk(chunk)
    (kept,) = worker._cached.values()
    torch = sys.modules.get("torch")
    seen = {"pid": os.getpid(), "opened": kept not in before, "threads": torch.get_num_threads() if torch else None}
    with (notes / f"{chunk.number}.json").open("a", encoding="utf-8") as stream:
        stream.write(f"{json.dumps(seen)}\n")
    return number


@pytest.mark.parametrize(("workers", "system", "victim"), [(1, "tog", None), (2, "etd", 1)])
def test_workers_answer_as_this_process_does_and_a_killed_one_changes_nothing(
    places: Configure,
    compared: Pipeline,
    build_stages: Build,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    system: str,
    victim: int | None,
) -> None:
    key, notes = f"system-{system}-oracle-seed0", tmp_path / "notes"
    notes.mkdir()
    copy_base(compared.home, tmp_path / "home")
    monkeypatch.setattr(answers, "answer_chunk", partial(watched, notes=notes, victim=victim))
    here = [f"runtime.home={tmp_path / 'home'}", f"systems.run=[{system}]", "systems.chunk=3"]
    there = places(*here, "cluster.fan_out_questions=1", f"cluster.workers={workers}")
    before = Meter.num_paid
    build_stages(there)
    usage = pq.read_table(there.artifact(key).folder / "usage.parquet")
    assert Meter.num_paid - before == sum(usage["paid_calls"].to_pylist()) > 0  # a retraining's cap counts them
    for table in ("predictions", "calls"):
        files = (run.artifact(key).folder / f"{table}.parquet" for run in (compared, there))
        one, other = (pq.read_table(file) for file in files)
        timed = ["seconds"] if table == "predictions" else []
        assert one.drop_columns(timed).equals(other.drop_columns(timed), check_metadata=True)
    seen = [json.loads(line) for file in notes.glob("*.json") for line in file.read_text("utf-8").splitlines()]
    assert len(seen) >= 8  # chunks
    assert os.getpid() not in {one["pid"] for one in seen}
    assert sum(one["opened"] for one in seen) == len({one["pid"] for one in seen})  # once per process
    assert {one["threads"] for one in seen} == ({1} if system == "etd" else {None})
    assert (notes / "killed").exists() == (victim is not None)


# MLflow


def test_mlflow_has_a_run_per_system_and_seed_with_the_same_figures(
    places: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apart from what only it counts, and from shares of nothing."""
    from mlflow import MlflowClient

    from tasks.mlflow_store import tracking_uri

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for draw in ("draw_learning_curves", "draw_hits_by_hops"):
        monkeypatch.setattr(tasks.tracking, draw, lambda *_: None)
    pipeline = places("systems.run=[direct,tog]", "systems.seeds=[0,1]", "systems.oracle.knows=0.5")
    shown = ("graph", "system", "comparison")
    outcomes = [one for one in ensure(pipeline, pipeline.specs) if one.artifact.recipe.stage in shown]
    flow = FlowRun(
        id="flow", name="otter", dataset="places", config_name="places", config_hash="c0", config_text="name: places\n",
        git_commit="0123", started_ms=1_000_000, max_traces=3,
    )  # fmt: skip
    assert publish(tmp_path, flow, outcomes) is not None
    client = MlflowClient(tracking_uri=tracking_uri(tmp_path))
    (experiment,) = client.search_experiments(filter_string="name = 'places'")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    parent = runs.pop("otter")
    assert runs.keys() == {f"{system} by oracle seed {seed}" for system in ("direct", "tog") for seed in (0, 1)}
    names = [set(run.data.metrics) for run in runs.values()]
    assert names[0] == {*SIDE_BY_SIDE} - {"hit_at_1", "money_per_question"}
    assert all(own == names[0] for own in names)
    columns = json.loads(experiment.tags["mlflow.sharedViewState.kgqa"])["selectedColumns"]
    assert {f"metrics.`{name}`" for name in names[0]} <= {*columns}  # of the table of runs, as it is linked
    for run in runs.values():
        table = Path(client.download_artifacts(run.info.run_id, "figures.json")).read_text(encoding="utf-8")
        figures = dict(json.loads(table)["data"])
        assert figures.keys() >= {*run.data.metrics, "hits1.hop2", "hits1.low", "tokens_per_correct"}
        assert {name: figures[name] for name in run.data.metrics} == pytest.approx(run.data.metrics)
    report = Path(client.download_artifacts(parent.info.run_id, "comparison.md")).read_text(encoding="utf-8")
    assert "| tog (oracle) | oracle | gold |" in report
    traces = client.search_traces(locations=[experiment.experiment_id], include_spans=False, max_results=100)
    assert len(traces) == 3 * len(runs)


def test_the_explorer_of_another_run_walks_this_runs_graph_under_this_runs_limits(
    places: Configure, compared: Pipeline
) -> None:
    """Only its weights are lent: the stage's recipe knows nothing of the other's ``evaluation``."""
    other = compared.home.parent / "narrow.yaml"
    other.write_text(RUN + "evaluation: {attention_threshold: 1.0}\n", encoding="utf-8")
    lent = places("systems.run=[dualr]", f"systems.dualr.explorer={other}")
    questions = read_asked(lent)
    with ExitStack() as stack:
        explorer = Parts(lent, lent.specs["system-dualr-oracle-seed0"], stack).explorer()
    own = [one.candidates for one in open_system(compared).answer(questions)]
    assert [one.candidates for one in explorer.answer(questions)] == own
    assert [one.candidates for one in open_system(lent.other_run(other)).answer(questions)] != own
