"""Ours: which answer set is taken at which weight; when the model is asked; a path in the graph behind each answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kgqa_core.graph.follow import end_of
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.plan import PathConstraints, Plan, PlanAsker, PlanInstruction
from kgqa_core.instructions.reason import gather_evidence
from kgqa_core.instructions.render import read_prompts
from kgqa_core.lm.calls import Meter, Metered
from kgqa_core.lm.types import LanguageModel
from kgqa_core.systems.answering import PlanSource
from kgqa_core.systems.ours import (
    WEIGHTS,
    DevQuestion,
    Fusion,
    Option,
    Ours,
    OursSection,
    choose_fusion,
    disagree,
    fuse,
    judge,
    options_of,
    reached_by,
)
from kgqa_core.systems.runner import keep_back
from kgqa_core.systems.types import Answered
from kgqa_core.types import Prediction, Question, ReasoningPath, check_ranking
from tests.forty_triples import Forty
from tests.scripted import ScriptedModel
from tests.systems.asking import answer_all
from tests.systems.following import Proposed, answer_one, answers

ENTITIES = st.integers(0, 8)


def asked(*golds: int, id: str = "q") -> Question:
    return Question(id, "what?", "what?", (99,), golds, "dev")


def explorer(candidates: Sequence[int], scores: Sequence[float], answers: Sequence[int], id: str = "q") -> Prediction:
    return Prediction(id, tuple(candidates), tuple(scores), tuple(answers))


@st.composite
def explored(draw: st.DrawFn) -> Prediction:
    """Any ranking, and as answers the best few of it, as a threshold takes them."""
    candidates = draw(st.lists(ENTITIES, unique=True, max_size=7))
    shares = draw(st.lists(st.sampled_from((1.0, 0.5, 0.25, 0.1)), min_size=len(candidates), max_size=len(candidates)))
    num = draw(st.integers(1, len(candidates))) if candidates else 0
    return explorer(candidates, sorted(shares, reverse=True), candidates[:num])


REACHED = st.lists(st.lists(ENTITIES, unique=True, max_size=5), max_size=4)


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[list[int]], list[float]]:
    """What each plan reaches, and the plans' probabilities, best first."""
    reached = draw(REACHED)
    raw = sorted(draw(st.lists(st.integers(1, 9), min_size=len(reached), max_size=len(reached))), reverse=True)
    return reached, [one / sum(raw) for one in raw]


def fused(found: Prediction, planned: tuple[list[list[int]], list[float]], weight: float, equal: bool) -> Prediction:
    reached, weights = planned
    return fuse(asked(1, 2), found, options_of(found, reached), weights, Fusion(weight, equal=equal))[0]


# Options


def test_options_are_the_explorers_set_and_what_plans_reach_equal_sets_once() -> None:
    found = explorer((3, 1, 2), (0.6, 0.3, 0.1), (3, 1))
    options = options_of(found, [(2,), (1, 3), (), (2,)])
    assert options == (Option((3, 1), (1,), explored=True), Option((2,), (0, 3)))


def test_they_disagree_where_the_first_plan_that_reaches_anything_reaches_something_else() -> None:
    found = explorer((1, 2), (0.6, 0.4), (1,))
    assert not disagree(options_of(found, [(1,), (2,)]))
    assert disagree(options_of(found, [(2,), (1,)]))
    assert not disagree(options_of(found, [(), (1,)]))
    assert disagree(options_of(found, [(1, 2)]))
    assert not disagree(options_of(found, []))  # a planner without a plan says nothing
    assert disagree(options_of(explorer((), (), ()), [(1,)]))  # the explorer found nothing


# Weights


def test_a_weight_between_weighs_one_against_the_other() -> None:
    """Explorer: {1}; plans {1, 2} of .7 and {3} of .3. Scores at weight w: 1-w, 2/3 (1-w) + .7 w, .3 w."""
    found = explorer((1, 2), (0.6, 0.4), (1,))
    options = options_of(found, [(1, 2), (3,)])
    for weight, taken in ((0.0, {1}), (0.3, {1}), (0.4, {1, 2}), (1.0, {1, 2})):
        assert set(fuse(asked(1), found, options, [0.7, 0.3], Fusion(weight))[0].answers) == taken
    assert fuse(asked(1), found, options, [0.2, 0.8], Fusion(1.0))[0].answers == (3,)


def test_entities_of_a_plan_tie_or_keep_the_explorers_order() -> None:
    for shares in ((0.6, 0.3, 0.1), (0.99, 3e-6, 1e-6)):
        found = explorer((1, 2, 3), shares, (1,))
        options, ways = options_of(found, [(2, 3)]), (Fusion(1.0), Fusion(1.0, equal=True))
        by_explorer, tied = (fuse(asked(1), found, options, [1.0], how)[0] for how in ways)
        assert by_explorer.candidates == tied.candidates == (2, 3, 1)
        assert by_explorer.scores[0] > by_explorer.scores[1] > by_explorer.scores[2]
        assert [judge([asked(2)], [one]).hits1 for one in (by_explorer, tied)] == [100, 50]
        assert tied.scores == pytest.approx((1.0, 1.0, 1 / 3))
        alone = fuse(asked(1), found, options, [1.0], Fusion(0.0, equal=True))[0]  # no plan reaches what it answers
        assert alone == fuse(asked(1), found, options, [1.0], Fusion(0.0))[0]


# Predictions


@given(found=explored(), planned=plans(), weight=st.sampled_from(WEIGHTS), equal=st.booleans())
def test_every_fused_prediction_is_a_ranking_with_the_answers_first(
    found: Prediction, planned: tuple[list[list[int]], list[float]], weight: float, equal: bool
) -> None:
    prediction = fused(found, planned, weight, equal)
    check_ranking(prediction.question_id, prediction.candidates, prediction.scores)
    num = len(prediction.answers)
    assert set(prediction.candidates[:num]) == set(prediction.answers)
    assert set(prediction.candidates) == set(found.candidates) | set(prediction.answers)
    if found.answers and 0 < num < len(prediction.candidates):  # no answer ties with what was not taken
        assert prediction.scores[num - 1] > prediction.scores[num]


def test_a_gold_among_candidates_or_answers_is_covered_and_a_claim_is_judged() -> None:
    found = explorer((1,), (1.0,), (1,))
    options = options_of(found, [(5,)])
    covered = fuse(asked(5), found, options, [1.0], Fusion(1.0))[0]
    assert (covered.covered, covered.verdict) == (True, None)
    assert not fuse(asked(6), found, options, [1.0], Fusion(1.0))[0].covered
    claimed = Question("q", "is it 5?", "is it?", (99,), (5,), "dev", claim=5, verdict=True)
    assert fuse(claimed, found, options, [1.0], Fusion(1.0))[0].verdict is True
    assert fuse(claimed, found, options, [1.0], Fusion(0.0))[0].verdict is False


# Chosen on dev


def dev(*cases: tuple[int, int, int, tuple[float, float] | None]) -> list[DevQuestion]:
    """Return a dev question per (gold, explorer's answer, other plan's answer, the model's weights of the plans).

    The first plan reaches the other answer, of .6; the second what the explorer answers.
    """
    questions = []
    for number, (gold, explorers, planners, lm) in enumerate(cases):
        found = explorer((explorers,), (1.0,), (explorers,), f"q{number}")
        options = options_of(found, [(planners,), (explorers,)])
        questions.append(DevQuestion(asked(gold, id=f"q{number}"), found, options, (0.6, 0.4), lm))
    return questions


RIGHT, WRONG = 1, 2


def test_the_models_word_decides_only_where_it_is_worth_its_calls() -> None:
    """Explorer right, then planner right: only the model tells them apart."""
    both = dev((RIGHT, RIGHT, WRONG, (0.1, 0.9)), (RIGHT, WRONG, RIGHT, (0.9, 0.1)))
    chosen, tried = choose_fusion(both)
    assert chosen.decided_by == "lm"
    assert tried[chosen].asked == 1.0
    assert max(point.objective for fusion, point in tried.items() if fusion.decided_by == "planner") == 50
    useless = dev((RIGHT, RIGHT, WRONG, (0.1, 0.9)), (RIGHT, RIGHT, WRONG, (0.1, 0.9)))
    chosen, tried = choose_fusion(useless)
    assert chosen.decided_by == "planner"
    assert tried[chosen].asked == 0.0


def test_only_questions_that_were_put_to_the_model_cost_a_call() -> None:
    _, tried = choose_fusion(dev((RIGHT, RIGHT, WRONG, (0.1, 0.9)), (RIGHT, RIGHT, RIGHT, None)))
    assert tried[Fusion(0.5, "lm")].asked == 0.5


@given(
    st.lists(
        st.tuples(
            st.integers(1, 3),
            st.integers(1, 3),
            st.integers(1, 3),
            st.one_of(st.none(), st.sampled_from(((0.9, 0.1), (0.2, 0.8)))),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_no_other_way_is_better_by_more_than_its_calls_are_worth(
    cases: list[tuple[int, int, int, tuple[float, float] | None]],
) -> None:
    questions = dev(*cases)
    chosen, tried = choose_fusion(questions)
    best = max(point.objective for point in tried.values())
    assert tried[chosen].objective >= best - 0.01
    alone = judge([one.question for one in questions], [one.explored for one in questions])
    assert tried[chosen].objective >= alone.objective  # weight 0 is among those tried


# The system on forty triples

LABELS = ("directed_by", "starred", "year", "born_in", "genre", "^directed_by", "^starred", "^year", "located_in")
Weighted = Sequence[tuple[str, float] | tuple[str, float, float]]  # plans, steps parted by blanks; log_prob, and sure


@dataclass(frozen=True)
class Explored:
    """Plays an explorer that walks some plans: what they end at is ranked by them, the first is the answer set."""

    walk: SearchGraph
    plans: Sequence[str]  # of every question; steps parted by blanks
    evidence_paths: int = 3
    evidence_of_answers: bool = False

    def answer(self, questions: Sequence[Question]) -> list[Prediction]:
        return [self._predict(question) for question in questions]

    def _predict(self, question: Question) -> Prediction:
        paths: dict[int, ReasoningPath] = {}
        scores: list[float] = []
        num_answers = 0
        inside = self.walk.subgraphs.to_rows(question) if self.walk.subgraphs else question
        for number, plan in enumerate(self.plans):
            found = gather_evidence(self.walk, inside.topics, [(tuple(plan.split()), 1.0)], max_paths=99)
            for path in found.steps:
                if end_of(path) not in paths:
                    paths[end_of(path)] = path
                    scores.append(0.5**number)
            num_answers = num_answers or len(paths)
        ranked = tuple(paths)
        num_shown = max(self.evidence_paths, num_answers if self.evidence_of_answers else 0)
        shown = tuple(paths.values())[:num_shown]
        prediction = Prediction(question.id, ranked, tuple(scores), ranked[:num_answers], shown)
        return self.walk.subgraphs.to_entities(prediction) if self.walk.subgraphs else prediction


def asker(walk: SearchGraph) -> PlanAsker:
    return PlanAsker(PlanInstruction(read_prompts()), PathConstraints(walk.graph, max_hops=walk.max_hops))


def ours(walk: SearchGraph, explored: Sequence[str], plans: Weighted | None, fusion: Fusion) -> Ours:
    """Return the system; plans None: they are asked for."""
    made = None if plans is None else Proposed([Plan(tuple(plan.split()), *told) for plan, *told in plans])
    plays: Any = Explored(walk, explored)
    return Ours(walk, plays, PlanSource(made or asker(walk)), asker(walk), fusion, OursSection())


def run(
    forty: Forty,
    id: str,
    explored: Sequence[str],
    plans: Weighted | None,
    fusion: Fusion,
    model: LanguageModel | None = None,
) -> Answered:
    return answer_one(forty, ours(forty.search, explored, plans, fusion), id, model)


PLANNER, LM = Fusion(0.6), Fusion(0.6, "lm")
APART: Weighted = [("directed_by born_in", -0.1), ("starred born_in", -3.0)]  # beside an explorer that follows actors


def preferring_the_second() -> ScriptedModel:
    return ScriptedModel().on("plan", "where was the director of [topic] born?", scores=(-5.0, -0.01))


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
    way = [forty.graph.relation_names[step.relation] for step in by_planner.answer.prediction.paths[0]]
    assert (way, by_planner.num_invented) == (["directed_by", "born_in"], 0)  # not the way by which the explorer came
    model = preferring_the_second()
    by_lm = run(forty, "born", ["starred born_in"], APART, LM, model)
    assert model.options == [("<PATH>directed_by<SEP>born_in</PATH>", "<PATH>starred<SEP>born_in</PATH>")]
    assert answers(forty, by_lm) == ["Port Amber", "Westerby"]
    assert [call.instruction for call in by_lm.calls] == ["plan"]


def test_a_model_that_cannot_be_asked_leaves_it_to_the_planner(forty: Forty) -> None:
    model = Metered(ScriptedModel(), meter=Meter(), max_calls=0)
    answered = run(forty, "born", ["starred born_in"], APART, LM, model)
    assert (answers(forty, answered), answered.calls[0].problem) == (["Port Amber"], "no likelihood")


def test_a_planner_that_is_a_model_is_asked_for_its_plans_first(forty: Forty) -> None:
    model = ScriptedModel(in_order=True)
    model.on("plan", "", "<PATH>directed_by<SEP>born_in</PATH>", "<PATH>year</PATH>", scores=(-0.1, -4.0))
    model.on("plan", "", scores=(-0.1, -4.0))
    answered = run(forty, "born", ["starred born_in"], None, LM, model)
    assert (answers(forty, answered), len(answered.calls)) == (["Port Amber"], 2)


def test_it_is_as_sure_as_its_plan_is_probable_among_all_even_those_that_lead_nowhere(forty: Forty) -> None:
    sure = [("directed_by born_in", -0.1, 0.3), ("starred born_in", -3.0, 0.1)]
    by_planner = run(forty, "born", ["starred born_in"], sure, PLANNER)
    assert (answers(forty, by_planner), by_planner.confidence) == (["Port Amber"], 0.3)
    assert keep_back(by_planner, 0.31).status == "abstained"
    model = preferring_the_second()
    by_lm = run(forty, "born", ["starred born_in"], sure, LM, model)
    assert by_lm.confidence == by_lm.calls[-1].confidence
    doubted = run(forty, "born", ["starred born_in"], sure, Fusion(0.1, "lm"), model.on("plan", scores=(-0.01, -5.0)))
    assert answers(forty, doubted) == ["Port Amber", "Westerby"]  # the explorer's, by the plan that is less probable
    assert doubted.confidence == pytest.approx(1 - doubted.calls[-1].confidence)
    silent = run(forty, "born", ["starred born_in"], APART, PLANNER)  # does not say: among those that exist
    assert silent.confidence == pytest.approx(1 / (1 + math.exp(-2.9)))
    assert run(forty, "born", ["born_in", "starred born_in"], [], PLANNER).confidence == 0.5  # no plan: the explorer's


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
    forty: Forty, id: str, explored: list[str], plans: list[tuple[str, float]], fusion: Fusion, log_probs: list[float]
) -> None:
    plans = sorted(plans, key=lambda one: -one[1])
    model = ScriptedModel().on("plan", scores=log_probs[: len(plans)], times=None)
    system = ours(forty.search, explored, plans, fusion)
    (answered,) = answer_all(system, [forty.question(id)], forty.search, model)
    assert (answered.error, all(answered.faithful), answered.num_invented) == ("", True, 0)
    prediction = answered.answer.prediction
    check_ranking(prediction.question_id, prediction.candidates, prediction.scores)
    assert set(prediction.candidates[: len(prediction.answers)]) == set(prediction.answers)
    asked = fusion.decided_by == "lm" and bool(answered.answer.counts["disagree"])
    assert len(answered.calls) == asked
    (alone,) = Explored(forty.search, explored).answer([forty.question(id)])
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
    system = ours(walk, ["likes"], [("sibling sibling", -0.1)], Fusion(weight))
    (answered,) = answer_all(system, [question], walk, None)
    assert answered.error == ""
    names = [walk.entities.name_of(one) for one in answered.answer.prediction.answers]
    assert names == (["Jazz"] if weight == 0 else ["Bob"])
    assert answered.faithful == (True,)
