"""Options with scores, and pairs of clue and option, as text and back."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kgqa_core.instructions.render import escape, read_prompts
from kgqa_core.instructions.scores import (
    ClueMatch,
    EntitiesCase,
    EntityCandidate,
    Mappings,
    ScoreEntitiesInstruction,
    Scores,
    parse_mappings,
    parse_scores,
    write_scores,
)
from kgqa_core.instructions.types import ParseFailure

RELATIONS = ["author", "^author", "starred_actors", "a = 0.5", "people.person.parents"]


@settings(max_examples=40)
@given(
    st.lists(st.text(min_size=1, max_size=15), min_size=1, max_size=5, unique=True).flatmap(
        lambda options: st.tuples(st.just(options), st.permutations(range(len(options))), st.lists(st.integers(0, 100)))
    ),
    st.booleans(),
)
@example((["a", "a = 0.5", "1: a", " "], [0, 1, 2, 3], [7, 100, 0, 50]), True)
def test_any_options_come_back(case: tuple[list[str], list[int], list[int]], countdown: bool) -> None:
    options, order, cents = case
    scores = tuple((index, value / 100) for index, value in zip(order, cents, strict=False))
    found = parse_scores(write_scores(options, scores, budget=9 if countdown else None), options, countdown=countdown)
    assert found == Scores(scores) if scores else isinstance(found, ParseFailure)


def test_options_of_one_name_are_told_apart_by_their_number() -> None:
    names = ["Springfield", "Springfield"]
    text = write_scores(names, [(1, 0.9), (0, 0.1)])
    assert text == "2: Springfield = 0.90\n1: Springfield = 0.10"
    assert parse_scores(text, names, countdown=False) == Scores(((1, 0.9), (0, 0.1)))


def test_options_are_found_however_their_accents_are_composed() -> None:
    """Some tokenizers compose what a model reads (Qwen's, by NFC), and so it says other characters than were shown."""
    shown, said = unicodedata.normalize("NFD", "Café Müller"), unicodedata.normalize("NFC", "Café Müller")
    assert parse_scores(f"1: {said} = 0.90", ["author", shown], countdown=True) == Scores(((1, 0.9),))
    assert parse_scores(f"2: {said} = 0.90", ["author", shown], countdown=False) == Scores(((1, 0.9),))
    assert parse_mappings(f"{said} -> {said} = 9", [shown], [shown]) == Mappings((ClueMatch(0, 0, 9.0),))
    assert parse_mappings(f"{shown} -> {shown}", [said], [said]) == Mappings((ClueMatch(0, 0, 10.0),))


@given(st.text() | st.text(alphabet="author=:0123456789.%/ \n<choice></score>"))
def test_parsing_never_raises(text: str) -> None:
    found = parse_scores(text, RELATIONS, countdown=True)
    assert isinstance(found, ParseFailure) or all(0 <= score <= 1 for _, score in found.scores)


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ("2: author = 0.90 (asked in 1 word)\n1: Starred Actors = 0.1", ((0, 0.9), (2, 0.1))),
        ("1. `^author`: 85%", ((1, 0.85),)),
        ("- author, score: 7/10", ((0, 0.7),)),
        ("author (Score: 8)", ((0, 0.8),)),
        ("<choice> author </choice><reason>it is</reason><score>0.4</score>", ((0, 0.4),)),
        ("author = 0.9\nauthor = 0.1", ((0, 0.9),)),  # the first counts
        ("| author | 0.9 |", ((0, 0.9),)),
        ("- **author**: 0.9 (it asks so)\n- **starred_actors** = **0.4**", ((0, 0.9), (2, 0.4))),
        ("author = 0,90", ((0, 0.9),)),  # as it is written in many countries
        ("author = 0.9 (since 1999, the 2nd of author 1980)", ((0, 0.9),)),  # years and places are no scores
        ('{"author": 0.9, "starred_actors": 0.4}', ((0, 0.9), (2, 0.4))),  # all on one line
        ("2: ^author = 0.8, 1: a = 0.5 = 0.3; author (10%)", ((1, 0.8), (3, 0.3), (0, 0.1))),
    ],
)
def test_scores_are_found_in_what_models_really_write(text: str, scores: tuple[tuple[int, float], ...]) -> None:
    assert parse_scores(text, RELATIONS, countdown=True) == Scores(scores)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("0.95", 0.95),
        ("0,95", 0.95),
        ("0.95, because the term began in 1999", 0.95),
        ("0.85\n\nIn 1999 it was 1 of 2.", 0.85),
        ("Score: 0.8 (on a scale of 0 to 1)", 0.8),
        ("1", 1.0),
        ("1. The term began in 1998.\n2. It fits.\nSo I say 0.7", 0.7),
        ("It began in 1998 and ended in 2002: 0.6", 0.6),
        ("0: Dawn = 0.4", 0.4),
    ],
)
def test_the_score_of_a_single_candidate_is_no_year_and_nothing_that_explains_it(text: str, score: float) -> None:
    single = ScoreEntitiesInstruction(read_prompts())
    case = EntitiesCase("who was mayor in 1999?", (EntityCandidate("Dawn"),))
    assert single.parse(text, case) == Scores(((0, score),))


def test_candidates_may_be_named_by_their_number_alone() -> None:
    assert parse_scores("1: 0.9\n2: 0.1\n3: 0.5", ["Dawn", "Dusk"], countdown=False) == Scores(((0, 0.9), (1, 0.1)))
    assert parse_scores("1: 0.9, 2: 0.1", ["Dawn", "Dusk"], countdown=False) == Scores(((0, 0.9), (1, 0.1)))
    assert parse_scores("0: Heat = 0.9", ["Heat", "Heat"], countdown=False) == Scores(((0, 0.9),))


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ("1.00\n0.5\n.25\n", (1, 0.5, 0.25)),
        ("Score: 0.9, 0.0,\n 1", (0.9, 0, 1)),
        ("[90%; 8/10; 7]", (0.9, 0.8, 0.7)),
        ("1.00", None),
        ("0.9, 0.1", None),
        ("0.9, 0.1, 0.5, 0.2", None),
        ("0.9, 0.1 or 0.5", None),
    ],
)
def test_plain_numbers_are_in_the_order_of_the_candidates(text: str, scores: tuple[float, ...] | None) -> None:
    case = EntitiesCase("who?", tuple(map(EntityCandidate, ("Dawn", "1999", "Dusk"))))
    found = ScoreEntitiesInstruction(read_prompts()).parse(text, case)
    assert found == (Scores(tuple(enumerate(scores))) if scores else ParseFailure("no score of a known option"))


def test_what_was_never_offered_is_left_out() -> None:
    assert parse_scores("2: author = 0.9\n1: publisher = 0.8", RELATIONS, countdown=True) == Scores(((0, 0.9),))
    assert isinstance(parse_scores("publisher = 0.8", RELATIONS, countdown=True), ParseFailure)


CLUES, OPTIONS = ["wrote", "painter"], ["author", "^painted_by", "a -> b"]


@given(st.text() | st.text(alphabet="wrote->author|=0123456789(/)\n "))
@example("wrote -> author = 5/0")
def test_parsing_mappings_never_raises(text: str) -> None:
    found = parse_mappings(text, CLUES, OPTIONS)
    assert isinstance(found, ParseFailure) or all(0 <= pair.score <= 10 for pair in found.pairs)


@given(st.text(alphabet="ab ->|=1\n^", min_size=1, max_size=8), st.text(alphabet="ab ->|=1\n^", min_size=1, max_size=8))
def test_odd_names_come_back(clue: str, option: str) -> None:
    found = parse_mappings(f"{escape(clue)} -> {escape(option)}", [clue], [option])
    assert found == Mappings((ClueMatch(0, 0, 10.0),))


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("wrote -> author = 9\npainter -> ^painted_by = 7", ((0, 0, 9.0), (1, 1, 7.0))),
        ("1. Wrote → author (8/10)", ((0, 0, 8.0),)),
        ("- **wrote** -> **author** = 9\n* **painter** -> **^painted_by**", ((0, 0, 9.0), (1, 1, 10.0))),
        ("- painter | ^painted_by", ((1, 1, 10.0),)),
        ("wrote -> a -> b = 3", ((0, 2, 3.0),)),
        ("wrote -> author = 9 (who wrote it, of 2)", ((0, 0, 9.0),)),
        ("wrote -> author = 8/10, painter -> ^painted_by = 6 as it asks", ((0, 0, 8.0), (1, 1, 6.0))),
        ("painter -> ^painted_by; wrote -> a -> b, wrote -> author (it asks)", ((1, 1, 10), (0, 2, 10), (0, 0, 10))),
        ("none", ()),
        ("No clue fits.", ()),
        ("wrote -> publisher = 9", ()),  # never offered
    ],
)
def test_pairs_are_found_in_what_models_really_write(text: str, pairs: tuple[tuple[int, int, float], ...]) -> None:
    assert parse_mappings(text, CLUES, OPTIONS) == Mappings(tuple(ClueMatch(*pair) for pair in pairs))


def test_prose_maps_nothing_and_is_a_failure() -> None:
    assert parse_mappings("I like books.", CLUES, OPTIONS) == ParseFailure("no mapping")


def test_a_reply_of_nothing_but_tags_is_read_at_once() -> None:
    begun = time.process_time()
    assert isinstance(parse_scores("<choice></choice>" * 1_200, ["a"], countdown=True), ParseFailure)
    assert time.process_time() - begun < 3
    both = parse_scores(
        "<choice>b</choice> as <score>0.5</score>, <CHOICE>a</CHOICE><score>1</score>", ["a", "b"], countdown=True
    )
    assert both == Scores(((1, 0.5), (0, 1.0)))
