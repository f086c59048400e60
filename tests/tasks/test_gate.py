"""The gate judges releases on questions that nothing learned from, and says why it refuses."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from benchmarks.places import RUN as PLACES
from benchmarks.places import write_places
from kgqa_core.config import GateSection
from kgqa_core.config_file import read_config
from kgqa_core.errors import ConfigError
from kgqa_core.questions.build import read_questions
from kgqa_core.run.ensure import ensure
from kgqa_core.run.pipeline import Pipeline
from tasks import gate_probe
from tasks.gate import ANSWERS, GATE, Judgement, answer_gate, judge, relation_group, render_verdict, score_control
from tasks.release import Release, Releases
from tests.conftest import Shared, open_run

RUN = """\
dataset: {name: gated, source: embedded}
encoder: {kind: hash, dim: 31}
explorer: {steps: 2, width: 7, edge_budget: 5, epochs: 1, batch_size: 257}
gate: {share: 0.2, min_lift: -100, max_seconds: 60}
tracking: {enabled: false}
"""


@pytest.fixture
def asked_here(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Ask releases in this process, where a fresh one is not the point: each of those loads torch."""
    run = subprocess.run

    def run_here(command: list[str], **options: Any) -> Any:
        if "tasks.gate_probe" not in command:
            return run(command, **options)
        return gate_probe.main(*map(Path, command[3:]))

    monkeypatch.setattr("tasks.gate.subprocess.run", run_here)
    return monkeypatch


@pytest.fixture(scope="module")
def pipeline(shared: Shared) -> Pipeline:
    made = open_run(shared("gated") / "gated.yaml", RUN)
    ensure(made, ["evaluation-seed0"])
    return made


@pytest.fixture(scope="module")
def release(pipeline: Pipeline) -> Release:
    return Releases(pipeline.home, "kgqa-gated").make(pipeline.config, pipeline, None, "0")


def forget_all(weights: Path) -> None:
    save_file({name: np.zeros_like(one) for name, one in load_file(weights).items()}, weights)


def copy_of(release: Release, folder: Path) -> Release:
    shutil.copytree(release.folder, folder)
    return replace(release, folder=folder)


def made_worse(release: Release, folder: Path, stage: str = "explorer") -> Release:
    """A release of which one part lost its weights: to an explorer, all that it reaches is alike."""
    worse = copy_of(release, folder)  # copies, no links: nothing of the good one changes
    parts = [folder / "artifacts" / stage, *([folder / "served"] if stage == "explorer" else [])]
    for weights in (path for part in parts for path in part.rglob("*.safetensors")):
        forget_all(weights)
    for manifest in parts[0].rglob("manifest.json"):  # an artifact of its own, by content
        remake_manifest(manifest)
    return worse


def remake_manifest(path: Path) -> None:
    from kgqa_core.artifacts import _entry, _hash_content, hash_json

    manifest = json.loads(path.read_text(encoding="utf-8"))
    entries = [_entry(path.parent, path.parent / entry["name"]) for entry in manifest["files"]]
    manifest = {"recipe": manifest["recipe"], "content": _hash_content(entries), "files": list(map(asdict, entries))}
    path.write_text(json.dumps({**manifest, "check": hash_json(manifest)}), encoding="utf-8")


def judged(pipeline: Pipeline, challenger: Release, champion: Release | None, **gate: float | str) -> Judgement:
    assert pipeline.config.gate is not None
    section = GateSection(**{**pipeline.config.gate.model_dump(), **gate})
    other = Pipeline(pipeline.config.model_copy(update={"gate": section}))
    return judge(other, challenger, champion)


def document(judgement: Judgement) -> dict[str, object]:
    return json.loads((judgement.outcome.artifact.folder / "verdict.json").read_text(encoding="utf-8"))


def test_the_gates_questions_are_a_split_of_their_own(pipeline: Pipeline) -> None:
    folder = pipeline.artifact("questions").folder
    held, others = read_questions(folder, "gate"), read_questions(folder)
    assert 500 < len(held) < 900
    assert len(held) == len({one.id for one in held})
    assert sum(one.split == "test" for one in others) == 588  # all that there are
    assert not {one.id for one in held} & {one.id for one in others if one.split != "gate"}


@pytest.mark.usefixtures("asked_here")
def test_a_first_release_has_to_load_and_to_beat_its_control(pipeline: Pipeline, release: Release) -> None:
    passed = judged(pipeline, release, None)
    assert not passed.faults
    assert passed.reason == "no champion yet; a fresh process loads it and answers in time"
    found = document(passed)["figures"]
    assert found["fresh_process.memory_mb"] > 100
    assert 0 < found["fresh_process.mean_seconds"] <= found["fresh_process.max_seconds"] < 60
    again = judged(pipeline, release, None)
    assert (again.outcome.key, again.outcome.built, passed.outcome.built) == (GATE, False, True)
    control = score_control(pipeline, pipeline.artifact("controls").folder)
    assert control == pytest.approx(found["template_control.hits1"])
    refused = judged(pipeline, release, None, min_lift=0.0)
    assert f"{control:.2f} by its template control" in refused.reason
    assert "**Refused**" in refused.markdown


@pytest.mark.slow
def test_limits_of_a_fresh_process_refuse_with_what_was_measured(pipeline: Pipeline, release: Release) -> None:
    held = b"x" * 700_000_000  # what training took is not held against the release
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    verdict = judged(pipeline, release, None, max_seconds=1e-6, max_memory="10MB")
    assert "s in a fresh process; 1e-06 are allowed" in verdict.reason
    assert "gate.max_memory is 10MB" in verdict.reason
    figures: Any = document(verdict)["figures"]
    assert 100 < figures["fresh_process.memory_mb"] < own - len(held) / 2e6


def test_what_a_busy_machine_refused_is_measured_again(
    pipeline: Pipeline, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = [({"max_seconds": 70.0}, ["a question took 70 s"]), ({"max_seconds": 0.1}, [])]
    monkeypatch.setattr("tasks.gate.ask_in_fresh_process", lambda *_: replies.pop(0))
    busy, calm, again = (judged(pipeline, release, None, max_seconds=59) for _ in range(3))
    assert (busy.reason, calm.faults) == ("a question took 70 s", ())
    assert (calm.outcome.built, again.outcome.built, again.faults) == (True, False, ())


@pytest.mark.slow
def test_a_release_that_does_not_load_is_refused(
    pipeline: Pipeline, release: Release, tmp_path: Path, asked_here: pytest.MonkeyPatch
) -> None:
    lost = copy_of(release, tmp_path / "broken")
    judged(pipeline, lost, None, min_slice=61)  # answered before it broke
    asked_here.undo()
    (lost.served / "model.safetensors").write_bytes(b"rubbish")
    reason = judged(pipeline, lost, None, min_slice=62).reason
    assert "a fresh process could not load the release" in reason


@pytest.mark.slow
def test_the_weights_that_were_trained_are_judged_whatever_became_of_their_copy(
    pipeline: Pipeline, release: Release, tmp_path: Path
) -> None:
    damaged, found = copy_of(release, tmp_path / "damaged"), []
    forget_all(damaged.served / "model.safetensors")
    for one in (damaged, release):
        shutil.rmtree(pipeline.store.root / ANSWERS, ignore_errors=True)
        found.append(answer_gate(pipeline, one).content)
    assert found[0] == found[1]


@pytest.mark.usefixtures("asked_here")
def test_an_equal_challenger_passes_and_a_worse_one_is_refused(
    pipeline: Pipeline, release: Release, tmp_path: Path
) -> None:
    equal = judged(pipeline, release, release)
    assert not equal.faults
    assert "| all |" in equal.markdown
    assert "| relation " in equal.markdown
    worse = made_worse(release, tmp_path / "worse")
    refused = judged(pipeline, worse, release, margin=1.4)
    assert "is significantly worse" in refused.reason
    assert "| refused |" in refused.markdown
    assert not any(name.startswith("fresh_process") for name in document(refused)["figures"])
    better = judged(pipeline, release, worse, margin=1.3)
    assert not any("over all" in fault for fault in better.faults)
    assert "gained +0.00 points; 0.5 are asked for" in judged(pipeline, release, release, min_gain=0.5).reason


@pytest.mark.parametrize(
    ("path", "group"),
    [
        (["^starred_actors", "directed_by"], "directed_by"),
        (["^directed_by"], "directed_by"),
        (["people.person.place_of_birth", "^film.actor.film"], "film"),
        (["P31"], "P31"),
        (["A Company.Ltd.Owner"], "A Company.Ltd.Owner"),
        (["http://a.b.org/knows"], "http://a.b.org/knows"),
    ],
)
def test_a_relation_group_is_the_last_relation_or_its_domain(path: list[str], group: str) -> None:
    assert relation_group(path) == group


def test_labels_of_a_graph_are_text_in_a_verdict() -> None:
    row = {"where": "relation <b>a|b</b>[c](d)", "n": 50, "metric": "f1", "p": 1.0, "fault": ""}
    row |= {"champion": 1.0, "challenger": 1.0, "difference": 0.0, "allowed": 10.0}
    ids = {"champion": "a", "challenger": "b"}
    page = render_verdict({**ids, "faults": ["<i>x"], "warnings": [], "figures": {}, "rows": [row]})
    assert "| relation &lt;b&gt;a&#124;b&lt;/b&gt;&#91;c](d) | 50 |" in page
    assert "- &lt;i&gt;x" in page


@pytest.mark.usefixtures("asked_here")
def test_a_champion_that_cannot_be_asked_is_a_refusal_that_says_so(
    pipeline: Pipeline, release: Release, tmp_path: Path
) -> None:
    gone = copy_of(release, tmp_path / "old")
    shutil.rmtree(gone.folder / "artifacts")
    reason = judged(pipeline, release, gone, margin=1.2).reason
    assert "the champion cannot be asked" in reason


@pytest.mark.slow
@pytest.mark.usefixtures("asked_here")
def test_systems_are_asked_once_with_the_parts_of_each_release(tmp_path: Path) -> None:
    write_places(tmp_path)
    gate = "gate: {share: 0.5, min_lift: -100, max_seconds: 60, min_slice: 1000, systems: [rog]}\n"
    systems = "systems: {run: [rog], answered_by: [oracle], rog: {plans: dense, num_plans: 1}}\n"
    pipeline = open_run(tmp_path / "places.yaml", PLACES + gate + systems)
    ensure(pipeline, ["evaluation-seed0", "dense-seed0"])
    release = Releases(pipeline.home, "kgqa-places").make(pipeline.config, pipeline, None, "0")
    assert set(release.stages) == {"graph", "explorer-seed0", "dense-seed0"}
    other = made_worse(release, tmp_path / "other", "dense")
    rows = document(judged(pipeline, other, release))["rows"]
    assert [row["where"] for row in rows] == ["all", "all", "rog: all", "rog: all"]
    assert rows[2]["difference"] < 0, "each is asked with its own planner, and this one has forgotten all"
    answered = [json.loads(path.read_text()) for path in pipeline.store.root.glob("system/*/manifest.json")]
    assert {one["recipe"]["config"]["split"] for one in answered} == {"gate"}
    planners = {one["recipe"]["inputs"]["dense"] for one in answered}
    assert len(planners) == 2
    assert pipeline.artifact("dense-seed0").content in planners
    lost = replace(release, stages={key: one for key, one in release.stages.items() if key != "dense-seed0"})
    assert "has no dense-seed0" in judged(pipeline, release, lost, margin=1.3).reason
    assert not judged(pipeline, other, release).outcome.built
    assert pipeline.config.systems is not None
    ensure(pipeline, ["supervision"])  # as a run has done, whose verdict knows how the row was answered
    before, changed = judged(pipeline, other, release).outcome, {"num_questions": 7}
    mended = pipeline.config.model_copy(update={"systems": pipeline.config.systems.model_copy(update=changed)})
    after = judged(Pipeline(mended), other, release).outcome
    assert after.built
    assert after.artifact.recipe.inputs.keys() == before.artifact.recipe.inputs.keys()
    with pytest.raises(ConfigError, match=r"gate\.systems = eperm: the rows of systems are rog"):
        read_config(tmp_path / "places.yaml", ["gate.systems=[eperm]"])


def test_a_gate_wants_an_explorer_that_anybody_can_ask(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"gate\.shares.*did you mean 'share'"):
        read_config(tmp_path / "run.yaml", ["gate={shares: 1}"])
    plans = [
        "dataset={name: p, source: plans, plan_files: {train: p.jsonl}}",
        "plans={planners: [dense]}",
        "encoder=null",
    ]
    with pytest.raises(ConfigError, match="gate: a dataset of plans has no explorer"):
        read_config(tmp_path / "run.yaml", [*plans, "explorer=null", "dense={}"])
