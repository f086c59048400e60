"""KAPING: which triples stand around a topic, which of them are most like the question, and that they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.places import RUN, write_places
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.run.ensure import ensure
from kgqa_core.systems.baselines import Kaping, KapingSection
from kgqa_core.types import Question
from tests.conftest import open_run
from tests.forty_triples import Forty
from tests.scripted import ScriptedModel, script
from tests.systems.asking import answer_all
from tests.systems.following import LINES, answer_one, answers, lines_under

WORDS = ("directed", "starred", "born", "year", "genre", "Salt", "Ida", "1989")


def encode(texts: Sequence[str]) -> np.ndarray:
    """Return unit-norm rows of which words a text holds; all texts hold one word more, so none is zero."""
    rows = np.array([[1.0, *(word in text for word in WORDS)] for text in texts])
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


@pytest.mark.parametrize(
    ("id", "settings", "shown", "num_unranked"),
    [
        ("directed", {"num_triples": 2}, ["directed_by → Ida Moon", "genre → drama"], 0),  # equals by relation
        ("directed", {"num_triples": 1}, ["directed_by → Ida Moon"], 0),
        ("directed", {"max_ranked": 1}, ["directed_by → Ida Moon"], 4),
    ],
)
def test_the_triples_most_like_the_question_are_shown_best_first(
    forty: Forty, id: str, settings: dict[str, int], shown: list[str], num_unranked: int
) -> None:
    system = Kaping(forty.search, LINES, encode, KapingSection(**settings))
    answered = answer_one(forty, system, id, script(("reason", "", "Ida Moon")))
    assert lines_under(answered.calls[0].prompt, "Paths:") == [f"Salt Road → {one}" for one in shown]
    assert answers(forty, answered) == ["Ida Moon"] and answered.faithful == (True,)
    assert answered.answer.counts["num_paths"] == len(shown)
    assert answered.answer.counts["num_unranked"] == num_unranked


def test_two_steps_show_triples_that_begin_behind_the_topic_and_none_twice(forty: Forty) -> None:
    system = Kaping(forty.search, LINES, encode, KapingSection(hops=2, num_triples=100))
    answered = answer_one(forty, system, "born", script(("reason", "", "Port Amber")))
    shown = lines_under(answered.calls[0].prompt, "Paths:")
    assert len(shown) == len(set(shown)) == answered.answer.counts["num_paths"]
    assert "Ida Moon → born_in → Port Amber" in shown and "Salt Road → directed_by → Ida Moon" in shown
    assert not any(one.endswith("→ Salt Road") for one in shown)  # the triple is there already, the other way
    for most in (1, 9, len(shown), 100):  # the last two leave none out, whatever is met from both its ends
        few = replace(system, settings=KapingSection(hops=2, max_ranked=most))
        ((_, num_unranked),) = few.prepare([forty.question("born")])
        assert num_unranked == len(shown) - min(most, len(shown))
    assert answers(forty, answered) == ["Port Amber"] and answered.faithful == (True,)


def test_no_topic_crowds_out_another(forty: Forty) -> None:
    question = replace(forty.question("directed"), topics=forty.ids("Port Amber", "Westerby"))
    system = Kaping(forty.search, LINES, encode, KapingSection(max_ranked=2))
    answered = answer_one(forty, system, question, script(("reason", "", "Osmania")))
    shown = lines_under(answered.calls[0].prompt, "Paths:")
    assert sorted(one.split(" → ")[0] for one in shown) == ["Port Amber", "Westerby"]
    assert answered.answer.counts["num_unranked"] == 7


def test_each_question_has_the_triples_of_its_own_subgraph(rows: tuple[SearchGraph, list[Question]]) -> None:
    walk, questions = rows
    model = ScriptedModel().on("reason", "", "I do not know", times=None)
    asked = [one for one in questions if one.topics]
    told = answer_all(Kaping(walk, LINES, encode, KapingSection(hops=2)), asked, walk, model)
    paths = [path for one in told for path in one.answer.prediction.paths]
    assert all(one.error == "" for one in told) and len(told) == len(asked)
    assert not paths  # an abstention ranks nothing


@pytest.mark.parametrize("system", ["kaping", "rog, rog: {plans: encoder}"])
def test_a_run_encodes_with_its_own_encoder_and_trains_no_explorer_for_it(tmp_path: Path, system: str) -> None:
    write_places(tmp_path)
    run, _, settings = system.partition(", ")
    text = f"{RUN}systems: {{run: [{run}], answered_by: [first], num_questions: 7, {settings}}}\n"
    pipeline, key = open_run(tmp_path / "run.yaml", text), f"system-{run}-first-seed0"
    needed = pipeline.needed_for([key])
    assert "encodings" in needed and not any(one.startswith(("explorer", "dense")) for one in needed)
    ensure(pipeline, needed)
    table = pq.read_table(pipeline.artifact(key).folder / "predictions.parquet").to_pylist()
    assert len(table) == 7 and all(one["num_calls"] == 1 and all(one["faithful"]) for one in table)
    assert any(one["faithful"] for one in table)
