"""Asking: nonsense is counted and abstained on, a call that failed is no exception, too much evidence is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kgqa_core.instructions.answers import Answers
from kgqa_core.instructions.asking import ask, candidate_request, fit_all, path_request, read_replies
from kgqa_core.instructions.choose import Candidate, Choice, ChooseCase, ChooseInstruction
from kgqa_core.instructions.reason import ReasonCase, ReasonInstruction
from kgqa_core.instructions.render import ScoredPath, read_prompts
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.lm.types import GREEDY, Decoding, Generation, Prompt

PROMPTS = read_prompts()
REASON = ReasonInstruction(PROMPTS)


@dataclass
class Echo:
    """A model that answers with the end of the last path it is shown, and counts words for tokens."""

    name: str = "echo"
    context: int = 100

    def count_tokens(self, prompts: Sequence[Prompt]) -> list[int]:
        return [len(prompt.text.split()) for prompt in prompts]

    def generate(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> list[list[Generation]]:
        return [[self._answer(prompt.text)] for prompt in prompts]

    def _answer(self, text: str) -> Generation:
        if len(text.split()) > self.context:
            return Generation("", problem="too_long")
        lines = [line for line in text.splitlines() if "→" in line]
        return Generation(lines[-1].split(" → ")[-1] if lines else "Well ... " * 50, finished=bool(lines))

    def score(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> list[list[float]]:
        return [[0.0] * len(of_one) for of_one in options]


CASES = (
    ReasonCase("who?", paths=(ScoredPath("A → b → C", 0.9),)),
    ReasonCase("who?"),
    ReasonCase("who?", paths=tuple(ScoredPath(f"A → b{number} → D{number}", 1 / (2 + number)) for number in range(30))),
)


def test_what_a_model_gives_is_read_and_what_it_does_not_give_is_counted() -> None:
    replies = ask(Echo(), REASON, CASES)
    assert replies.results[0] == Answers(("C",))
    assert replies.failures == {"no answer": 1, "too_long": 1}
    assert replies.results[2] == ParseFailure("too_long", "")
    assert replies.num_unfinished == 1


def test_too_many_paths_are_cut_from_the_weak_end_until_they_fit() -> None:
    model = Echo()
    fitted = fit_all(
        [path_request(REASON, case) for case in CASES], model.count_tokens, context=model.context, reserve=10
    )
    assert [one.dropped for one in fitted][:2] == [0, 0]
    assert 0 < fitted[2].dropped < 30
    assert fitted[2].kept == CASES[2].paths[: 30 - fitted[2].dropped]  # their scores fall
    replies = read_replies(REASON, CASES, model.generate([one.prompt for one in fitted]))
    assert replies.failures == {"no answer": 1}


def test_candidates_that_do_not_fit_go_least_probable_first() -> None:
    choose = ChooseInstruction(PROMPTS)
    evidence = " ".join(["fact"] * 40)
    case = ChooseCase("who?", candidates=(Candidate("X", 0.2, evidence), Candidate("Y", 0.8, evidence)))
    (fitted,) = fit_all([candidate_request(choose, case)], Echo().count_tokens, context=170, reserve=10)
    assert [candidate.name for candidate in fitted.kept] == ["Y"]
    assert choose.parse("A", replace(case, candidates=fitted.kept)) == Choice((0,), "label")
