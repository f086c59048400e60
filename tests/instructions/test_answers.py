"""Answers as text and back, and from names to entities."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kgqa_core.instructions.answers import (
    ABSTENTION,
    Answers,
    distinct_names,
    find_names,
    match_answers,
    parse_answers,
    parse_explained,
    write_answers,
)
from kgqa_core.instructions.types import ParseFailure

NAMES = st.lists(
    st.text(max_size=20)
    | st.sampled_from(["1. FC Köln", "[REC]", "None", "- x", '"Heroes"', "So the answer is", "A:"]),
    max_size=4,
)


@given(NAMES)
@example(["[", "]", "['a', 'b']", "**bold**", "Answer: x", "…Answer is x", "No, the answer is x", "\\u{41}"])
def test_any_names_come_back(names: list[str]) -> None:
    distinct = distinct_names(names)
    assert parse_answers(write_answers(names)) == Answers(distinct, abstained=not distinct)


@given(st.text() | st.text(alphabet="[]\"',-*1.\n answer:is\\"))
def test_parsing_never_raises(text: str) -> None:
    found = parse_answers(text)
    assert isinstance(found, ParseFailure) or bool(found.names) != found.abstained


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Glory City\nOld Town", ("Glory City", "Old Town")),
        ("- Glory City\n* Old Town\n3) 1984", ("Glory City", "Old Town", "1984")),
        ('["Glory City", "Schindler\'s Ark"]', ("Glory City", "Schindler's Ark")),
        ("['Glory City', 'Old Town'].", ("Glory City", "Old Town")),
        ("[Glory City, Old Town]", ("Glory City", "Old Town")),
        ('[\n  "Glory City",\n  "Old Town"\n]', ("Glory City", "Old Town")),
        ("Here are the answers:\n\n1. Glory City\n2. Old Town", ("Glory City", "Old Town")),
        ("The final answer is Glory City.", ("Glory City",)),
        ("**Answer:** Glory City", ("Glory City",)),
        ("```\nGlory City\n```", ("Glory City",)),
        ("[REC]", ("[REC]",)),
        ("The Answer Man", ("The Answer Man",)),
        ("glory city\nGlory  City", ("glory city",)),  # the same name twice
        ("So the answer is **Glory City**.", ("Glory City",)),
        ("**Answer: Glory City**", ("Glory City",)),
        ("Based on A, B and what is known, the answer is **Glory City**.", ("Glory City",)),
        ("My final answer: Glory City", ("Glory City",)),
        ("Hence it must be $\\boxed{\\text{Glory City}}$.", ("Glory City",)),  # as models end that learned mathematics
        ("\\boxed{Glory City}\n\\[\n\\boxed{Old Town}\n\\]", ("Glory City", "Old Town")),
        ("Answers: **Glory City** and **Old Town**", ("Glory City", "Old Town")),
        ("1. **Glory City**: the capital of **Freedonia**\n2. *Old Town* (a town)", ("Glory City", "Old Town")),
        ("Answers: 1. Glory City\n2. Old Town", ("Glory City", "Old Town")),
        ("### Final Answer\nGlory City", ("Glory City",)),
        ("**Answer(s)**\n- Glory City", ("Glory City",)),
        ('"Weird Al" Yankovic', ('"Weird Al" Yankovic',)),
        ("M*A*S*H", ("M*A*S*H",)),
        ("**12** Angry Men", ("**12** Angry Men",)),  # no name by itself
        ('{"answers": ["Glory City", "Old Town"]}', ("Glory City", "Old Town")),
        ('```json\n{\n  "answers": [\n    "Glory City"\n  ]\n}\n```', ("Glory City",)),
        ('{\n  "cities": [\n    "Glory City"\n  ],\n  "answer": "Old Town"\n}', ("Glory City", "Old Town")),
        ('"Glory City", "Old Town"', ("Glory City", "Old Town")),
        (r'["Beyonc\u00e9", "The \"Ark\""]', ("Beyoncé", 'The "Ark"')),
        ('["Glory City",\n "Old Town"]', ("Glory City", "Old Town")),
        ('["Glory City", "Old To', ("Glory City",)),  # cut by its limit
        ("[1984, 1985]", ("1984", "1985")),
    ],
)
def test_answers_are_found_in_what_models_really_write(text: str, names: tuple[str, ...]) -> None:
    assert parse_answers(text) == Answers(names)


def test_names_that_the_prompt_shows_are_taken_as_they_stand() -> None:
    shown = ("1. FC Köln", "None")
    assert parse_answers("1. FC Köln\nNone", shown) == Answers(shown)
    assert parse_answers("1. FC Köln\nNone") == Answers(("FC Köln",))


QUESTION = "who directed The Long Road?"
SHOWN = ("Adgar Collin", "Bea Dill", "Prince", "Prince of Ends", "126", "J. R.", "The Long Road", "It")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("126.", ("126",)),
        ("**Bea Dill**.", ("Bea Dill",)),
        ("J. R.", ("J. R.",)),  # so called with its stop
        ("The duration of The Long Road is 126.", ("126",)),  # what the question names is no answer
        ("It is The Long Road.", ("It",)),
        ("the long road", ("the long road",)),  # but as a line of its own it is
        ("The film is The Long Road, I think", ("The Long Road",)),  # or where nothing else is named
        ("adgar collin (director)", ("Adgar Collin",)),
        ("Based on the paths, the director is Adgar Collin, with Bea Dill's help.", ("Adgar Collin", "Bea Dill")),
        ("That would be Prince of Ends, not Princess Ida", ("Prince of Ends",)),  # the longest, whole words
        ("I think so: " + "well, " * 100 + "Bea Dill", ("Bea Dill",)),
        ("Here is what I found: Bea Dill\nIt is sure.", ("Bea Dill", "It")),
        ("Bea Dill made it.", ("Bea Dill",)),
        ("Bea Dill\nbecause Adgar Collin only wrote it", ("Bea Dill", "because Adgar Collin only wrote it")),
        ("Bea Dill\nadgar collin (director).\nCher (who sang)", ("Bea Dill", "Adgar Collin", "Cher (who sang)")),
        ("I cannot tell whether Adgar Collin did", ()),
        ("Somebody Else.", ("Somebody Else.",)),
    ],
)
def test_shown_names_are_found_in_prose_where_no_line_is_one(text: str, names: tuple[str, ...]) -> None:
    assert parse_answers(text, SHOWN, QUESTION) == Answers(names, abstained=not names)


@given(NAMES, st.text(), st.text())
def test_shown_names_come_back_whatever_is_asked(names: list[str], text: str, question: str) -> None:
    distinct = distinct_names(names)
    assert parse_answers(write_answers(names), names, question) == Answers(distinct, abstained=not distinct)
    found = parse_answers(text, names, question)
    assert isinstance(found, ParseFailure) or bool(found.names) != found.abstained


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Adgar Collin made it.", ("Adgar Collin",)),
        ("The paths tell it.\nSo Bea Dill.", ("Bea Dill",)),
        ("Adgar Collin made it.\nThat is all.", ()),  # only the last line concludes
        ("Bea Dill made it.\n### Answers\nAdgar Collin\nPrince", ("Adgar Collin", "Prince")),
        ("Bea Dill made it.\n**Final Answer**\nSomebody Else", ("Somebody Else",)),
        ("Bea Dill made it.\nAnswers:\nAdgar Collin", ("Adgar Collin",)),
        ("Bea Dill made it.\nIn conclusion, the answer is Somebody Else.", ("Somebody Else",)),
        ("Bea Dill made it.\nThis leads to $\\boxed{Somebody Else}$.", ("Somebody Else",)),
    ],
)
def test_an_explanation_without_a_heading_answers_in_its_last_line(text: str, names: tuple[str, ...]) -> None:
    assert parse_explained(text, SHOWN, QUESTION) == Answers(names)


@pytest.mark.parametrize(
    "text",
    [
        ABSTENTION,
        "I don't know.",
        "None",
        "Unknown",
        "- N/A",
        "It cannot be determined.",
        "The answer is: I do not know",
        "I'm sorry, but I don’t know the answer to that question.",
        "I do not have enough information to say who made it.",
        "**I do not know.**",
        '"I do not know"',
        "**Answer:** *unknown*",
        '["I do not know"]',
        '{"answer": null}',
    ],
)
def test_abstaining_is_a_result(text: str) -> None:
    assert parse_answers(text) == Answers((), abstained=True)


@pytest.mark.parametrize("name", ["I Don't Know How to Love Him", "I Don't Know, Either", "Sorry"])
def test_a_name_that_begins_like_abstaining_is_an_answer(name: str) -> None:
    assert parse_answers(name) == Answers((name,))


@pytest.mark.parametrize("shown", ["Unknown", "None", "N/A"])
@pytest.mark.parametrize("form", ["{}", "{}.", "Answer: {}", "- {}", '"{}"'])
def test_a_shown_name_is_an_answer_though_it_reads_like_abstaining(shown: str, form: str) -> None:
    assert parse_answers(form.format(shown), [shown]) == Answers((shown,))
    assert parse_answers(form.format(shown).strip('"')) == Answers((), abstained=True)


@pytest.mark.parametrize("text", ["* " * 100_000, "answer " * 50_000, "a, " * 90_000, "so, the final " * 30_000])
def test_a_reply_that_repeats_itself_is_read_in_linear_time(text: str) -> None:
    assert isinstance(parse_answers(text), ParseFailure)
    parse_explained(text)


@pytest.mark.parametrize("text", ["", " \n ", "Here you are:", "blah " * 100, "[\n]"])
def test_a_text_without_an_answer_is_a_counted_failure(text: str) -> None:
    assert parse_answers(text) == ParseFailure("no answer")


PRINCES = {1: "Prince", 2: "prince", 3: "prince", 4: "Cher"}
PLACES = {3: "Springfield", 7: "Springfield", 9: "Paris, Texas"}
PEOPLE = {1: "Meg", 2: "Tom", 3: "Ann"}
STOPS = {1: "J. R.", 2: "J. R", 3: "Dr.", 4: "Cher"}
COMMAS = ["Tom and Jerry", "Washington, D.C.", "March 3, 1999", "Nash", "Crosby, Stills, Nash and Young", "Ann"]


@pytest.mark.parametrize(
    ("said", "candidates", "entities", "unmatched"),
    [
        (["prince"], PRINCES, (2, 3), ()),  # who is called exactly so is meant alone
        (["Prince"], PRINCES, (1,), ()),
        (["PRINCE", "cher"], PRINCES, (1, 2, 3, 4), ()),
        (["Springfield", "Paris, Texas", "Atlantis"], PLACES, (3, 7, 9), ("Atlantis",)),
        (["J. R.", "Dr", "cher."], STOPS, (1, 4), ("Dr",)),  # a final stop counts where something is called so
        (["Meg, Tom and Ann", "Washington, D.C."], PEOPLE, (1, 2, 3), ("Washington, D.C.",)),
        ([f"{', '.join(COMMAS[:3])} and {COMMAS[4]}; Zoe"], dict(enumerate(COMMAS)), (0, 1, 2, 4), ("Zoe",)),
    ],
)
def test_names_are_matched_to_candidates_and_one_line_of_several_is_taken_apart(
    said: list[str], candidates: dict[int, str], entities: tuple[int, ...], unmatched: tuple[str, ...]
) -> None:
    matched = match_answers(said, candidates)
    assert (matched.entities, matched.unmatched) == (entities, unmatched)
    assert match_answers(Answers(tuple(said)), candidates) == matched


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Answer: Washington, D.C.", "Washington, D.C."),
        ("The answer is J.R.R.", "J.R.R."),
        ("Answer: the year 3.5.", "the year 3.5"),
        ("Answer: Mr. Ed.", "Mr. Ed"),
        ("Answer: Wait...", "Wait..."),
    ],
)
def test_the_stop_behind_initials_is_the_name_s_own(text: str, name: str) -> None:
    assert parse_answers(text) == Answers((name,))
    assert match_answers([name], {1: name, 2: "other"}).entities == (1,)


def test_names_that_no_candidate_has_are_looked_up_in_the_graph(world: Any) -> None:
    dawn, snake = world.id_of("Dawn"), world.id_of("Snake")
    matched = match_answers(["dawn", "SNAKE", "nobody"], {dawn: "Dawn"}, world.search)
    assert (matched.entities, matched.unmatched) == ((dawn, snake), ("nobody",))
    stopped = match_answers(["Snake.", "Atlantis."], {}, world.search)
    assert (stopped.entities, stopped.unmatched) == ((snake,), ("Atlantis.",))


@pytest.mark.parametrize("reply", ["Answer:\n" * 2_500, "Dawn " * 200_000, "A.1." * 250_000, '"a",' * 250_000])
def test_a_reply_that_says_one_thing_for_ever_is_read_at_once(reply: str) -> None:
    begun = time.process_time()
    parse_explained(reply, SHOWN, QUESTION)
    parse_answers(reply, SHOWN, QUESTION)
    assert time.process_time() - begun < 5


def test_names_that_stand_in_a_long_text_very_often_are_found_at_once() -> None:
    begun = time.process_time()
    assert find_names("Dawn, Snake. " * 30_000, ["Snake", "Dawn"]) == ["Dawn", "Snake"]
    assert time.process_time() - begun < 3  # with a copy of the text for each it took a minute
