"""Files of questions, answered as they are read: the same as all at once, flat in memory, never half there."""

from __future__ import annotations

import io
import json
import os
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flows import question_file
from flows.cli_ask import open_asked_run, system_settings, untaught_settings
from flows.question_file import FileAnswerer, Rejected, _move, answer_file, evaluate_file, needed_stages, open_row
from flows.score import score_file
from kgqa_core.config import RunConfig
from kgqa_core.config_base import SHIPPED
from kgqa_core.config_file import read_config
from kgqa_core.errors import ConfigError, InputError
from kgqa_core.evaluation.figures import make_figures
from kgqa_core.evaluation.metrics import QuestionScores, score_predictions
from kgqa_core.evaluation.predictions import open_predictions
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.build import read_questions
from kgqa_core.questions.formats import Loaded, open_format, read_asked
from kgqa_core.run.ensure import ensure
from kgqa_core.run.open import open_system, search_graph
from kgqa_core.run.pipeline import PROGRESS, Pipeline
from kgqa_core.systems.controls import load_template_control, score_controls
from kgqa_core.types import Prediction, Question, Reject
from tests.conftest import kgqa
from tests.flows.conftest import Configure
from tests.loading import load_question_file

BAD = ["{", '{"question": "who is nobody at all?", "answers": ["Nobody At All"]}']
Lines = Callable[..., Path]


@pytest.fixture
def lines(pipeline: Pipeline, tmp_path: Path) -> Lines:
    """Write questions of the run, over and over, to a file; every fifth line is one that cannot be used."""
    graph = search_graph(pipeline).graph
    asked = read_questions(pipeline.artifact("questions").folder, "test")

    def write(num: int, name: str = "asked.jsonl", every: int = 5) -> Path:
        path = tmp_path / name
        with path.open("w", encoding="utf-8") as file:
            for number in range(num):
                if number % every == 1:
                    file.write(BAD[number % 2] + "\n")
                    continue
                one = asked[number % len(asked)]
                row: dict[str, Any] = {"id": f"q{number}", "question": one.text, "hops": one.hops}
                row |= {"topics": [graph.label_of(topic) for topic in one.topics]}
                row |= {"answers": [graph.label_of(answer) for answer in one.answers]}
                file.write(json.dumps(row) + "\n")
        return path

    return write


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def whole(pipeline: Pipeline, path: Path, out: Path) -> tuple[list[Question], Sequence[Prediction]]:
    """Answer a file all at once: the oracle."""
    system = open_system(pipeline)
    questions, _ = load_question_file(path, format="jsonl", graph=system.graph)
    predictions = system.answer(questions)
    with open_predictions(out, system.graph) as write:
        write(questions, predictions)
    return questions, predictions


def test_answers_do_not_take_the_place_of_the_questions(conf: Path, lines: Lines, tmp_path: Path) -> None:
    asked = lines(7)
    before, linked = asked.read_bytes(), tmp_path / "linked.jsonl"
    linked.symlink_to(asked)
    for words in (("ask", conf, "--file"), ("evaluate", conf, "--questions")):
        for out in (asked, linked):
            done = kgqa(*map(str, (*words, asked, "--out", out)))
            assert (done.exit_code, "it holds the questions" in done.stderr) == (3, True), done.stderr
    assert asked.read_bytes() == before


def test_answers_by_the_chunk_are_those_of_all_at_once(
    pipeline: Pipeline, lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lines(97)
    questions, predictions = whole(pipeline, path, tmp_path / "whole.parquet")
    monkeypatch.setattr(question_file, "FIRST", 3)
    answers: dict[str, list[dict[str, Any]]] = {}
    for suffix in ("parquet", "jsonl"):
        out = tmp_path / f"answers.{suffix}"
        with open_row(pipeline, None) as opened:
            who = FileAnswerer(opened.answer, opened.graph, chunk=7)
            rejected = answer_file(who, path, open_format("jsonl").read, out=out)
        reasons = [one.reason for one in rejected.first[:2]]
        assert (rejected.num, reasons) == (20, ["no entity name in the text", "not JSON"])
        kept = read_lines(out.with_name(f"{out.name}.rejects.jsonl"))
        assert [one["line"] for one in kept] == list(range(2, 98, 5))
        answers[suffix] = pq.read_table(out).to_pylist() if suffix == "parquet" else read_lines(out)
    expected = pq.read_table(tmp_path / "whole.parquet").to_pylist()
    for row, right in zip(answers["parquet"], expected, strict=True):
        assert row.pop("candidate_scores") == pytest.approx(right.pop("candidate_scores"), rel=1e-4)
        assert row == right
    for line, right in zip(answers["jsonl"], expected, strict=True):
        for name in ("question_id", "prediction", "ground_truth"):
            assert line[name] == right[name]
        assert line["evidence"][: len(right["paths"])] == right["paths"][: len(line["evidence"])]
    figures, _ = evaluate_file(pipeline, path)
    for name, value in make_figures(score_predictions(questions, predictions)).items():
        assert name not in figures or figures[name] == pytest.approx(value, abs=1e-9), name
    assert score_file(tmp_path / "answers.jsonl")["n"] == figures["n"] == 77


def test_controls_are_scored_where_they_are_asked_for(pipeline: Pipeline, lines: Lines) -> None:
    path = lines(41)
    figures, _ = evaluate_file(pipeline, path, controls=True)
    search = search_graph(pipeline)
    control = load_template_control(pipeline.artifact("controls").folder / "template_control.json", search)
    questions, _ = load_question_file(path, format="jsonl", graph=search.graph)
    for row in score_controls(control, questions):
        own = figures["controls"][row["system"]]
        assert own == pytest.approx({name: row["overall"][name] for name in own}, abs=1e-9)
    assert "controls" not in evaluate_file(pipeline, path)[0]


def test_a_file_is_not_asked_under_the_name_of_linked_topics(places: Configure, tmp_path: Path) -> None:
    linked = places("systems.run=[tog]", "systems.topics=linked")
    with pytest.raises(ConfigError, match=r"--set systems\.topics=gold"), open_row(linked, "tog"):
        pytest.fail("its topics would be those of the file")


def test_a_question_file_needs_the_stages_of_who_is_asked_and_no_others(
    tiny_config: RunConfig, pipeline: Pipeline
) -> None:
    assert needed_stages(pipeline, None) == ["explorer-seed0"]
    assert needed_stages(pipeline, None, controls=True) == ["explorer-seed0", "controls"]
    more = {
        "plans": {"planners": ["dense"]},
        "dense": {},
        "systems": {"run": ["explorer", "rog"], "answered_by": ["oracle"], "rog": {"plans": "dense"}},
    }
    large = Pipeline(RunConfig.model_validate({**tiny_config.model_dump(), **more}))
    made = ensure(large, needed_stages(large, None))
    assert [one.key for one in made if not one.built] == [one.key for one in made]  # all that the tiny run made
    assert needed_stages(large, "explorer") == ["graph", "questions", "encodings", "explorer-seed0"]
    assert "dense-seed0" in needed_stages(large, "rog")
    with open_row(large, "explorer") as who:
        assert who.chunk == large.config.systems.chunk  # type: ignore[union-attr]
        asked = read_questions(large.artifact("questions").folder, "test")[:5]
        assert [one.answers for one in who.answer(asked)] == [one.answers for one in open_system(large).answer(asked)]


@pytest.fixture
def fake(pipeline: Pipeline) -> FileAnswerer:
    """One that costs nothing, and answers the first thousand entities."""
    graph = search_graph(pipeline).graph
    some = tuple(range(min(1000, graph.num_entities)))

    def answer(questions: Sequence[Question]) -> list[Prediction]:
        return [Prediction(one.id, some, (0.1,) * len(some), some[:3]) for one in questions]

    return FileAnswerer(answer, graph, chunk=50)


def test_a_pipe_is_read_once(fake: FileAnswerer, lines: Lines) -> None:
    reading, writing = os.pipe()
    os.write(writing, lines(3).read_bytes())
    os.close(writing)
    out = io.StringIO()
    rejected = answer_file(fake, Path(f"/dev/fd/{reading}"), open_format("jsonl").read, out=out)
    os.close(reading)
    assert len(out.getvalue().splitlines()) == 3 - rejected.num > 0


def test_what_was_noted_of_a_chunk_is_forgotten_with_it() -> None:
    reject = Reject("asked.jsonl", 3, "no topic", "{}")
    loaded = Loaded(missing=[("q1", "answer", "Atlantis")], notes={("unknown_entity", ""): ["Atlantis"]})
    loaded.reject(reject, unknown="Atlantis")
    rejected = Rejected()
    _move(loaded, rejected, None)
    assert (loaded, rejected.num, rejected.first) == (Loaded(), 1, [reject])


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_memory_does_not_grow_with_the_file(
    pipeline: Pipeline, fake: FileAnswerer, lines: Lines, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgqa_core.evaluation.predictions.ROWS_AT_ONCE", 100)
    peaks = []
    for num in (1000, 3800):  # several batches each, so that what a batch takes is in both
        path, scores, out = lines(num, f"{num}.jsonl"), list[QuestionScores](), tmp_path / f"out.{suffix}"

        def score(questions: Sequence[Question], predictions: Sequence[Prediction], kept: Any = scores) -> None:
            kept.append(score_predictions(questions, predictions))

        tracemalloc.start()
        answer_file(fake, path, open_format("jsonl").read, out=out, on_answers=score)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 2800 * 200, peaks  # the ids and the figures


def test_nothing_half_written_has_the_final_name(fake: FileAnswerer, lines: Lines, tmp_path: Path) -> None:
    out, seen = tmp_path / "out.jsonl", []

    def answer(questions: Sequence[Question]) -> Sequence[Prediction]:
        seen.append((out.exists(), (tmp_path / "out.jsonl.part").stat().st_size))
        if len(seen) == 3:
            raise MemoryError
        return fake.answer(questions)

    out.write_text("the last answers\n")
    with pytest.raises(MemoryError):
        answer_file(FileAnswerer(answer, fake.graph, chunk=64), lines(300), open_format("jsonl").read, out=out)
    assert out.read_text() == "the last answers\n"
    assert [exists for exists, _ in seen] == [True] * 3
    assert 0 == seen[0][1] < seen[1][1] < seen[2][1]  # answers are on the disk as they come
    assert {path.name for path in tmp_path.iterdir()} == {"asked.jsonl", "out.jsonl"}


def test_a_file_without_a_usable_line_says_why(fake: FileAnswerer, tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_text("nothing that the graph knows of ...\n\n", encoding="utf-8")
    with pytest.raises(InputError, match="no usable question; the first line that cannot be used is 1: no entity name"):
        answer_file(fake, path, read_asked, out=tmp_path / "out.jsonl")
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(InputError, match=r"bat\.txt does not exist.*; did you mean 'bad\.txt"):
        answer_file(fake, tmp_path / "bat.txt", read_asked, out=tmp_path / "out.jsonl")


def test_a_table_or_a_json_list_is_not_answered_line_by_line(fake: FileAnswerer, tmp_path: Path) -> None:
    path, name = tmp_path / "asked.txt", fake.graph.name_of(0)
    rows = [{"question": f"What is near {name}?", "answers": [name]}]
    listed = [json.dumps(given, indent=indent) for given in (rows, {"questions": rows}) for indent in (None, 1)]
    for text in (*listed, f'id,"Question",answer\n1,What is near {name}?,{name}\n'):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=r"is a table or a JSON list\. Put a question"):
            answer_file(fake, path, read_asked, out=tmp_path / "out.jsonl")
    for text in (
        f"[{name}] is near what?",
        f"Question, what is near {name}?",
        f'{{"question": "What is near {name}?"}}',
        f'{{"notes": [{{"by": "me"}}], "question": "What is near {name}?"}}',
    ):
        path.write_text(text + "\n", encoding="utf-8")
        assert not answer_file(fake, path, read_asked, out=tmp_path / "out.jsonl").num


def test_people_ask_in_lines_of_text_or_json_and_hear_how_far_it_is(pipeline: Pipeline, tmp_path: Path) -> None:
    graph: KnowledgeGraph = search_graph(pipeline).graph
    one, *_ = read_questions(pipeline.artifact("questions").folder, "test")
    topic, text = graph.name_of(one.topics[0]), one.text
    path, out, told = tmp_path / "asked.txt", io.StringIO(), []
    asked = [text, json.dumps({"id": "mine", "question": "who is it?", "topic": topic}), "  ", "who is it?"]
    asked.append(json.dumps({"question": "who is it?", "topic": topic, "topics": [topic]}))
    path.write_text("\n".join(asked) + "\n", encoding="utf-8")
    listening = PROGRESS.set(lambda what, done, total: told.append((what, done, total)))
    try:
        with open_row(pipeline, None) as who:
            rejected = answer_file(who, path, read_asked, out=out)
    finally:
        PROGRESS.reset(listening)
    first, second = map(json.loads, out.getvalue().splitlines())
    assert (first["question_id"], first["question"], second["question_id"]) == ("asked-1", text, "mine")
    assert first["prediction"] and len(first["prediction"]) == len(first["scores"]) == len(first["evidence"])
    assert first["ground_truth"] == []
    assert (rejected.num, rejected.first[0].line, rejected.file) == (2, 4, None)
    assert (rejected.first[1].line, rejected.first[1].reason) == (5, "topic and topics are both given")
    assert told[-1] == ("answering", 5, 5)


def test_a_claim_that_people_ask_about_gets_a_verdict(pipeline: Pipeline, tmp_path: Path) -> None:
    graph: KnowledgeGraph = search_graph(pipeline).graph
    one, *_ = read_questions(pipeline.artifact("questions").folder, "test")
    path, out, topic = tmp_path / "asked.jsonl", io.StringIO(), graph.label_of(one.topics[0])
    with open_row(pipeline, None) as who:
        (found,) = who.answer([one])
        others = [entity for entity in range(graph.num_entities) if entity not in found.answers]
        claims = [graph.label_of(entity) for entity in (found.answers[0], others[0])]
        asked = [{"question": one.text, "topic": topic, "claim": claim} for claim in [*claims, "nobody at all"]]
        path.write_text("".join(json.dumps(line) + "\n" for line in asked), encoding="utf-8")
        rejected = answer_file(who, path, read_asked, out=out)
    assert [json.loads(line)["verdict"] for line in out.getvalue().splitlines()] == [True, False]
    assert [reject.reason for reject in rejected.first] == ["claim not in the graph"]


def test_plans_alone_answer_no_file(tmp_path: Path) -> None:
    plans = tmp_path / "plans.yaml"
    dataset = "dataset: {name: p, source: plans, plan_files: {train: t.jsonl, test: t.jsonl}}\n"
    plans.write_text(dataset + "plans: {planners: [dense]}\ndense: {}\n")
    with pytest.raises(ConfigError, match="no explorer to ask: kgqa score-plans"):
        needed_stages(Pipeline(read_config(plans)), None)


@pytest.mark.parametrize(
    "added, given, plans",
    [
        ("", (["explorer.steps=2"], "rog", None), "encoder"),
        ("", ([], "rog,kaping", "lm,oracle"), "encoder"),
        ("", (["systems.rog.plans=lm"], "rog", None), "lm"),  # what a user says goes first
        ("", ([], "kaping", None), None),
        ("", ([], "kaping, rog", None), "encoder"),
        ("", ([], "rog", "oracle"), ""),
        ("", ([], "explorer", None), ""),
        ("lm: {kind: packaged}\n", ([], "rog", None), ""),
        ("systems: {run: [rog], answered_by: [oracle]}\n", ([], "rog", None), ""),
    ],
)
def test_where_a_run_taught_no_model_the_one_in_the_box_answers_by_its_shipped_adapter(
    tmp_path: Path, added: str, given: tuple[list[str], str, str | None], plans: str | None
) -> None:
    conf = tmp_path / "mine.yaml"
    conf.write_text("dataset: {name: mine, source: embedded}\nencoder: {kind: minilm}\nexplorer: {steps: 2}\n" + added)
    settings, systems, answered_by = given
    defaults = [*untaught_settings(conf, settings, systems, answered_by)]
    assert bool(defaults) == (plans != "")
    if not defaults:
        return
    run = read_config(conf, [*defaults, *settings, *system_settings(systems, answered_by)])
    assert run.lm is not None and run.systems is not None
    assert (run.lm.kind, run.lm.adapter, run.systems.answers) == ("packaged", SHIPPED, "shown")
    assert plans is None or run.systems.settings_of("rog").plans == plans
    if systems == "rog":
        assert open_asked_run(conf, settings, systems, answered_by).config == run  # as kgqa ask opens it
