"""Prompts that would be too long: the weakest paths go first, and are counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.instructions.choose import Candidate, Choice, ChooseCase, ChooseInstruction
from kgqa_core.instructions.fitting import Fitted, Request, candidate_request, fit_all, path_request
from kgqa_core.instructions.reason import ReasonCase, ReasonInstruction
from kgqa_core.instructions.render import ScoredPath, read_prompts
from kgqa_core.lm.types import Prompt

PROMPTS = read_prompts()


def render(paths: Sequence[ScoredPath]) -> Prompt:
    return Prompt("ask " + " ".join(path.text for path in paths))


def count_words(prompts: Sequence[Prompt]) -> list[int]:
    return [len(prompt.text.split()) for prompt in prompts]


def fit(paths: Sequence[ScoredPath], *, context: int, reserve: int) -> Fitted[ScoredPath]:
    request = Request(render, tuple(paths), tuple(path.score for path in paths))
    return fit_all([request], count_words, context=context, reserve=reserve)[0]


PATHS = (ScoredPath("a b c", 0.1), ScoredPath("d e", 0.7), ScoredPath("f", 0.2))


def test_what_fits_is_shown_whole() -> None:
    fitted = fit(PATHS, context=10, reserve=3)
    assert (fitted.prompt.text, fitted.dropped, fitted.num_tokens) == ("ask a b c d e f", 0, 7)


def test_the_lowest_score_goes_first_and_the_order_stays() -> None:
    fitted = fit(PATHS, context=10, reserve=4)
    assert (fitted.prompt.text, fitted.dropped) == ("ask d e f", 1)


def test_a_prompt_without_any_path_may_still_be_too_long() -> None:
    fitted = fit(PATHS, context=4, reserve=4)
    assert (fitted.kept, fitted.dropped, fitted.fits) == ((), 3, False)


def test_no_paths_at_all() -> None:
    assert fit((), context=10, reserve=0).prompt.text == "ask "


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
    fitted = fit(paths, context=limit, reserve=0)
    left = sorted(range(len(paths)), key=lambda index: (-paths[index].score, index))
    while left and count_words([render([paths[index] for index in left])])[0] > limit:
        left.pop()
    assert fitted.kept == tuple(paths[index] for index in sorted(left))
    assert fitted.fits == (fitted.num_tokens <= limit)


def test_a_case_is_asked_with_as_many_of_its_paths_as_fit() -> None:
    paths = tuple(ScoredPath(f"A → b{number} → D{number}", 1 / (2 + number)) for number in range(30))
    request = path_request(ReasonInstruction(PROMPTS), ReasonCase("who?", paths=paths))
    (fitted,) = fit_all([request], count_words, context=100, reserve=10)
    assert 0 < fitted.dropped < 30
    assert fitted.kept == paths[: 30 - fitted.dropped]  # their scores fall


def test_candidates_that_do_not_fit_go_least_probable_first() -> None:
    choose = ChooseInstruction(PROMPTS)
    evidence = " ".join(["fact"] * 40)
    case = ChooseCase("who?", candidates=(Candidate("X", 0.2, evidence), Candidate("Y", 0.8, evidence)))
    (fitted,) = fit_all([candidate_request(choose, case)], count_words, context=170, reserve=10)
    assert [candidate.name for candidate in fitted.kept] == ["Y"]
    assert choose.parse("A", replace(case, candidates=fitted.kept)) == Choice((0,), "label")
