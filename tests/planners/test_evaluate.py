"""Plans scored against a slow count, figures by hops, and what plans reach when they are followed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.graph.build import build_graph
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.plan import Plan, PlanQuestion
from kgqa_core.planners.evaluate import (
    ALL,
    ask_planner,
    f1_of_first,
    leads_somewhere,
    made_of,
    planner_cells,
    planner_figures,
    render_planners,
    score_plans,
)
from kgqa_core.types import LabelPath, Question

TRIPLES = "Heat|by|Mann\nAli|by|Mann\nHeat|with|Pacino\nHeat|with|De Niro\n"


@pytest.fixture
def graph(tmp_path: Path) -> KnowledgeGraph:
    (tmp_path / "kb.txt").write_text(TRIPLES, encoding="utf-8")
    build_graph(tmp_path / "kb.txt", format="wikimovies", out_dir=tmp_path / "graph")
    return open_graph(tmp_path / "graph")


def entity(graph: KnowledgeGraph, name: str) -> int:
    (found,) = graph.ids_of_name(name)
    return found


def test_a_plan_is_valid_where_it_leads_somewhere_and_ends_in_time(graph: KnowledgeGraph) -> None:
    is_valid = leads_somewhere(SearchGraph(graph, graph, None, 2, False))
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
    f1 = f1_of_first(SearchGraph(graph, graph, None, 2, False), [asked] * 4, plans)
    assert f1 == pytest.approx([200 / 3, 0.0, 0.0, 0.0])  # one of two reached is right: precision 1/2, recall 1


class Oracle:
    """Plans what its question's text says; notes what it was told."""

    name = "oracle"

    def __init__(self) -> None:
        self.seen: list[PlanQuestion] = []

    def plan(self, questions: Sequence[PlanQuestion], *, num_plans: int = 3) -> list[list[Plan]]:
        self.seen += questions
        return [[Plan((question.text,), -1.0)] for question in questions]


def test_a_planner_never_sees_the_paths_that_count_as_right() -> None:
    oracle = Oracle()
    assert ask_planner(oracle, [PlanQuestion("q", "by", (1,), (("with",),))], num_plans=1) == [[Plan(("by",), -1.0)]]
    assert oracle.seen == [PlanQuestion("q", "by", (1,))]


def test_figures_stand_by_hops_and_over_all_and_a_longer_plan_can_be_as_good() -> None:
    questions = [
        PlanQuestion("a", "?", paths=(("by",),)),
        PlanQuestion("b", "?", paths=(("with",),)),
        PlanQuestion("c", "?"),  # no path: asked, not scored
    ]
    plans = [[Plan(("by",), 0.0)], [Plan(("by", "^by"), 0.0)], [Plan(("by",), 0.0)]]
    figures = planner_figures(
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
    assert figures[ALL]["hit@1"] == 50.0
    assert figures[ALL]["as_good"] == 50.0
    assert {"hit@1.low", "hit@1.high"} <= figures[ALL].keys()


def test_the_table_shows_the_mean_of_the_seeds() -> None:
    scores = [
        {"planner": "dense", "seed": seed, "figures": {"all": {"n": 2, "hit@1": hit, "hit@3": 100.0, "valid": 100.0}}}
        for seed, hit in ((0, 50.0), (1, 100.0))
    ]
    assert planner_cells(scores) == [
        ("all", "dense (mean of 2 seeds)", "2", "75.00", "100.00", "", "100.00", ""),
    ]
    assert render_planners(scores).splitlines()[2].startswith("| all | dense (mean of 2 seeds) | 2 | 75.00 |")
    assert render_planners([]) == ""


def as_plans(paths: Sequence[LabelPath]) -> list[Plan]:
    return [Plan(path, -float(rank + 1)) for rank, path in enumerate(paths)]


def asked(*paths: LabelPath, name: str = "q") -> PlanQuestion:
    return PlanQuestion(name, "who", paths=paths)


def test_a_hit_is_any_of_the_questions_paths_among_the_first_plans() -> None:
    right = asked(("a",), ("b", "c"))
    none = asked(name="no paths")
    scores = score_plans(
        [right, right, right, right, none],
        [
            as_plans([("b", "c")]),
            as_plans([("x",), ("y",), ("a",)]),
            as_plans([("x",)] * 3 + [("a",)]),
            [],
            as_plans([("z",)]),
        ],
        is_valid=made_of({"a", "b", "c", "z"}),
    )
    assert scores.ranks.tolist() == [1, 3, 4, 0]
    assert scores.summary() == {
        "n": 4,
        "n_without_paths": 1,
        "hit@1": 25,
        "hit@3": 50,
        "valid": pytest.approx(100 * 4 / 9),
    }


def test_directions_count_only_where_the_file_has_them() -> None:
    backward = [as_plans([("^a",)])]
    assert score_plans([asked(("a",))], backward).summary()["hit@1"] == 100
    assert score_plans([asked(("a",))], backward, signed=True).summary()["hit@1"] == 0
    assert score_plans([asked(("\\^a",))], [as_plans([("\\^a",)])], signed=True).summary()["hit@1"] == 100


def test_without_questions_everything_is_zero() -> None:
    scores = score_plans([], [])
    assert scores.summary() == {"n": 0, "n_without_paths": 0, "hit@1": 0, "hit@3": 0, "valid": 0}
    assert set(scores.intervals().values()) == {0}
    with pytest.raises(ValueError, match="longer"):  # as many lists of plans as questions
        score_plans([], [[]])


PATHS = st.lists(st.lists(st.sampled_from(["a", "^a", "b", "\\^a"]), max_size=2).map(tuple), max_size=4, unique=True)


@given(st.lists(st.tuples(PATHS, PATHS)))
def test_equals_the_slow_count(rows: list[tuple[list[LabelPath], list[LabelPath]]]) -> None:
    questions = [asked(*paths, name=str(number)) for number, (paths, _) in enumerate(rows)]
    plans = [[Plan(path, 0.0) for path in proposed] for _, proposed in rows]
    summary = score_plans(questions, plans).summary()

    def plain(path: LabelPath) -> list[str]:
        return ["^a" if step == "\\^a" else step.replace("^", "") for step in path]

    right = [(paths, proposed) for paths, proposed in rows if paths]
    for k in (1, 3):
        hits = 0
        for paths, proposed in right:
            hits += any(plain(path) == plain(plan) for path in paths for plan in proposed[:k])
        assert summary[f"hit@{k}"] == pytest.approx(100 * hits / len(right) if right else 0)
    assert summary["n"] + summary["n_without_paths"] == len(rows)
