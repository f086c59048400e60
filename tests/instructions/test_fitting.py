"""Prompts that would be too long: the weakest paths go first, and are counted."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.instructions.asking import Request, fit_all, fit_paths
from kgqa_core.instructions.render import ScoredPath
from kgqa_core.lm.types import Prompt


def render(paths: Sequence[ScoredPath]) -> Prompt:
    return Prompt("ask " + " ".join(path.text for path in paths))


def count_words(prompts: Sequence[Prompt]) -> list[int]:
    return [len(prompt.text.split()) for prompt in prompts]


PATHS = (ScoredPath("a b c", 0.1), ScoredPath("d e", 0.7), ScoredPath("f", 0.2))


def test_what_fits_is_shown_whole() -> None:
    fitted = fit_paths(render, PATHS, count_words, context=10, reserve=3)
    assert (fitted.prompt.text, fitted.dropped, fitted.num_tokens) == ("ask a b c d e f", 0, 7)


def test_the_lowest_score_goes_first_and_the_order_stays() -> None:
    fitted = fit_paths(render, PATHS, count_words, context=10, reserve=4)
    assert (fitted.prompt.text, fitted.dropped) == ("ask d e f", 1)


def test_a_prompt_without_any_path_may_still_be_too_long() -> None:
    fitted = fit_paths(render, PATHS, count_words, context=4, reserve=4)
    assert (fitted.kept, fitted.dropped, fitted.fits) == ((), 3, False)


def test_no_paths_at_all() -> None:
    assert fit_paths(render, (), count_words, context=10, reserve=0).prompt.text == "ask "


def test_a_batch_that_fits_is_counted_once() -> None:
    calls: list[int] = []

    def count(prompts: Sequence[Prompt]) -> list[int]:
        calls.append(len(prompts))
        return count_words(prompts)

    requests = [Request(render, PATHS, (0.1, 0.7, 0.2)) for _ in range(5)]
    assert len(fit_all(requests, count, context=100, reserve=0)) == 5
    assert calls == [5]


@given(st.lists(st.tuples(st.integers(1, 5), st.floats(0, 1))), st.integers(0, 40))
def test_as_many_as_dropping_one_by_one(sizes: list[tuple[int, float]], limit: int) -> None:
    paths = tuple(ScoredPath(" ".join(["w"] * size), score) for size, score in sizes)
    fitted = fit_paths(render, paths, count_words, context=limit, reserve=0)
    left = sorted(range(len(paths)), key=lambda index: (-paths[index].score, index))
    while left and count_words([render([paths[index] for index in left])])[0] > limit:
        left.pop()
    assert fitted.kept == tuple(paths[index] for index in sorted(left))
    assert fitted.fits == (fitted.num_tokens <= limit)
