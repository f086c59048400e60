"""What searches ask, taught: prompts on a path that teaches, and where a search has strayed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kgqa_core.config_lm import ReasonerSection
from kgqa_core.graph.follow import leave
from kgqa_core.graph.kg import to_relations
from kgqa_core.graph.search_graph import relations_around
from kgqa_core.graph.supervision import TaughtPath
from kgqa_core.instructions import scores
from kgqa_core.instructions.alignment import Wordings, learn_wordings
from kgqa_core.instructions.examples import Source, make_examples
from kgqa_core.instructions.types import Example
from kgqa_core.systems.baselines import TogSection
from kgqa_core.systems.eperm import EpermSection
from kgqa_core.types import Question

TIMES = 40  # a question is asked, by other ids: all that may be drawn is drawn


def make(world: Any, name: str, at: int = 0, *, rows: Any = None, known: Any = None) -> list[Example]:
    asked = [replace(world.questions[at], id=f"{at}-{number}") for number in range(TIMES)]
    source = Source(world.search, world.prompts, ReasonerSection(instructions={name: 1.0}), known=known or Wordings())
    return list(
        make_examples(source, asked, dict.fromkeys([one.id for one in asked], rows or world.rows[f"q{at + 1}"]))
    )


def path_of(example: Example) -> tuple[str, ...]:
    said = re.findall(r"(?:Path so far|Plan): (.*)\n", example.prompt)[-1]
    return () if said == "(none)" else tuple(said.split(" → "))


def shown(example: Example, heading: str) -> list[str]:
    return example.prompt.rsplit(heading, 1)[1].split("\n")


def named(example: Example) -> tuple[str, ...]:
    """What a target names, without the numbers that count down."""
    return tuple(line.partition(": ")[2] for line in example.target.split("\n"))


def test_relations_are_asked_about_along_a_path_and_share_their_weight(world: Any) -> None:
    examples = make(world, "score_relations")
    targets = {(path_of(one), named(one)) for one in examples if not one.target.endswith("0.00")}
    both = ("about = 1.00", "made_by = 1.00")
    assert {(("made_by",), ("^made_by = 1.00",)), (("made_by", "^made_by"), ("year = 1.00",))} < targets
    first = {found for path, found in targets if not path}
    assert {both, both[::-1]} < first <= {both, both[::-1], both[:1], both[1:]}  # where there is room for one: one
    per_question = {one.question_id: 0.0 for one in examples}
    for one in examples:
        per_question[one.question_id] += one.weight
    assert list(per_question.values()) == pytest.approx([1.0] * TIMES)


def test_a_prompt_says_how_many_relations_may_be_named_and_the_target_counts_down_from_it(world: Any) -> None:
    budgets = set()
    for example in make(world, "score_relations"):
        numbers = [int(line.partition(":")[0]) for line in example.target.split("\n")]
        budgets.add(numbers[0])
        assert numbers == [*range(numbers[0], numbers[0] - len(numbers), -1)] and numbers[-1] > 0
        assert re.search(rf"\b{numbers[0]}\b", example.prompt)
    assert budgets == {*range(1, 9)}


def test_relations_are_those_that_the_systems_offer_in_any_order(world: Any) -> None:
    """Not those that lead back to a topic alone; EPERM stands at all that a path leads to, ToG at one of them."""
    graph, orders = world.search.graph, set()
    topics = np.array(world.questions[0].topics)
    for example in make(world, "score_relations"):
        frontier = topics
        for relation in to_relations(graph, path_of(example)) or ():
            frontier = leave(graph, frontier, relation, topics)
        places = [frontier, *(np.array([one]) for one in frontier)]
        offers = [{world.search.step_label(one) for one in relations_around(graph, at, topics)} for at in places]
        listed = shown(example, "Relations:\n")
        assert set(listed) in offers
        orders |= {tuple(listed)} if not path_of(example) else set()
    assert orders == {("made_by", "about"), ("about", "made_by")}


def test_astray_and_past_the_answer_no_relation_is_worth_anything(world: Any) -> None:
    zero = {path_of(one): named(one) for one in make(world, "score_relations", 1) if one.target.endswith("0.00")}
    assert set(zero) == {("headquarters", "city"), ("member",), ("member", "capital")}  # Port Amber is the answer
    assert zero["headquarters", "city"] == ("^city = 0.00",)


def test_relations_that_lead_to_answers_are_offered_whatever_the_limit(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgqa_core.instructions.search_examples.MAX_RELATIONS", 1)
    on_path = {(): "headquarters", ("headquarters",): "city"}
    for example in make(world, "score_relations", 1):
        assert len(shown(example, "Relations:\n")) == 1
        if path_of(example) in on_path:
            assert shown(example, "Relations:\n") == [on_path[path_of(example)]]


def test_of_paths_that_do_equally_well_the_words_tell_which_is_worth_more(world: Any) -> None:
    rows = (TaughtPath(("about", "^about", "year"), 2, 2, True), *world.rows["q1"])
    known = learn_wordings([("the maker made", [("made_by", "^made_by")]), ("about what", [("about",)])])
    first = next(one for one in make(world, "score_relations", rows=rows, known=known) if not path_of(one))
    assert named(first) == ("made_by = 1.00",)
    asked = [path_of(one) for one in make(world, "score_entities", rows=rows, known=known)]
    assert asked.count(("made_by", "^made_by", "year")) > TIMES / 3


def test_entities_are_asked_about_as_eperm_and_tog_do(world: Any) -> None:
    """With facts around them and the whole plan, alone or several; or bare, behind the plan's last relation."""
    forms = set()
    for example in make(world, "score_entities"):
        lines = shown(example, "facts about it:\n")
        names, facts = [line for line in lines if line[0] != " "], [line for line in lines if line[0] == " "]
        forms.add((bool(facts), len(names) > 1))
        assert len(facts) <= EpermSection().num_neighbours * len(names)
        assert len(example.target.split("\n")) == len(names)
        if facts and path_of(example)[0] == "made_by" and len(names) == 1:
            assert re.fullmatch(r"[01]\.\d\d", example.target)
        if not facts:
            assert len(names) <= TogSection().max_entities
            assert len(names) > 1
    assert forms == {(True, True), (True, False), (False, True)}


def test_an_entity_is_worth_the_share_of_golds_behind_it(world: Any) -> None:
    rows = {"q3": (TaughtPath(("^member", "member"), 1, 0, True),)}
    question = Question("q3", "?", "?", (world.id_of("Freedonia"),), (world.id_of("Osterlich"),), "train")
    source = Source(world.search, world.prompts, ReasonerSection(instructions={"score_entities": 1.0}))
    worth = {path_of(one): one.target for one in make_examples(source, [question], rows)}
    assert worth.pop(("^member", "member")) == "1.00"  # via the Pact, or Osterlich itself; not back to the topic
    assert set(worth.values()) == {"0.00"}


def test_facts_suffice_where_a_path_ends_right_and_others_are_among_them(world: Any) -> None:
    examples = make(world, "enough_information", 1)
    right, short = "Pact → headquarters → m.1 → city → Port Amber", "Pact → headquarters → m.1"
    verdicts = {(one.target, right in shown(one, "Facts:\n"), short in shown(one, "Facts:\n")) for one in examples}
    assert verdicts == {("yes", True, False), ("no", False, True), ("no", False, False)}
    steps = {len({line.count(" → ") for line in shown(one, "Facts:\n")}) for one in examples}
    assert steps == {1}  # as in a beam
    strays = {line for one in examples for line in shown(one, "Facts:\n")} - {right, short}
    assert any(line.startswith("Pact → member → ") for line in strays)
    assert {one.target for one in make(world, "enough_information", 2)} == {"yes", "no"}  # of one step, too


@pytest.mark.parametrize("name", ["enough_information", "score_entities", "score_relations"])
def test_what_is_taught_is_read_back(world: Any, name: str) -> None:
    for at in range(3):
        for example in make(world, name, at):
            numbers = [float(one) for one in re.findall(r"\d\.\d\d\b", example.target)]
            if name == "score_relations":
                options = tuple(shown(example, "Relations:\n"))
                read = scores.parse_scores(example.target, options, countdown=True)
                assert isinstance(read, scores.Scores)
                assert [score for _, score in read.scores] == numbers
            assert all(0 <= number <= 1 for number in numbers)
