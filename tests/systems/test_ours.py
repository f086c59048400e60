"""Ours on forty triples: what is fused, when the model is asked, and a path in the graph behind every answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kgqa_core.evaluation.metrics import check_ranking
from kgqa_core.graph.follow import end_of
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.plan import PathConstraints, Plan, PlanAsker, PlanInstruction, PlanQuestion
from kgqa_core.instructions.reason import gather_evidence
from kgqa_core.instructions.render import read_prompts
from kgqa_core.lm.calls import Budget, Meter, Metered
from kgqa_core.lm.types import LanguageModel
from kgqa_core.planners.generator import PlanAsker
from kgqa_core.planners.types import Plan, PlanQuestion
from kgqa_core.systems.answering import PlanSource
from kgqa_core.systems.ours import Fusion, Ours, OursSection, reached_by
from kgqa_core.systems.runner import answer_all
from kgqa_core.systems.types import Answered
from kgqa_core.types import LabelPath, Prediction, Question, ReasoningPath
from tests.forty_triples import Forty
from tests.scripted import ScriptedModel
from tests.systems.following import answer_one, answers

LABELS = ("directed_by", "starred", "year", "born_in", "genre", "^directed_by", "^starred", "^year", "located_in")
Weighted = Sequence[tuple[str, float]]  # plans, their steps parted by blanks, with their log-probabilities


@dataclass(frozen=True)
class Explored:
    """Plays an explorer that walks some plans: what they end at is ranked by them, the first is the answer set."""

    walk: SearchGraph
    plans: Mapping[str, Sequence[str]]  # by question id; steps parted by blanks
    evidence_paths: int = 3
    evidence_of_answers: bool = False

    def answer(self, questions: Sequence[Question]) -> list[Prediction]:
        return [self._predict(question) for question in questions]

    def _predict(self, question: Question) -> Prediction:
        paths: dict[int, ReasoningPath] = {}
        scores: list[float] = []
        num_answers = 0
        inside = self.walk.subgraphs.to_rows(question) if self.walk.subgraphs else question
        for number, plan in enumerate(self.plans.get(question.id, ())):
            found = gather_evidence(self.walk, inside.topics, [(tuple(plan.split()), 1.0)], max_paths=99)
            for path in found.steps:
                if end_of(path) not in paths:
                    paths[end_of(path)] = path
                    scores.append(0.5**number)
            num_answers = num_answers or len(paths)
        ranked = tuple(paths)
        num_shown = max(self.evidence_paths, num_answers if self.evidence_of_answers else 0)
        shown = tuple(paths.values())[:num_shown]
        prediction = Prediction(question.id, ranked, tuple(scores), ranked[:num_answers], shown, abstained=not ranked)
        return self.walk.subgraphs.to_entities(prediction) if self.walk.subgraphs else prediction


@dataclass(frozen=True)
class Dense:
    """Plays a planner with plans made beforehand."""

    plans: Mapping[str, Weighted]
    name: str = "dense"

    def plan(self, questions: Sequence[PlanQuestion], *, num_plans: int = 3) -> list[list[Plan]]:
        return [
            [Plan(tuple(plan.split()), log_prob) for plan, log_prob in self.plans.get(one.id, ())[:num_plans]]
            for one in questions
        ]


def asker(walk: SearchGraph) -> PlanAsker:
    return PlanAsker(PlanInstruction(read_prompts()), PathConstraints(walk.graph, max_hops=walk.max_hops))


def ours(walk: SearchGraph, explorer: Explored, plans: Mapping[str, Weighted] | None, fusion: Fusion) -> Ours:
    source = PlanSource(asker(walk) if plans is None else Dense(plans))
    plays: Any = explorer
    return Ours(walk, plays, source, asker(walk), fusion, OursSection())


def run(
    forty: Forty,
    id: str,
    explored: Sequence[str],
    plans: Weighted | None,
    fusion: Fusion,
    model: LanguageModel | None = None,
) -> Answered:
    """Answer one question; plans None: they are asked for."""
    system = ours(forty.search, Explored(forty.search, {id: explored}), None if plans is None else {id: plans}, fusion)
    return answer_one(forty, system, id, model)


PLANNER, LM = Fusion(0.6), Fusion(0.6, "lm")
APART: Weighted = [("directed_by born_in", -0.1), ("starred born_in", -3.0)]  # beside an explorer that follows actors


# Calls


def test_where_both_agree_nobody_is_asked(forty: Forty) -> None:
    answered = run(forty, "born", ["directed_by born_in"], APART, LM)
    assert (answers(forty, answered), answered.calls) == (["Port Amber"], ())
    assert answered.answer.counts == {"num_plans": 2, "num_options": 2, "disagree": 0.0, "num_paths": 1}
    assert answered.faithful == (True,)


def test_where_they_disagree_the_planner_decides_or_the_model_is_asked_once(forty: Forty) -> None:
    """The explorer follows the actors, to two places; the planner the director, to one."""
    by_planner = run(forty, "born", ["starred born_in"], APART, PLANNER)
    assert (answers(forty, by_planner), by_planner.calls) == (["Port Amber"], ())
    assert by_planner.answer.counts["disagree"] == 1.0
    model = ScriptedModel().on("plan", "where was the director of [topic] born?", scores=(-5.0, -0.01))
    by_lm = run(forty, "born", ["starred born_in"], APART, LM, model)
    assert model.options == [("<PATH>directed_by<SEP>born_in</PATH>", "<PATH>starred<SEP>born_in</PATH>")]
    assert answers(forty, by_lm) == ["Port Amber", "Westerby"]
    assert [call.instruction for call in by_lm.calls] == ["plan"]


def test_a_model_that_cannot_be_asked_leaves_it_to_the_planner(forty: Forty) -> None:
    model = Metered(ScriptedModel(), meter=Meter(), budget=Budget(calls=0))
    answered = run(forty, "born", ["starred born_in"], APART, LM, model)
    assert (answers(forty, answered), answered.calls[0].problem) == (["Port Amber"], "no likelihood")


def test_a_planner_that_is_a_model_is_asked_for_its_plans_first(forty: Forty) -> None:
    model = ScriptedModel(in_order=True)
    model.on("plan", "", "<PATH>directed_by<SEP>born_in</PATH>", "<PATH>year</PATH>", scores=(-0.1, -4.0))
    model.on("plan", "", scores=(-0.1, -4.0))
    answered = run(forty, "born", ["starred born_in"], None, LM, model)
    assert (answers(forty, answered), len(answered.calls)) == (["Port Amber"], 2)


def test_without_plans_the_explorer_answers(forty: Forty) -> None:
    answered = run(forty, "born", ["starred born_in"], [], Fusion(1.0, "lm"))
    assert answers(forty, answered) == ["Port Amber", "Westerby"]
    assert (answered.calls, answered.answer.counts["num_plans"]) == ((), 0)


def test_without_anything_explored_the_planner_answers(forty: Forty) -> None:
    answered = run(forty, "born", [], APART, PLANNER)
    assert answers(forty, answered) == ["Port Amber"]
    assert answered.faithful == (True,)


def test_without_either_there_is_no_answer(forty: Forty) -> None:
    answered = run(forty, "born", [], [("painted_by", -0.1)], LM)
    assert (answered.status, answered.answer.counts["num_options"]) == ("abstained", 0)


# Evidence


def test_answers_of_a_plan_have_their_path_along_it(forty: Forty) -> None:
    """The explorer came to Port Amber by way of an actor; what is answered is the place of the director."""
    answered = run(forty, "born", ["starred born_in"], APART, PLANNER)
    prediction = answered.answer.prediction
    labels = [forty.graph.relation_labels[step.relation] for step in prediction.paths[0]]
    assert labels == ["directed_by", "born_in"]
    assert answered.num_invented == 0


def test_what_the_explorer_answers_keeps_the_explorers_paths(forty: Forty) -> None:
    answered = run(forty, "born", ["starred born_in"], APART, Fusion(0.0))
    assert [len(path) for path in answered.answer.prediction.paths] == [2, 2]
    assert answered.faithful == (True, True)


def test_evidence_is_there_for_all_answers_however_few_the_explorer_would_show(forty: Forty) -> None:
    (film,) = forty.ids("Nightjar")
    asked = Question("people", "who had to do with the films of 1992?", "?", (film,), (), "test")
    plan = "starred ^starred starred"
    system = ours(forty.search, Explored(forty.search, {"people": [plan]}, evidence_paths=1), {}, PLANNER)
    (answered,) = answer_all(system, [asked], forty.search, None)
    assert len(answered.faithful) > 2
    assert all(answered.faithful)


@st.composite
def label_paths(draw: st.DrawFn) -> str:
    return " ".join(draw(st.lists(st.sampled_from(LABELS), min_size=1, max_size=3)))


@given(
    id=st.sampled_from(("directed", "starred", "born", "other", "years", "right")),
    explored=st.lists(label_paths(), max_size=3),
    plans=st.lists(st.tuples(label_paths(), st.floats(-5, 0)), max_size=3, unique_by=lambda one: one[0]),
    fusion=st.builds(Fusion, st.sampled_from((0.0, 0.3, 0.7, 1.0)), st.sampled_from(("planner", "lm"))),
    log_probs=st.lists(st.floats(-5, 0), min_size=3, max_size=3),
)
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=35)
def test_every_answer_has_a_path_that_stands_in_the_graph_and_calls_are_rare(
    forty: Forty,
    id: str,
    explored: list[str],
    plans: list[tuple[str, float]],
    fusion: Fusion,
    log_probs: list[float],
) -> None:
    plans = sorted(plans, key=lambda one: -one[1])
    model = ScriptedModel().on("plan", scores=log_probs[: len(plans)], times=None)
    system = ours(forty.search, Explored(forty.search, {id: explored}), {id: plans}, fusion)
    (answered,) = answer_all(system, [forty.question(id)], forty.search, model)
    assert answered.error == ""
    assert all(answered.faithful)
    assert answered.num_invented == 0
    prediction = answered.answer.prediction
    check_ranking(prediction)
    assert set(prediction.candidates[: len(prediction.answers)]) == set(prediction.answers)
    asked = fusion.decided_by == "lm" and bool(answered.answer.counts["disagree"])
    assert len(answered.calls) == asked
    (alone,) = Explored(forty.search, {id: explored}).answer([forty.question(id)])
    if fusion.weight == 0 and alone.answers:
        assert set(prediction.answers) == set(alone.answers)
    if fusion.weight == 1 and not asked and answered.answer.counts["num_options"]:
        proposed = [Plan(tuple(plan.split()), log) for plan, log in plans]
        (reached,) = reached_by(forty.search, [forty.question(id).topics], [proposed])
        assert not any(reached) or set(prediction.answers) in [set(entities) for entities in reached]


# Where each question has a subgraph of its own


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_plans_are_followed_in_the_questions_subgraph(rows: tuple[SearchGraph, list[Question]], weight: float) -> None:
    """Explorer and planner disagree; whoever wins, answers and evidence are entities of the whole graph."""
    walk, questions = rows
    (question,) = (one for one in questions if one.id == "q1")
    path: LabelPath = ("sibling", "sibling")
    plans: dict[str, Weighted] = {"q1": [(" ".join(path), -0.1)]}
    system = ours(walk, Explored(walk, {"q1": ["likes"]}), plans, Fusion(weight))
    (answered,) = answer_all(system, [question], walk, None)
    assert answered.error == ""
    names = [walk.entities.name_of(one) for one in answered.answer.prediction.answers]
    assert names == (["Jazz"] if weight == 0 else ["Bob"])
    assert answered.faithful == (True,)
