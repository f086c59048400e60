"""Choosing among labelled candidates: label first, then name, then whatever was answered freely."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgqa_core.instructions.choose import Candidate, Choice, ChooseCase, ChooseInstruction, Shown, label_of
from kgqa_core.instructions.render import read_prompts
from kgqa_core.instructions.types import ParseFailure

CASE = ChooseCase(
    question="when did the films appear that the painter of Nightfall also made?",
    question_id="q1",
    candidates=(
        Candidate("1989", 0.601, ("(Nightfall, made_by, Ida Moon)", "(Dawn, made_by, Ida Moon)", "(Dawn, year, 1989)")),
        Candidate("1998", 0.3, ("(Nightfall, made_by, Ida Moon)", "(Snake, made_by, Ida Moon)", "(Snake, year, 1998)")),
        Candidate("Ida Moon", 0.099),
    ),
    right=(0, 2),
)
CHOOSE = ChooseInstruction(read_prompts())


def test_candidates_show_label_probability_and_evidence() -> None:
    lines = CHOOSE.render(CASE).text.splitlines()
    assert lines[-3].startswith("A. 1989 (probability 0.601) {evidence: (Nightfall, made_by, Ida Moon), ")
    assert lines[-1] == "C. Ida Moon (probability 0.099)"


@pytest.mark.parametrize(
    ("shown", "line"),
    [
        (Shown(names=False), "- (probability 0.099)"),
        (Shown(probabilities=False), "C. Ida Moon"),
        (Shown(labels=False, probabilities=False, evidence=False), "Names: [1989, 1998, Ida Moon]"),
    ],
)
def test_the_variants_of_the_papers_leave_parts_out(shown: Shown, line: str) -> None:
    assert ChooseInstruction(CHOOSE.prompts, shown).render(CASE).text.splitlines()[-1] == line


def test_without_multiple_choice_lists_stand_side_by_side_and_no_letter_is_asked_for() -> None:
    """EtD's Table 14: names, probabilities and facts are lists of their own, each fact once."""
    text = ChooseInstruction(CHOOSE.prompts, Shown(labels=False)).render(CASE).text
    facts = [fact for candidate in CASE.candidates for fact in candidate.evidence]
    assert text.splitlines()[-3:] == [
        "Names: [1989, 1998, Ida Moon]",
        "Probabilities: [0.601, 0.300, 0.099]",
        f"Evidence: [{', '.join(dict.fromkeys(facts))}]",
    ]
    unlabelled = [Shown(labels=False), Shown(names=False), Shown(labels=False, names=False)]
    for shown in unlabelled:
        assert "letter" not in ChooseInstruction(CHOOSE.prompts, shown).render(CASE).text
    assert "letter" in CHOOSE.render(CASE).text


def test_every_right_candidate_is_taught() -> None:
    assert CHOOSE.target(CASE) == "A. 1989\nC. Ida Moon"
    assert CHOOSE.target(ChooseCase("?", candidates=CASE.candidates, right=())) is None  # nothing right


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("B", Choice((1,), "label")),
        ("(B)", Choice((1,), "label")),
        ("A, C", Choice((0, 2), "label")),
        ("A and C.", Choice((0, 2), "label")),
        ("**B. 1998**", Choice((1,), "label")),
        ("The correct answer is B. 1998.\nUnlike A. 1989, it fits.", Choice((1,), "label")),
        (
            "By the facts given, I would say that the right answer is: B. 1998, as A film is a film.",
            Choice((1,), "label"),
        ),
        ("First it seemed the answer is A. But in truth, the answer is C.", Choice((2,), "label")),
        ("I would take C) Ida Moon here", Choice((2,), "label")),
        ("The answers are A and C.", Choice((0, 2), "label")),
        ("Answer: A, B, and C", Choice((0, 1, 2), "label")),
        ("The answer is C, A is too early.", Choice((2,), "label")),
        ("A. 1998", Choice((0,), "label", conflict=True)),
        ("A. 1989\nC. Ida Moon", Choice((0, 2), "label")),  # as is taught
        ("So A is too early.\n$$\\boxed{B}$$", Choice((1,), "label")),
        ("1998", Choice((1,), "name")),
        ("- 1998\n- Ida Moon", Choice((1, 2), "name")),
        ("- Ida Moon\n- 1998", Choice((2, 1), "name")),  # first the one that is answered first
        ("It was surely made by ida moon in her youth.", Choice((2,), "name")),
        ("A film by someone else", Choice((), "free", ("A film by someone else",))),
        ("Z. Something", Choice((), "free", ("Z. Something",))),
        ("19890", Choice((), "free", ("19890",))),
        ("I don't know", Choice((), "abstained")),
        ("1. A\n2. C", Choice((0, 2), "label")),
        ("1. A. 1989\n2. C. Ida Moon", Choice((0, 2), "label")),
        ('["A", "C"]', Choice((0, 2), "label")),
        ("A; C", Choice((0, 2), "label")),
        ('{"answer": "C"}', Choice((2,), "label")),
        ('{"answers": ["A", "C"]}', Choice((0, 2), "label")),
        ("The answers are **A** and **C**.", Choice((0, 2), "label")),
        ("N/A", Choice((), "abstained")),
        ("Both A and B", Choice((0, 1), "label")),
        ("I'd say A", Choice((0,), "label")),
        ("I'd say both A and C.", Choice((0, 2), "label")),
        ("I think A. No: the answer is C.", Choice((2,), "label")),
        ("I'd say A film by someone else", Choice((), "free", ("I'd say A film by someone else",))),
        ("a", Choice((0,), "label")),
        ("(c)", Choice((2,), "label")),
        ("d", Choice((), "free", ("d",))),
    ],
)
def test_reading_order_is_label_then_name_then_free(text: str, choice: Choice) -> None:
    assert CHOOSE.parse(text, CASE) == choice


INITIALS = ("C. S. Lewis", "Ida Moon", "B. B. King", "A.I. Artificial Intelligence", "Berg", "E. Berg")
SIGNS = ("C++", "Rust", "C#", "B")
LONGER = ("Dawn", "Dawn of Man", "Henry", "Henry I")


@pytest.mark.parametrize(
    ("names", "text", "choice"),
    [
        (INITIALS, "C. S. Lewis", Choice((0,), "name")),
        (INITIALS, "**B. B. King.**", Choice((2,), "name")),
        (INITIALS, "B. B. King\nA.I. Artificial Intelligence", Choice((2, 3), "name")),
        (INITIALS, "The answer is A.I. Artificial Intelligence.", Choice((3,), "name")),
        (INITIALS, "It was C. S. Lewis, not B. B. King", Choice((0,), "name")),
        (INITIALS, "A. C. S. Lewis", Choice((0,), "label")),
        (INITIALS, "B. Ida Moon\nC. S. Lewis", Choice((1, 0), "label")),
        (INITIALS, "C. B. B. King", Choice((2,), "label")),
        (INITIALS, "E. Berg", Choice((4,), "label")),  # both that label and a whole name: a label is asked for
        (INITIALS, "C. Lewis", Choice((2,), "label")),
        (SIGNS, "C++", Choice((0,), "name")),
        (SIGNS, "C#\nC++", Choice((2, 0), "name")),
        (SIGNS, "C++\nC", Choice((2,), "label")),
        (SIGNS, "C", Choice((2,), "label")),
        (SIGNS, "A. C++", Choice((0,), "label")),
        (SIGNS, "A, C", Choice((0, 2), "label")),
        (SIGNS, "b", Choice((3,), "name")),  # a name, too, where the label would be B
        (LONGER, "A. Dawn", Choice((0,), "label")),
        (LONGER, "A. Dawn of Man", Choice((0,), "label", conflict=True)),  # the longer name is another's
        (LONGER, "B. Dawn of Man", Choice((1,), "label")),
        (LONGER, "C. Henry is the king", Choice((2,), "label")),
    ],
)
def test_initials_and_a_letter_with_a_sign_are_no_label(names: tuple[str, ...], text: str, choice: Choice) -> None:
    case = ChooseCase("which?", candidates=tuple(Candidate(name, 0.2) for name in names))
    assert CHOOSE.parse(text, case) == choice


def test_without_labels_names_are_all_there_is() -> None:
    plain = ChooseInstruction(CHOOSE.prompts, Shown(labels=False))
    assert plain.parse("A. 1998", CASE) == Choice((1,), "name")


@given(st.text() | st.text(alphabet="ABCZ. ,():\n1989answeri*"))
def test_parsing_never_raises(text: str) -> None:
    choice = CHOOSE.parse(text, CASE)
    assert isinstance(choice, ParseFailure) or set(choice.chosen) <= {0, 1, 2}


@settings(max_examples=40)
@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=30), st.data())
def test_any_names_come_back(names: list[str], data: st.DataObject) -> None:
    right = data.draw(st.lists(st.sampled_from(range(len(names))), min_size=1, unique=True))
    case = ChooseCase("?", candidates=tuple(Candidate(name, 0.5) for name in names), right=tuple(right))
    text = CHOOSE.target(case)
    assert text is not None
    choice = CHOOSE.parse(text, case)
    assert isinstance(choice, Choice)
    assert choice == Choice(tuple(right), "label")


@pytest.mark.parametrize("reply", ["The answer is " + "*" * 1_000, "answer" + " " * 20_000])
def test_a_reply_that_repeats_itself_is_read_at_once(reply: str) -> None:
    started = time.process_time()
    CHOOSE.parse(reply, CASE)
    assert time.process_time() - started < 2  # tried in all its parts, it took 6 s and more


def test_held_to_the_candidates_a_model_writes_one_line() -> None:
    constraint = ChooseInstruction(CHOOSE.prompts, only_candidates=True).constraint(CASE)
    assert constraint is not None
    assert list(constraint.next_pieces(())) == ["A. 1989", "B. 1998", "C. Ida Moon"]
    assert CHOOSE.constraint(CASE) is None
    for shown in (Shown(labels=False), Shown(names=False)):  # no letter is shown, so none is written
        constraint = ChooseInstruction(CHOOSE.prompts, shown, only_candidates=True).constraint(CASE)
        assert constraint is not None
        assert [constraint.may_end((text,)) for text in ("1989", "A. 1989", "Ida Moon")] == [True, False, True]


def test_labels_go_on_after_z() -> None:
    assert [label_of(index) for index in (0, 25, 26, 51, 52, 701)] == ["A", "Z", "AA", "AZ", "BA", "ZZ"]
