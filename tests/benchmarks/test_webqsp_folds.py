"""Inverses that are found, what counts as a hit with them, and plans of somebody who knows the chain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import webqsp_folds
from benchmarks.webqsp_folds import (
    PLANNERS,
    find_inverses,
    follow_annotators,
    group,
    group_table,
    plan_held,
    score,
    table,
)
from kgqa_core.instructions.plan import PlanQuestion

CHAINS = {
    "where is ada from": (("born_in",), "ada"),
    "where is bo from": (("born_in",), "bo"),
    "where was bo born": (("born_in",), "bo"),
    "who taught bo": (("school", "teacher"), "bo"),
    "who taught cy": (("school", "teacher"), "cy"),
}
LISTED = [
    (("birth_of",),),
    (("birth_of",), ("lives_in",)),
    (("birth_of",),),
    (("pupil", "teacher"),),
    (("pupil", "staff"),),
]
ASKED = [
    PlanQuestion(str(row), text, paths=paths) for row, (text, paths) in enumerate(zip(CHAINS, LISTED, strict=True))
]


def test_relations_that_stand_for_each_other_count_as_equal() -> None:
    equal = find_inverses(ASKED, CHAINS)
    assert equal == {"born_in": "birth_of", "birth_of": "born_in"}  # "pupil" stands for "school" 4/3 times only
    found = score(ASKED[:2], [[("born_in",)], [("x",), ("y",), ("lives_in",)]], equal)
    assert found == {
        "hit@1": [False, False],
        "equal@1": [True, False],
        "hit@3": [False, True],
        "equal@3": [True, True],
    }


def test_who_knows_the_chain_plans_what_is_listed_for_it_and_for_its_topic() -> None:
    held = [ASKED[1], ASKED[3], PlanQuestion("5", "who is dee")]
    taught = [ASKED[0], ASKED[2], ASKED[4]]
    paths = [path for (path,) in LISTED[2:]]
    scores = np.exp(follow_annotators(taught, held, CHAINS, paths)).round(3)
    assert scores.tolist() == [[1.002, 0.0, 0.0], [0.001, 0.001, 1.001], [1, 1, 1]]
    assert group(taught, held, CHAINS) == ["same", "topic", "unknown"]
    told = {name: [score(held[:2], [[("birth_of",)], []], {})] for name in PLANNERS}
    assert table(told)[2] == "| dense planner | 50.0 ± 0.0 | 50.0 ± 0.0 | 50.0 ± 0.0 | 50.0 ± 0.0 |"
    assert group_table(told, [["same", "topic"]])[-1].endswith("| 1 | 0.0 | 0.0 | 0.0 | 0.0 | 0.0 | 0.0 |")


def test_a_planner_of_an_earlier_run_serves_where_nothing_that_it_learned_from_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = list[int]()

    def fit(taught: Sequence[PlanQuestion], settings: Any, out: Path, *, seed: int) -> dict[str, float]:
        trained.append(len(taught))
        out.mkdir()  # a new folder, as the real one wants it
        return {"cpu_seconds": float(len(trained))}

    monkeypatch.setattr(webqsp_folds, "fit_dense", fit)
    monkeypatch.setattr(webqsp_folds, "open_dense", lambda out: None)
    monkeypatch.setattr(webqsp_folds, "ask_planner", lambda planner, held, num_plans: [[] for _ in held])
    costs = [
        plan_held(tmp_path / "fold", taught, ASKED[4:], epochs)[1][0]
        for taught, epochs in ((ASKED[:2], 1.0), (ASKED[:2], 1.0), (ASKED[:3], 1.0), (ASKED[:3], 2.0), (ASKED[:3], 2.0))
    ]
    assert (trained, costs) == ([2, 3, 3], [1.0, 1.0, 2.0, 3.0, 3.0])
