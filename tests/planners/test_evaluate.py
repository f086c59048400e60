"""A planner on many questions: figures by hops, and what its plans reach when they are followed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from kgqa_core.graph.build import build_graph
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.planners.evaluate import (
    ALL,
    ask_planner,
    f1_of_first,
    leads_somewhere,
    planner_cells,
    planner_figures,
    render_planners,
)
from kgqa_core.planners.types import Plan, PlanQuestion
from kgqa_core.types import Question

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
