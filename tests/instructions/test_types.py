"""Prompts that would be too long: the weakest paths or candidates go first."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from kgqa_core.instructions.choose import Candidate, ChooseCase, ChooseInstruction
from kgqa_core.instructions.reason import DirectInstruction, ReasonCase, ReasonInstruction
from kgqa_core.instructions.render import ScoredPath, read_prompts
from kgqa_core.instructions.types import fit_prompt
from kgqa_core.lm.types import Prompt

REASON, CHOOSE = ReasonInstruction(read_prompts()), ChooseInstruction(read_prompts())
PATHS = (ScoredPath("a b c", 0.1), ScoredPath("d e", 0.7), ScoredPath("f", 0.2))
FRAME = len(REASON.render(ReasonCase("who?")).text.split()) - 1  # words of the prompt but for "(none)"


def count_words(prompts: Sequence[Prompt]) -> list[int]:
    return [len(prompt.text.split()) for prompt in prompts]


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 5), st.floats(0, 1)), max_size=9), st.integers(0, 30))
def test_as_many_as_dropping_one_by_one(sizes: list[tuple[int, float]], room: int) -> None:
    paths = tuple(ScoredPath(" ".join(["w"] * size), score) for size, score in sizes)
    prompt, case = fit_prompt(REASON, ReasonCase("who?", paths=paths), count_words, limit=FRAME + room)
    assert prompt == REASON.render(case)
    left = sorted(range(len(paths)), key=lambda index: (-paths[index].score, index))
    while left and sum(sizes[index][0] for index in left) > room:
        left.pop()
    assert case.paths == tuple(paths[index] for index in sorted(left))


def test_candidates_that_do_not_fit_go_least_probable_first() -> None:
    evidence = " ".join(["fact"] * 40)
    given = ChooseCase("who?", candidates=(Candidate("X", 0.2, evidence), Candidate("Y", 0.8, evidence)))
    _, case = fit_prompt(CHOOSE, given, count_words, limit=160)
    assert [candidate.name for candidate in case.candidates] == ["Y"]


def test_where_nothing_can_be_left_out_the_prompt_is_as_it_is() -> None:
    direct, case = DirectInstruction(read_prompts()), ReasonCase("who?")
    assert fit_prompt(direct, case, count_words, limit=1) == (direct.render(case), case)


def test_a_prompt_that_fits_is_counted_once() -> None:
    counted: list[int] = []

    def count(prompts: Sequence[Prompt]) -> list[int]:
        counted.append(len(prompts))
        return count_words(prompts)

    fit_prompt(REASON, ReasonCase("who?", paths=PATHS), count, limit=FRAME + 6)
    assert counted == [1]
