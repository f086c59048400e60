"""The oracle says what the prompt shows and is right, and goes wrong as often as it is told to."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from kgqa_core.config_systems import OracleSection
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.answers import Answers, Explained
from kgqa_core.instructions.choose import Candidate, ChooseCase, ChooseInstruction, EnoughCase, EnoughInstruction, Shown
from kgqa_core.instructions.evidence import gather_evidence
from kgqa_core.instructions.path_constraint import PathConstraints, RelationConstraint
from kgqa_core.instructions.plan import PlanCase, PlanInstruction, parse_plan, render_plan
from kgqa_core.instructions.reason import (
    ChainOfThoughtInstruction,
    DirectCase,
    DirectInstruction,
    ExplainInstruction,
    ExtractCluesInstruction,
    ReasonCase,
    ReasonInstruction,
)
from kgqa_core.instructions.render import ScoredPath, read_prompts
from kgqa_core.instructions.scores import (
    EntitiesCase,
    EntityCandidate,
    MapEntitiesCase,
    MapEntitiesInstruction,
    MapRelationsCase,
    MapRelationsInstruction,
    RelationsCase,
    ScoreEntitiesInstruction,
    ScoreRelationsInstruction,
)
from kgqa_core.lm.constraints import is_allowed
from kgqa_core.lm.types import Decoding, Prompt
from kgqa_core.oracle.knowledge import Knowledge
from kgqa_core.oracle.oracle import open_oracle
from kgqa_core.oracle.player import Player
from tests.forty_triples import Forty

PROMPTS = read_prompts()
BEAM = Decoding(method="beam", num_returns=4, num_beams=4)

Open = Callable[..., Player]


@pytest.fixture(scope="module")
def oracle(forty: Forty) -> Open:
    """Open an oracle of the forty triples."""
    knowledge = Knowledge(forty.search, forty.questions)
    return lambda **settings: open_oracle(knowledge, settings=OracleSection(**settings))


@pytest.fixture
def say(oracle: Open, forty: Forty) -> Callable[..., Any]:
    """Ask one instruction about a question; return its result, parsed."""

    def ask(instruction: Any, case: Callable[[str], Any], id: str, **settings: Any) -> Any:
        asked = case(forty.question(id).text)
        ((given,),) = oracle(**settings).generate([instruction.render(asked)])
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
        prompt = PlanInstruction(PROMPTS).render(PlanCase(question.masked, question.id, paths_allowed=around))
        (given,) = oracle().generate([prompt], BEAM)
        texts = [one.text for one in given if one.text]
        assert parse_plan(texts[0]) == forty.plans[question.id][0]
        assert len(set(texts)) == len(texts) >= 2 and all(is_allowed(around, text) for text in texts)
        log_probs = [one.log_prob for one in given]
        assert log_probs == sorted(log_probs, reverse=True) and log_probs[0] == pytest.approx(math.log(0.9))


def test_a_gold_plan_that_is_not_allowed_is_not_planned(oracle: Open, forty: Forty) -> None:
    only = RelationConstraint(["starred"], max_hops=1)
    case = PlanCase(forty.question("directed").text, "directed", paths_allowed=only)
    (given,) = oracle().generate([PlanInstruction(PROMPTS).render(case)], BEAM)
    assert [one.text for one in given] == [render_plan(("starred",)), "", "", ""]


def test_without_a_constraint_any_gold_plan_is_planned(oracle: Open, forty: Forty) -> None:
    prompt = PlanInstruction(PROMPTS).render(PlanCase(forty.question("born").text))
    stopped = Decoding(method="beam", num_returns=1, num_beams=1, stop=("</PATH>",))
    assert oracle().generate([prompt], stopped)[0][0].text == "<PATH>directed_by<SEP>born_in"


def test_it_names_the_relations_that_go_on_along_the_plan(say: Say) -> None:
    def scores(id: str, path: tuple[str, ...]) -> dict[str, float]:
        relations = ("^directed_by", "born_in", "directed_by", "starred")
        found = say(ScoreRelationsInstruction(PROMPTS), lambda text: RelationsCase(text, relations, path=path), id)
        return {relations[index]: score for index, score in found.scores}

    assert scores("born", ()) == {"directed_by": 0.95}
    assert scores("born", ("directed_by",)) == {"born_in": 0.95}
    assert scores("other", ("directed_by",)) == {"^directed_by": 0.95}
    assert scores("born", ("starred",)) == {"^directed_by": 0.0}  # nothing is right: one that scores 0
    assert scores("born", ("directed_by", "born_in")) == {"^directed_by": 0.0}


def test_a_budget_may_be_filled_up_with_what_is_not_right(say: Say) -> None:
    relations = ("^directed_by", "born_in", "directed_by", "starred")
    for error, best in ((0.0, {2}), (1.0, {0, 1, 3})):
        for seed in range(5):
            settings = {"fill_budget": True, "error": error, "seed": seed}
            case = lambda text: RelationsCase(text, relations, budget=3)  # noqa: E731
            scores = say(ScoreRelationsInstruction(PROMPTS), case, "born", **settings).scores
            assert len(scores) == 3 and {index for index, score in scores if score > 0.9} <= best
            assert (2 in dict(scores)) == (error == 0.0)


def test_it_scores_the_entities_on_the_way_to_a_gold(say: Say) -> None:
    def scores(id: str, plan: tuple[str, ...], *names: str) -> list[float]:
        instruction = ScoreEntitiesInstruction(PROMPTS)
        shown = tuple(EntityCandidate(name, ("(a, r, b)",)) for name in names)
        return [score for _, score in say(instruction, lambda text: EntitiesCase(text, shown, plan=plan), id).scores]

    assert scores("mayor", ("mayor", "holder"), "m.1", "m.2") == [0.05, 0.95]
    assert scores("mayor", ("mayor",), "m.1", "m.2") == [0.05, 0.95]
    assert scores("mayor", (), "Mara Quill", "Oto Brandt", "Port Amber") == [0.95, 0.05, 0.05]
    assert scores("mayor", ("located_in",), "m.2") == [0.05]  # it leads nowhere
    assert scores("mayor", ("mayor", "holder"), "m.2") == [0.95]  # alone: a bare number


def test_it_answers_with_the_golds_that_paths_end_at_and_nothing_else(say: Say, forty: Forty) -> None:
    both = paths(forty, "Nightjar", ("starred", "^starred", "year"))
    for scored in (False, True):
        instruction = ReasonInstruction(PROMPTS, scored=scored)
        assert set(say(instruction, lambda text: ReasonCase(text, paths=both), "years").names) == {"1989", "1992"}
        half = tuple(path for path in both if path.text.endswith("1992"))
        assert say(instruction, lambda text, half=half: ReasonCase(text, paths=half), "years").names == ("1992",)
        wrong = paths(forty, "Nightjar", ("year",))
        assert say(instruction, lambda text, wrong=wrong: ReasonCase(text, paths=wrong), "years").abstained
        assert say(instruction, lambda text: ReasonCase(text), "years").abstained


def test_a_gold_on_the_way_is_no_answer(say: Say, forty: Forty) -> None:
    way = paths(forty, "Salt Road", ("directed_by", "born_in", "located_in"))
    assert say(ReasonInstruction(PROMPTS), lambda text: ReasonCase(text, paths=way), "born").abstained


def test_it_explains_as_it_reasons(say: Say, forty: Forty) -> None:
    shown = paths(forty, "Salt Road", ("directed_by", "born_in"), ("starred", "born_in"))
    found = say(ExplainInstruction(PROMPTS), lambda text: ReasonCase(text, paths=shown), "born")
    assert isinstance(found, Explained) and found.explanation and found.answers.names == ("Port Amber",)


@pytest.mark.parametrize("shown", [Shown(), Shown(labels=False), Shown(names=False), Shown(False, True, False, False)])
def test_it_chooses_the_golds_among_the_candidates(say: Say, shown: Shown) -> None:
    candidates = (
        Candidate("Westerby", 0.6, "(Salt Road, starred, Mara Quill), (Mara Quill, born_in, Westerby)", "Westerby"),
        Candidate(
            "Port Amber", 0.4, "(Salt Road, directed_by, Ida Moon), (Ida Moon, born_in, Port Amber)", "Port Amber"
        ),
    )
    instruction = ChooseInstruction(PROMPTS, shown)
    assert say(instruction, lambda text: ChooseCase(text, candidates=candidates), "born").chosen == (1,)
    assert say(instruction, lambda text: ChooseCase(text, candidates=candidates[:1]), "born").by == "abstained"


def test_held_to_the_candidates_it_chooses_one(say: Say) -> None:
    instruction = ChooseInstruction(PROMPTS, only_candidates=True)
    candidates = tuple(Candidate(name, 0.2) for name in ("1995", "1992", "1989"))
    assert say(instruction, lambda text: ChooseCase(text, candidates=candidates), "years").chosen == (1,)
    assert say(instruction, lambda text: ChooseCase(text, candidates=candidates[:1]), "years").chosen == (0,)


def test_paths_are_enough_once_one_ends_in_a_gold(say: Say, forty: Forty) -> None:
    instruction = EnoughInstruction(PROMPTS)
    far, near = (paths(forty, "Salt Road", plan) for plan in (("directed_by", "born_in"), ("directed_by",)))
    assert say(instruction, lambda text: EnoughCase(text, paths=far), "born") is True
    assert say(instruction, lambda text: EnoughCase(text, paths=near), "born") is False


def test_clues_are_mapped_step_by_step(say: Say) -> None:
    """The director of Salt Road, and then where that was: each clue to its own step, along the way to the gold."""
    assert say(ExtractCluesInstruction(PROMPTS), DirectCase, "born") == ("Salt Road", "director", "born")
    relations = ("starred", "directed_by", "born_in")

    def mapped(clues: tuple[str, ...], entity: str) -> list[tuple[str, str]]:
        case = lambda text: MapRelationsCase(text, clues, relations, entity=entity)  # noqa: E731
        found = say(MapRelationsInstruction(PROMPTS), case, "born")
        return [(clues[pair.clue], relations[pair.option]) for pair in found.pairs]

    assert mapped(("director", "born"), "Salt Road") == [("director", "directed_by")]
    assert mapped(("born",), "Ida Moon") == [("born", "born_in")]
    assert mapped(("born",), "Salt Road → directed_by") == [("born", "born_in")]  # all that a path leads to
    assert mapped(("born",), "Mara Quill") == []  # not on the way
    assert mapped(("city",), "Salt Road") == []


def test_entities_take_their_relations_clue(say: Say) -> None:
    names = ("Ida Moon", "Oto Brandt", "Salt Road")

    def mapped(clues: tuple[str, ...], relation: str) -> list[tuple[str, str]]:
        case = lambda text: MapEntitiesCase(text, clues, names, entity="Salt Road", relation=relation)  # noqa: E731
        found = say(MapEntitiesInstruction(PROMPTS), case, "born")
        return [(clues[pair.clue], names[pair.option]) for pair in found.pairs]

    assert mapped(("director", "born"), "directed_by") == [("director", "Ida Moon")]
    assert mapped(("born",), "directed_by") == []
    assert mapped(("director",), "starred") == []
    assert mapped(("salt road", "director"), "directed_by") == [("salt road", "Salt Road"), ("director", "Ida Moon")]


def test_of_a_question_alone_it_knows_a_share_by_heart(say: Say, forty: Forty) -> None:
    direct, thinking = DirectInstruction(PROMPTS), ChainOfThoughtInstruction(PROMPTS)
    assert all(say(direct, DirectCase, one.id).abstained for one in forty.questions)
    assert say(direct, DirectCase, "years", knows=1.0) == Answers(("1989", "1992"))
    assert say(thinking, DirectCase, "years", knows=1.0).answers == Answers(("1989", "1992"))
    told = [
        [say(direct, DirectCase, one.id, knows=0.5, seed=seed).abstained for one in forty.questions] for seed in (0, 1)
    ]
    assert told[0] != told[1] and 0 < sum(told[0]) < len(told[0])


def test_of_a_question_that_nobody_told_of_it_knows_nothing(oracle: Open, forty: Forty) -> None:
    prompt = DirectInstruction(PROMPTS).render(DirectCase("who shot the sheriff?"))
    assert oracle(knows=1.0).generate([prompt])[0][0].text == "I do not know"


def prompts_of(forty: Forty, num: int) -> list[Prompt]:
    """Different prompts, of which the oracle would answer each rightly."""
    right = paths(forty, "Salt Road", ("directed_by", "born_in"))
    other = paths(forty, "Salt Road", ("starred", "born_in"), ("starred",))
    text = forty.question("born").text
    shown = [
        right + tuple(ScoredPath(f"{one.text} → twin → {at}", 1.0, (*one.steps, "twin"), str(at)) for one in other)
        for at in range(num)
    ]
    return [ReasonInstruction(PROMPTS).render(ReasonCase(text, "born", paths=own)) for own in shown]


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
    assert say(EnoughInstruction(PROMPTS), lambda text: EnoughCase(text, paths=shown), "born", error=1.0) is False
    one = (EntityCandidate("Ida Moon"),)
    found = say(ScoreEntitiesInstruction(PROMPTS), lambda text: EntitiesCase(text, one), "born", error=1.0)
    assert found.scores == ((0, 0.05),)
    clues = say(ExtractCluesInstruction(PROMPTS), DirectCase, "born", error=1.0)
    assert len(clues) == 2 and set(clues) < {"Salt Road", "director", "born"}
    relations = ("directed_by", "starred")
    for seed in range(5):
        case = lambda text: RelationsCase(text, relations)  # noqa: E731
        (scored,) = say(ScoreRelationsInstruction(PROMPTS), case, "born", error=1.0, seed=seed).scores
        assert scored in ((1, 0.95), (0, 0.0))
    around = PathConstraints(forty.graph).around(question.topics)
    prompt = PlanInstruction(PROMPTS).render(PlanCase(question.masked, "born", paths_allowed=around))
    (given,) = oracle(error=1.0).generate([prompt], BEAM)
    assert len(given) == 4 and all(is_allowed(around, one.text) for one in given)
    assert forty.plans["born"][0] not in [parse_plan(one.text) for one in given]


def test_options_that_are_right_weigh_most(oracle: Open, forty: Forty) -> None:
    def likeliest(prompt: Prompt, *options: str, **settings: Any) -> list[float]:
        (weights,) = oracle(**settings).score([prompt], [options])
        assert sum(map(math.exp, weights)) == pytest.approx(1.0)
        return [round(math.exp(weight), 2) for weight in weights]

    text = forty.question("born").text
    candidates = (Candidate("Westerby", 0.6), Candidate("Port Amber", 0.4))
    choose = ChooseInstruction(PROMPTS).render(ChooseCase(text, candidates=candidates))
    for options in (("A. Westerby", "B. Port Amber"), ("A", "B"), ("Westerby", "Port Amber")):
        assert likeliest(choose, *options) == [0.1, 0.9]
    assert likeliest(choose, "A. Westerby") == [1.0]
    plan = PlanInstruction(PROMPTS).render(PlanCase(text))
    plans = [render_plan(one) for one in (("starred", "born_in"), ("directed_by", "born_in"), ("year",))]
    assert likeliest(plan, *plans) == [0.05, 0.9, 0.05]
    relations = ScoreRelationsInstruction(PROMPTS).render(RelationsCase(text, ("starred", "directed_by")))
    assert likeliest(relations, "starred", "directed_by") == [0.1, 0.9]
    wrong = likeliest(choose, "A. Westerby", "B. Port Amber", error=1.0)
    assert wrong in ([0.9, 0.1], [0.5, 0.5])  # it weighs another, or none of them


def test_the_name_tells_all_that_answers_follow_from(oracle: Open, forty: Forty) -> None:
    names = {oracle(**one).name for one in ({}, {"error": 0.1}, {"knows": 0.1}, {"seed": 1}, {"fill_budget": True})}
    names.add(open_oracle(Knowledge(forty.search, ()), settings=OracleSection()).name)
    assert len(names) == 6 and oracle().name in names


def test_a_prompt_that_is_too_long_and_an_answer_that_is_cut(oracle: Open, forty: Forty) -> None:
    knowledge = Knowledge(forty.search, forty.questions)
    small = open_oracle(knowledge, settings=OracleSection(), context=50)
    (prompt,) = prompts_of(forty, 1)
    assert small.generate([prompt])[0][0].problem == "too_long"
    cut = oracle().generate([prompt], Decoding(max_new_tokens=1))[0][0]
    assert (cut.text, cut.finished) == ("Port", False)
