"""Runs that start from another run's explorer, or learn from its questions too."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kgqa_core.config import RunConfig
from kgqa_core.errors import ArtifactError, ConfigError
from kgqa_core.questions.build import read_questions
from kgqa_core.run import stages
from kgqa_core.run.ensure import ensure
from kgqa_core.run.open import graph_of, read_encodings
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.tracking import TrackingRecord, read_record
from tests.conftest import Build, open_run, write_jsonl

TRAINED = "explorer-seed0"


@pytest.fixture
def conf(tmp_path: Path) -> Callable[..., Pipeline]:
    """Write a run configuration on a graph of cities, or of other places; return its stages."""

    def write(name: str, place: str = "city", **explorer: object) -> Pipeline:
        numbers = range(23 if place == "city" else 31)
        triples = [f"{place}{n}\tlies_in\tland{n % 5}\n{place}{n}\thas_mayor\tmayor{n}\n" for n in numbers]
        (tmp_path / f"{place}.tsv").write_text("".join(triples), "utf-8")
        asked = [{"question": f"where does {place}{n} lie?", "answers": [f"land{n % 5}"]} for n in numbers]
        asked += [{"question": f"who runs {place}{n}?", "answers": [f"mayor{n}"]} for n in numbers]
        write_jsonl(tmp_path / f"{place}.jsonl", asked)
        settings = {"steps": 1, "width": 8, "edge_budget": 9, "epochs": 3, "warmup_steps": 3, **explorer}
        text = (
            f"dataset: {{name: places, source: files, graph: {{format: tsv, path: {place}.tsv}}, "
            f"questions: {{format: jsonl, path: {place}.jsonl}}}}\n"
            f"encoder: {{kind: hash, dim: 32}}\nexplorer: {settings}\n"
        )
        return open_run(tmp_path / f"{name}.yaml", text.replace("'", ""))

    return write


def recorded(run: Pipeline) -> TrackingRecord:
    return read_record(run.artifact(TRAINED).folder)


def test_the_run_to_start_from_is_trained_first_and_once(conf: Callable[..., Pipeline], build_stages: Build) -> None:
    first = conf("first", epochs=20)
    second = conf("second", epochs=1, learning_rate=1e-9, init_attention=1.0, init_from="first.yaml")
    fresh = conf("fresh", epochs=1, learning_rate=1e-9)  # it hardly learns, and starts from nothing
    assert first.find(TRAINED) is None
    for run in (second, fresh):
        build_stages(run)
    assert recorded(second).params["init_fresh"] == "none"
    hits = [recorded(run).metrics["dev.hits1"] for run in (first, second, fresh)]
    assert hits[0] == hits[1] > hits[2]
    assert TRAINED not in build_stages(first)


def test_where_the_other_runs_files_are_gone_its_stage_says_so_and_all_others_where_they_stand(
    conf: Callable[..., Pipeline], tmp_path: Path
) -> None:
    conf("first")
    second = conf("second", place="village", init_from="first.yaml")
    (tmp_path / "city.tsv").unlink()
    status = {one.key: one.why for one in second.status()}
    assert "city.tsv does not exist" in status[TRAINED]
    assert status["graph"] == "never built"


@pytest.mark.slow
def test_what_was_learned_on_one_graph_answers_on_another(conf: Callable[..., Pipeline], build_stages: Build) -> None:
    conf("first", epochs=60, learning_rate=0.01)
    settings = {"place": "village", "epochs": 1, "learning_rate": 1e-9}  # learns nothing of its own
    carried, blank = conf("carried", init_from="first.yaml", init_attention=1.0, **settings), conf("blank", **settings)
    for run in (carried, blank):
        build_stages(run)
    assert recorded(carried).metrics["dev.hits1"] == 100.0 > recorded(blank).metrics["dev.hits1"]


def test_a_start_with_fewer_steps_lists_what_is_fresh_and_another_width_is_refused(
    conf: Callable[..., Pipeline], build_stages: Build
) -> None:
    conf("first", steps=1)
    second = conf("second", steps=2, init_from="first.yaml")
    build_stages(second)
    assert "propagate.1.weight" in str(recorded(second).params["init_fresh"])
    with pytest.raises(ArtifactError, match="has width 8, this one 16"):
        build_stages(conf("wider", width=16, init_from="first.yaml"))


def test_questions_of_another_run_are_learned_too(conf: Callable[..., Pipeline], build_stages: Build) -> None:
    conf("other")
    alone, both = conf("alone"), conf("both", also_train_on="[other.yaml]")
    for run in (alone, both):
        build_stages(run)
    steps = [recorded(run).curves["train.loss"][-1][0] for run in (alone, both)]
    assert steps[1] == 2 * steps[0]


# The stages that read data, of a run whose graph gives inverses and whose questions are cut


CUP = """\
dataset:
  name: cup
  source: files
  graph: {format: tsv, path: kb.txt, inverse_suffix: _inverse}
  questions: {format: wc2014, path: ., train_size: 20, hold_out_templates: 0.4, draw: 1}
encoder: {kind: hash, dim: 31}
explorer: {steps: 1, edge_budget: 5, epochs: 1}
"""
CLUBS = {f"Player_{number}": f"Club_{number % 7}" for number in range(53)}
WORDINGS = ["where does {} play ?", "club of {} ?", "who pays {} ?", "which team has {} ?", "team of {} ?"]


def test_figures_say_what_was_merged_and_left_out_and_the_texts_of_either_are_encoded(tmp_path: Path) -> None:
    """Five wordings about 53 players: 2 are held out, 20 training questions are drawn from the other three."""
    folder = tmp_path
    rows = [
        f"{player}\tplays_in_club\t{club}\n{club}\tplays_in_club_inverse\t{player}\n" for player, club in CLUBS.items()
    ]
    (folder / "kb.txt").write_text("".join(rows), encoding="utf-8")
    asked = [
        f"{wording.format(player)}\t{club}\t{player}#plays_in_club#{club}#<end>#{club}\t{club}/\t\n"
        for player, club in CLUBS.items()
        for wording in WORDINGS
    ]
    (folder / "1-hop.txt").write_text("".join(asked), encoding="utf-8")
    cup = open_run(folder / "cup.yaml", CUP)
    ensure(cup, ["encodings"])
    assert graph_of(cup).inverse_labels == ["plays_in_club_inverse"]
    graph = read_record(cup.artifact("graph").folder).metrics
    assert (graph["num_triples"], graph["num_duplicates"], graph["num_given_inverses"]) == (53, 0, 1)
    asked = read_record(cup.artifact("questions").folder).metrics
    assert (asked["num_masked_texts"], asked["num_masked_texts_held_out"], asked["num_train"]) == (5, 2, 20)
    held = {question.masked for question in read_questions(cup.artifact("questions").folder, "test")}
    assert len(held) == 2
    texts = set(read_encodings(cup.artifact("encodings").folder))
    assert texts == {"plays_in_club", "plays_in_club_inverse"} | {wording.format("[topic]") for wording in WORDINGS}


# A stage is one new file and one line: a stage of one's own runs, resumes, goes stale and is shown as ours do


DEGREES = '''
"""How many triples each entity has."""

from collections import Counter

from kgqa_core.artifacts import write_json
from kgqa_core.run.open import graph_of
from kgqa_core.run.stages import Stage, StageSpec


def specs(config):
    yield StageSpec("degrees", {"reenter_topic": config.dataset.reenter_topic}, NEEDS)


def build(run, spec, folder, recorder):
    graph = graph_of(run)
    counts = Counter((graph.group_ptr[1:] - graph.group_ptr[:-1]).tolist())
    write_json(folder / "degrees.json", {str(degree): count for degree, count in sorted(counts.items())})
    recorder.metric("num_entities", sum(counts.values()))


NEEDS = ("graph",)
STAGES = (Stage("degrees", 1, "count degrees", specs, build),)
'''


@pytest.fixture
def degrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The new file; the one line is the next to last."""
    (tmp_path / "degrees_stage.py").write_text(DEGREES, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(stages, "MODULES", [*stages.MODULES, "degrees_stage"])
    monkeypatch.delitem(sys.modules, "degrees_stage", raising=False)
    importlib.invalidate_caches()
    return tmp_path / "degrees_stage.py"


@pytest.mark.usefixtures("degrees")
def test_a_new_stage_is_one_file_and_one_line(tiny_copy: RunConfig) -> None:
    pipeline = Pipeline(tiny_copy)
    assert [(stage.key, stage.state) for stage in pipeline.status()][-1] == ("degrees", "missing")
    outcomes = ensure(pipeline, ["degrees"])
    assert [outcome.key for outcome in outcomes if outcome.built] == ["degrees"]
    record = read_record(pipeline.artifact("degrees").folder)
    assert (record.stage, record.params) == ("degrees", {"reenter_topic": False})
    assert record.metrics["num_entities"] > 0
    assert not any(outcome.built for outcome in ensure(Pipeline(tiny_copy), ["degrees"]))


@pytest.mark.usefixtures("degrees")
def test_a_stage_that_needs_one_that_is_not_made_says_so_before_anything_runs(
    tiny_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("degrees_stage.NEEDS", ("graph", "dense-seed0"))
    with pytest.raises(ConfigError, match=r"degrees needs 'dense-seed0', .*: give the sections 'plans' .* and 'dense'"):
        Pipeline(tiny_config)
