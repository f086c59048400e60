"""Scoring plans, against a slow count of the same."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.planners.evaluate import made_of, score_plans
from kgqa_core.planners.types import LabelPath, Plan, PlanQuestion


def as_plans(paths: Sequence[LabelPath]) -> list[Plan]:
    return [Plan(path, -float(rank + 1)) for rank, path in enumerate(paths)]


def question(*paths: LabelPath, name: str = "q") -> PlanQuestion:
    return PlanQuestion(name, "who", paths=paths)


def test_a_hit_is_any_of_the_questions_paths_among_the_first_plans() -> None:
    right = question(("a",), ("b", "c"))
    none = question(name="no paths")
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
    assert score_plans([question(("a",))], backward).summary()["hit@1"] == 100
    assert score_plans([question(("a",))], backward, signed=True).summary()["hit@1"] == 0
    assert score_plans([question(("\\^a",))], [as_plans([("\\^a",)])], signed=True).summary()["hit@1"] == 100


def test_without_questions_everything_is_zero() -> None:
    scores = score_plans([], [])
    assert scores.summary() == {"n": 0, "n_without_paths": 0, "hit@1": 0, "hit@3": 0, "valid": 0}
    assert set(scores.intervals().values()) == {0}


def test_as_many_lists_of_plans_as_questions() -> None:
    with pytest.raises(ValueError, match="longer"):
        score_plans([], [[]])


def test_ranked_paths_become_plans_of_falling_probability() -> None:
    first, second = as_plans([("a",), ("b",)])
    assert first.log_prob > second.log_prob


PATHS = st.lists(st.lists(st.sampled_from(["a", "^a", "b", "\\^a"]), max_size=2).map(tuple), max_size=4, unique=True)


@given(st.lists(st.tuples(PATHS, PATHS)))
def test_equals_the_slow_count(rows: list[tuple[list[LabelPath], list[LabelPath]]]) -> None:
    questions = [question(*paths, name=str(number)) for number, (paths, _) in enumerate(rows)]
    plans = [[Plan(path, 0.0) for path in proposed] for _, proposed in rows]
    summary = score_plans(questions, plans).summary()

    def plain(path: LabelPath) -> list[str]:
        return ["^a" if step == "\\^a" else step.replace("^", "") for step in path]

    asked = [(paths, proposed) for paths, proposed in rows if paths]
    for k in (1, 3):
        hits = 0
        for paths, proposed in asked:
            hits += any(plain(path) == plain(plan) for path in paths for plan in proposed[:k])
        assert summary[f"hit@{k}"] == pytest.approx(100 * hits / len(asked) if asked else 0)
    assert summary["n"] + summary["n_without_paths"] == len(rows)
