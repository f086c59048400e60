"""Paths from a file: how they are read, that they are what is shown, in the file's order, and the rows that copy."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kgqa_core.config_file import read_config
from kgqa_core.errors import ConfigError
from kgqa_core.graph.given import parse_given, read_given, read_path
from kgqa_core.run.ensure import ensure
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.systems.given import Given, GivenSection
from tests.conftest import open_run, write_jsonl
from tests.forty_triples import Forty
from tests.scripted import ScriptedModel, script
from tests.systems.following import LINES as WHOLE_PATHS
from tests.systems.following import answer_one, answers, lines_under

R, S = "people.person.born_in", "people.place.people_born"
PROMPT = (
    f"[INST] Based on the paths ...\n\nReasoning Paths:\nAda -> {R} -> m.1 -> {S} -> Up -> Down\nAda -> {S} -> Bob\n"
)
LINES: list[dict[str, Any]] = [
    {
        "id": "q1",
        "question": "who was born where ada was",
        "ground_truth": ["Up -> Down", "Zoe"],
        "prediction": "Up -> Down\nZack",
        "input": f"{PROMPT}Ada -> {R}\n\nQuestion:\nwho? [/INST]",
    },
    {
        "id": "q2",
        "question": "who is nobody",
        "ground_truth": ["Zoe"],
        "prediction": "Zoe",
        "input": "Reasoning Paths:\n\n\nQuestion:\nwho?",
    },
    {"id": "q3", "question": "who is bob", "answers": ["Bob"], "paths": [["Ada", "of", "Bob"], "Bob -> of -> Cy"]},
    {"id": "q4", "question": "what?", "answers": ["Bob"], "paths": None},
]
RUN = """\
dataset:
  name: given
  source: files
  graph: {format: paths, max_reject_ratio: 0.5}
  questions: {format: paths, files: {test: lines.jsonl}, max_reject_ratio: 0.5}
  subgraphs: question
encoder: {kind: hash}
explorer: {steps: 3, edge_budget: 9, epochs: 1}
systems:
  run: [given]
  answered_by: [first]
  variants:
    first end: {system: given, settings: {reasoning: first}}
    all ends: {system: given, settings: {reasoning: none}}
    theirs: {system: given, settings: {reasoning: given}}
"""


@pytest.fixture
def run(tmp_path: Path) -> Pipeline:
    write_jsonl(tmp_path / "lines.jsonl", LINES)
    return open_run(tmp_path / "given.yaml", RUN)


def rows_of(run: Pipeline, key: str, table: str = "predictions") -> list[dict[str, Any]]:
    return list(pq.read_table(run.artifact(f"system-{key}-seed0").folder / f"{table}.parquet").to_pylist())


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("A -> of -> B", ("A", "of", "B")),
        (f"A -> {R} -> m.04j60kc -> {S} -> C", ("A", R, "m.04j60kc", S, "C")),
        (f"A -> B -> {R} -> C -> D", ("A -> B", R, "C -> D")),
        (f"A -> {R} -> a.b.c", ("A", R, "a.b.c")),  # in turns: an entity may look like a relation
        (f"A -> {R} -> {S} -> B", None),
        ("A -> of", None),
        ("A", None),
        (f" -> {R} -> B", None),
        (["A -> B", "of", "C"], ("A -> B", "of", "C")),
        (["A", "of"], None),
        (["A", "of", 3], None),
        (7, None),
    ],
)
def test_names_end_where_relations_begin(given: object, path: tuple[str, ...] | None) -> None:
    assert read_path(given) == path


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"paths": None}, "neither field paths"),
        ({"answers": None}, "fields answers"),
        ({"scores": [1.0]}, "field scores"),
        ({"scores": [1.0, "x"]}, "field scores"),
        ({"scores": [1.0, 10**400]}, "field scores"),
        ({"scores": [1.0, float("nan")]}, "field scores"),
        ({"prediction": 3}, "field prediction"),
        ({"question": " "}, "no question text"),
    ],
)
def test_a_line_that_cannot_be_used_says_why(wrong: dict[str, object], reason: str) -> None:
    read = parse_given({**LINES[2], **wrong})
    assert isinstance(read, str) and reason in read


@pytest.mark.slow
def test_a_whole_run_answers_from_the_file_and_copies_beside_it(run: Pipeline) -> None:
    """q1 has two paths that can be read and one that cannot, q2 none, q4 is no line; what is wrong is kept."""
    ensure(run, ["comparison"])
    assert not list(run.home.rglob("explorer"))  # nothing is trained
    rejects = pq.read_table(run.artifact("graph").folder / "rejects.parquet").to_pylist()
    assert [(row["line"], json.loads(row["text"]) == f"Ada -> {R}") for row in rejects if row["line"] == 1] == [
        (1, True)
    ]
    assert {row["line"] for row in rejects} == {1, 4}
    calls = rows_of(run, "given-first", "calls")
    assert [call["question_id"] for call in calls] == ["q1", "q3"]  # without a path nobody is asked
    assert f"Ada → {R} → {S}:\nUp -> Down\n\nAda → {S}:\nBob\n" in calls[0]["prompt"]
    assert "Ada → of:\nBob\n\nBob → of:\nCy\n" in calls[1]["prompt"]
    ends = {"first end": ["Up -> Down"], "all ends": ["Up -> Down", "Bob"], "theirs": ["Up -> Down", "Zack"]}
    for row, names in ends.items():
        found = {one["question_id"]: one for one in rows_of(run, row)}
        assert found["q1"]["prediction"] == names
        assert found["q2"]["prediction"] == (["Zoe"] if row == "theirs" else [])
        assert found["q1"]["status"] == "answered" and found["q1"]["num_calls"] == 0
        assert found["q2"]["status"] == ("answered" if row == "theirs" else "abstained")
    assert ensure(Pipeline(run.config), ["comparison"])[-1].built is False
    swapped = {**LINES[2], "paths": LINES[2]["paths"][::-1]}
    write_jsonl(run.home.parent / "lines.jsonl", [*LINES[:2], swapped])
    again = Pipeline(run.config)
    ensure(again, ["comparison"])  # the order of the paths alone is another answer
    assert {one["question_id"]: one["prediction"] for one in rows_of(again, "first end")}["q3"] == ["Cy"]


def given(forty: Forty, file: Path, seed: int = 0, **settings: object) -> Given:
    return Given(forty.search, WHOLE_PATHS, read_given({file: file.stem}), GivenSection.model_validate(settings), seed)


@pytest.fixture
def born(tmp_path: Path) -> Path:
    """Paths for one of forty questions, in a graph of its own; one of them does not stand there."""
    paths = [
        ["Salt Road", "starred", "Mara Quill", "born_in", "Westerby"],
        ["Salt Road", "directed_by", "Mara Quill"],
        "Salt Road -> directed_by -> Ida Moon -> born_in -> Port Amber",
        ["Ida Moon", "directed_by", "Salt Road"],  # the other way round
    ]
    line = {"id": "born", "question": "x", "answers": ["Port Amber"], "paths": paths, "scores": [0.1, 0.2, 0.6, 0.1]}
    return write_jsonl(tmp_path / "paths.jsonl", [line])


def test_paths_are_followed_in_a_graph_of_its_own_and_those_that_are_not_there_are_counted(
    forty: Forty, born: Path
) -> None:
    model = ScriptedModel().on("reason", "", "Port Amber\nNobody at all")
    answered = answer_one(forty, given(forty, born, scores="real"), "born", model)
    assert answers(forty, answered) == ["Port Amber"]
    assert answered.faithful == (True,) and answered.answer.unmatched == ("Nobody at all",)
    assert lines_under(model.asked[0].text, "Paths:") == [
        "Salt Road → starred → Mara Quill → born_in → Westerby (score 0.10)",
        "Salt Road → directed_by → Ida Moon → born_in → Port Amber (score 0.60)",
        "Ida Moon → ^directed_by → Salt Road (score 0.10)",
    ]
    assert (answered.answer.counts["num_paths"], answered.answer.counts["num_not_in_graph"]) == (3, 1)


def test_shuffled_by_seed_and_question(forty: Forty, born: Path) -> None:
    def order(seed: int, **settings: object) -> tuple[str, ...]:
        model = ScriptedModel().on("reason", "", "Port Amber")
        answer_one(forty, given(forty, born, seed, **settings), "born", model)
        return tuple(lines_under(model.asked[0].text, "Paths:"))

    orders = [order(seed, order="drawn") for seed in range(9)]
    assert orders == [order(seed, order="drawn") for seed in range(9)] and len(set(orders)) > 2
    assert {frozenset(one) for one in orders} == {frozenset(order(0))}


def test_read_in_several_orders_all_names_are_answers_those_of_more_orders_first(forty: Forty, born: Path) -> None:
    """A reader that stops after the way that it meets first: each way's end is named, the most frequent leads."""
    ends = {"Salt Road → starred": "Westerby", "Salt Road → directed_by": "Port Amber", "Ida Moon": "Salt Road"}
    met = {start: (lambda text, start=start: text.split("Paths:\n")[-1].startswith(start)) for start in ends}
    model = ScriptedModel()
    for start, end in ends.items():
        model.on("reason", met[start], end, times=None)
    answered = answer_one(forty, given(forty, born, orders=9), "born", model)
    firsts = Counter(lines_under(prompt.text, "Paths:")[0] for prompt in model.asked)
    assert len({prompt.text for prompt in model.asked}) == len(model.asked) <= 6  # of three ways, each order once
    assert {tuple(sorted(lines_under(prompt.text, "Paths:"))) for prompt in model.asked} == {tuple(sorted(firsts))}
    votes = Counter(
        {end: sum(firsts[line] for line in firsts if line.startswith(start)) for start, end in ends.items()}
    )
    assert [votes[name] for name in answers(forty, answered)] == sorted(votes.values(), reverse=True)
    assert answered.confidence == max(votes.values()) / len(model.asked)


@pytest.fixture
def films(tmp_path: Path) -> Path:
    """Two ways: one relation leads to two films, another to a third."""
    ends = [("directed_by", "Salt Road"), ("directed_by", "Glass Harbour"), ("starred", "Capital")]
    line = {"id": "born", "question": "x", "answers": [], "paths": [["Ida Moon", *end] for end in ends]}
    return write_jsonl(tmp_path / "films.jsonl", [line])


def test_one_end_of_a_way_stands_for_all_its_ends_where_that_is_asked(forty: Forty, films: Path) -> None:
    """The reader names one of the two films that one relation leads to; what another relation leads to stays out."""

    def answered(reply: str, *, whole_ways: bool) -> Any:
        model = ScriptedModel().on("reason", "", reply)
        return answer_one(forty, given(forty, films, whole_ways=whole_ways), "born", model)

    assert answers(forty, answered("Glass Harbour.", whole_ways=False)) == ["Glass Harbour"]
    assert answers(forty, answered("Glass Harbour.", whole_ways=True)) == ["Glass Harbour", "Salt Road"]
    assert answered("I do not know.", whole_ways=True).status == "abstained"


def test_weighed_ways_are_answers_where_their_first_names_are_probable(forty: Forty, films: Path) -> None:
    """A reply holds first names with probabilities: all ends of each way that has a tenth of the best one's."""

    def answered(*texts: str, shares: Sequence[float], **settings: Any) -> Any:
        model = ScriptedModel().on("reason", "", *texts, scores=[math.log(one) for one in shares], times=None)
        return answer_one(forty, given(forty, films, names="weighed", **settings), "born", model)

    one = answered("Glass Harbour.", "Nobody", "Capital", shares=(0.4, 0.3, 0.2))
    assert answers(forty, one) == ["Salt Road", "Glass Harbour", "Capital"] and len(one.calls) == 1
    assert one.confidence == pytest.approx(0.4 / 0.6)  # of what any way ends at
    two = answered("Capital", "Salt Road", shares=(0.5, 0.1), least_share=0.5, orders=2)
    assert answers(forty, two) == ["Capital"] and len(two.calls) == 2
    assert answered("I do not know.", shares=(0.9,)).status == "abstained"


def test_of_several_orders_those_that_are_read_count(forty: Forty, born: Path) -> None:
    """One reply is unreadable, one abstains; all that abstain are an abstention, all unreadable ones are unreadable."""
    model = ScriptedModel().on("reason", "", "I do not know.").on("reason", "", "").on("reason", "", "Westerby")
    answered = answer_one(forty, given(forty, born, orders=3), "born", model)
    assert answers(forty, answered) == ["Westerby"] and answered.confidence == 1 / 3
    for said, status in (("I do not know.", "abstained"), ("", "unreadable")):
        model = ScriptedModel().on("reason", "", said, times=None)
        assert answer_one(forty, given(forty, born, orders=3), "born", model).status == status


def test_of_several_orders_of_a_true_false_question_most_verdicts_count(forty: Forty, born: Path) -> None:
    """Yes and no are no two names: the one that more orders give is the verdict."""
    right = replace(forty.question("right"), id="born")
    for said, verdict in ((("No", "Yes", "Yes."), True), (("No, it does not.", "No.", "Yes"), False)):
        model = script(*[("reason", "", one) for one in said])
        answered = answer_one(forty, given(forty, born, orders=3), right, model)
        assert (answered.answer.prediction.verdict, answered.confidence) == (verdict, 2 / 3)


def test_a_question_that_the_file_does_not_know_is_an_abstention(forty: Forty, born: Path) -> None:
    answered = answer_one(forty, given(forty, born), "mayor", ScriptedModel())
    assert answered.status == "abstained" and answered.answer.counts["has_no_line"] == 1


def test_without_a_file_the_questions_must_bring_the_paths(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        "dataset: {name: tiny, source: embedded}\nencoder: {kind: hash}\n"
        "explorer: {steps: 2, edge_budget: 5, epochs: 1}\nsystems: {run: [given], answered_by: [first]}\n"
    )
    with pytest.raises(ConfigError, match=r"systems\.given\.file: name the file with the paths"):
        Pipeline(read_config(tmp_path / "run.yaml", [f"runtime.home={tmp_path}"]))
