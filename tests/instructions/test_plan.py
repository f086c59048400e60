"""Plans as text: what a model is trained to write, and whatever it writes instead."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kgqa_core.instructions.plan import parse_plans, render_plan
from kgqa_core.instructions.types import ParseFailure

STEPS = st.text(min_size=1)


def test_a_plan_is_its_steps_between_markers() -> None:
    assert render_plan(("directed_by", "^starred_actors")) == "<PATH>directed_by<SEP>^starred_actors</PATH>"


@given(st.lists(STEPS, min_size=1, max_size=4).map(tuple))
@example(("<SEP>", "</PATH>", "a<PATH>b"))
@example((" edge ", "two\nlines", "\\u{3c}", "\\u{ffffff}"))
@example(("^", "\\^label", "\\\\label"))
def test_any_labels_come_back(path: tuple[str, ...]) -> None:
    text = render_plan(path)
    assert "\n" not in text
    assert parse_plans(text)[0] == path


@given(st.text() | st.text(alphabet="<>/PATHSEPpath\\u{}0 \n"))
@example("\\u{110000}<SEP>")
def test_parsing_never_raises(text: str) -> None:
    plans = parse_plans(text)
    assert isinstance(plans, ParseFailure) or all(plan and all(plan) for plan in plans)


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("<PATH> capital_of <SEP> ^spoken_in </PATH>", ("capital_of", "^spoken_in")),  # blanks, as some decoders leave
        ("The plan is <PATH>a</PATH>, I think.", ("a",)),
        ("<PATH>a<SEP>b", ("a", "b")),  # the end marker was the stop string
        ("a<SEP>b</PATH>", ("a", "b")),  # the prompt ended with the start marker
        ("<path>a<sep>b</path>", ("a", "b")),
    ],
)
def test_a_plan_is_found_in_what_models_really_write(text: str, plan: tuple[str, ...]) -> None:
    assert parse_plans(text)[0] == plan


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no plan"),
        ("I do not know.", "no plan"),
        ("<PATH></PATH>", "empty plan"),
        ("<PATH>a<SEP></PATH>", "empty plan"),
    ],
)
def test_a_text_without_a_plan_says_why(text: str, reason: str) -> None:
    assert parse_plans(text) == ParseFailure(reason, text)


def test_several_plans_come_in_their_order_and_once() -> None:
    text = "\n".join(map(render_plan, [("a",), ("b", "^c")])) + "\n<PATH>a</PATH>\n<PATH></PATH>"
    assert parse_plans(text) == (("a",), ("b", "^c"))


def test_a_failure_keeps_only_the_beginning() -> None:
    failure = parse_plans("x" * 10_000)
    assert isinstance(failure, ParseFailure)
    assert len(failure.text) == 500


def test_a_plan_without_steps_is_not_written() -> None:
    for path in ((), ("a", "")):
        with pytest.raises(ValueError, match="non-empty steps"):
            render_plan(path)
