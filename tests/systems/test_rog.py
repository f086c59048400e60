"""RoG step by step on forty triples: its plans, the paths of Algorithm 1, and what it makes of the reasoner's text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kgqa_core.evaluation.metrics import decides_claim, pair_outcome, score_predictions
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.plan import PathConstraints, Plan, PlanAsker, PlanInstruction, PlanQuestion
from kgqa_core.lm.calls import Meter, Metered
from kgqa_core.lm.types import LanguageModel
from kgqa_core.oracle.plans import FixedPlans
from kgqa_core.systems.answering import PlanSource
from kgqa_core.systems.rog import Rog, RogSection
from kgqa_core.systems.types import Answered
from kgqa_core.types import LabelPath, Question
from tests.forty_triples import Forty
from tests.scripted import ScriptedModel, script
from tests.systems.asking import answer_all
from tests.systems.following import LINES, answer_one, answers, lines_under


def lm_plans(forty: Forty, mask_topics: bool = True) -> PlanSource:
    """Return plans that the model is asked for, held to those that exist in the graph."""
    space = PathConstraints(forty.graph, max_hops=forty.search.max_hops)
    return PlanSource(PlanAsker(PlanInstruction(LINES), space), mask_topics)


def given(**plans: Sequence[str]) -> PlanSource:
    """Return plans, written with blanks between their steps, that are there before any call."""
    return PlanSource(FixedPlans({id: [tuple(plan.split()) for plan in own] for id, own in plans.items()}))


def run(
    forty: Forty,
    question: Question | str,
    model: LanguageModel | None,
    source: PlanSource | None = None,
    **settings: object,
) -> Answered:
    system = Rog(forty.search, LINES, source or lm_plans(forty), RogSection.model_validate(settings))
    return answer_one(forty, system, question, model)


def shown_paths(prompt: str) -> list[str]:
    """Return the paths that the prompt of ``reason`` or ``explain`` shows."""
    return lines_under(prompt, "Paths:")


# Plan, retrieve, reason


def test_a_whole_run_is_two_calls(forty: Forty) -> None:
    """The director of Salt Road was born in Port Amber; so was one of its actors, and one in Westerby."""
    model = ScriptedModel(in_order=True)
    model.on(
        "plan",
        "where was the director of [topic] born?",
        "<PATH>directed_by<SEP>born_in</PATH>",
        "<PATH>starred<SEP>born_in</PATH>",
        "<PATH>year</PATH>",
        scores=(-0.1, -1.0, -3.0),
    )
    model.on("reason", "where was the director of Salt Road born?", "Port Amber")
    answered = run(forty, "born", model)
    assert [call.instruction for call in answered.calls] == ["plan", "reason"]
    # A path of each plan in turns, best plan first: one to every end, ends by id, before a second to any.
    assert shown_paths(answered.calls[1].prompt) == [
        "Salt Road → directed_by → Ida Moon → born_in → Port Amber",
        "Salt Road → starred → Oto Brandt → born_in → Port Amber",
        "Salt Road → year → 1989",
        "Salt Road → starred → Mara Quill → born_in → Westerby",
    ]
    assert answers(forty, answered) == ["Port Amber"]
    assert answered.faithful == (True,)
    prediction = answered.answer.prediction
    assert forty.labels(prediction.candidates) == ["Port Amber", "1989", "Westerby"]  # what was not taken scores 0
    assert prediction.scores == (1.0, 0.0, 0.0)
    assert [len(path) for path in prediction.paths] == [2, 1, 2]
    assert answered.answer.counts == {"num_unsupported": 0, "num_plans": 3, "num_paths": 4, "num_plans_cut": 0}
    figures = score_predictions([forty.question("born")], [prediction]).summary()
    assert (figures["hits1"], figures["f1"], figures["coverage"]) == (100, 100, 100)


def test_the_beam_is_as_wide_as_plans_are_wanted_and_held_to_those_that_exist(forty: Forty) -> None:
    model = ScriptedModel()
    model.on("plan", "", "<PATH>directed_by</PATH>", "<PATH>painted_by</PATH>", scores=(-0.5, -0.1))
    model.on("reason", "", "Ida Moon")
    answered = run(forty, "directed", model, num_plans=2)
    assert len(answered.calls[0].texts) == 2
    constraint = model.asked[0].constraint
    assert constraint is not None
    assert "directed_by</PATH>" in constraint.next_pieces(("<PATH>",))
    assert "painted_by</PATH>" not in constraint.next_pieces(("<PATH>",))  # no film is painted
    assert shown_paths(answered.calls[1].prompt) == ["Salt Road → directed_by → Ida Moon"]
    assert answered.answer.counts["num_plans"] == 1


@pytest.mark.parametrize(
    ("id", "plan", "said", "paths"),
    [
        (
            "starred",  # walked backward, as the plan says; the order of the answers is the model's
            "^starred",
            ["The Ninth Kite", "Salt Road"],
            ["Mara Quill → ^starred → Salt Road", "Mara Quill → ^starred → The Ninth Kite"],
        ),
        (
            "other",  # Salt Road itself is one way along the plan: no path comes back to a topic
            "directed_by ^directed_by",
            ["Glass Harbour"],
            ["Salt Road → directed_by → Ida Moon → ^directed_by → Glass Harbour"],
        ),
        (
            "mayor",  # nodes without a name stand between
            "mayor holder",
            ["Mara Quill"],
            ["Port Amber → mayor → m.2 → holder → Mara Quill", "Port Amber → mayor → m.1 → holder → Oto Brandt"],
        ),
    ],
)
def test_paths_lead_along_a_plan(forty: Forty, id: str, plan: str, said: list[str], paths: list[str]) -> None:
    answered = run(forty, id, script(("reason", "", "\n".join(said))), given(**{id: [plan]}))
    assert shown_paths(answered.calls[0].prompt) == paths
    assert answers(forty, answered) == said
    assert answered.answer.prediction.scores[: len(said)] == (1.0, 0.5)[: len(said)]
    assert answered.faithful == (True,) * len(said)


def test_the_number_of_paths_is_capped_evenly_over_the_plans(forty: Forty) -> None:
    plans = given(years=["starred ^starred year", "year"])
    answered = run(forty, "years", script(("reason", "", "1995")), plans, max_paths=2)
    ends = [path.rpartition(" → ")[2] for path in shown_paths(answered.calls[0].prompt)]
    assert ends == ["1989", "1995"]
    assert answered.answer.counts["num_plans_cut"] == 1  # the first has more


LIKELY = (-0.1, -1.0, -4.0)  # 0.70, 0.28 and 0.01


@pytest.mark.parametrize(
    ("mass", "scores", "followed"),
    [
        (1.0, LIKELY, 3),
        (0.95, LIKELY, 2),
        (0.5, LIKELY, 1),
        (1.0, (0.0, -60.0, -61.0), 3),  # 1: all, however unlikely
        (0.5, (-1.0, -1.0, -1.0), 3),  # those of a pool weigh alike, and any of them may be the right one
        (0.97, (-0.1, -4.0, -4.0), 3),
        (0.5, (-0.1, -4.0, -4.0), 1),
    ],
)
def test_plans_are_followed_until_they_have_the_share_of_probability_that_is_asked(
    forty: Forty, mass: float, scores: tuple[float, ...], followed: int
) -> None:
    model = ScriptedModel(in_order=True)
    plans = ("<PATH>directed_by<SEP>born_in</PATH>", "<PATH>starred<SEP>born_in</PATH>", "<PATH>year</PATH>")
    model.on("plan", "", *plans, scores=scores)
    model.on("reason", "", "Port Amber")
    answered = run(forty, "born", model, plan_mass=mass)
    ways = {path.split(" → ")[1] for path in shown_paths(answered.calls[1].prompt)}
    assert ways == {"directed_by", "starred", "year"} if followed == 3 else len(ways) == followed
    assert answered.answer.counts["num_plans"] == 3


def test_planners_read_the_question_masked_or_as_it_was_asked(forty: Forty) -> None:
    class Echo:
        def plan(self, questions: list[PlanQuestion], *, num_plans: int = 3) -> list[list[Plan]]:
            return [[Plan((one.id, one.text), -1.0)] * num_plans for one in questions]

    for mask, text in ((True, "who directed [topic]?"), (False, "who directed Salt Road?")):
        model = script(("plan", text, "<PATH>directed_by</PATH>"), ("reason", "Salt Road?", "Ida Moon"))
        run(forty, "directed", model, lm_plans(forty, mask))
        given_before = PlanSource(Echo(), mask).prepare([forty.question("directed")], 2)  # type: ignore[arg-type]
        assert given_before == [[Plan(("directed", text), -1.0)] * 2]


# What the reasoner says


@pytest.mark.parametrize(
    ("id", "text", "found", "unmatched", "faithful"),
    [
        ("painted", "Ida Moon", ["Ida Moon (painter)"], (), True),  # of two of one name the one that paths end at
        ("directed", "Lev Sand", ["Lev Sand"], (), False),  # the paths do not show him
        ("directed", "Nobody Whatever\nIda Moon", ["Ida Moon"], ("Nobody Whatever",), True),
    ],
)
def test_answers_are_entities_by_name_with_the_paths_that_end_in_them(
    forty: Forty, id: str, text: str, found: list[str], unmatched: tuple[str, ...], faithful: bool
) -> None:
    plans = given(painted=["painted_by"], directed=["directed_by"])
    answered = run(forty, id, script(("reason", "", text)), plans)
    assert (answers(forty, answered), answered.answer.unmatched) == (found, unmatched)
    assert answered.faithful == (faithful,)
    assert answered.answer.counts["num_unsupported"] == (not faithful)


@pytest.mark.parametrize(
    ("id", "said", "verdict", "found"),
    [
        ("right", "Yes.", True, ["Ida Moon"]),
        ("right", "no", False, []),
        ("wrong", "No", False, ["Ida Moon"]),  # all that the paths end at but the claim
        ("wrong", "true", True, ["Lev Sand"]),
        ("wrong", "Ida Moon", False, ["Ida Moon"]),
        ("right", "No, Ida Moon did not direct it.", False, []),  # the verdict is meant, not whom it is about
        ("right", "**Yes**, Ida Moon directed it.", True, ["Ida Moon"]),
        ("wrong", "No: Lev Sand had no part in it.", False, ["Ida Moon"]),
        ("wrong", "No, but\nIda Moon", False, ["Ida Moon"]),
        ("directed", "Yes", None, []),  # no claim: a name, which nothing bears
    ],
)
def test_a_claim_is_answered_by_a_verdict_or_a_name(
    forty: Forty, id: str, said: str, verdict: bool | None, found: list[str]
) -> None:
    answered = run(forty, id, script(("reason", "", said)), given(**{id: ["directed_by"]}))
    assert (answered.answer.prediction.verdict, answers(forty, answered)) == (verdict, found)
    is_right = decides_claim(pair_outcome(forty.question(id), answered.answer.prediction))
    assert is_right == (verdict == forty.question(id).verdict is not None)
    assert answered.status == ("unmatched" if verdict is None else "answered")


@pytest.mark.parametrize(
    ("text", "status"),
    [("I do not know", "abstained"), ("", "unreadable"), ("```", "unreadable"), ("Nobody Whatever", "unmatched")],
)
def test_no_answer_ranks_nothing_but_what_was_retrieved_counts_as_covered(forty: Forty, text: str, status: str) -> None:
    answered = run(forty, "directed", script(("reason", "", text)), given(directed=["directed_by"]))
    assert answered.status == status
    prediction = answered.answer.prediction
    assert (prediction.candidates, prediction.answers, prediction.covered) == ((), (), True)
    assert answered.answer.unmatched == (("Nobody Whatever",) if text == "Nobody Whatever" else ())


def test_without_a_plan_the_reasoner_is_shown_no_path(forty: Forty) -> None:
    for text in ("nonsense", "<PATH>no_such_relation</PATH>", "<PATH>painted_by</PATH>", ""):
        model = script(("plan", "", text), ("reason", "\n(none)\n", "Ida Moon"))
        answered = run(forty, "directed", model)
        assert answered.faithful == (False,)
        assert answered.answer.counts["num_plans"] == 0


def test_plans_of_a_server_without_beams_are_the_most_frequent_of_its_samples(forty: Forty) -> None:
    steps = ["year", "directed_by", "year", "directed_by<SEP>born_in", "painted_by", "directed_by", "directed_by", ""]
    model = ScriptedModel()
    model.on("plan", "", *(f"<PATH>{step}" for step in steps))
    model.on("reason", "", "Ida Moon")
    plans = PlanSource(PlanAsker(PlanInstruction(LINES), PathConstraints(forty.graph), searches="samples"))
    answered = run(forty, "directed", model, plans, num_plans=2)
    assert shown_paths(answered.calls[1].prompt) == ["Salt Road → directed_by → Ida Moon", "Salt Road → year → 1989"]
    assert answers(forty, answered) == ["Ida Moon"]
    assert len(answered.calls[0].texts) == 8  # four for each plan that is wanted


def test_a_plan_over_the_budget_leaves_no_call(forty: Forty) -> None:
    model = Metered(ScriptedModel(), meter=Meter(), max_calls=0)
    answered = run(forty, "directed", model)
    assert (answered.status, [call.problem for call in answered.calls]) == ("unreadable", ["budget", "budget"])


# Ablations (Table 2), explanations, plans of another model


def test_without_reasoning_all_that_is_reached_is_the_answer(forty: Forty) -> None:
    answered = run(forty, "born", None, given(born=["starred born_in", "year"]), reasoning="none")
    assert answers(forty, answered) == ["Port Amber", "1989", "Westerby"]
    assert answered.faithful == (True,) * 3
    assert answered.answer.prediction.scores == (1, 1, 1)  # a set
    assert answered.answer.prediction.candidates == tuple(sorted(answered.answer.prediction.answers))
    assert answered.calls == ()


def test_votes_are_the_reasoning_paths_that_end_in_an_entity(forty: Forty) -> None:
    """Places that Salt Road's people come from: two of them from Port Amber, one from Westerby; both in Osmania."""
    plans = given(born=["starred born_in", "directed_by born_in", "year"])
    answered = run(forty, "born", None, plans, reasoning="vote", vote_top=1)
    assert answers(forty, answered) == ["Port Amber"]
    assert forty.labels(answered.answer.prediction.candidates)[0] == "Port Amber"
    both = run(forty, "born", None, plans, reasoning="vote", max_paths=1)
    assert answers(forty, both) == ["Port Amber", "1989", "Westerby"]  # of equals the first found
    assert both.answer.counts["num_paths"] == 4  # beyond those that a prompt would hold


def test_an_explanation_comes_with_the_answers(forty: Forty) -> None:
    text = "Ida Moon directed Salt Road and was born in Port Amber.\nAnswers:\nPort Amber"
    plans = given(born=["directed_by born_in"])
    answered = run(forty, "born", script(("explain", "Salt Road → directed_by", text)), plans, explain=True)
    assert answers(forty, answered) == ["Port Amber"]
    assert answered.calls[0].texts == (text,)
    silent = run(forty, "born", script(("explain", "", "It is hard to tell.")), plans, explain=True)
    assert (silent.status, silent.calls[0].problem) == ("unreadable", "no answer")


def test_plans_of_one_model_and_answers_of_another(forty: Forty) -> None:
    """Plug and play (§5.5): whoever answers is asked once, on the other's plans."""
    asked = [one for one in forty.questions if one.chain is not None and one.claim is None]
    model = ScriptedModel()
    for one in asked:
        names = "\n".join(forty.graph.name_of(answer) for answer in one.answers)
        model.on("reason", one.text, names)
    system = Rog(forty.search, LINES, PlanSource(FixedPlans(forty.plans)), RogSection())
    answered = answer_all(system, asked, forty.search, model)
    assert {len(one.calls) for one in answered} == {1}
    figures = score_predictions(asked, [one.answer.prediction for one in answered]).summary()
    assert (figures["hits1"], figures["em"]) == (100, 100)


# Where each question has a subgraph of its own


def test_it_walks_rows_and_answers_entities(rows: tuple[SearchGraph, list[Question]]) -> None:
    walk, questions = rows
    asked = [one for one in questions if one.id in ("q1", "q2")]
    plans: dict[str, list[LabelPath]] = {"q1": [("sibling", "sibling")], "q2": [("likes",)]}
    model = ScriptedModel().on("reason", "brother", "Bob").on("reason", "like", "m.rock\nm.jazz")
    system = Rog(walk, LINES, PlanSource(FixedPlans(plans)), RogSection())
    first, second = answer_all(system, asked, walk, model)
    assert "m.ann → sibling → m.s1 → sibling → Bob" in first.calls[0].prompt
    assert [walk.entities.name_of(one) for one in first.answer.prediction.answers] == ["Bob"]
    assert first.faithful == second.faithful == (True,)
    assert second.answer.unmatched == ("m.jazz",)  # nothing is called so


def test_a_name_that_no_path_shows_is_looked_up_in_the_questions_own_subgraph(
    rows: tuple[SearchGraph, list[Question]],
) -> None:
    """As in the whole graph, without evidence: Jazz is in q2's subgraph, Cat in another's."""
    walk, questions = rows
    system = Rog(walk, LINES, PlanSource(FixedPlans({"q2": [("likes",)]})), RogSection())
    model = ScriptedModel().on("reason", "", "Jazz\nm.rock\nCat")
    (answered,) = answer_all(system, [one for one in questions if one.id == "q2"], walk, model)
    assert [walk.entities.name_of(one) for one in answered.answer.prediction.answers] == ["Jazz", "m.rock"]
    assert (answered.faithful, answered.answer.unmatched) == ((False, True), ("Cat",))
    assert answered.answer.counts["num_unsupported"] == 1
