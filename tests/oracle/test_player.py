"""Chance and always-the-first answer every instruction in its form, and see nothing but the prompt."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kgqa_core.instructions import choose, plan, reason, scores
from kgqa_core.instructions.render import ScoredPath, read_prompts
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.lm.calls import is_allowed
from kgqa_core.lm.types import Decoding
from kgqa_core.oracle.player import Player, open_control
from tests.forty_triples import Forty

PROMPTS = read_prompts()
WAYS = ("a → r → b", "a → s → c", "a → r → d", "a → s → e → r → f")
PATHS = tuple(ScoredPath(way, 1.0, tuple(way.split(" → ")[1::2]), way.split(" → ")[-1]) for way in WAYS)
NAMES = ("b", "c", "d", "e")
ENTITIES = tuple(map(scores.EntityCandidate, NAMES))
CANDIDATES = tuple(choose.Candidate(name, 0.25) for name in NAMES)
BEAM = Decoding(method="beam", num_returns=3, num_beams=3)

FIRST: list[tuple[Any, Any, Any]] = [
    (scores.ScoreRelationsInstruction(PROMPTS), scores.RelationsCase("who?", NAMES, budget=2), ((0, 0.95), (1, 0.90))),
    (
        scores.ScoreEntitiesInstruction(PROMPTS),
        scores.EntitiesCase("who?", ENTITIES),
        ((0, 0.95), (1, 0.05), (2, 0.05), (3, 0.05)),
    ),
    (scores.ScoreEntitiesInstruction(PROMPTS), scores.EntitiesCase("who?", ENTITIES[:1]), ((0, 0.95),)),
    (
        reason.ReasonInstruction(PROMPTS),
        reason.ReasonCase("who?", paths=PATHS),
        ("b", "d"),
    ),  # all that the first way ends at
    (reason.ReasonInstruction(PROMPTS, scored=True), reason.ReasonCase("who?", paths=PATHS), ("b", "d")),
    (choose.ChooseInstruction(PROMPTS), choose.ChooseCase("who?", candidates=CANDIDATES), (0,)),
    (choose.ChooseInstruction(PROMPTS, only_candidates=True), choose.ChooseCase("who?", candidates=CANDIDATES), (0,)),
    (reason.ExtractCluesInstruction(PROMPTS), reason.ReasonCase("who made this film?"), ("who", "made", "this")),
    (choose.EnoughInstruction(PROMPTS), choose.EnoughCase("who?", paths=PATHS), True),
    (reason.DirectInstruction(PROMPTS), reason.ReasonCase("who?"), ()),
]


def result(model: Player, instruction: Any, case: Any) -> Any:
    """Return the part of a parsed answer that tells what was picked."""
    found = instruction.parse(model.generate([instruction.render(case)])[0][0].text, case)
    assert not isinstance(found, ParseFailure)
    for part in ("scores", "chosen", "pairs", "names"):
        found = getattr(found, part, found)
    return found


@pytest.mark.parametrize(("instruction", "case", "picked"), FIRST, ids=lambda value: getattr(value, "name", ""))
def test_the_first_of_what_is_shown(instruction: Any, case: Any, picked: Any) -> None:
    assert result(open_control(None), instruction, case) == picked


def test_who_is_held_to_names_says_them_as_they_are_shown() -> None:
    names = ("1. FC Köln", "[REC]")
    paths = tuple(ScoredPath(f"a → r → {name}", 1.0, ("r",), name, "a") for name in names)
    for shown in (names, ()):  # read back, be they held to or not
        case = reason.ReasonCase("which?", paths=paths, shown=shown, bound=True)
        assert result(open_control(None), reason.ReasonInstruction(PROMPTS), case) == names


def test_the_first_clue_goes_to_the_first_option() -> None:
    relations, entities = scores.MapRelationsInstruction(PROMPTS), scores.MapEntitiesInstruction(PROMPTS)
    (pair,) = result(open_control(None), relations, scores.MapCase("who?", ("x", "y"), NAMES))
    assert (pair.clue, pair.option, pair.score) == (0, 0, 9)
    (pair,) = result(open_control(None), entities, scores.MapCase("who?", ("x", "y"), NAMES))
    assert (pair.clue, pair.option) == (0, 0)


@pytest.mark.parametrize(("instruction", "case", "picked"), FIRST[:-1], ids=lambda value: getattr(value, "name", ""))
def test_chance_picks_differently_by_seed_and_the_same_by_prompt(instruction: Any, case: Any, picked: Any) -> None:
    models = [open_control(seed) for seed in range(10)]
    found = [result(model, instruction, case) for model in models]
    assert found == [result(model, instruction, case) for model in models]
    assert len(set(map(str, found))) > 1


def test_chance_spreads_over_ways_not_over_paths() -> None:
    """Two of four paths go one way: it is picked a third of the time, as each of the others."""
    model, instruction = open_control(0), reason.ReasonInstruction(PROMPTS)
    counts = Counter(result(model, instruction, reason.ReasonCase(f"who {at}?", paths=PATHS)) for at in range(600))
    assert set(counts) == {("b", "d"), ("c",), ("f",)} and min(counts.values()) > 150


@pytest.mark.parametrize("model", [open_control(None), open_control(0)], ids=["first", "random"])
def test_nothing_shown_is_nothing_picked(model: Player) -> None:
    assert result(model, reason.ReasonInstruction(PROMPTS), reason.ReasonCase("who?")) == ()
    assert result(model, choose.ChooseInstruction(PROMPTS), choose.ChooseCase("who?")) == ()
    assert result(model, scores.MapRelationsInstruction(PROMPTS), scores.MapCase("who?", ("x",), ())) == ()
    for case, instruction in (
        (reason.ReasonCase("who?"), reason.ChainOfThoughtInstruction(PROMPTS)),
        (reason.ReasonCase("who?"), reason.ExplainInstruction(PROMPTS)),
    ):
        found = instruction.parse(model.generate([instruction.render(case)])[0][0].text, case)  # type: ignore[arg-type]
        assert not isinstance(found, ParseFailure) and found.abstained


@pytest.mark.parametrize("model", [open_control(None), open_control(0)], ids=["first", "random"])
def test_plans_are_those_that_exist(model: Player, forty: Forty) -> None:
    space = plan.PathConstraints(forty.graph)
    for question in forty.questions[:9]:
        around = space.around(question.topics)
        prompt = plan.PlanInstruction(PROMPTS).render(
            plan.PlanCase(question.masked, question_id=question.id, paths_allowed=around)
        )
        (given,) = model.generate([prompt], BEAM)
        texts = [one.text for one in given if one.text]
        assert texts and len(set(texts)) == len(texts) and all(is_allowed(around, text) for text in texts)
    nowhere = plan.PlanInstruction(PROMPTS).render(plan.PlanCase("who?", paths_allowed=plan.RelationConstraint(())))
    assert [one.text for one in model.generate([nowhere], BEAM)[0]] == ["", "", ""]
    free = plan.PlanInstruction(PROMPTS).render(plan.PlanCase("who?"))
    assert model.generate([free])[0][0].text == ""  # nothing is shown that a plan could be made of


def test_options_are_weighed_by_place_or_by_chance() -> None:
    prompt = reason.DirectInstruction(PROMPTS).render(reason.ReasonCase("who?"))
    first, second, third = open_control(None).score([prompt], [["x", "y", "z"]])[0]
    assert first > second > third
    drawn = {tuple(open_control(seed).score([prompt], [["x", "y", "z"]])[0]) for seed in range(40)}
    assert len(drawn) == 6
