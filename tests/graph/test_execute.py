"""Executing plans: all at once they reach what each reaches alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.errors import InputError
from kgqa_core.graph.follow import execute_plans, follow_path
from kgqa_core.graph.kg import KnowledgeGraph

Triples = list[tuple[int, int, int]]
GraphOf = Callable[..., KnowledgeGraph]

NUM_RELATIONS, LAST = 3, 10
LABELS = ["a", "^b", "c"]  # the second needs an escape

multigraphs = st.lists(
    st.tuples(st.integers(0, LAST), st.integers(0, NUM_RELATIONS - 1), st.integers(0, LAST)), min_size=1, max_size=29
).map(lambda triples: [*triples, (LAST, NUM_RELATIONS - 1, LAST)])
steps = st.sampled_from(["a", "^a", "\\^b", "^\\^b", "c", "^c", "unknown"])
questions = st.lists(
    st.tuples(st.lists(st.integers(0, LAST), max_size=3), st.lists(st.lists(steps, max_size=3), max_size=4)), max_size=4
)


def follow_plainly(triples: Triples, topics: list[int], plan: list[str], reenter: bool) -> list[int]:
    """Follow one plan over a list of triples; one that cannot be followed reaches nothing."""
    here = set(topics) if plan and "unknown" not in plan else set()
    for step in plan:
        relation = LABELS.index(step.lstrip("^").replace("\\", "")) if here else None
        if step[0] == "^":
            here = {head for head, name, tail in triples if tail in here and name == relation}
        else:
            here = {tail for head, name, tail in triples if head in here and name == relation}
        here -= set() if reenter else set(topics)
    return sorted(here)


@given(multigraphs, questions, st.booleans())
def test_plans_of_all_questions_reach_what_each_reaches_alone(
    graph_of: GraphOf, triples: Triples, asked: list, reenter: bool
) -> None:
    graph = graph_of(triples)
    graph.__dict__["relation_labels"] = LABELS  # read from disk otherwise
    found = execute_plans(graph, [ids for ids, _ in asked], [plans for _, plans in asked], reenter_topic=reenter)
    assert [[entities.tolist() for entities in own] for own in found] == [
        [follow_plainly(triples, ids, plan, reenter) for plan in plans] for ids, plans in asked
    ]


def test_a_plan_of_ids_and_a_plan_by_label_are_one(films: KnowledgeGraph) -> None:
    hitchcock = films.ids_of_name("Alfred Hitchcock")
    ((found,),) = execute_plans(films, [hitchcock], [[("^directed_by", "release_year")]])
    directed_by, release_year = (films.relation_ids[label] for label in ("directed_by", "release_year"))
    alone = follow_path(films, hitchcock, (directed_by + films.num_relations, release_year))
    assert found.tolist() == alone.tolist()
    assert [films.name_of(entity) for entity in alone] == ["1954", "1958"]


def test_no_question_and_no_plan_are_fine(films: KnowledgeGraph) -> None:
    assert execute_plans(films, [], []) == []
    assert execute_plans(films, [[0]], [[]]) == [[]]


def test_what_is_no_entity_is_refused(films: KnowledgeGraph) -> None:
    with pytest.raises(InputError, match="entity ids go from 0 to 6"):
        execute_plans(films, [[7]], [[("born_in",)]])
    with pytest.raises(InputError, match="give both for each"):
        execute_plans(films, [[0]], [])
