"""The gate of a retraining: may what was trained take the champion's place?

Champion and challenger answer the same questions of the new graph, a split that nothing learns from. The challenger has
to be no worse (``tasks.verdict``), has to beat its template control, and a fresh process has to load it and
answer within its limits. What was found is an artifact, so it is found once, and told like any other stage.
"""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from kgqa_core.artifacts import Artifact, Recipe, read_artifact, read_note, write_json
from kgqa_core.config import GateSection, RunConfig
from kgqa_core.config_base import MAX_NUMBER, size_in_bytes
from kgqa_core.errors import ArtifactError, InputError, KgqaError, shorten
from kgqa_core.evaluation.metrics import score_predictions
from kgqa_core.evaluation.predictions import Source, answer_stream, open_predictions
from kgqa_core.evaluation.runs import read_system_run
from kgqa_core.graph.kg import read_step
from kgqa_core.graph.supervision import read_supervision, write_supervision
from kgqa_core.run import open as opening
from kgqa_core.run.ask import torch_threads
from kgqa_core.run.ensure import Worker, ensure, work_here
from kgqa_core.run.pipeline import Pipeline, StageOutcome
from kgqa_core.run.stages.systems import system_key
from kgqa_core.systems.controls import load_template_control
from kgqa_core.text.encoder import encode_cached
from kgqa_core.tracking import Recorder, write_record
from kgqa_core.types import Question
from tasks.release import ARTIFACTS, PINNED, Release
from tasks.verdict import LOSS, Judged, judge_challenger

GATE, GATE_VERSION, ANSWERS, ANSWERS_VERSION = "gate", 5, "gate-answers", 1  # the stages, and their versions
PREDICTIONS, DOCUMENT, REPORT = "predictions.parquet", "verdict.json", "gate.md"
CHUNK = 1024  # questions that are answered at once
NUM_ASKED = 20  # questions that a fresh process answers
CAPS = ("max_cpu_hours", "max_gpu_hours", "max_calls")  # settings that no verdict depends on
FREEBASE = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+){2}")  # film.actor.film: domain, type, property
LOAD_SECONDS = 300.0  # that a fresh process may take to start
ERROR_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the gate says of a challenger."""

    outcome: StageOutcome
    faults: tuple[str, ...]  # why it is refused; empty where it may take the champion's place
    markdown: str
    has_champion: bool  # was it compared with one?

    @classmethod
    def of(cls, outcome: StageOutcome) -> Judgement:
        """Read a verdict."""
        folder = outcome.artifact.folder
        found = json.loads((folder / DOCUMENT).read_text(encoding="utf-8"))
        markdown = (folder / REPORT).read_text(encoding="utf-8")
        return cls(outcome, tuple(found["faults"]), markdown, found["champion"] is not None)

    @property
    def reason(self) -> str:
        """Why, in a line."""
        compared = "no worse than the champion" if self.has_champion else "no champion yet"
        return "; ".join(self.faults) or f"{compared}; a fresh process loads it and answers in time"


class CarriedRun(Pipeline):
    """The stages of a run with what a release trained in the place of its own, asking the gate's questions."""

    def __init__(self, config: RunConfig, release: Release) -> None:
        asked = config.evaluation.model_copy(update={"split": "gate"})
        here = config.cluster.model_copy(update={"fan_out_questions": MAX_NUMBER})  # workers know no release
        super().__init__(config.model_copy(update={"evaluation": asked, "cluster": here}))
        self._release = release

    def find(self, key: str, found: dict[str, Artifact | None] | None = None) -> Artifact | None:
        """Return a stage's artifact; ArtifactError where a release of fewer stages lacks it."""
        stage = key.partition("-")[0]
        if stage not in PINNED or stage == "graph":
            return super().find(key, found)
        artifact = None
        if key in self._release.stages:
            artifact = read_artifact(self._release.folder / ARTIFACTS / stage / self._release.stages[key])
        if artifact is None:
            raise ArtifactError(f"the release {self._release.id} has no {key}, or a damaged one")
        return artifact

    def remember(self, key: str, artifact: Artifact) -> None:
        """Note nothing: this is not the run itself."""

    def answers(self, row: str) -> Path:
        """Return the answers of a row of the comparison, by its first answerer and the release's seed."""
        key = answering_stage(self.config, row)
        ensure(self, [key])
        return self.artifact(key).folder / PREDICTIONS


def answering_stage(config: RunConfig, row: str) -> str:
    """Return the stage that answers for a row of the comparison: by its first answerer and the release's seed."""
    systems = config.comparison
    return system_key(row, systems.rows()[row][1][0], (systems.seeds or config.exploration.seeds)[0])


def gate_questions(pipeline: Pipeline) -> list[Question]:
    """Return the questions of the gate, with their hops; InputError where there are none."""
    questions = opening.read_with_hops(pipeline, "gate")
    if not questions:
        raise InputError("the gate has no questions: raise gate.share, or name a file as dataset.questions.files.gate")
    return questions


def answer_gate(pipeline: Pipeline, release: Release) -> Artifact:
    """Return what a release's explorer answers to the gate's questions of the run's graph, whatever it learned from."""
    card, stage = release.card, f"{ARTIFACTS}/explorer/{release.explorer}"
    explorer = read_artifact(release.folder / stage)
    if explorer is None:
        raise ArtifactError(f"the release {release.id} is damaged: {stage} is not as it was made")
    inputs = {key: pipeline.artifact(key).content for key in ("graph", "questions")}
    limits = {**card.evaluation.model_dump(mode="json", exclude={"split", "passes"}), "encoder": card.encoder_name}
    recipe = Recipe(ANSWERS, ANSWERS_VERSION, limits, {**inputs, "explorer": explorer.content})

    def write(folder: Path) -> None:
        graph, encoder = opening.graph_of(pipeline), opening.encoder_of(card.encoder)
        if encoder.name != card.encoder_name:
            raise ArtifactError(f"the release {release.id} reads texts by {card.encoder_name}; here is {encoder.name}")
        system = opening.load_system(
            explorer.folder,
            graph=graph,
            encoder=encoder.name,
            encode=lambda texts: opening.unit_norm(
                encode_cached(texts, encoder=encoder, cache_dir=pipeline.home / "cache" / "encodings")
            ),
            evaluation=card.evaluation,
            batch_size=pipeline.config.runtime.batch_size,
        )
        questions, done = gate_questions(pipeline), 0
        source = Source(graph=inputs["graph"], system=f"explorer {release.explorer}")
        with (
            torch_threads(pipeline.config.runtime.threads),
            open_predictions(folder / PREDICTIONS, graph, source) as write_rows,
        ):
            for asked, predictions in answer_stream(system.answer, questions, chunk=CHUNK):
                write_rows(asked, predictions)
                done += len(asked)
                pipeline.progress(f"asking release {release.id}", done, len(questions))
        write_record(folder, Recorder(ANSWERS).record(recipe.fingerprint))

    return pipeline.store.build(recipe, write)[0]


def judge(
    pipeline: Pipeline, challenger: Release, champion: Release | None, *, worker: Worker = work_here
) -> Judgement:
    """Judge a challenger; without a champion it has to beat its control, and to load and answer.

    A verdict is found once, but for one that a busy machine or a lost file may have made: it is found anew each time.
    """
    section = pipeline.config.gate
    assert section is not None
    controls = pipeline.artifact("controls")
    ids = {"challenger": challenger.id, "champion": champion.id if champion else ""}
    inputs = {"controls": controls.content, "questions": pipeline.artifact("questions").content}
    inputs["graph"] = pipeline.artifact("graph").content
    for name in section.systems:  # settings, prompts, model: as the run's own answers are made
        if answered := pipeline.recipe(answering_stage(pipeline.config, name)):
            inputs[f"system {name}"] = answered.fingerprint
    judged = section.model_dump(mode="json", exclude={"share", *CAPS})
    recipe = Recipe(GATE, GATE_VERSION, {**judged, **ids}, inputs)
    while (found := pipeline.store.find(recipe)) and read_note(found.folder / DOCUMENT).get("transient"):
        recipe = replace(recipe, config={**recipe.config, "attempt": int(recipe.config.get("attempt", 1)) + 1})

    find = partial(find_verdict, pipeline, challenger, champion, controls.folder)
    work = partial(write_verdict, pipeline, recipe, find, ids)
    return Judgement.of(worker(work, title="judge the challenger", key=GATE, io=False))


def refuse(pipeline: Pipeline, champion: str | None, why: str) -> Judgement:
    """Refuse what was not finished, such as over a cap; the verdict is an artifact like any other."""
    inputs = {key: data.content for key in ("graph", "questions") if (data := pipeline.find(key))}
    ids = {"challenger": "", "champion": champion or ""}
    recipe = Recipe(GATE, GATE_VERSION, {"refused": why, **ids}, inputs)
    found = {"challenger": None, "champion": champion, "faults": [why], "warnings": [], "figures": {}, "rows": []}
    return Judgement.of(write_verdict(pipeline, recipe, lambda: found, ids))


def write_verdict(
    pipeline: Pipeline, recipe: Recipe, find: Callable[[], dict[str, Any]], ids: Mapping[str, str]
) -> StageOutcome:
    """Make the artifact of a verdict, unless it is there; ``find`` finds what it says."""

    def write(folder: Path) -> None:
        found, recorder = find(), Recorder(GATE)
        recorder.param("promoted", not found["faults"])
        for name, release in ids.items():
            recorder.param(name, release)
        recorder.param("reason", "; ".join(found["faults"])[:ERROR_CHARACTERS])
        for name, value in found["figures"].items():
            recorder.metric(name, value)
        write_json(folder / DOCUMENT, found)
        (folder / REPORT).write_text(render_verdict(found), encoding="utf-8")
        write_record(folder, recorder.record(recipe.fingerprint))

    return StageOutcome(GATE, *pipeline.store.build(recipe, write))


def find_verdict(pipeline: Pipeline, challenger: Release, champion: Release | None, controls: Path) -> dict[str, Any]:
    """Return everything that was found, as verdict.json holds it."""
    section = pipeline.config.gate
    assert section is not None
    ours = read_system_run(answer_gate(pipeline, challenger).folder / PREDICTIONS, f"challenger {challenger.id}")
    figures, faults, warnings = dict[str, float](), list[str](), list[str]()
    rows: list[Judged] = []
    if champion is not None:
        limits: Any = {name: getattr(section, name) for name in ("margin", "slice_margin", "min_slice")}
        limits["relations"] = relation_groups(pipeline)
        try:
            theirs = read_system_run(answer_gate(pipeline, champion).folder / PREDICTIONS, f"champion {champion.id}")
            rows, needed = judge_challenger(ours, theirs, **limits)
            for name in section.systems:
                pair = [
                    read_system_run(CarriedRun(pipeline.config, one).answers(name), f"{name} of {one.id}")
                    for one in (challenger, champion)
                ]
                rows += [
                    replace(row, where=f"{name}: {row.where}", fault=row.fault and f"{name}: {row.fault}")
                    for row in judge_challenger(*pair, **limits)[0]
                ]
        except KgqaError as problem:
            faults.append(f"the champion cannot be asked, kgqa promote goes on without it: {problem}")
    transient = bool(faults)  # may the same challenger pass another time?
    if rows:
        faults += [row.fault for row in rows if row.fault]
        gain = rows[0].difference  # of Hits@1 over all
        if gain < section.min_gain and section.min_gain:
            faults.append(f"Hits@1 gained {gain:+.2f} points; {section.min_gain:g} are asked for (gate.min_gain)")
        figures |= {f"{row.metric}.difference": row.difference for row in rows if row.where == "all"}
        figures["num_questions_needed"] = needed
        if rows[0].n < needed:
            warnings.append(
                f"{rows[0].n} questions are few: where answers differ as much as here, it takes {needed} to refuse "
                f"what is {LOSS:g} points worse, and let pass what is equal, nine times in ten. Raise gate.share"
            )
    control = score_control(pipeline, controls)
    hits1 = float(ours.scores.values["hits1"].mean())
    figures |= {"num_questions": len(ours.asked), "hits1": hits1, "template_control.hits1": control}
    if hits1 - control <= section.min_lift:
        faults.append(
            f"Hits@1 is {hits1:.2f}, and {control:.2f} by its template control: it has to be more than "
            f"{section.min_lift:g} points above (gate.min_lift)"
        )
    if not faults:  # what is refused anyway need not be loaded
        fresh, unfit = ask_in_fresh_process(pipeline, challenger, section)
        figures |= {f"fresh_process.{name}": value for name, value in fresh.items()}
        faults, transient = unfit, bool(unfit)
    ids = {"challenger": challenger.id, "champion": champion.id if champion else None}
    found = {**ids, "faults": faults, "transient": transient, "warnings": warnings, "figures": figures}
    return {**found, "rows": [asdict(row) for row in rows]}


def relation_groups(pipeline: Pipeline) -> dict[str, str]:
    """Return question id -> relation group of the gate's questions, without those that no path leads to a gold of."""
    search = opening.search_graph(pipeline)
    placed = list(search.place(gate_questions(pipeline)))
    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder) / "paths.parquet"
        told = partial(pipeline.progress, "relation groups", total=len(placed))
        write_supervision(search, placed, paths, progress=told)
        found = read_supervision(paths, "best")
    return {question: relation_group(rows[0].path) for question, rows in found.items() if rows[0].path}


def relation_group(path: Sequence[str]) -> str:
    """Return the group of a path of labels: its last relation, which is what was asked for, or Freebase's domain."""
    relation, _ = read_step(path[-1])
    return relation.partition(".")[0] if FREEBASE.fullmatch(relation) else relation


def score_control(pipeline: Pipeline, folder: Path) -> float:
    """Return the template control's Hits@1 on the gate's questions, percent."""
    search = opening.search_graph(pipeline)
    questions = search.place(gate_questions(pipeline))
    answered = load_template_control(folder / "template_control.json", search).answer(questions)
    return float(score_predictions(questions, answered).values["hits1"].mean())


def ask_in_fresh_process(
    pipeline: Pipeline, release: Release, section: GateSection
) -> tuple[dict[str, float], list[str]]:
    """Return what loading a release and answering a few questions took in a process of its own, and what is wrong."""
    graph = opening.graph_of(pipeline)
    asked = [
        {"question": one.text, "topic": graph.label_of(one.topics[0])}
        for one in sorted(gate_questions(pipeline), key=lambda one: one.id)
        if one.topics
    ]
    with tempfile.TemporaryDirectory() as folder:
        questions, reply = Path(folder) / "questions.json", Path(folder) / "reply.json"
        write_json(questions, asked[:NUM_ASKED])
        command = [
            sys.executable,
            "-m",
            "tasks.gate_probe",
            *map(str, (release.served, pipeline.home, questions, reply)),
        ]
        limit = LOAD_SECONDS + NUM_ASKED * section.max_seconds
        try:
            subprocess.run(
                command, env=os.environ | {"PYTHONSAFEPATH": "1"}, capture_output=True, check=True, timeout=limit
            )
        except subprocess.TimeoutExpired:
            return {}, [f"a fresh process did not load the release and answer within {limit:.0f} s"]
        except subprocess.CalledProcessError as problem:
            said = problem.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            said = said or f"it ended with code {problem.returncode}"  # killed, perhaps for want of memory
            return {}, [f"a fresh process could not load the release: {shorten(said, ERROR_CHARACTERS)}"]
        found = json.loads(reply.read_text(encoding="utf-8"))
    faults = [f"a fresh process cannot answer: {error}" for error in found.pop("errors")[:1]]
    if found["max_seconds"] > section.max_seconds:
        faults.append(
            f"a question took {found['max_seconds']:.2f} s in a fresh process; {section.max_seconds:g} are allowed"
        )
    if found["memory_mb"] * 1e6 > size_in_bytes(section.max_memory):
        faults.append(f"a fresh process took {found['memory_mb']:.0f} MB; gate.max_memory is {section.max_memory}")
    return found, faults


def render_verdict(found: dict[str, Any]) -> str:
    """Return a verdict as Markdown."""
    champion = f"champion {found['champion']}" if found["champion"] else "no champion yet"
    challenger = f"challenger {found['challenger']}" if found["challenger"] else "nothing was finished"
    lines = [f"**{'Refused' if found['faults'] else 'Passed'}**: {challenger}, {champion}.", ""]
    lines += [f"- {shown(fault)}" for fault in found["faults"]]
    lines += [f"- Note: {shown(warning)}" for warning in found["warnings"]]
    if found["rows"]:
        lines += [
            "",
            "| questions | n | metric | champion | challenger | difference | may lose | p | |",
            "|---|---:|---|" + "---:|" * 6,
        ]
    for row in found["rows"]:
        figures = f"{row['champion']:.2f} | {row['challenger']:.2f} | {row['difference']:+.2f}"
        figures += f" | {row['allowed']:.2f} | {row['p']:.3f}"
        mark = "refused" if row["fault"] else ""
        lines.append(f"| {shown(row['where'])} | {row['n']:,} | {row['metric']} | {figures} | {mark} |")
    lines += ["", *(f"- {name}: {value:,.2f}" for name, value in found["figures"].items())]
    return "\n".join(lines) + "\n"


def shown(text: str) -> str:
    """Return text that may hold labels, as Markdown in a table shows it: none becomes HTML, a link or a cell."""
    return html.escape(text, quote=False).replace("|", "&#124;").replace("[", "&#91;")
