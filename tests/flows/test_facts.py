"""What a build holds, in words: figures are those of the reports in its artifacts."""

from __future__ import annotations

from flows.cli_output import change_rows
from flows.summary import graph_facts, question_facts

GRAPH = {"num_entities": 12345, "num_relations": 7, "num_triples": 54321, "kinds": {"entity": 12000, "cvt": 345}}
CLOSURE = {
    "hops": [
        {"hop": 0, "num_entities": 3, "num_triples": 0},
        {"hop": 1, "num_entities": 11, "num_triples": 1300},
    ],
    "num_topics": 5,
    "num_topics_missing": 2,
    "num_hubs": 0,
}


def test_a_closure_is_told_step_by_step_and_any_other_graph_in_one_line() -> None:
    assert list(graph_facts(GRAPH, CLOSURE)) == [
        ("graph", "12,345 entities (12,000 named, 345 CVT nodes), 7 relations, 54,321 triples"),
        ("  step 1", "11 new entities, 1,300 new triples"),
        ("  topics", "2 of 5 are not in the dump"),
    ]
    assert list(graph_facts({**GRAPH, "kinds": None}, {})) == [
        ("graph", "12,345 entities, 7 relations, 54,321 triples")
    ]


def test_coverage_is_the_mean_over_the_questions_of_a_split() -> None:
    rows = [
        {"split": "dev", "num_questions": 30, "any_gold": 50.0},
        {"split": "dev", "num_questions": 10, "any_gold": 10.0},
    ]
    assert list(question_facts({"max_steps": 3, "coverage": rows})) == [
        ("questions, dev", "40; an answer within 3 steps for 40.0 %")
    ]


def test_the_relations_that_moved_most_are_shown_and_the_others_counted() -> None:
    def moved(came: int) -> dict[str, int]:
        return {"before": 10, "after": 10 + came, "came": came, "gone": 0}

    nothing = moved(0)
    graph = {
        **dict.fromkeys(("triples", "entities", "relations"), nothing),
        "new_relations": [],
        "gone_relations": [],
        "per_relation": {f"r{number:02}": moved(number) for number in range(1, 14)},
        "num_renamed": 0,
        "named_before": None,
        "named_after": None,
    }
    changes = {"graph": graph, "questions": nothing, "num_reworded": 0, "num_subgraphs_changed": 0, "coverage": []}
    rows = [row[0] for row in change_rows(changes)]
    assert rows == [*(f"triples of r{number:02}" for number in range(13, 3, -1)), "triples of 3 more relations"]
