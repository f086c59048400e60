"""Planning end to end on a part of the embedded dataset: every stage for real; what it leaves is what others load."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import flows.pipeline
from flows.cli_lm import PlannerScore, model_facts, print_planner_scores, score_plan_file
from flows.summary import summarise
from kgqa_core.demo import copy_demo
from kgqa_core.errors import ConfigError, InputError
from kgqa_core.run.ensure import work_here
from kgqa_core.run.open import ADAPTER_FOLDER, open_players
from kgqa_core.run.pipeline import Pipeline, StageOutcome
from kgqa_core.tracking import read_record
from tests.conftest import Build, kgqa, open_run, write_jsonl
from tests.lm.test_gguf import make_gguf
from tests.lm.tiny_models import make_llama

pytestmark = pytest.mark.slow

RUN = """\
dataset:
  name: tiny
  source: files
  graph: {format: tsv, path: data/triples.tsv, names: data/names.tsv}
  questions: {format: jsonl, path: data/questions}
encoder: {kind: hash, dim: 31}
explorer: {steps: 2, width: 7, edge_budget: 5, epochs: 1, batch_size: 257}
plans: {planners: [generator, dense]}
lm: {kind: local, path: model}
reasoner: {objective: rog, max_steps: 3, batch_size: 4, paths_per_question: 1, max_paths: 3, rank: 2}
dense: {max_steps: 2}
tracking: {enabled: false}
"""
PLANNING = ["supervision", "instructions", "reasoner-seed0", "dense-seed0"]
PLANNING += ["plans-generator-seed0", "plans-dense-seed0"]


def write_part(folder: Path) -> None:
    """Write the embedded dataset with some of its questions only, of every type: the text encoder reads them all."""
    folder.mkdir()
    copy_demo(folder)
    make_llama(folder.parent / "model", max_position_embeddings=2048)
    for split, every in (("train", 11), ("dev", 11), ("test", 12)):
        path = folder / "questions" / f"{split}.jsonl"
        path.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[::every]), encoding="utf-8")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, build_stages: Build) -> Pipeline:
    """A run with everything in it, built once."""
    folder = tmp_path_factory.mktemp("planning")
    write_part(folder / "data")
    pipeline = open_run(folder / "tiny.yaml", RUN)
    assert build_stages(pipeline)[-6:] == PLANNING
    return pipeline


def test_lm_info_makes_the_folder_of_a_gguf_file_and_trains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.server.prefect_server", nullcontext)
    monkeypatch.setattr("flows.pipeline.make_stages", flows.pipeline.make_stages.fn)
    monkeypatch.setattr("tasks.runtime.run_as_task", work_here)
    write_part(tmp_path / "data")
    make_gguf(tmp_path / "tiny.gguf")
    pipeline = open_run(tmp_path / "tiny.yaml", RUN, model := f"lm.path={tmp_path / 'tiny.gguf'}")
    options = ("--set", f"runtime.home={tmp_path / 'home'}", "--set", model, "--json")
    done = kgqa("lm-info", str(tmp_path / "tiny.yaml"), *options, catch_exceptions=False)
    assert json.loads(done.stdout)["parameters"] > 0
    made = [stage.key for stage in pipeline.status() if stage.state == "done"]
    assert made == ["graph", "questions", "lm"]


def test_every_plan_of_either_planner_can_be_followed(built: Pipeline) -> None:
    for name in ("generator", "dense"):
        folder = built.artifact(f"plans-{name}-seed0").folder
        scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
        assert scores["figures"]["all"]["valid"] == 100.0
        assert scores["figures"]["all"]["n"] > 30
        plans = pq.read_table(folder / "plans.parquet").to_pylist()
        assert {row["planner"] for row in plans} == {name}
        assert max(row["rank"] for row in plans) == 3


def test_scores_are_recorded_per_planner_and_seed(built: Pipeline) -> None:
    record = read_record(built.artifact("plans-generator-seed0").folder)
    assert (record.system, record.seed) == ("generator", 0)
    assert {"hit_at_1", "hit_at_3", "as_good", "valid", "f1", "lm.num_calls"} <= record.metrics.keys()
    assert record.metrics["lm.num_calls"] == record.metrics["n"] + record.metrics["n_without_paths"]
    assert "plans" in record.tables
    outcomes = [StageOutcome(key, built.artifact(key), False) for key in PLANNING]
    summary = summarise(built, outcomes)
    assert [one["planner"] for one in summary.planners] == ["generator", "dense"]
    assert "| hops | planner |" in summary.markdown


def test_the_model_of_a_seed_is_the_base_with_its_adapter_which_loads_in_plain_peft(built: Pipeline) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = built.config.lm.path
    adapter = built.artifact("reasoner-seed0").folder / ADAPTER_FOLDER
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter)
    assert model.peft_config["default"].r == 2
    assert str(built.home) not in (adapter / "adapter_config.json").read_text(encoding="utf-8")
    facts = model_facts(built)
    assert facts["kind"] == "local"
    assert facts["parameters"] < 300_000
    assert open_players(built, 0, ["plan"])["plan"].model.name != facts["name"]  # that of the base alone


def test_planners_are_scored_on_any_file_and_what_cannot_be_used_is_said(built: Pipeline, tmp_path: Path) -> None:
    asked = pq.read_table(built.artifact("questions").folder / "questions.parquet").to_pylist()
    text = next(row["text"] for row in asked if row["split"] == "test" and row["topics"])
    path = pq.read_table(built.artifact("supervision").folder / "paths.parquet")["path"][0].as_py()
    rows = [{"id": "a", "question": text, "relation_paths": [path]}, {"id": "b", "question": text}, {"id": "c"}]
    rows.append({"id": "d", "question": "what of nobody at all?", "relation_paths": [path]})
    rows.append({"id": "e", "question": f"{text} {'really ' * 3000}"})
    write_jsonl(tmp_path / "plans.jsonl", rows)
    scores, rejects = score_plan_file(built, tmp_path / "plans.jsonl")
    assert scores.keys() == {"generator", "dense"}
    assert [(score.figures["n"], score.figures["n_without_paths"]) for score in scores.values()] == [(1, 1)] * 2
    found = sorted((reject.line, reject.reason) for reject in rejects)
    unusable = ["no question text", "no entity name in the text", "more than 20000 characters"]
    assert found == list(enumerate(unusable, 3))
    write_jsonl(tmp_path / "bare.jsonl", rows[1:2])
    bare, _ = score_plan_file(built, tmp_path / "bare.jsonl")  # what is right is not known: no planner has 0 for that
    assert [score.figures for score in bare.values()] == [{"n": 0, "n_without_paths": 1, "valid": 100.0}] * 2
    write_jsonl(tmp_path / "none.jsonl", [{"id": "d", "question": "what of nobody at all?"}])
    with pytest.raises(InputError, match="holds no usable question"):
        score_plan_file(built, tmp_path / "none.jsonl")


def test_what_is_not_known_of_a_planner_is_shown_as_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    print_planner_scores({"dense": PlannerScore({"n": 0, "n_without_paths": 1, "valid": 100.0}, {0: {}})})
    (row,) = (line for line in capsys.readouterr().out.splitlines() if "dense" in line)
    assert [cell.strip() for cell in row.split("│")[1:-1]] == ["dense", "0", "1", "–", "–", "100.00"]


def test_a_run_without_planners_says_so(tiny_config: object, tmp_path: Path) -> None:
    pipeline = Pipeline(tiny_config)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="trains no planner"):
        score_plan_file(pipeline, tmp_path / "plans.jsonl")
    with pytest.raises(ConfigError, match="has no language model"):
        model_facts(pipeline)
    with pytest.raises(ConfigError, match="the sections 'plans', 'lm' and 'reasoner'"):
        flows.pipeline.train_reasoner.fn(pipeline.config)


def test_a_model_that_nothing_would_ask_is_not_left_untuned_in_silence(tmp_path: Path) -> None:
    dataset, lm = "dataset={name: tiny, source: embedded}", "lm={kind: packaged}"
    pipeline = open_run(tmp_path / "tiny.yaml", RUN, dataset, lm, "plans.planners=[dense]")
    with pytest.raises(ConfigError, match=r"nothing would ask it: let it plan \(plans.planners: \[generator\]"):
        flows.pipeline.train_reasoner.fn(pipeline.config)
