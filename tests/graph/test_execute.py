"""Executing plans: all at once they reach what each reaches alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.errors import InputError
from kgqa_core.graph.follow import execute_plans
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.paths import follow_path

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


def with_labels(graph: KnowledgeGraph) -> KnowledgeGraph:
    graph.__dict__["relation_labels"] = LABELS  # read from disk otherwise
    return graph


def follow_plainly(
    triples: Triples, topics: list[int], plan: list[str], reenter: bool, directed: bool
) -> list[int] | None:
    """Follow one plan over a list of triples; None where it cannot be followed."""
    if not plan or "unknown" in plan:
        return None
    here = set(topics)
    for step in plan:
        backward = step[0] == "^"
        relation = LABELS.index(step.lstrip("^").replace("\\", ""))
        forward = {tail for head, name, tail in triples if head in here and name == relation}
        reverse = {head for head, name, tail in triples if tail in here and name == relation}
        here = (forward | reverse) if not directed else reverse if backward else forward
        here -= set() if reenter else set(topics)
    return sorted(here)


@given(multigraphs, questions, st.booleans(), st.booleans())
def test_plans_of_all_questions_reach_what_each_reaches_alone(
    graph_of: GraphOf, triples: Triples, asked: list, reenter: bool, directed: bool
) -> None:
    graph = with_labels(graph_of(triples))
    topics, plans = [ids for ids, _ in asked], [paths for _, paths in asked]
    found = execute_plans(graph, topics, plans, reenter_topic=reenter, directed=directed)
    for question, (ids, paths) in enumerate(asked):
        for number, plan in enumerate(paths):
            expected = follow_plainly(triples, ids, plan, reenter, directed)
            at = found.plan_ptr[question] + number
            assert found.is_known[at] == (expected is not None)
            assert found.reached(question, number).tolist() == (expected or [])
            assert found.num_reached[at] == len(expected or [])
    assert not found.is_cut.any()


def test_a_plan_of_ids_and_a_plan_by_label_are_one(films: KnowledgeGraph) -> None:
    hitchcock = films.ids_of_name("Alfred Hitchcock")
    found = execute_plans(films, [hitchcock], [[("^directed_by", "release_year")]])
    directed_by, release_year = (films.relation_ids[label] for label in ("directed_by", "release_year"))
    alone = follow_path(films, hitchcock, (directed_by + films.num_relations, release_year))
    assert found.reached(0, 0).tolist() == alone.tolist()
    assert [films.name_of(entity) for entity in alone] == ["1954", "1958"]


def test_of_many_entities_the_first_are_kept_and_that_is_told(films: KnowledgeGraph) -> None:
    hitchcock = films.ids_of_name("Alfred Hitchcock")
    plans = [[("^directed_by",), ("^directed_by", "release_year"), ("born_in",)]]
    found = execute_plans(films, [hitchcock], plans, max_entities=1)
    assert found.num_reached.tolist() == [2, 2, 1]
    assert found.is_cut.tolist() == [True, True, False]
    assert [films.name_of(int(entity)) for entity in found.entity] == ["Rear Window", "1954", "London"]


def test_no_question_and_no_plan_are_fine(films: KnowledgeGraph) -> None:
    assert execute_plans(films, [], []).num_reached.tolist() == []
    assert execute_plans(films, [[0]], [[]]).plan_ptr.tolist() == [0, 0]


def test_what_is_no_entity_is_refused(films: KnowledgeGraph) -> None:
    with pytest.raises(InputError, match="entity ids go from 0 to 6"):
        execute_plans(films, [[7]], [[("born_in",)]])
    with pytest.raises(InputError, match="give both for each"):
        execute_plans(films, [[0]], [])
