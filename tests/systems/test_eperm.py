"""EPERM step by step on forty triples: its three modules against runs worked out by hand, its ablations, its limits.

The main example is the kind that EPERM's A.4 prints: terms of office are nodes without a name, and the question's year
tells which of them is meant. There it is a footballer's season; here it is a mayor.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest

from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.plan import Plan, PlanAsker, PlanInstruction
from kgqa_core.lm.calls import Meter, Metered
from kgqa_core.oracle.plans import FixedPlans
from kgqa_core.systems.answering import PlanSource
from kgqa_core.systems.eperm import Eperm, EpermSection
from kgqa_core.systems.types import Answered
from kgqa_core.types import Question
from tests.forty_triples import Forty
from tests.scripted import ScriptedModel, script
from tests.systems.asking import answer_all
from tests.systems.following import LINES, Proposed, answer_one, lines_under

MAYOR, BORN, UNTIL = "mayor > holder", "^born_in", "mayor > until"


def planned(*plans: tuple[str, float]) -> PlanSource:
    """Return plans, with probabilities, that are there before any call."""
    return PlanSource(Proposed([Plan(tuple(path.split(" > ")), math.log(share)) for path, share in plans]))


THREE = planned((MAYOR, 0.5), (BORN, 0.3), (UNTIL, 0.2))


def system(forty: Forty, plans: PlanSource = THREE, max_calls: int | None = None, **settings: object) -> Eperm:
    section = EpermSection.model_validate({"retriever_width": 2, "retriever_depth": 2, "top_entities": 2} | settings)
    return Eperm(forty.search, LINES, plans, section, max_calls=max_calls)


def run(forty: Forty, model: ScriptedModel, *, id: str = "mayor", **how: object) -> Answered:
    """Answer one question; the script must have been said to its end."""
    return answer_one(forty, system(forty, **how), id, model)  # type: ignore[arg-type]


def shown(model: ScriptedModel, instruction: str, heading: str) -> list[list[str]]:
    """Return the lines under a heading of each prompt of an instruction."""
    return [lines_under(text, heading) for text in model.prompts_of(instruction)]


def paths_shown(model: ScriptedModel) -> list[str]:
    """Return the evidence paths of the predictor's only prompt."""
    (lines,) = shown(model, "reason", "Paths:")
    return lines


# The retriever takes mayor and ^born_in, then what goes on from a term of office.
RETRIEVED = [
    ("score_relations", "Path so far: (none)", "2: mayor = 0.90\n1: ^born_in = 0.40"),
    ("score_relations", "Path so far: mayor\n", "2: holder = 1.00\n1: since = 0.50"),
    ("score_relations", "Path so far: ^born_in\n", "2: ^directed_by = 1.00\n1: ^starred = 1.00"),
]
# The finder prefers the term that began in 1992.
FOUND = [
    ("score_entities", "Plan: mayor → holder", "1: m.1 = 0.10\n2: m.2 = 0.90"),
    ("score_entities", "Plan: ^born_in", "1: Ida Moon = 0.30\n2: Oto Brandt = 0.50"),
    ("score_entities", "Plan: mayor → holder", "1: Mara Quill = 1.00\n2: Oto Brandt = 0.20"),
]
EXPLORED = [*RETRIEVED, *FOUND]


def says(*lines: tuple[str, str, str], answer: str = "Mara Quill") -> ScriptedModel:
    """Return a model that says these lines in any order, and the answer where there is one."""
    model = ScriptedModel()
    for line in (*lines, *([("reason", "", answer)] if answer else [])):
        model.on(*line)
    return model


def test_a_whole_run_worked_out_by_hand(forty: Forty) -> None:
    """Beam: mayor .9, ^born_in .4; then mayor, holder .9 and mayor, since .45 before ^born_in, ^directed_by .4.

    So ``until`` is not in the subgraph, and the third plan is not followed. Products of plan and entities:
    .5 x .9 x 1 = .45, .3 x .5 = .15, .3 x .3 = .09, .5 x .1 x .2 = .01; of .70 together.
    """
    model = script(*EXPLORED, ("reason", "", "Mara Quill"))
    answered = run(forty, model)
    assert [call.round for call in answered.calls] == [1, 2, 2, 3, 3, 4, 5]
    assert shown(model, "score_relations", "Relations:") == [
        ["located_in", "mayor", "^born_in"],
        ["holder", "since", "until"],  # ^mayor would lead back to the topic
        ["^directed_by", "^holder", "^starred"],
    ]
    assert paths_shown(model) == [
        "Port Amber → mayor → m.2 → holder → Mara Quill (score 0.64)",
        "Port Amber → ^born_in → Oto Brandt (score 0.21)",
        "Port Amber → ^born_in → Ida Moon (score 0.13)",
        "Port Amber → mayor → m.1 → holder → Oto Brandt (score 0.01)",
    ]
    prediction = answered.answer.prediction
    assert forty.labels(prediction.answers) == ["Mara Quill"]
    assert set(forty.labels(prediction.candidates)) == {"Mara Quill", "Oto Brandt", "Ida Moon"}
    assert answered.faithful == (True,)
    counts = {"num_unsupported": 0, "num_plans": 3, "num_paths": 4, "num_refused": 0, "num_unasked": 0}
    assert answered.answer.counts == counts


def test_an_entity_is_shown_with_what_stands_around_it(forty: Forty) -> None:
    model = says(*EXPLORED)
    run(forty, model, num_neighbours=2)
    assert shown(model, "score_entities", "Candidates, each with facts about it:")[0] == [
        "1: m.1",
        "   (m.1, holder, Oto Brandt)",
        "   (m.1, since, 1989)",
        "2: m.2",
        "   (m.2, holder, Mara Quill)",
        "   (m.2, since, 1992)",
    ]


def test_the_arithmetic_of_figure_4(forty: Forty) -> None:
    """Plans of .67, .16 and .17; one path along each of the first two, two along the third; paths .71 .13 .11 .05."""
    plans = planned(("directed_by > born_in", 0.67), ("year > ^since", 0.16), ("starred > born_in", 0.17))
    model = ScriptedModel()
    model.on("score_entities", "Plan: directed_by", "1.0").on("score_entities", "Plan: year", "1.0")
    model.on("score_entities", "Plan: starred", "1: Mara Quill = 1.0\n2: Oto Brandt = 1.0")
    model.on("score_entities", "Plan: directed_by", "0.85").on("score_entities", "Plan: year", "0.65")
    model.on("score_entities", "Plan: starred", "1: Port Amber = 0.52\n2: Westerby = 0.235")
    model.on("reason", "", "Port Amber")
    run(forty, model, id="born", plans=plans, retriever=False)
    assert paths_shown(model) == [
        "Salt Road → directed_by → Ida Moon → born_in → Port Amber (score 0.71)",
        "Salt Road → year → 1989 → ^since → m.1 (score 0.13)",
        "Salt Road → starred → Oto Brandt → born_in → Port Amber (score 0.11)",
        "Salt Road → starred → Mara Quill → born_in → Westerby (score 0.05)",
    ]


@pytest.mark.parametrize(("look_ahead", "num_calls"), [(True, 6), (False, 8)])
def test_one_call_per_candidate_is_what_the_paper_does(forty: Forty, look_ahead: bool, num_calls: int) -> None:
    """There a plan is followed as far as it goes: to two candidates behind which ``until`` is not in the subgraph."""
    model = says(*RETRIEVED).on("score_entities", "", "0.80", times=num_calls)
    answered = run(forty, model, finder="single", look_ahead=look_ahead)
    asked = [prompt.text.rsplit("1: ", 1)[1].split("\n")[0] for prompt in model.asked if prompt.constraint is not None]
    until = ["m.1", "m.2"] if not look_ahead else []
    assert Counter(asked) == Counter(["m.1", "m.2", "Ida Moon", "Oto Brandt", "Mara Quill", "Oto Brandt", *until])
    assert sum("Plan: mayor → until" in prompt for prompt in model.prompts_of("score_entities")) == len(until)
    assert len(answered.calls) == 3 + num_calls + 1
    assert answered.answer.counts["num_paths"] == 4


def test_few_entities_are_asked_about_and_the_others_are_neither_good_nor_bad(forty: Forty) -> None:
    """Of m.1 and m.2 only the first is shown, and scored low: the other comes before it."""
    model = says(("score_entities", "1: m.1", "0.10"), ("score_entities", "1: Mara", "1.00"))
    answered = run(forty, model, plans=planned((MAYOR, 1.0)), retriever=False, max_candidates=1, top_entities=1)
    assert answered.answer.counts["num_unasked"] == 1
    assert paths_shown(model) == ["Port Amber → mayor → m.2 → holder → Mara Quill (score 1.00)"]


@pytest.mark.parametrize(("score", "asked"), [("0.90", "drama"), ("0.10", "comedy")])
def test_those_behind_the_best_entities_so_far_are_asked_about_first(forty: Forty, score: str, asked: str) -> None:
    """Of two films one is asked about; the other counts .5. There is room for the genre of the better one alone."""
    model = ScriptedModel().on("score_entities", "1: Salt Road", score).on("score_entities", f"1: {asked}", "1.00")
    model.on("reason", "", "I do not know")
    plans = planned(("^starred > genre", 1.0))
    answered = run(forty, model, id="starred", plans=plans, retriever=False, max_candidates=1)
    assert answered.answer.counts["num_unasked"] == 2  # a film and a genre


# Ablations (Tables 3 and 4), and settings.


FIRST, OTHER = "Port Amber → mayor → m.2 → holder → Mara Quill", "Port Amber → mayor → m.1 → holder → Oto Brandt"
OTO, IDA = "Port Amber → ^born_in → Oto Brandt", "Port Amber → ^born_in → Ida Moon"
TO_1992 = "Port Amber → mayor → m.1 → until → 1992"
Shown = list[tuple[str, str]]  # path, score
SHOWN: dict[str, tuple[dict[str, object], list[tuple[str, str, str]], Shown]] = {  # settings, calls, what is shown
    "plans may weigh alike: .9 of 1.72": (
        {"weighted_plans": False},
        EXPLORED,
        [(FIRST, "0.52"), (OTO, "0.29"), (IDA, "0.17"), (OTHER, "0.01")],
    ),
    "scores may be hidden, and then leave no path out": (
        {"scores": "hidden", "least_share": 1.0},
        EXPLORED,
        [(FIRST, ""), (IDA, ""), (OTHER, ""), (OTO, "")],  # in turns
    ),
    "all paths": (
        {"least_share": 0.0},
        EXPLORED,
        [(FIRST, "0.64"), (OTO, "0.21"), (IDA, "0.13"), (OTHER, "0.01")],
    ),
    "no path far below the best": ({"least_share": 0.25}, EXPLORED, [(FIRST, "0.75"), (OTO, "0.25")]),
    "the best alone": ({"least_share": 1.0}, EXPLORED, [(FIRST, "1.00")]),
    "the best entity of each plan and hop: .5 x .9 of .6": (
        {"top_entities": 1},
        [*RETRIEVED, *FOUND[:2], ("score_entities", "Plan: mayor → holder", "1: Mara Quill = 1.00")],
        [(FIRST, "0.75"), (OTO, "0.25")],
    ),
    "entities of an unreadable answer are neither good nor bad: .3 x .5 and .5 x .5 x .5, twice each": (
        {},
        [*RETRIEVED, *[("score_entities", "", "hard to say")] * 3],
        [(IDA, "0.27"), (OTO, "0.27"), (FIRST, "0.23"), (OTHER, "0.23")],
    ),
    "without the retriever the whole graph is followed, in which the first term has an end: .2 x .5 x .5 of .75": (
        {"retriever": False},
        [*FOUND, *[("score_entities", "Plan: mayor → until", "0.50")] * 2],
        [(FIRST, "0.60"), (OTO, "0.20"), (IDA, "0.12"), (TO_1992, "0.07"), (OTHER, "0.01")],
    ),
    "without scores (Table 3) plans alone weigh, and paths of all plans are shown in turns: .5 of 1.3": (
        {"entity_scores": False, "top_entities": 1, "max_paths": 3},
        RETRIEVED,
        [(FIRST, "0.38"), (OTHER, "0.38"), (IDA, "0.23")],
    ),
    "a retriever that cannot be read restricts nothing": (
        {"entity_scores": False, "max_paths": 3},
        [("score_relations", "", "well, who knows")],
        [(FIRST, "0.50"), (IDA, "0.30"), (TO_1992, "0.20")],
    ),
    "a retriever that finds nothing good restricts nothing": (
        {"entity_scores": False, "max_paths": 3},
        [("score_relations", "", "2: mayor = 0.00\n1: ^born_in = 0.00")],
        [(FIRST, "0.50"), (IDA, "0.30"), (TO_1992, "0.20")],
    ),
}


@pytest.mark.parametrize("case", SHOWN)
def test_what_is_asked_and_which_paths_are_shown(forty: Forty, case: str) -> None:
    settings, calls, paths = SHOWN[case]
    model = says(*calls)
    run(forty, model, **settings)
    assert paths_shown(model) == [f"{path} (score {score})" if score else path for path, score in paths]


def test_without_the_predictor_all_ends_are_answers(forty: Forty) -> None:
    """Table 4: recall, and little precision. Oto Brandt ends two paths, of .15 and .01."""
    answered = run(forty, says(*EXPLORED, answer=""), predictor="none")
    assert forty.labels(answered.answer.prediction.answers) == ["Mara Quill", "Oto Brandt", "Ida Moon"]
    assert answered.faithful == (True, True, True)
    model = says(*EXPLORED, answer="")
    alike = run(forty, model, predictor="none", scores="hidden").answer.prediction
    assert (forty.labels(alike.candidates)[0], alike.scores) == ("Oto Brandt", (2, 1, 1))  # the others tie


def test_the_model_itself_may_plan(forty: Forty) -> None:
    """Its beam's probabilities are the plans' weights: .6 and .3 of .9."""
    plans = PlanSource(PlanAsker(PlanInstruction(LINES), space=None))
    texts = ("<PATH>mayor<SEP>holder</PATH>", "<PATH>^born_in</PATH>")
    model = says(*RETRIEVED).on("plan", "[topic]", *texts, scores=(math.log(0.6), math.log(0.3)))
    answered = run(forty, model, plans=plans, entity_scores=False)
    assert [call.instruction for call in answered.calls] == ["score_relations"] * 3 + ["plan", "reason"]
    assert paths_shown(model)[-1] == "Port Amber → ^born_in → Oto Brandt (score 0.17)"  # 1/3 of 2 x 2/3 + 2 x 1/3
    model = says(RETRIEVED[0], ("plan", "", "<PATH>^born_in</PATH>"), answer="Ida Moon")
    few = run(forty, model, plans=plans, max_calls=3)  # its plan is paid before exploration
    assert [call.instruction for call in few.calls] == ["score_relations", "plan", "reason"]


def test_a_relation_that_stands_alone_is_taken_without_a_call(forty: Forty) -> None:
    """Nothing but its painter is known of Blue Dunes, and of her nothing but where she was born."""
    plans = planned(("painted_by > born_in", 1.0))
    model = says(answer="Low Ferry")
    answered = run(forty, model, id="painted", plans=plans, entity_scores=False)
    assert paths_shown(model) == ["Blue Dunes → painted_by → Ida Moon → born_in → Low Ferry (score 1.00)"]
    assert len(answered.calls) == 1


def test_relations_may_be_weighed_by_how_probable_a_line_is_that_names_them(forty: Forty) -> None:
    """Likelihoods of .1, .6 and .3 take mayor and ^born_in, as lines of a text did: nothing is left out or misread."""
    model = ScriptedModel().on("score_relations", "Path so far: (none)", scores=[math.log(p) for p in (0.1, 0.6, 0.3)])
    model.on("score_relations", "Path so far: mayor\n", scores=(-0.1, -3.0, -5.0))
    model.on("score_relations", "Path so far: ^born_in\n", scores=(-1.0, -1.0, -9.0)).on("reason", "", "Mara Quill")
    run(forty, model, relations="weighed", entity_scores=False)
    taught = "3: "  # by every adapter, however wide the beam is: 2 here
    assert model.options[0] == (f"{taught}located_in =", f"{taught}mayor =", f"{taught}^born_in =")
    assert len(model.prompts_of("score_relations")) == 3
    assert paths_shown(model)[0] == "Port Amber → mayor → m.2 → holder → Mara Quill (score 0.31)"  # .5 of 1.6


def test_a_relation_whose_likelihood_could_not_be_told_is_impossible_beside_the_others(forty: Forty) -> None:
    model = ScriptedModel().on("score_relations", "Path so far: (none)", scores=(-math.inf, -0.5, -math.inf))
    model.on("score_relations", "Path so far: mayor\n", scores=(-0.1, -3.0, -5.0)).on("reason", "", "Mara Quill")
    run(forty, model, relations="weighed", entity_scores=False)
    assert len(model.prompts_of("score_relations")) == 2  # none on a path of probability 0, though the beam has room


def test_without_a_plan_nothing_is_retrieved(forty: Forty) -> None:
    """Table 3, w/o evidence path: the predictor sees the question alone, and it is the only call."""
    model = says()
    answered = run(forty, model, plans=PlanSource(FixedPlans({})))
    assert (len(answered.calls), paths_shown(model)) == (1, ["(none)"])


def test_many_relations_are_shown_in_several_calls(forty: Forty) -> None:
    lines = [("score_relations", "located_in", "1: located_in = 0.20"), ("score_relations", "mayor", "1: mayor = 0.90")]
    model = says(*lines, answer="m.2")
    run(forty, model, relation_batch=2, retriever_depth=1, retriever_width=1, entity_scores=False)
    assert shown(model, "score_relations", "Relations:") == [["located_in", "^born_in"], ["mayor"]]
    assert paths_shown(model) == ["(none)"]  # K = 1: mayor alone, and no plan ends with it


# What goes wrong.


def test_a_path_of_the_beam_that_names_nothing_ends(forty: Forty) -> None:
    """After mayor nothing is said, so no plan goes on from there; the other path goes on."""
    model = ScriptedModel().on("score_relations", "Path so far: (none)", "2: mayor = 0.90\n1: ^born_in = 0.40")
    model.on("score_relations", "Path so far: mayor\n", "2: holder = 0.00")
    model.on("score_relations", "Path so far: ^born_in\n", "1: ^starred = 0.50").on("reason", "", "Salt Road")
    plans = planned((MAYOR, 0.9), ("^born_in > ^starred", 0.1))
    run(forty, model, plans=plans, entity_scores=False, max_paths=1)
    assert paths_shown(model) == ["Port Amber → ^born_in → Ida Moon → ^starred → Capital (score 1.00)"]


@pytest.mark.parametrize(
    ("max_calls", "made"), [(1, (0, 0)), (2, (1, 0)), (3, (2, 0)), (6, (3, 2)), (7, (3, 3)), (30, (3, 3))]
)
def test_exploration_always_leaves_a_call_for_the_answer(forty: Forty, max_calls: int, made: tuple[int, int]) -> None:
    """The heaviest plans are scored first; the meter, which stops a question for good, never has to."""
    model = says(*EXPLORED)
    metered = Metered(model, meter=Meter(), max_calls=max_calls)
    (answered,) = answer_all(system(forty, max_calls=max_calls), [forty.question("mayor")], forty.search, metered)
    explored = ["score_relations"] * made[0] + ["score_entities"] * made[1]
    assert [call.instruction for call in answered.calls] == [*explored, "reason"]
    assert forty.labels(answered.answer.prediction.answers) == ["Mara Quill"]
    assert (answered.answer.counts["num_refused"] > 0) == (max_calls < 7)


def test_topics_are_not_entered_again_unless_the_run_says_so(forty: Forty) -> None:
    how = {"plans": planned(("mayor > ^mayor", 1.0)), "retriever": False, "entity_scores": False}
    assert run(forty, says(), **how).answer.counts["num_paths"] == 0
    free = replace(system(forty, **how), search=replace(forty.search, reenter_topic=True))  # type: ignore[arg-type]
    (answered,) = answer_all(free, [forty.question("mayor")], free.search, says())
    assert answered.answer.counts["num_paths"] == 2


def test_where_questions_have_subgraphs_it_walks_rows_and_answers_entities(
    rows: tuple[SearchGraph, list[Question]],
) -> None:
    walk, questions = rows
    model = ScriptedModel()
    model.on("score_relations", "who is the brother of ann", "2: sibling = 0.90\n1: likes = 0.10")
    model.on("score_entities", "", "0.80", times=None)
    model.on("reason", "who is the brother of ann", "Bob")
    model.on("reason", "what does ann like", "m.jazz\nm.rock")  # of q1's subgraph nothing is seen from here
    plans = PlanSource(FixedPlans({"q1": [("sibling", "sibling")], "q2": [("likes",)]}))
    asked = [one for one in questions if one.id in ("q1", "q2", "q6")]
    first, second, third = answer_all(Eperm(walk, LINES, plans, EpermSection()), asked, walk, model)
    assert third.status == "skipped"
    assert first.answer.prediction.answers == walk.entities.ids_of_name("Bob")
    assert first.faithful == (True,)
    assert "m.ann → sibling → m.s1 → sibling → Bob (score 1.00)" in first.calls[-1].prompt
    assert second.answer.prediction.answers == walk.entities.ids_of_name("m.rock")
    assert second.answer.unmatched == ("m.jazz",)
