"""Who was right where a language model overruled the explorer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.evaluation.lm_vs_explorer import Decision, Overrules, count_overrules

GOLDS = (7,)
RIGHT, WRONG, OTHER = 7, 3, 5

entities = st.one_of(st.none(), st.integers(0, 9))
decisions = st.lists(st.builds(Decision, st.sets(st.integers(0, 9), max_size=3), entities, entities), max_size=30)


def test_a_table_by_hand() -> None:
    answered = [
        Decision(GOLDS, RIGHT, RIGHT),  # kept
        Decision(GOLDS, WRONG, RIGHT),  # mended
        Decision(GOLDS, WRONG, RIGHT),
        Decision(GOLDS, RIGHT, WRONG),  # spoilt
        Decision(GOLDS, RIGHT, None),  # silent
        Decision(GOLDS, WRONG, OTHER),  # wrong either way
        Decision(GOLDS, None, None),
    ]
    assert count_overrules(3, answered) == Overrules(
        num_shown=3,
        num_questions=7,
        num_overruled=4,
        num_abstained=2,
        both_right=1,
        only_explorer=2,
        only_lm=2,
        both_wrong=2,
        p=1.0,
    )


def test_a_model_that_mends_and_never_spoils_is_told_from_chance() -> None:
    row = count_overrules(3, [Decision(GOLDS, WRONG, RIGHT)] * 6)
    assert row.p == pytest.approx(2 / 2**6)


@given(decisions)
def test_every_question_is_in_one_cell(answered: list[Decision]) -> None:
    row = count_overrules(4, answered)
    assert row.both_right + row.only_explorer + row.only_lm + row.both_wrong == row.num_questions == len(answered)
    assert row.num_overruled + row.num_abstained <= row.num_questions
    assert row.only_lm <= row.num_overruled  # right where the explorer is not: another answer
