"""Words of questions aligned with steps, and the path that a wording means."""

from __future__ import annotations

from kgqa_core.graph.supervision import TaughtPath
from kgqa_core.instructions.alignment import Wordings, align, content_words, learn_wordings

ASKED = [
    ("who wrote [topic]", ("written_by",)),
    ("who directed [topic]", ("directed_by",)),
    ("what did [topic] direct", ("^directed_by",)),
    ("when were the films of [topic] released", ("^directed_by", "year")),
    ("when was [topic] released", ("year",)),
    ("who wrote the films that [topic] directed", ("^directed_by", "written_by")),
]


def test_words_are_aligned_with_the_steps_that_they_are_asked_with() -> None:
    words = learn_wordings((masked, [path]) for masked, path in ASKED).words
    plan = ("^directed_by", "year")
    text = ["main", "films", "released"]  # no word has a stem of the relations
    assert align(text, plan, words)[1] == [1, 2]
    assert align(["wrote", "films"], ("written_by",), words)[1] == [0]
    assert align(["wrote"], plan, words) == (-1.0, [])  # fewer words than steps
    assert align(["one", "Two", "two", "three"], ("x", "y", "z"), {})[1] == [
        0,
        1,
        3,
    ]  # nothing known: in order, distinct


def test_content_words_are_neither_filler_nor_places_of_names() -> None:
    assert content_words("who wrote the films that [topic] directed?") == ["person", "wrote", "films", "directed"]
    assert content_words("is [claim] the [topic]'s co-star") == ["co-star"]


ROWS = tuple(TaughtPath(path, 1, 1, True) for path in (("directed_by",), ("written_by",), ("starred", "spouse")))
WROTE, DIRECTED, STARRED = ROWS[1], ROWS[0], ROWS[2]


def test_a_wording_tells_which_of_equal_paths_is_meant() -> None:
    """Who wrote a film often directed it, too: by many questions of one wording it is plain what they ask."""
    both = [("directed_by",), ("written_by",)]
    known = learn_wordings([("who made [topic]", both)] * 3 + [("who made [topic]", [("written_by",)])])
    assert known.best("who made [topic]", ROWS[:2]) == WROTE
    assert Wordings().best("who directed [topic]", ROWS) == DIRECTED  # nothing learned: by stems
    assert Wordings().best("?", ()) is None


def test_what_a_wording_does_not_tell_its_words_do() -> None:
    known = learn_wordings([("who penned [topic]", [("written_by",)]), ("who filmed [topic]", [("directed_by",)])] * 2)
    assert known.best("say who penned [topic]", ROWS) == WROTE
    assert known.best("say who filmed [topic]", ROWS) == DIRECTED


def test_a_path_that_a_wording_hardly_ever_means_is_not_meant_at_all() -> None:
    known = learn_wordings([("who wrote [topic]", [("written_by",)])] * 9 + [("who wrote [topic]", [STARRED.path])])
    assert known.best("who wrote [topic]", [STARRED]) is None
    assert known.best("who wrote [topic]", [STARRED, WROTE]) == WROTE
    assert known.best("who starred in [topic]", [STARRED]) == STARRED  # nobody knows this wording


def test_paths_weigh_by_their_precision_and_what_speaks_for_them() -> None:
    known = learn_wordings([("who penned [topic]", [("written_by",)]), ("who filmed [topic]", [("directed_by",)])])
    half = TaughtPath(("directed_by",), 2, 1, False)
    worth = known.weigh("who penned [topic]", [half, WROTE], WROTE)
    assert worth["written_by",] == 1
    assert 0 <= worth["directed_by",] < 0.1
    assert Wordings().weigh("?", [half, WROTE], WROTE) == {("directed_by",): 0.5, ("written_by",): 1.0}
