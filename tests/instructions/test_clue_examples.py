"""What FiSKE asks, taught: clues in the words of the question, and what they stand for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from kgqa_core.config_lm import ReasonerSection
from kgqa_core.instructions.alignment import learn_wordings
from kgqa_core.instructions.examples import Source, make_examples
from kgqa_core.instructions.reason import ExtractCluesInstruction, ReasonCase
from kgqa_core.instructions.scores import MapCase, MapEntitiesInstruction, Mappings, MapRelationsInstruction
from kgqa_core.instructions.types import Example
from kgqa_core.lm.calls import is_allowed

CASES = ("extract_clues", "map_relations", "map_entities")


def make(world: Any, *names: str, questions: Any = None) -> list[Example]:
    known = learn_wordings((one.masked, [row.path for row in world.rows.get(one.id, ())]) for one in world.questions)
    source = Source(world.search, world.prompts, ReasonerSection(instructions=dict.fromkeys(names, 1.0)), known=known)
    return list(make_examples(source, questions or world.questions, world.rows))


def test_of_paths_that_do_equally_well_the_one_that_the_words_fit_counts(world: Any) -> None:
    other = [replace(row, path=("member",)) for row in world.rows["q2"]]
    rows = {**world.rows, "q2": [*other, *world.rows["q2"]]}
    source = Source(world.search, world.prompts, ReasonerSection(instructions={"map_relations": 1.0}))
    known = learn_wordings([("the seat of [topic]", [("headquarters", "city")]), ("its members", [("member",)])])
    made = make_examples(replace(source, known=known), world.questions[1:2], rows)
    assert "member" not in "".join(example.target for example in made)


def test_clues_are_the_topic_and_a_word_for_each_step_in_the_order_of_the_question(world: Any) -> None:
    examples = {example.question_id: example for example in make(world, "extract_clues")}
    assert examples["q1"].prompt.endswith(
        "Question: what time did the films appear that the maker of Nightfall also made?"
    )
    clues = examples["q1"].target.split("\n")
    assert clues[-2:] == ["Nightfall", "made"]
    assert len(clues) == 4
    assert examples["q3"].target == "capital\nFreedonia"


def test_relations_are_mapped_step_by_step_and_a_wrong_turn_to_none(world: Any) -> None:
    examples = [one for one in make(world, "map_relations") if one.question_id == "q1"]
    targets = Counter(example.target.split(" -> ")[-1] for example in examples)
    assert targets["made_by = 9"] == targets["^made_by = 9"] == targets["year = 9"] == 1
    assert sum(example.weight for example in examples) == pytest.approx(1)
    first, last = examples[0].prompt, next(one.prompt for one in examples if one.target.endswith("> year = 9"))
    assert "Entity: Nightfall\n" in first
    assert set(first.split("Relations:\n")[1].split("\n")) == {"made_by", "about"}
    assert "Entity: Nightfall → made_by → ^made_by\n" in last  # two films: told by the path to them
    assert len(last.split("Clues:\n")[1].split("\nEntity")[0].split("\n")) == 1  # what is taken is left out


def test_entities_on_the_way_take_the_clue_of_their_relation(world: Any) -> None:
    questions = [replace(world.questions[2], id=f"q3-{number}") for number in range(5)]
    rows = {question.id: world.rows["q3"] for question in questions}
    source = Source(world.search, world.prompts, ReasonerSection(instructions={"map_entities": 1.0}))
    made = list(make_examples(source, questions, rows))
    assert {one.target for one in made} == {"capital -> Glory City"}
    assert made[0].prompt.endswith("From: Freedonia\nRelation: capital\nEntities:\nGlory City")


def test_a_mapping_that_the_relation_took_is_none_among_entities(world: Any) -> None:
    questions = [replace(world.questions[0], id=f"q1-{number}") for number in range(30)]
    rows = {question.id: world.rows["q1"] for question in questions}
    source = Source(world.search, world.prompts, ReasonerSection(instructions={"map_entities": 1.0}))
    targets = {one.target for one in make_examples(source, questions, rows)}
    assert "none" in targets
    assert len(targets) > 3


def test_no_answer_is_in_sight_before_entities_are_shown(world: Any) -> None:
    for example in make(world, "extract_clues", "map_relations"):
        question = next(one for one in world.questions if one.id == example.question_id)
        assert not any(world.search.name_of(gold) in example.prompt + example.target for gold in question.answers)


def test_the_same_is_made_again_and_of_each_question_alone(world: Any) -> None:
    everything = make(world, *CASES)
    alone = make(world, *CASES, questions=world.questions[1:2])
    assert alone == [one for one in everything if one.question_id == "q2"]
    assert {one.instruction for one in everything} == set(CASES)


NASTY = ("a -> b = 3", "none", "1. x", " y ", "b", "(b)", "z\nz", "\\u{41}", "10 % = 5", "c | d")


@pytest.mark.parametrize("kind", [MapRelationsInstruction, MapEntitiesInstruction])
def test_what_is_taught_is_read_back_whatever_the_names(world: Any, kind: Any) -> None:
    instruction = kind(world.prompts)
    told = 0
    for clue in range(len(NASTY)):
        for option in range(len(NASTY)):
            case = MapCase("?", NASTY, NASTY[::-1], pairs=((clue, option),))
            if (target := instruction.target(case)) is not None:
                told += 1
                read = instruction.parse(target, case)
                assert isinstance(read, Mappings)
                assert [(pair.clue, pair.option) for pair in read.pairs] == [(clue, option)]
    assert told > 60
    assert instruction.target(MapCase("?", ("a",), ("b",))) is None
    nothing = MapCase("?", ("a",), ("b",), pairs=())
    assert instruction.parse(instruction.target(nothing), nothing) == Mappings(())


def test_clues_that_would_be_read_as_something_else_are_not_taught(world: Any) -> None:
    instruction = ExtractCluesInstruction(world.prompts)
    assert instruction.target(ReasonCase("?", answers=("maker", "Night: fall"))) == "maker\nNight: fall"
    assert instruction.target(ReasonCase("?")) is None
    for clues in (("Hello, World",), ("maker", "maker ")):
        case = ReasonCase("?", answers=clues)
        assert instruction.target(case) is None or instruction.parse(instruction.target(case) or "", case) == clues


def test_where_answers_are_held_to_what_is_shown_clues_are_words_of_the_question(world: Any) -> None:
    """A small model misspells rare names, and then no entity is found."""
    instruction = ExtractCluesInstruction(world.prompts)
    case = ReasonCase("who's in 'Truth or Lies, N.M.' and Mr. Jones?", bound=True)
    bound = instruction.constraint(case)
    assert bound is not None
    for clues in ("Truth or Lies, N.M.\nMr. Jones", "s in", "in\nTruth", "'Truth or Lies, N.M.'", "Jones\nMr. Jones?"):
        assert is_allowed(bound, clues)
    for strange in ("", "Truht or Lies", "ruth", "Jones\nJones", "Mr. Jones\n", "Truth Lies"):
        assert not is_allowed(bound, strange)
    assert instruction.constraint(replace(case, bound=False)) is None
    for text in ("谁导演了这部电影？", "why " * 51, ". " * 10_000):  # a script without blanks; too many runs of words
        assert instruction.constraint(replace(case, question=text)) is None
