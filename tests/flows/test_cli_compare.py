"""``kgqa compare`` and ``kgqa confidence`` as users meet them: how runs are named, what is printed and refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flows.cli_compare import cells_of, find_predictions, letter_of, scope_name
from flows.trust import trust_document
from kgqa_core.config import RunConfig
from kgqa_core.errors import ArtifactError, ConfigError
from kgqa_core.evaluation.compare import Difference, PairRow
from kgqa_core.evaluation.predictions import Source, open_predictions
from kgqa_core.evaluation.runs import read_system_run
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.types import Prediction, Question
from tests.conftest import kgqa
from tests.evaluation import made_up

NUM = 90
SYSTEMS = "systems: {run: [explorer, direct], answered_by: [oracle, random], seeds: [0, 1]}\n"
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the predictions of a system that is right on the first questions; question n has n % 2 + 1 hops."""

    def write(name: str, num_right: int, *, graph: str = "a" * 64, num: int = NUM) -> Path:
        questions = [
            Question(f"q{n:02}", f"where is {n}?", "", (0,), tuple(range(1, n % 3 + 2)), "test", hops=n % 2 + 1)
            for n in range(num)
        ]
        replies = [Prediction(one.id, one.answers, (1.0,) * len(one.answers), one.answers) for one in questions]
        path = tmp_path / f"{name}.parquet"
        names = SimpleNamespace(entity_names=["", "Rome", "Oslo", "Bern"], relation_names=[])
        source = Source(graph, f"system {name}")
        with open_predictions(path, names, source) as write_rows:
            write_rows(questions, made_up.in_full(questions, replies[:num_right]))
        return path

    return write


def test_tables_name_the_runs_and_say_what_is_more_than_noise(write: Write) -> None:
    strong, weak = write("strong", 80), write("weak", 40)
    shown = kgqa("compare", strong, weak).stdout
    assert f"{NUM} questions, all figures in percent" in shown
    assert "system strong" in shown and "system weak" in shown
    assert "A - B" in shown and "+44.44" in shown and "< 0.001" in shown
    assert "2 hops" in shown and "2-4 answers" in shown
    assert shown.splitlines()[-1] == "A against B: Hits@1 better, F1 better, EM better"
    three = write("one", 20), write("two", 60), write("three", 61)
    last = kgqa("compare", *three).stdout.splitlines()[-3:]  # pair by pair
    assert [line.partition(":")[0] for line in last] == ["A against B", "A against C", "B against C"]
    assert [line.partition("Hits@1 ")[2].partition(",")[0] for line in last] == ["worse", "worse", "tie"]
    document = json.loads(kgqa("compare", strong, weak, "--json").stdout)
    assert document.keys() == {"n", "graph", "confidence", "alpha", "runs", "comparisons"}
    assert (document["n"], document["graph"], document["confidence"]) == (NUM, "a" * 64, 0.95)
    assert [run["run"] for run in document["runs"]] == [str(strong), str(weak)]
    assert document["runs"][0]["figures"]["hits1.low"] < document["runs"][0]["figures"]["hits1"]
    first = document["comparisons"][0]
    assert (first["by"], first["bucket"], first["n"]) == ("all", "all", NUM)
    assert (first["metrics"]["hits1"]["verdict"], first["metrics"]["hits1"]["only_first"]) == ("better", 40)
    assert {row["by"] for row in document["comparisons"]} == {"all", "hops", "answers"}


def test_other_questions_and_another_graph_are_refused_with_the_difference(write: Write) -> None:
    done = kgqa("compare", write("one", 7), write("other", 7, num=NUM - 4, graph="b" * 64), "--json")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "4 questions only in" in done.stderr and "q86 'where is 86?'" in done.stderr
    assert "has aaaaaaaaaaaaaaaa" in done.stderr and "has bbbbbbbbbbbbbbbb" in done.stderr


@pytest.mark.slow
def test_a_run_is_a_configuration_a_folder_or_a_table(conf: Path, tiny_config: RunConfig, tmp_path: Path) -> None:
    folder = Pipeline(tiny_config).artifact("evaluation-seed0").folder
    copy = Path(shutil.copy(folder / "predictions.parquet", tmp_path / "copy.parquet"))
    document = json.loads(kgqa("compare", conf, folder, copy, "--json").stdout)
    assert [run["run"] for run in document["runs"]] == [f"{conf}@0", str(folder), str(copy)]
    assert {run["system"] for run in document["runs"]} == {"explorer (seed 0)"}
    assert document["graph"] == Pipeline(tiny_config).artifact("graph").content
    verdicts = {found["verdict"] for row in document["comparisons"] for found in row["metrics"].values()}
    assert verdicts == {"tie"}


@pytest.mark.parametrize("run", ["CONF", "CONF@0", "FILE"])
def test_one_run_without_systems_has_nothing_to_be_compared_with(conf: Path, write: Write, run: str) -> None:
    one = run.replace("CONF", str(conf)).replace("FILE", str(write("one", 1)))
    for more in ((), ("--json",)):
        done = kgqa("compare", one, *more)
        assert (done.exit_code, done.stdout) == (2, "")
        assert f"{one} is one run and compares no systems" in done.stderr and "give two runs" in done.stderr


def test_one_run_by_two_names_is_no_pair(conf: Path) -> None:
    done = kgqa("compare", conf, f"{conf}@0")
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"each once; {conf}@0 is given twice: {conf}, {conf}@0" in " ".join(done.stderr.split())


def test_runs_that_overrode_settings_are_compared_by_giving_them_again(
    conf: Path, tiny_config: RunConfig, tmp_path: Path
) -> None:
    home, elsewhere = tiny_config.runtime.home, tmp_path / "elsewhere.yaml"
    elsewhere.write_text(conf.read_text(encoding="utf-8").replace(str(home), str(tmp_path)), encoding="utf-8")
    folder = Pipeline(tiny_config).artifact("evaluation-seed0").folder
    done = kgqa("compare", elsewhere, folder, f"--set=runtime.home={home}", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["comparisons"], done.stderr


def test_one_run_of_a_system_is_shown_alone(tmp_path: Path) -> None:
    assert "rog" in kgqa("compare", a_system(tmp_path, "rog", 80)).stdout


@pytest.mark.parametrize(
    ("run", "code", "said"),
    [
        ("CONF@7", 2, "has no seed '7'; its explorer.seeds are 0"),
        ("CONF@rog", 2, "as --set systems.run=[rog], with every --set that kgqa evaluate printed"),
        ("CONF", 5, "'evaluation-seed0' of 'tiny' is not done: make it"),
        ("TMP/ones.parquet", 3, "ones.parquet'; did you mean"),
        ("TMP/ones.parquet", 3, "A run is a configuration"),
        ("TMP", 3, "there is no predictions"),
        ("TMP/one.yaml", 2, "no configuration file"),
        ("TMP/one.parquet", 2, "give two runs or more, each once"),
    ],
)
def test_a_run_that_is_not_there_says_what_to_do(
    conf: Path, write: Write, own_home: Path, monkeypatch: pytest.MonkeyPatch, run: str, code: int, said: str
) -> None:
    monkeypatch.setenv("KGQA_HOME", str(own_home))
    one = write("one", 1)
    done = kgqa("compare", run.replace("CONF", str(conf)).replace("TMP", str(one.parent)), one)
    assert (done.exit_code, said in done.stderr) == (code, True), done.stderr


def a_system(folder: Path, system: str, right: int, **about: Any) -> Path:
    """Write, to a folder that need not be there, what a system says that is right on the first questions."""
    folder.mkdir(exist_ok=True)
    questions = [made_up.ask(f"q{n:02}", 1, hops=n % 2 + 1) for n in range(NUM)]
    replies = [made_up.Reply((1 if n < right else 2,), supported=(1,), calls=1, tokens=90) for n in range(NUM)]
    return made_up.write_system(folder, system, questions, replies, **{"answered_by": "lm", "model": "m", **about})


def test_systems_get_one_table_with_accuracy_cost_and_evidence(tmp_path: Path) -> None:
    rog, direct = a_system(tmp_path, "rog", 80), a_system(tmp_path, "direct", 30)
    chance = [a_system(tmp_path, "rog", 79, answered_by=player, model=player) for player in ("random", "first")]
    document = json.loads(kgqa("compare", rog, direct, *chance, "--json").stdout)
    assert [row["system"] for row in document["systems"]["rows"]] == [
        "A rog", "B direct", "C rog (random)", "D rog (first)"
    ]  # fmt: skip
    first = document["systems"]["rows"][0]
    assert (first["overall"]["calls_per_question"], first["overall"]["tokens_per_question"]) == (1, 100)
    assert first["lift"]["lift.hits1"] == pytest.approx(100 * 50 / NUM)
    assert first["about"]["seed"] == [0]
    assert document["systems"]["sentences"][0].startswith("A rog: the LM adds nothing")
    assert {row["system"] for row in document["systems"]["united"]} == {"A rog + direct"}
    shown = kgqa("compare", rog, direct).stdout
    assert "Answers joined by those of direct" in shown and "A against B" in shown


def test_rows_of_several_seeds_are_tested_by_their_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, list[tuple[str, Path]]] = {"a.yaml@rog": [], "a.yaml@etd": []}
    for word, seed, right in (("rog", 0, 80), ("rog", 1, 60), ("etd", 0, 30), ("etd", 1, 40)):
        file = a_system(tmp_path / f"{word}{seed}", word, right, seed=seed)
        found[f"a.yaml@{word}"].append((f"a.yaml@{word}-seed{seed}", file))
    monkeypatch.setattr("flows.cli_compare.find_predictions", lambda run, settings: found[run])
    document = json.loads(kgqa("compare", *found, "--json").stdout)
    assert [run["system"] for run in document["runs"]] == ["rog, mean of 2 seeds", "etd, mean of 2 seeds"]
    whole, own = document["comparisons"][0], document["systems"]["rows"][0]["overall"]
    assert [whole["first"], whole["second"]] == [run["run"] for run in document["runs"]] == [*found]
    assert whole["metrics"]["hits1"]["difference"] == pytest.approx(100 * 35 / NUM, abs=1e-5)
    assert {name: own[name] for name in document["runs"][0]["figures"]} == document["runs"][0]["figures"]
    assert "A against B: Hits@1 better" in kgqa("compare", *found).stdout


def a_sure_system(folder: Path, split: str, sure: float = 0.9, **about: Any) -> Path:
    """Write, to a folder of the split, a system that is right wherever it is sure, and now and then elsewhere."""
    (folder := folder / split).mkdir(parents=True, exist_ok=True)
    questions = [made_up.ask(f"{split}{n:02}", 1) for n in range(NUM)]
    replies = [
        made_up.Reply((1 if n % 2 or n % 10 == 0 else 2,), calls=1, confidence=sure if n % 2 else 0.4)
        for n in range(NUM)
    ]
    replies[0] = made_up.Reply((), calls=1)  # an abstention is not sure of anything
    return made_up.write_system(folder, "rog", questions, replies, **{"answered_by": "lm", "model": "m", **about})


def test_a_threshold_of_dev_is_judged_on_other_questions(tmp_path: Path) -> None:
    dev, test = a_sure_system(tmp_path, "d"), a_sure_system(tmp_path, "t")
    document = json.loads(kgqa("confidence", test, "--dev", dev, "--risk", 5, "--json").stdout)
    sure = read_system_run(test).record.confidence  # type: ignore[union-attr]
    assert document["threshold"] == 0.9 and sorted(set(sure[~np.isnan(sure)])) == [0.4, 0.9]
    assert document["test"]["coverage"] == pytest.approx(50) and document["test"]["risk"] <= 5
    assert document["without"]["coverage"] == pytest.approx(100 * (NUM - 1) / NUM)
    assert document["without"]["risk"] > 40 > document["aurc"] > document["aurc_best"]
    assert document["calibration"]["error_fitted"] < document["calibration"]["error"]
    shown = kgqa("confidence", test, "--dev", dev).stdout
    assert "below 0.9 (chosen on dev for a risk of 10) it should abstain: 50.0 answered" in shown
    table = kgqa("compare", test, a_sure_system(tmp_path / "other", "t", model="other")).stdout
    assert "the risk where the least certain answers are kept back" in table


def test_a_question_that_several_seeds_answer_is_one_question(tmp_path: Path) -> None:
    asked = (("dev", 0), ("test", 0), ("test", 1))
    runs = [read_system_run(a_sure_system(tmp_path, split, seed=seed)) for split, seed in asked]
    assert trust_document(runs[:1], runs[1:], risk=10.0)["num_questions"] == NUM


def test_an_oracle_that_knows_other_questions_is_the_same_system(tmp_path: Path) -> None:
    """Its identity holds what it knows, which is of dev questions and of test questions not the same."""
    known = ((split, f"oracle-v2-0-0-0-{split}") for split in ("dev", "test"))
    dev, test = (a_sure_system(tmp_path, one, answered_by="oracle", model=name, base=name) for one, name in known)
    done = kgqa("confidence", test, "--dev", dev)
    assert done.exit_code == 0 and "below 0.9 (chosen on dev" in done.stdout, done.stderr


def test_the_threshold_shown_is_the_one_that_was_judged(tmp_path: Path) -> None:
    """Rounded, it would let other answers through, or none at all."""
    dev, test = a_sure_system(tmp_path, "d", 0.99973), a_sure_system(tmp_path, "t", 0.99972)
    shown = kgqa("confidence", test, "--dev", dev).stdout
    assert "below 0.99973 (chosen on dev for a risk of 10) it should abstain: 0.0 answered" in shown


def test_where_no_threshold_keeps_the_risk_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    replies = [made_up.Reply((1 + n % 2,), calls=1, confidence=1.0) for n in range(NUM)]  # half are wrong
    asked = [[made_up.ask(f"{split}{n:02}", 1) for n in range(NUM)] for split in ("t", "d")]
    test = made_up.write_system(tmp_path, "rog", asked[0], replies)
    files = (test, "--dev", made_up.write_system(tmp_path / "dev", "rog", asked[1], replies))
    document = json.loads(kgqa("confidence", *files, "--json").stdout)
    assert document["threshold"] is None and document["test"] == {"coverage": 0.0, "risk": 0.0}
    assert document["dev"] == {"coverage": 0.0, "risk": 0.0, "least_risk": 50.0}
    shown = kgqa("confidence", *files).stdout
    assert "no threshold has a risk of at most 10 on dev, 50.0 at least: ask for a higher --risk" in shown


def test_a_threshold_is_not_judged_where_it_was_chosen(tmp_path: Path) -> None:
    test, direct = a_sure_system(tmp_path, "t"), a_system(tmp_path / "other", "direct", 30)
    for arguments, code, said in (
        ((test, "--dev", test), 3, f"share {NUM} questions: "),
        ((test, "--dev", direct), 3, "are not of one system"),
        ((test, "--dev", a_sure_system(tmp_path, "d", model="n")), 3, "by other settings or another model"),
        ((direct, "--dev", a_system(tmp_path, "direct", 3, answered_by="lm", seed=1)), 3, f"share {NUM} questions: "),
        ((test,), 2, "give --dev RUN"),  # a file does not say where its answers to dev questions are
    ):
        done = kgqa("confidence", *arguments)
        assert (done.exit_code, said in done.stderr) == (code, True), done.stderr


def test_who_asks_how_sure_an_explorer_is_gets_the_commands_that_tell(conf: Path) -> None:
    """It said to answer dev questions, and after that that there is no confidence."""
    done = kgqa("confidence", f"{conf}@0", "--set", "runtime.batch_size=9")
    assert done.exit_code == 3, done.stderr
    first = f"kgqa evaluate {conf} --set=runtime.batch_size=9 --systems explorer, then kgqa confidence {conf}@explorer"
    assert f"{first} --set=runtime.batch_size=9 '--set=systems.run=[explorer]'" in done.stderr.replace("\n", "")


@pytest.fixture
def several(conf: Path, tmp_path: Path) -> Path:
    """The built run with several systems, which it has not asked."""
    path = tmp_path / "several.yaml"
    path.write_text(conf.read_text(encoding="utf-8") + SYSTEMS, encoding="utf-8")
    return path


def test_without_answers_to_dev_questions_the_command_that_gives_them_is_named(
    several: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run itself is done: another kgqa run would change nothing. The other systems of the run are not needed."""
    written = a_sure_system(tmp_path, "t")
    there = written.rename(written.with_name("predictions.parquet")).parent

    def artifact(run: Pipeline, key: str) -> Any:
        if run.config.evaluation.split == "dev":
            raise ArtifactError(f"stage {key!r} is not done: make it with kgqa run; kgqa status says more")
        return SimpleNamespace(folder=there)

    monkeypatch.setattr(Pipeline, "artifact", artifact)
    done = kgqa("confidence", f"{several}@direct-oracle", "--set", "systems.max_calls=9")
    assert done.exit_code == 5, done.stderr
    command = f"kgqa evaluate {several} --systems direct --set=systems.max_calls=9 --set=evaluation.split=dev"
    assert command in done.stderr.replace("\n", "") and "kgqa run" not in done.stderr


@pytest.mark.slow
def test_a_configuration_that_compares_systems_stands_for_all_of_them(
    several: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pipeline, "artifact", lambda _, key: SimpleNamespace(folder=Path(key)))
    assert {path.parent.name for _, path in find_predictions(str(several))} == {
        f"system-{system}-seed{seed}" for system in ("explorer", "direct-oracle", "direct-random") for seed in (0, 1)
    }
    for part, keys in {
        "direct-oracle": ["system-direct-oracle-seed0", "system-direct-oracle-seed1"],
        "direct-random-seed1": ["system-direct-random-seed1"],
        "0": ["evaluation-seed0"],
    }.items():
        found = [(f"{several}@{key.removeprefix('system-')}", Path(key, "predictions.parquet")) for key in keys]
        assert find_predictions(f"{several}@{part}") == (found if part != "0" else [(f"{several}@0", found[0][1])])
    with pytest.raises(ConfigError, match=r"its systems are explorer, direct-oracle, .*did you mean 'direct-oracle'"):
        find_predictions(f"{several}@direct-oracl")


def test_a_configuration_of_which_some_systems_answered_names_them(
    several: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kgqa evaluate --systems explorer leaves nothing in the run file, and what it names would ask a model again."""
    monkeypatch.setattr(
        Pipeline, "find", lambda _, key: SimpleNamespace(folder=tmp_path) if "explorer" in key else None
    )
    with pytest.raises(ArtifactError) as refused:
        find_predictions(str(several), ["explorer.width=9"])
    assert "direct-oracle, direct-random have not answered" in str(refused.value)
    assert f"kgqa evaluate {several} --set=explorer.width=9 asks them" in str(refused.value)
    assert f"name those that have: {several}@explorer" in str(refused.value)


@pytest.mark.parametrize("low, high, shown", [(-2.5, 0, "[-2.50, +0.00]"), (0, 0, "–"), (-27, -27, "–")])
def test_where_all_questions_differ_alike_a_difference_has_no_interval(low: float, high: float, shown: str) -> None:
    """An interval without width would say that no other difference is possible, of a single question too."""
    found = Difference(60.0, 60.0 - low, low, low, high, 0, 1, 1.0, 1.0, "tie")
    assert cells_of(found)[3] == shown


def test_questions_of_a_bucket_and_runs_beyond_the_alphabet_are_named_in_words() -> None:
    said = {"all all": "all", "hops 1": "1 hop", "hops >=3": ">=3 hops", "hops unknown": "hops unknown"}
    said |= {"answers 1": "1 answer", "answers 0": "0 answers"}
    for row, words in said.items():
        assert scope_name(PairRow("one", "other", *row.split(), 7, {})) == words  # type: ignore[arg-type]
    assert [letter_of(place) for place in (0, 25, 26)] == ["A", "Z", "run 27"]
