"""The kgqa command as a user meets it: help, exit codes, what goes to which stream."""

import io
import json
import logging
import logging.config
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from rich.console import Console

from flows import cli_session
from flows.cli_output import print_answer, print_reply, print_summary
from flows.cli_session import SHOW_AFTER, ProgressBars, working
from flows.one_question import SystemLine, SystemReply
from flows.question_file import needed_stages
from flows.score import score_file
from flows.summary import RESULTS, RunSummary
from kgqa_core.config import RunConfig
from kgqa_core.errors import LinkError
from kgqa_core.run.ask import Answer, AnswerLine
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.systems.types import AskedCall
from tests.conftest import TOWNS, kgqa, write_jsonl

COMMANDS = (
    *["run", "build", "encode", "train-explorer", "train-reasoner", "evaluate", "ask", "status", "score"],
    *["init", "make-questions", "lint", "compare", "confidence", "lm-info", "score-plans", "sql", "subgraph", "sweep"],
)
HEAVY = {"dask", "distributed", "duckdb", "matplotlib", "mlflow", "numpy", "pandas", "prefect", "pyarrow", "torch"}


@pytest.fixture
def conf(tmp_path, monkeypatch) -> Path:
    """A run configuration beside small files of its own, with a home of its own."""
    monkeypatch.setenv("KGQA_HOME", str(tmp_path / "home"))
    (tmp_path / "triples.tsv").write_text("Aar\tflows_through\tBern\n", encoding="utf-8")
    (tmp_path / "questions.jsonl").write_text('{"question": "what flows through Bern?", "answers": ["Aar"]}\n')
    path = tmp_path / "towns.yaml"
    path.write_text(TOWNS, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("systems", "answered_by"),
    [("", None), ("systems: {run: [rog], answered_by: [first]}", ("first", "oracle")),
     ("systems: {run: [rog], answered_by: [oracle]}", ("oracle",))],
)  # fmt: skip
def test_an_oracle_answers_beside_whoever_does(
    conf: Path, monkeypatch: pytest.MonkeyPatch, systems: str, answered_by: tuple[str, ...] | None
) -> None:
    conf.write_text(TOWNS + systems, encoding="utf-8")
    run: list[RunConfig] = []

    def run_flow(flow: str, config: RunConfig, **_: object) -> None:
        run.append(config)
        raise LinkError("far enough")

    monkeypatch.setattr("flows.run.run_flow", run_flow)
    done = kgqa("run", conf, "--oracle")
    if answered_by is None:
        assert done.exit_code == 2 and "compares no systems" in done.stderr
    else:
        (config,) = run
        assert config.systems is not None and config.systems.answered_by == answered_by


def test_help_of_every_command_loads_nothing_heavy():
    program = f"""
import contextlib, io, json, sys
from flows.cli import app
for command in [[], *([name] for name in {COMMANDS})]:
    sys.argv = ["kgqa", *command, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        app()
    assert "kgqa " + " ".join(command) in shown.getvalue(), shown.getvalue()
print(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout)) & HEAVY == set()


def test_help_names_every_command_with_an_example_and_every_exit_code():
    shown = kgqa("--help").stdout
    assert [command for command in COMMANDS if f" {command} " not in shown] == []
    assert [code for code in (1, 2, 3, 4, 5, 6, 130) if f"{code} " not in shown.partition("Exit codes")[2]] == []
    for command in COMMANDS:
        assert f"kgqa {command} " in kgqa(command, "--help").stdout.partition("Example")[2], command


def test_the_version_is_that_of_the_package():
    try:
        expected = version("kgqa")
    except PackageNotFoundError:
        pytest.skip("kgqa is not installed here: make install")
    assert kgqa("--version").stdout == f"kgqa {expected}\n"


def test_a_model_without_a_history_has_no_champion(conf: Path) -> None:
    told = "Champion of kgqa-towns: none\nReleases, the oldest first: none\n"
    assert kgqa("history", str(conf)).stdout == told


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("status", "CONF", "--set", "explorer.epoch=3"), 2, "did you mean 'epochs'?"),
        (("status", "CONF.yml"), 2, "did you mean"),
        (("lint",), 2, "CONF"),
        (("statsu", "demo.yaml"), 2, "statsu"),
        (("score", "predictions.jsonl", "--json"), 3, "predictions.jsonl"),
        (("ask", "CONF", "what flows through Bern?", "--json"), 5, "'explorer-seed0' of 'towns' is not done"),
        (("ask", "models:/kgqa-towns@champion", "who?", "--set", "explorer.epochs=3"), 2, "is a registered model"),
        (("ask", "models:/kgqa-towns@champion", "who?", "--system", "rog"), 2, "give one of them"),
        (("ask", "models:/kgqa-towns@champion", "--file", "questions.txt", "--system", "rog"), 2, "give one of them"),
        (("ask", "CONF", "who?", "--trace"), 2, "go with --system"),
        (("ask", "CONF", "who?", "--system", "rog,kaping"), 2, "one system is asked"),
        (("ask", "CONF", "--file", "questions.txt", "--answered-by", "oracle"), 2, "go with --system"),
        (("evaluate", "CONF", "--questions", "new.jsonl", "--answered-by", "oracle"), 2, "needs --systems"),
        (("evaluate", "CONF", "--questions", "new.jsonl", "--systems", "rog,etd"), 2, "one system is asked"),
    ],
)
def test_a_mistake_is_told_on_standard_error_with_its_exit_code(conf, arguments, code, said):
    done = kgqa(*(argument.replace("CONF", str(conf)) for argument in arguments))
    assert (done.exit_code, done.stdout) == (code, "")
    assert said in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ask", "CONF", "--file", "CONF", "--out", "answers.csv"), "ends in .jsonl or .parquet"),
        (("ask", "CONF", "--file", "CONFIG"), "towns.yamlIG does not exist"),
        (("evaluate", "CONF", "--questions", "CONF", "--out", "CONF/answers.jsonl"), "there is no folder"),
        (("score-plans", "CONF", "--questions", "CONFIG"), "towns.yamlIG does not exist"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_before_anything_is_made_for_it(conf, monkeypatch, arguments, said):
    made = Mock()
    monkeypatch.setattr("flows.run.run_flow", made)
    if arguments[0] == "score-plans":
        conf.write_text(TOWNS + "plans: {planners: [dense]}\ndense: {}\n", encoding="utf-8")
    done = kgqa(*(argument.replace("CONF", str(conf)) for argument in arguments))
    assert (done.exit_code, said in done.stderr) == (3, True), done.output
    made.assert_not_called()


@pytest.mark.parametrize("arguments", [("serve", "CONF", "--port"), ("up", "--mlflow-port"), ("up", "--prefect-port")])
def test_a_port_that_there_is_not_is_told(conf, monkeypatch, arguments):
    monkeypatch.setattr("tasks.services.require_free", Mock(side_effect=AssertionError("it was taken for a port")))
    done = kgqa(*(argument.replace("CONF", str(conf)) for argument in arguments), 99999)
    assert (done.exit_code, arguments[-1] in done.stderr) == (2, True), done.output


@pytest.mark.parametrize("arguments", [("run", "SELF"), ("run", "OTHER"), ("build", "OTHER"), ("sweep", "SWEEP")])
def test_a_contradiction_is_a_configuration_error_before_anything_runs(conf, arguments):
    """Systems that need a planner which the run does not train: in a run, in one that it starts from, in a sweep."""
    conf.with_name("self.yaml").write_text(TOWNS + "systems: {answered_by: [oracle]}\n", encoding="utf-8")
    other = TOWNS.replace("epochs: 1", "epochs: 1, init_from: self.yaml")
    conf.with_name("other.yaml").write_text(other, encoding="utf-8")
    planned = TOWNS + "plans: {planners: [dense]}\ndense: {}\nsystems: {run: [rog], answered_by: [oracle]}\n"
    conf.with_name("planned.yaml").write_text(planned, encoding="utf-8")
    varied = (
        "base: planned.yaml\nvary: {systems.rog.plans: [dense, generator]}\nplots: [{x: systems.rog.plans, y: f1}]\n"
    )
    conf.with_name("sweep.yaml").write_text(varied, encoding="utf-8")
    done = kgqa(arguments[0], conf.with_name(f"{arguments[1].lower()}.yaml"), "--json")
    assert (done.exit_code, done.stdout) == (2, ""), done.stderr
    assert "'dense-seed0', which this run does not make" in done.stderr or "has no language model" in done.stderr
    assert not (conf.parent / "home").exists()


def test_a_run_that_starts_from_its_own_champion_is_no_contradiction(conf, monkeypatch):
    reached = RuntimeError("everything fits together")
    monkeypatch.setattr("tasks.server.prefect_server", Mock(side_effect=reached))
    start = "explorer.init_from=models:/kgqa-towns@champion"
    assert kgqa("run", conf, "--set", start).exception is reached


def test_asking_a_run_does_not_load_mlflow(conf):
    program = (
        "import sys\nfrom flows.cli import app\n"
        f"sys.argv = ['kgqa', 'ask', {str(conf)!r}, 'what flows through Bern?']\n"
        "try:\n    app()\nfinally:\n    print('mlflow' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 5, done.stderr  # nothing is trained: far enough
    assert done.stdout.splitlines()[-1] == "False"


def test_score_prints_one_json_document_of_the_documented_shape_and_percent_for_people(tmp_path):
    truth = [["Aar"], "Rhine", ["Aar", "Rhine"]]  # right, wrong, and right beside a wrong one
    rows = ({"prediction": prediction, "ground_truth": ["Aar"]} for prediction in truth)
    predictions = write_jsonl(tmp_path / "predictions.jsonl", rows)
    command = [sys.executable, "-m", "flows.cli", "score", str(predictions), "--json"]
    figures = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert figures == score_file(predictions)
    assert figures["n"] == 3
    assert figures["strict"]["hits1"] == pytest.approx(200 / 3)
    assert set(figures["rog"]) == {"accuracy", "hit", "hit1", "f1", "precision", "recall"}
    shown = kgqa("score", predictions).stdout
    assert "3 questions, all figures in percent" in shown and "66.67" in shown
    write_jsonl(predictions, [{"prediction": ["Aar"], "ground_truth": ["Aar"]}])
    assert "1 question, all figures in percent" in kgqa("score", predictions).stdout


def test_status_of_a_fresh_run_says_what_each_stage_waits_for(conf):
    document = json.loads(kgqa("status", conf, "--json").stdout)
    assert document["run"] == "towns"
    stages = {stage["key"]: (stage["state"], stage["why"]) for stage in document["stages"]}
    assert stages["graph"] == ("missing", "never built")
    assert stages["questions"] == ("missing", "waits for graph")


def test_what_is_printed_and_logged_goes_to_standard_error_also_after_somebody_sets_up_logging_anew(capsys):
    """As Prefect does at the start of a flow: it takes away what the root logger has."""
    with working("counting"):
        print("printed by a library")
        logging.getLogger("kgqa_core.somewhere").info("logged by us")
        logging.getLogger("somewhere.else").warning("%(uri)s", {"uri": "http://planted@host"})
        logging.config.dictConfig({"version": 1, "disable_existing_loggers": False, "root": {"handlers": []}})
        logging.getLogger("tasks.somewhere").warning("MLflow was not told: %s", "postgresql://ann:planted@db/mlflow")
    shown = capsys.readouterr()
    assert not shown.out
    assert "printed by a library" in shown.err
    assert "logged by us" in shown.err
    assert shown.err.count("MLflow was not told") == 1
    assert "ann:***@db" in shown.err and "planted" not in shown.err


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """The clock of progress, which a test moves."""
    made = SimpleNamespace(now=0.0, monotonic=lambda: made.now)
    monkeypatch.setattr(cli_session, "time", made)
    return made


def test_a_bar_appears_for_an_activity_that_lasts(clock):
    screen = io.StringIO()
    with ProgressBars(Console(file=screen, force_terminal=True, width=100), "kgqa run") as bars:
        bars("short", 1, 7)
        clock.now = SHOW_AFTER / 2
        bars("short", 7, 7)
        bars("training", 0, 4)
        clock.now += SHOW_AFTER + 1
        bars("training", 3, 4)
        bars._bars.refresh()
        shown = screen.getvalue()
    assert "training" in shown
    assert "75%" in shown
    assert "short" not in shown


def test_without_a_terminal_a_line_comes_now_and_then(clock):
    log = io.StringIO()
    with ProgressBars(Console(file=log, width=100), "kgqa run") as bars:
        for second in range(100):
            clock.now = float(second)
            bars("training", second, 100)
    assert log.getvalue().splitlines() == [
        "training: 30 %, 0:01:10 left",
        "training: 60 %, 0:00:40 left",
        "training: 90 %, 0:00:10 left",
    ]


@pytest.mark.parametrize(
    ("systems", "system", "row"),
    [
        ("", "direct", ("direct",)),  # no section: the override alone makes one
        ("systems: {run: [direct]}\n", "cot", ("cot",)),  # its model is named by no key but the option
        ("systems: {run: [direct], variants: {mine: {system: cot}}}\n", "mine", ("direct", "mine")),
    ],
)
def test_a_system_is_asked_of_a_run_without_a_language_model_and_what_it_needs_is_made_first(
    conf: Path, monkeypatch: pytest.MonkeyPatch, systems: str, system: str, row: tuple[str, ...]
) -> None:
    conf.write_text(TOWNS + systems, encoding="utf-8")
    asked: list[Pipeline] = []
    made: list[str] = []

    def ask_system(pipeline: Pipeline, *given: str, **__: object) -> None:
        asked.append(pipeline)
        assert given == ("q?", "A", "B") and "questions" in made
        raise LinkError("far enough")

    monkeypatch.setattr("flows.one_question.ask_system", ask_system)
    monkeypatch.setattr("flows.run.run_flow", lambda *_, keys: made.extend(keys))
    topics = ["--topic", "A", "--topic", "B"]
    done = kgqa("ask", conf, "q?", "--system", system, "--answered-by", "oracle", *topics)
    assert "far enough" in done.stderr
    (pipeline,) = asked
    assert made == needed_stages(pipeline, system) and "supervision" in made  # kgqa run makes no such stage here
    assert {key.partition("-")[2].partition("-")[0] for key in pipeline.specs if key.startswith("system-")} == {*row}
    assert all("-oracle-" in key for key in pipeline.specs if key.startswith("system-"))


def test_what_to_ask_next_is_who_answered_where_no_explorer_was_trained(capsys: pytest.CaptureFixture[str]) -> None:
    """kgqa evaluate --systems makes what the systems need, and rog needs no explorer."""
    table = {"header": list(RESULTS), "rows": [["two hops", "oracle", "3", "50.00", "50.00", "2.00", "100.0"]]}
    answered = {"tables": [table], "num_questions": 3, "rows": [{"about": {"system": "two hops"}}]}
    print_summary(RunSummary("towns", (), comparison=answered), "towns.yaml", None)
    assert "kgqa ask towns.yaml --system 'two hops' \"QUESTION\"\n" in capsys.readouterr().out


def test_a_system_that_ranks_nothing_has_no_legend_of_answers(capsys: pytest.CaptureFixture[str]) -> None:
    call = AskedCall(1, "direct", "?", "", ("I do not know",), "", 4)
    print_reply(SystemReply("direct", "lm", "?", (), "abstained", (), (), None, (call,), 9, 1.0), False)
    assert capsys.readouterr().out.strip() == "direct from no topic: abstained; 1 call, 9 tokens, 1.00 s: none"


@pytest.mark.parametrize("player, shown", [("lm", "rog"), ("", "rog"), ("oracle", "rog (oracle)")])
def test_an_answer_says_that_no_language_model_gave_it(
    player: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An oracle knows the run's own questions alone: of any other it says that it does not know."""
    print_reply(SystemReply("rog", player, "?", ("Rome",), "abstained", (), (), None, (), 0, 0.0), False)
    assert capsys.readouterr().out.startswith(f"{shown} from Rome: abstained;")


def test_an_abstract_among_the_candidates_floods_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    text = "Rome is old. " * 5000
    path = f"(Rome, abstract, {text})"
    print_answer(Answer("?", ("Rome",), (AnswerLine(text, text, 100.0, True, path),)))
    line = SystemLine(text, text, 1.0, True, True, path)
    print_reply(SystemReply("rog", "lm", "?", ("Rome",), "answered", (line,), (), None, (), 0, 0.0), False)
    printed = capsys.readouterr().out
    assert len(printed) < 8000 and printed.count("Rome is old.") > 40
