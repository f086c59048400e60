"""The oracle says what the prompt shows and is right, and goes wrong as often as it is told to."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kgqa_core.config_systems import OracleSection
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions import choose, reason, scores
from kgqa_core.instructions.answers import Answers
from kgqa_core.instructions.plan import (
    PathConstraints,
    PlanCase,
    PlanInstruction,
    RelationConstraint,
    parse_plans,
    render_plan,
)
from kgqa_core.instructions.reason import gather_evidence
from kgqa_core.instructions.render import ScoredPath, read_prompts
from kgqa_core.lm.calls import is_allowed
from kgqa_core.lm.types import Decoding, Prompt
from kgqa_core.oracle.oracle import Knowledge, open_oracle
from kgqa_core.oracle.player import Player
from tests.forty_triples import Forty

PROMPTS = read_prompts()
BEAM = Decoding(method="beam", num_returns=4, num_beams=4)

CLUES = reason.ExtractCluesInstruction(PROMPTS)
DIRECT = reason.DirectInstruction(PROMPTS)
ENTITIES = scores.MapEntitiesInstruction(PROMPTS)
INSTRUCTIONS: dict[type, Any] = {  # unless another is named
    choose.EnoughCase: choose.EnoughInstruction,
    reason.ReasonCase: reason.ReasonInstruction,
    scores.RelationsCase: scores.ScoreRelationsInstruction,
    scores.EntitiesCase: scores.ScoreEntitiesInstruction,
    scores.MapCase: scores.MapRelationsInstruction,
}

Open = Callable[..., Player]


@pytest.fixture(scope="module")
def oracle(forty: Forty) -> Open:
    """Open an oracle of the forty triples."""
    knowledge = Knowledge(forty.search, forty.questions, forty.plans)
    return lambda **settings: open_oracle(knowledge, settings=OracleSection(**settings))


@pytest.fixture
def say(oracle: Open, forty: Forty) -> Callable[..., Any]:
    """Ask about a question: a case with these fields, in the form of an instruction; return its result, parsed."""

    def ask(case: type, id: str, *fields: Any, form: Any = None, by: dict[str, Any] | None = None, **named: Any) -> Any:
        instruction = form or INSTRUCTIONS[case](PROMPTS)
        asked = case(forty.question(id).text, *fields, **named)
        ((given,),) = oracle(**by or {}).generate([instruction.render(asked)])
        return instruction.parse(given.text, asked)

    return ask


Say = Callable[..., Any]


def paths(forty: Forty, topic: str, *plans: tuple[str, ...]) -> tuple[ScoredPath, ...]:
    return gather_evidence(
        SearchGraph(forty.graph, forty.graph, None, 3, reenter_topic=False),
        forty.ids(topic),
        [(plan, 1.0) for plan in plans],
        max_paths=40,
    ).paths


def test_it_plans_the_gold_plan_first_then_others_that_exist(oracle: Open, forty: Forty) -> None:
    space = PathConstraints(forty.graph)
    for question in forty.questions[:9]:
        around = space.around(question.topics)
        prompt = PlanInstruction(PROMPTS).render(
            PlanCase(question.masked, question_id=question.id, paths_allowed=around)
        )
        (given,) = oracle().generate([prompt], BEAM)
        texts = [one.text for one in given if one.text]
        assert parse_plans(texts[0])[0] == forty.plans[question.id][0]
        assert len(set(texts)) == len(texts) >= 2 and all(is_allowed(around, text) for text in texts)
        log_probs = [one.log_prob for one in given]
        assert log_probs == sorted(log_probs, reverse=True) and log_probs[0] == pytest.approx(math.log(0.9))


def test_a_gold_plan_is_held_to_a_constraint_alone(oracle: Open, forty: Forty) -> None:
    only = RelationConstraint(["starred"], max_hops=1)
    case = PlanCase(forty.question("directed").text, question_id="directed", paths_allowed=only)
    (given,) = oracle().generate([PlanInstruction(PROMPTS).render(case)], BEAM)
    assert [one.text for one in given] == [render_plan(("starred",)), "", "", ""]
    free = PlanInstruction(PROMPTS).render(PlanCase(forty.question("born").text))
    stopped = Decoding(method="beam", num_returns=1, num_beams=1, stop=("</PATH>",))
    assert oracle().generate([free], stopped)[0][0].text == "<PATH>directed_by<SEP>born_in"


RELATIONS = ("^directed_by", "born_in", "directed_by", "starred")


def test_it_names_the_relations_that_go_on_along_the_plan(say: Say) -> None:
    def scored(id: str, path: tuple[str, ...]) -> dict[str, float]:
        found = say(scores.RelationsCase, id, RELATIONS, path=path)
        return {RELATIONS[index]: score for index, score in found.scores}

    assert scored("born", ()) == {"directed_by": 0.95}
    assert scored("born", ("directed_by",)) == {"born_in": 0.95}
    assert scored("other", ("directed_by",)) == {"^directed_by": 0.95}
    assert scored("born", ("starred",)) == {"^directed_by": 0.0}  # nothing is right: one that scores 0
    assert scored("born", ("directed_by", "born_in")) == {"^directed_by": 0.0}


def test_a_budget_may_be_filled_up_with_what_is_not_right(say: Say) -> None:
    for error, best in ((0.0, {2}), (1.0, {0, 1, 3})):
        for seed in range(5):
            by = {"fill_budget": True, "error": error, "seed": seed}
            found = say(scores.RelationsCase, "born", RELATIONS, budget=3, by=by).scores
            assert len(found) == 3 and {index for index, score in found if score > 0.9} <= best
            assert (2 in dict(found)) == (error == 0.0)


def test_it_scores_the_entities_on_the_way_to_a_gold(say: Say) -> None:
    def scored(plan: tuple[str, ...], *names: str) -> list[float]:
        shown = tuple(scores.EntityCandidate(name, ("(a, r, b)",)) for name in names)
        found = say(scores.EntitiesCase, "mayor", shown, plan=plan)
        return [score for _, score in found.scores]

    assert scored(("mayor", "holder"), "m.1", "m.2") == [0.05, 0.95]
    assert scored(("mayor",), "m.1", "m.2") == [0.05, 0.95]
    assert scored((), "Mara Quill", "Oto Brandt", "Port Amber") == [0.95, 0.05, 0.05]
    assert scored(("located_in",), "m.2") == [0.05]  # it leads nowhere
    assert scored(("mayor", "holder"), "m.2") == [0.95]  # alone: a bare number


def test_it_answers_with_the_golds_that_paths_end_at_and_nothing_else(say: Say, forty: Forty) -> None:
    both = paths(forty, "Nightjar", ("starred", "^starred", "year"))
    for scored in (False, True):
        instruction = reason.ReasonInstruction(PROMPTS, scored=scored)
        assert set(say(reason.ReasonCase, "years", paths=both, form=instruction).names) == {"1989", "1992"}
        half = tuple(path for path in both if path.text.endswith("1992"))
        assert say(reason.ReasonCase, "years", paths=half, form=instruction).names == ("1992",)
        assert say(reason.ReasonCase, "years", paths=paths(forty, "Nightjar", ("year",)), form=instruction).abstained
        assert say(reason.ReasonCase, "years", form=instruction).abstained
    way = paths(forty, "Salt Road", ("directed_by", "born_in", "located_in"))
    assert say(reason.ReasonCase, "born", paths=way).abstained  # a gold on the way is no answer
    there_and_back = paths(forty, "Salt Road", ("directed_by", "^directed_by"))
    assert say(reason.ReasonCase, "directed", paths=there_and_back).abstained
    assert say(reason.ReasonCase, "directed", paths=there_and_back, stations=True).names == (
        "Ida Moon",
    )  # unless it may
    shown = paths(forty, "Salt Road", ("directed_by", "born_in"), ("starred", "born_in"))
    found = say(reason.ReasonCase, "born", paths=shown, form=reason.ExplainInstruction(PROMPTS))
    assert found.names == ("Port Amber",)


@pytest.mark.parametrize(
    "shown",
    [choose.Shown(), choose.Shown(labels=False), choose.Shown(names=False), choose.Shown(False, True, False, False)],
)
def test_it_chooses_the_golds_among_the_candidates(say: Say, shown: choose.Shown) -> None:
    candidates = (
        choose.Candidate("Westerby", 0.6, ("(Mara Quill, born_in, Westerby)",)),
        choose.Candidate("Port Amber", 0.4, ("(Ida Moon, born_in, Port Amber)",)),
    )
    instruction = choose.ChooseInstruction(PROMPTS, shown)
    assert say(choose.ChooseCase, "born", candidates=candidates, form=instruction).chosen == (1,)
    assert say(choose.ChooseCase, "born", candidates=candidates[:1], form=instruction).by == "abstained"


def test_where_names_are_not_shown_it_chooses_what_the_evidence_ends_at_walked_either_way(say: Say) -> None:
    """The last triple is walked backward: its head is the candidate. Without evidence there is nothing to go by."""
    instruction = choose.ChooseInstruction(PROMPTS, choose.Shown(names=False))
    film = choose.Candidate("Salt Road", 0.6, ("(Salt Road, starred, Mara Quill)",))
    bare = choose.Candidate("Salt Road", 0.6)
    assert say(choose.ChooseCase, "starred", candidates=(film,), form=instruction).chosen == (0,)
    assert say(choose.ChooseCase, "starred", candidates=(bare,), form=instruction).by == "abstained"


@pytest.mark.parametrize("shown", [choose.Shown(), choose.Shown(labels=False)])
def test_held_to_the_candidates_it_chooses_one(say: Say, shown: choose.Shown) -> None:
    instruction = choose.ChooseInstruction(PROMPTS, shown, only_candidates=True)
    candidates = tuple(choose.Candidate(name, 0.2) for name in ("1995", "1992", "1989"))
    assert say(choose.ChooseCase, "years", candidates=candidates, form=instruction).chosen == (1,)
    assert say(choose.ChooseCase, "years", candidates=candidates[:1], form=instruction).chosen == (0,)


def test_paths_are_enough_once_one_ends_in_a_gold(say: Say, forty: Forty) -> None:
    far, near = (paths(forty, "Salt Road", plan) for plan in (("directed_by", "born_in"), ("directed_by",)))
    assert say(choose.EnoughCase, "born", paths=far) is True
    assert say(choose.EnoughCase, "born", paths=near) is False


def test_clues_are_mapped_step_by_step(say: Say) -> None:
    """The director of Salt Road, and then where that was: each clue to its own step, along the way to the gold."""
    assert say(reason.ReasonCase, "born", form=CLUES) == ("Salt Road", "director", "born")
    relations = ("starred", "directed_by", "born_in")

    def mapped(clues: tuple[str, ...], entity: str) -> list[tuple[str, str]]:
        found = say(scores.MapCase, "born", clues, relations, entity=entity)
        return [(clues[pair.clue], relations[pair.option]) for pair in found.pairs]

    assert mapped(("director", "born"), "Salt Road") == [("director", "directed_by")]
    assert mapped(("born",), "Ida Moon") == [("born", "born_in")]
    assert mapped(("born",), "Salt Road → directed_by") == [("born", "born_in")]  # all that a path leads to
    assert mapped(("born",), "Mara Quill") == []  # not on the way
    assert mapped(("city",), "Salt Road") == []


def test_entities_take_their_relations_clue(say: Say) -> None:
    names = ("Ida Moon", "Oto Brandt", "Salt Road")

    def mapped(clues: tuple[str, ...], relation: str) -> list[tuple[str, str]]:
        where = {"entity": "Salt Road", "relation": relation}
        found = say(scores.MapCase, "born", clues, names, form=ENTITIES, **where)
        return [(clues[pair.clue], names[pair.option]) for pair in found.pairs]

    assert mapped(("director", "born"), "directed_by") == [("director", "Ida Moon")]
    assert mapped(("born",), "directed_by") == []
    assert mapped(("director",), "starred") == []
    assert mapped(("salt road", "director"), "directed_by") == [("salt road", "Salt Road"), ("director", "Ida Moon")]


def test_of_a_question_alone_it_knows_a_share_by_heart(say: Say, oracle: Open, forty: Forty) -> None:
    stranger = reason.DirectInstruction(PROMPTS).render(reason.ReasonCase("who shot the sheriff?"))
    assert oracle(knows=1.0).generate([stranger])[0][0].text == "I do not know"
    assert all(say(reason.ReasonCase, one.id, form=DIRECT).abstained for one in forty.questions)
    assert say(reason.ReasonCase, "years", form=DIRECT, by={"knows": 1.0}) == Answers(("1989", "1992"))
    thinking = reason.ChainOfThoughtInstruction(PROMPTS)
    assert say(reason.ReasonCase, "years", form=thinking, by={"knows": 1.0}) == Answers(("1989", "1992"))
    half = [{"knows": 0.5, "seed": seed} for seed in (0, 1)]
    told = [[say(reason.ReasonCase, one.id, form=DIRECT, by=by).abstained for one in forty.questions] for by in half]
    assert told[0] != told[1] and 0 < sum(told[0]) < len(told[0])


def prompts_of(forty: Forty, num: int) -> list[Prompt]:
    """Different prompts, of which the oracle would answer each rightly."""
    right = paths(forty, "Salt Road", ("directed_by", "born_in"))
    other = paths(forty, "Salt Road", ("starred", "born_in"), ("starred",))
    text = forty.question("born").text
    shown = [
        right + tuple(ScoredPath(f"{one.text} → twin → {at}", 1.0, (*one.steps, "twin"), str(at)) for one in other)
        for at in range(num)
    ]
    return [
        reason.ReasonInstruction(PROMPTS).render(reason.ReasonCase(text, question_id="born", paths=own))
        for own in shown
    ]


def test_it_goes_wrong_as_often_as_told_whatever_was_asked_before(oracle: Open, forty: Forty) -> None:
    prompts = prompts_of(forty, 400)
    model = oracle(error=0.1)
    texts = [own[0].text for own in model.generate(prompts)]
    wrong = [text for text in texts if text != "Port Amber"]
    assert 25 <= len(wrong) <= 55 and {"I do not know"} < set(wrong)  # nothing, or another end
    assert [own[0].text for own in oracle(error=0.1).generate(prompts[::-1])] == texts[::-1]
    seeded = [own[0].text for own in oracle(error=0.1, seed=1).generate(prompts)]
    assert seeded != texts
    assert {own[0].text for own in oracle().generate(prompts)} == {"Port Amber"}
    assert "Port Amber" not in {own[0].text for own in oracle(error=1.0).generate(prompts)}


def test_wrong_answers_have_the_form_of_the_instruction(say: Say, oracle: Open, forty: Forty) -> None:
    question = forty.question("born")
    shown = paths(forty, "Salt Road", ("directed_by", "born_in"))
    wrong = {"error": 1.0}
    assert say(choose.EnoughCase, "born", paths=shown, by=wrong) is False
    assert say(scores.EntitiesCase, "born", (scores.EntityCandidate("Ida Moon"),), by=wrong).scores == ((0, 0.05),)
    clues = say(reason.ReasonCase, "born", form=CLUES, by=wrong)
    assert len(clues) == 2 and set(clues) < {"Salt Road", "director", "born"}
    for seed in range(5):
        relations = ("directed_by", "starred")
        by = {"error": 1.0, "seed": seed}
        (scored,) = say(scores.RelationsCase, "born", relations, by=by).scores
        assert scored in ((1, 0.95), (0, 0.0))
    around = PathConstraints(forty.graph).around(question.topics)
    prompt = PlanInstruction(PROMPTS).render(PlanCase(question.masked, question_id="born", paths_allowed=around))
    (given,) = oracle(error=1.0).generate([prompt], BEAM)
    assert len(given) == 4 and all(is_allowed(around, one.text) for one in given)
    assert forty.plans["born"][0] not in [parse_plans(one.text)[0] for one in given]


def test_options_that_are_right_weigh_most(oracle: Open, forty: Forty) -> None:
    def likeliest(prompt: Prompt, *options: str, **settings: Any) -> list[float]:
        (weights,) = oracle(**settings).score([prompt], [options])
        assert sum(map(math.exp, weights)) == pytest.approx(1.0)
        return [round(math.exp(weight), 2) for weight in weights]

    text = forty.question("born").text
    candidates = (choose.Candidate("Westerby", 0.6), choose.Candidate("Port Amber", 0.4))
    chosen = choose.ChooseInstruction(PROMPTS).render(choose.ChooseCase(text, candidates=candidates))
    for options in (("A. Westerby", "B. Port Amber"), ("A", "B"), ("Westerby", "Port Amber")):
        assert likeliest(chosen, *options) == [0.1, 0.9]
    assert likeliest(chosen, "A. Westerby") == [1.0]
    plan = PlanInstruction(PROMPTS).render(PlanCase(text))
    plans = [render_plan(one) for one in (("starred", "born_in"), ("directed_by", "born_in"), ("year",))]
    assert likeliest(plan, *plans) == [0.05, 0.9, 0.05]
    asked, case = scores.ScoreRelationsInstruction(PROMPTS), scores.RelationsCase(text, ("starred", "directed_by"))
    for options in (case.relations, asked.lines(case)):  # a relation alone, and as systems weigh it
        assert likeliest(asked.render(case), *options) == [0.1, 0.9]
    wrong = likeliest(chosen, "A. Westerby", "B. Port Amber", error=1.0)
    assert wrong in ([0.9, 0.1], [0.5, 0.5])  # it weighs another, or none of them


def test_the_name_tells_all_that_answers_follow_from(oracle: Open, forty: Forty) -> None:
    names = {oracle(**one).name for one in ({}, {"error": 0.1}, {"knows": 0.1}, {"seed": 1}, {"fill_budget": True})}
    names.add(open_oracle(Knowledge(forty.search, (), {}), settings=OracleSection()).name)
    assert len(names) == 6 and oracle().name in names


def test_a_prompt_that_is_too_long_and_an_answer_that_is_cut(oracle: Open, forty: Forty) -> None:
    knowledge = Knowledge(forty.search, forty.questions, forty.plans)
    small = replace(open_oracle(knowledge, settings=OracleSection()), context=50)
    (prompt,) = prompts_of(forty, 1)
    assert small.generate([prompt])[0][0].problem == "too_long"
    cut = oracle().generate([prompt], Decoding(max_new_tokens=1))[0][0]
    assert (cut.text, cut.finished) == ("Port", False)
