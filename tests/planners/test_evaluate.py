"""What planners learn from, at rest: which paths count as right, and what is read of plan files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.errors import InputError
from kgqa_core.graph.kg import KnowledgeGraph, unsigned
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.graph.supervision import Mode
from kgqa_core.instructions.plan import Plan, PlanQuestion
from kgqa_core.planners import evaluate
from kgqa_core.run.ensure import ensure
from kgqa_core.schemas import SUPERVISION
from kgqa_core.types import LabelPath, Question
from tests.conftest import open_run
from tests.loading import graph_of_text

QUESTIONS = [
    Question("q1", "who made Heat?", "who made []?", (3,), (5,), "train", hops=1),
    Question("q2", "who else?", "who else?", (2, 7), (5, 11), "test"),
]


def row(path: LabelPath, *, reached: int, right: int, best: bool) -> dict[str, object]:
    counts = {"num_reached": reached, "num_right": right, "f1": 0.5}
    return {"question_id": "q1", "split": "train", "path": list(path), "best": best, **counts}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    evaluate.write_asked(QUESTIONS, tmp_path, mask_topics=True)
    rows = [
        row(("made_by",), reached=2, right=2, best=True),
        row(("^made", "made_by"), reached=4, right=2, best=False),
        row(("seen_by",), reached=10, right=1, best=False),
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=SUPERVISION), tmp_path / evaluate.PATHS_FILE)
    return tmp_path


@pytest.mark.parametrize(
    ("mode", "threshold", "paths"),
    [
        ("best", 0.5, [("made_by",)]),
        ("precise", 0.5, [("made_by",), ("^made", "made_by")]),
        ("precise", 0.51, [("made_by",)]),
        ("all_shortest", 0.5, [("made_by",), ("^made", "made_by"), ("seen_by",)]),
    ],
)
def test_the_mode_says_which_paths_teach(folder: Path, mode: Mode, threshold: float, paths: list[LabelPath]) -> None:
    assert evaluate.read_cases(folder, "train", mode, threshold) == [
        PlanQuestion("q1", "who made []?", (3,), tuple(paths))
    ]


def test_questions_without_paths_are_asked_too(folder: Path) -> None:
    assert evaluate.read_cases(folder, "test") == [PlanQuestion("q2", "who else?", (2, 7))]
    assert evaluate.read_cases(folder, "dev") == []
    assert evaluate.read_hops(folder) == {"q1": 1, "q2": None}


def test_given_paths_all_count(tmp_path: Path) -> None:
    asked = PlanQuestion("a", "what?", paths=(("r1",), ("r2", "r3")))
    evaluate.write_given([("train", asked), ("dev", PlanQuestion("b", "why?"))], tmp_path)
    assert evaluate.read_cases(tmp_path, "train", "precise", 1.0) == [asked]
    assert evaluate.read_cases(tmp_path, "dev") == [PlanQuestion("b", "why?")]


def test_the_best_shortest_path_of_a_question_is_what_a_plan_is_compared_with(folder: Path, tmp_path: Path) -> None:
    assert evaluate.read_best_f1(folder) == {"q1": 50.0}
    (tmp_path / "given").mkdir()
    evaluate.write_given([("train", PlanQuestion("a", "what?", paths=(("r1",),)))], tmp_path / "given")
    assert evaluate.read_best_f1(tmp_path / "given") == {}


GOOD = {"id": "q1", "question": "who directed it", "relation_paths": [["film.directed_by"], ["a", "b"]]}


@pytest.fixture
def write(tmp_path: Path):
    def write(*rows: object) -> Path:
        path = tmp_path / "plans.jsonl"
        lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
        path.write_bytes(b"\n".join(lines) + b"\n")
        return path

    return write


@pytest.mark.parametrize(
    ("given", "paths"),
    [
        ({"id": 7, "relation_paths": [["film.directed_by"], ["a", "b"]]}, (("film.directed_by",), ("a", "b"))),
        ({"relation_paths": [[]]}, ((),)),  # the empty path is a path, no path at all is none
        ({"relation_paths": []}, ()),
        ({"relation_paths": None}, ()),
        ({}, ()),
        ({"relation_paths": [["a"], ["a"]]}, (("a",),)),  # counts once
        ({"relation_paths": [["^odd", "\\odd", "even"]]}, (("\\^odd", "\\\\odd", "even"),)),  # labels, no steps
    ],
)
def test_a_line_is_a_question_with_its_paths(write, given: dict[str, object], paths: tuple[LabelPath, ...]) -> None:
    read = evaluate.read_plan_file(write({"question": "who", **given}))
    assert read.questions == (PlanQuestion(str(given.get("id", "plans-1")), "who", paths=paths),)
    assert not read.rejects


def test_paths_may_hold_steps(write) -> None:
    path = write({"id": "q", "question": "who", "relation_paths": [["^odd", "\\odd", "even"]]})
    assert evaluate.read_plan_file(path, signed=True).questions[0].paths == (("^odd", "\\odd", "even"),)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b'{"id": "q2", "question"', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"question": "caf\xe9"}', "not UTF-8"),
        (["q2"], "not a JSON object"),
        ({"id": "q2", "relation_paths": []}, "no question text"),
        ({"id": "q2", "question": "  "}, "no question text"),
        ({"id": "q2", "question": ["who"]}, "no question text"),
        ({"id": "q2", "question": "who \ud800"}, "not JSON"),
        ({"id": "q2", "question": "who", "relation_paths": "film.directed_by"}, "relation_paths is no list"),
        ({**GOOD, "question": "who else"}, "id given twice"),
    ],
)
def test_a_line_that_cannot_be_used_is_kept_with_its_reason(write, row: object, reason: str) -> None:
    read = evaluate.read_plan_file(write(GOOD, row))
    assert [question.text for question in read.questions] == ["who directed it"]
    assert [(reject.line, reject.reason) for reject in read.rejects] == [(2, reason)]


@pytest.mark.parametrize("path", ["film.directed_by", [1], [None], [""], [" "], ["a", ["b"]], {"a": 1}])
def test_a_path_that_is_no_list_of_labels_is_left_out_and_the_line_kept_as_a_reject(write, path: object) -> None:
    read = evaluate.read_plan_file(write({**GOOD, "relation_paths": [path, ["a"]]}))
    assert read.questions[0].paths == (("a",),)
    assert [reject.reason for reject in read.rejects] == ["a path that is no list of labels"]


@given(
    st.lists(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)), unique_by=tuple)
)
def test_any_label_survives(tmp_path_factory, paths: list[list[str]]) -> None:
    path = tmp_path_factory.mktemp("plans") / "plans.jsonl"
    path.write_text(json.dumps({"id": "q", "question": "who", "relation_paths": paths}) + "\n", encoding="utf-8")
    (question,) = evaluate.read_plan_file(path).questions
    assert [unsigned(found) for found in question.paths] == [tuple(labels) for labels in paths]


def test_a_file_without_any_question_says_what_is_expected(write, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"not JSON.*relation_paths"):
        evaluate.read_plan_file(write(b"<html>"))
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    with pytest.raises(InputError, match="it is empty"):
        evaluate.read_plan_file(empty)
    with pytest.raises(InputError, match=r"does not exist\..*; did you mean 'plans\.jsonl'\?"):
        evaluate.read_plan_file(tmp_path / "plan.jsonl")


def test_more_rejects_than_may_be_stop_the_run(write, tmp_path: Path) -> None:
    dataset = f"dataset: {{name: p, source: plans, plan_files: {{train: '{write(GOOD, ['q2'])}'}}}}\n"
    text = dataset + "plans: {planners: [dense]}\ndense: {}\n"
    told = r"(?s)1 of 2 rows rejected.*plans\.jsonl:2: not a JSON object.*--set dataset\.max_reject_ratio=0\.5"
    with pytest.raises(InputError, match=told):
        ensure(open_run(tmp_path / "run.yaml", text), ["supervision"])
    (made,) = ensure(open_run(tmp_path / "run.yaml", text, "dataset.max_reject_ratio=0.5"), ["supervision"])
    (reject,) = pq.read_table(made.artifact.folder / "rejects.parquet").to_pylist()
    assert (reject["line"], reject["reason"]) == (2, "not a JSON object")


# ------ Plans scored against a slow count, figures by hops, and what plans reach when they are followed.


TRIPLES = "Heat|by|Mann\nAli|by|Mann\nHeat|with|Pacino\nHeat|with|De Niro\n"


@pytest.fixture
def graph(tmp_path: Path) -> KnowledgeGraph:
    return graph_of_text(tmp_path, TRIPLES, format="wikimovies")


def entity(graph: KnowledgeGraph, name: str) -> int:
    (found,) = graph.ids_of_name(name)
    return found


def test_a_plan_is_valid_where_it_leads_somewhere_and_ends_in_time(graph: KnowledgeGraph) -> None:
    is_valid = evaluate.leads_somewhere(SearchGraph(graph, graph, None, 2, False))
    question = PlanQuestion("q", "who made []?", (entity(graph, "Heat"),))
    assert is_valid(question, ("by",))
    assert is_valid(question, ("by", "^by"))
    assert not is_valid(question, ("^by",))
    assert not is_valid(question, ("made_by",))  # no such relation
    assert not is_valid(question, ())
    assert not is_valid(question, ("by", "^by", "by"))  # longer than may be


def test_following_the_first_plan_is_scored_against_the_golds(graph: KnowledgeGraph) -> None:
    heat, pacino = entity(graph, "Heat"), entity(graph, "Pacino")
    asked = Question("q", "who plays?", "who plays in []?", (heat,), (pacino,), "test")
    plans: list[list[Plan]] = [[Plan(("with",), -0.1)], [Plan(("by",), -0.1)], [], [Plan(("no",), 0.0)]]
    f1 = evaluate.f1_of_first(SearchGraph(graph, graph, None, 2, False), [asked] * 4, plans)
    assert f1 == pytest.approx([200 / 3, 0.0, 0.0, 0.0])  # one of two reached is right: precision 1/2, recall 1


class Oracle:
    """Plans what its question's text says; notes what it was told."""

    def __init__(self) -> None:
        self.seen: list[PlanQuestion] = []

    def plan(self, questions: Sequence[PlanQuestion], *, num_plans: int = 3) -> list[list[Plan]]:
        self.seen += questions
        return [[Plan((question.text,), -1.0)] for question in questions]


def test_a_planner_never_sees_the_paths_that_count_as_right() -> None:
    oracle = Oracle()
    assert evaluate.ask_planner(oracle, [PlanQuestion("q", "by", (1,), (("with",),))], num_plans=1) == [
        [Plan(("by",), -1.0)]
    ]
    assert oracle.seen == [PlanQuestion("q", "by", (1,))]


def test_figures_stand_by_hops_and_over_all_and_a_longer_plan_can_be_as_good() -> None:
    questions = [
        PlanQuestion("a", "?", paths=(("by",),)),
        PlanQuestion("b", "?", paths=(("with",),)),
        PlanQuestion("c", "?"),  # no path: asked, not scored
    ]
    plans = [[Plan(("by",), 0.0)], [Plan(("by", "^by"), 0.0)], [Plan(("by",), 0.0)]]
    figures = evaluate.planner_figures(
        questions,
        plans,
        signed=True,
        is_valid=lambda question, path: len(path) == 1,
        f1=[50.0, 100.0, 0.0],
        hops={"a": 1, "b": 2, "c": 2},
        best_f1={"a": 100.0, "b": 100.0},
    )
    assert figures["1"]["hit@1"] == 100.0
    assert figures["2"] == pytest.approx(
        {"n": 1, "n_without_paths": 1, "hit@1": 0.0, "hit@3": 0.0, "valid": 50.0, "f1": 50.0, "as_good": 100.0}
    )
    assert figures[evaluate.ALL]["hit@1"] == 50.0
    assert figures[evaluate.ALL]["as_good"] == 50.0
    assert {"hit@1.low", "hit@1.high"} <= figures[evaluate.ALL].keys()


def as_plans(paths: Sequence[LabelPath]) -> list[Plan]:
    return [Plan(path, -float(rank + 1)) for rank, path in enumerate(paths)]


def asked(*paths: LabelPath, name: str = "q") -> PlanQuestion:
    return PlanQuestion(name, "who", paths=paths)


def test_a_hit_is_any_of_the_questions_paths_among_the_first_plans() -> None:
    right = asked(("a",), ("b", "c"))
    none = asked(name="no paths")
    plans = [[("b", "c")], [("x",), ("y",), ("a",)], [("x",)] * 3 + [("a",)], [], [("z",)]]
    known = evaluate.made_of({"a", "b", "c", "z"})
    scores = evaluate.score_plans([right] * 4 + [none], list(map(as_plans, plans)), is_valid=known)
    counts = {"n": 4, "n_without_paths": 1}
    assert scores == {**counts, "hit@1": 25, "hit@3": 50, "valid": pytest.approx(100 * 4 / 9)}


def test_directions_count_only_where_the_file_has_them() -> None:
    backward = [as_plans([("^a",)])]
    assert evaluate.score_plans([asked(("a",))], backward)["hit@1"] == 100
    assert evaluate.score_plans([asked(("a",))], backward, signed=True)["hit@1"] == 0
    assert evaluate.score_plans([asked(("\\^a",))], [as_plans([("\\^a",)])], signed=True)["hit@1"] == 100


def test_without_questions_everything_is_zero() -> None:
    zeros = {"n": 0, "n_without_paths": 0, "hit@1": 0, "hit@3": 0, "valid": 0}
    assert evaluate.score_plans([], []) == evaluate.score_plans([], [], bounds=True) == zeros
    with pytest.raises(ValueError, match="longer"):  # as many lists of plans as questions
        evaluate.score_plans([], [[]])


PATHS = st.lists(st.lists(st.sampled_from(["a", "^a", "b", "\\^a"]), max_size=2).map(tuple), max_size=4, unique=True)


@given(st.lists(st.tuples(PATHS, PATHS)))
def test_equals_the_slow_count(rows: list[tuple[list[LabelPath], list[LabelPath]]]) -> None:
    questions = [asked(*paths, name=str(number)) for number, (paths, _) in enumerate(rows)]
    plans = [[Plan(path, 0.0) for path in proposed] for _, proposed in rows]
    summary = evaluate.score_plans(questions, plans)

    def plain(path: LabelPath) -> list[str]:
        return ["^a" if step == "\\^a" else step.replace("^", "") for step in path]

    right = [(paths, proposed) for paths, proposed in rows if paths]
    for k in (1, 3):
        hits = sum(any(plain(a) == plain(b) for a in paths for b in proposed[:k]) for paths, proposed in right)
        assert summary[f"hit@{k}"] == pytest.approx(100 * hits / len(right) if right else 0)
    assert summary["n"] + summary["n_without_paths"] == len(rows)
