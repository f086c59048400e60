"""Greedy and beam search against searches without cache, batch or cleverness; stop strings; constraints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from kgqa_core.lm.chat import Ending, decode, encode_answers, encode_prompts
from kgqa_core.lm.constraints import LISTED, Choices, start_state
from kgqa_core.lm.generate import generate_batch
from kgqa_core.lm.local import LocalModel, open_local
from kgqa_core.lm.types import Constraint, Decoding, Prompt
from tests.lm.tiny_models import ARCHITECTURES, make_any, make_mistral

TEXTS = ["who directed Heat ?", "what is the genre of the film that Michael Mann directed ?", "x", "the plan is"]
PROMPTS = [Prompt(text) for text in TEXTS]
BEAM = Decoding(max_new_tokens=6, method="beam", num_beams=4, num_returns=3)


def ending_often(model: LocalModel) -> Ending:
    """Random models hardly ever say their end token: here every fifth token is one."""
    return Ending(model.tokenizer, frozenset(range(0, len(model.tokenizer), 5)))


def until_end(tokens: list[int], ending: Ending) -> list[int]:
    ends = [place for place, token in enumerate(tokens) if token in ending.tokens]
    return tokens[: ends[0] + 1] if ends else tokens


def plain_log_probs(model: LocalModel, tokens: Sequence[int]) -> torch.Tensor:
    """Return the log-probabilities [V] of what follows, read from the start."""
    with torch.inference_mode():
        return model.model(torch.tensor([tokens])).logits[0, -1].double().log_softmax(0)


def plain_beam_search(
    model: LocalModel, prompt: list[int], decoding: Decoding, ending: Ending
) -> list[tuple[str, float]]:
    """Search with beams, one text at a time; go on to the very end, where nothing can change any more."""
    live, done = [([], 0.0)], []
    for _ in range(decoding.max_new_tokens):
        following = [
            ([*tokens, token], score + log_prob)
            for tokens, score in live
            for token, log_prob in enumerate(plain_log_probs(model, prompt + tokens).tolist())
        ]
        following.sort(key=lambda candidate: -candidate[1])
        best = following[: decoding.num_beams]
        done += [candidate for candidate in best if candidate[0][-1] in ending.tokens]
        live = [candidate for candidate in following if candidate[0][-1] not in ending.tokens][: decoding.num_beams]
    done.sort(key=lambda candidate: -candidate[1])
    texts: dict[str, float] = {}
    for tokens, score in [*done, *live]:
        texts.setdefault(ending.answer(tokens), score)
    return list(texts.items())[: decoding.num_returns]


@pytest.mark.parametrize("num_beams", [1, 4])
def test_beams_are_those_of_a_search_without_cache_and_batch(any_model: Path, num_beams: int) -> None:
    model = open_local(any_model)
    decoding = Decoding(max_new_tokens=6, method="beam", num_beams=num_beams, num_returns=min(3, num_beams))
    rows, ending = encode_prompts(model.tokenizer, PROMPTS), ending_often(model)
    for prompt, texts in zip(rows, generate_batch(model.model, rows, decoding, ending=ending), strict=True):
        expected = plain_beam_search(model, prompt, decoding, ending)
        assert [text.text for text in texts] == [text for text, _ in expected]
        assert [text.log_prob for text in texts] == pytest.approx([score for _, score in expected], abs=1e-4)


def test_beams_are_those_of_transformers(llama: Path) -> None:
    model = open_local(llama)
    rows, ending = encode_prompts(model.tokenizer, PROMPTS), ending_often(model)
    for prompt, texts in zip(rows, generate_batch(model.model, rows, BEAM, ending=ending), strict=True):
        made = model.model.generate(
            torch.tensor([prompt]),
            max_new_tokens=6,
            num_beams=4,
            num_return_sequences=3,
            do_sample=False,
            length_penalty=0.0,  # the plain sum, where transformers' default is the mean
            eos_token_id=sorted(ending.tokens),
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
        )
        expected = {}
        for tokens, score in zip(made.sequences.tolist(), made.sequences_scores.tolist(), strict=True):
            expected.setdefault(
                ending.answer(until_end(tokens[len(prompt) :], ending)), score
            )  # of equal texts the best
        same = len(expected)
        assert [text.text for text in texts[:same]] == list(expected)
        assert [text.log_prob for text in texts[:same]] == pytest.approx(list(expected.values()), abs=1e-4)


def test_texts_that_end_leave_the_others_alone(any_model: Path) -> None:
    """Rows whose text ended idle, and are then left out of the cache: the others must not notice."""
    model = open_local(any_model)
    prompts = [Prompt(f"{text} {number}") for number in range(3) for text in TEXTS]
    rows, ending = encode_prompts(model.tokenizer, prompts), ending_often(model)
    decoding = Decoding(max_new_tokens=11, method="beam", num_beams=3, num_returns=2)
    together = generate_batch(model.model, rows, decoding, ending=ending)
    for row, texts in zip(rows, together, strict=True):
        alone = generate_batch(model.model, [row], decoding, ending=ending)[0]
        assert [text.text for text in texts] == [text.text for text in alone]
        assert [text.log_prob for text in texts] == pytest.approx([text.log_prob for text in alone], abs=1e-4)


RELATIONS = ["has_genre", "directed_by", "starred_actors"]
FILMS = [f"{verb} the film {number}" for verb in ("drama", "Michael Mann directed", "^written") for number in range(9)]


@pytest.mark.parametrize(
    "options", [RELATIONS, ["A", "AB", "ABBA", "x"], FILMS], ids=["relations", "prefixes", "films"]
)
@pytest.mark.parametrize("more", [0, 2])
def test_beams_find_every_allowed_text_in_order_of_score(any_model: Path, options: list[str], more: int) -> None:
    """Ways to cut one text into tokens once took the places of other texts, which were then missing."""
    model = open_local(any_model)
    num = len(options) + more
    decoding = Decoding(max_new_tokens=60, method="beam", num_beams=num, num_returns=num)
    found = model.generate([Prompt(prompt.text, constraint=Choices(options)) for prompt in PROMPTS], decoding)
    for texts, scores in zip(found, model.score(PROMPTS, [options] * len(PROMPTS)), strict=True):
        best = sorted(zip(scores, options, strict=True), reverse=True)
        assert [text.text for text in texts] == [option for _, option in best] + [""] * more
        assert [text.log_prob for text in texts[: len(best)]] == pytest.approx([score for score, _ in best], abs=1e-4)
        assert [text.finished for text in texts] == [True] * len(best) + [False] * more
        assert [text.num_tokens for text in texts[: len(best)]] == [
            1 + len(encode_answers(model.tokenizer, [option])[0]) for _, option in best
        ]


def test_beams_under_constraints_are_those_of_transformers(any_model: Path) -> None:
    """Through its prefix_allowed_tokens_fn, another constraint for each prompt."""
    model = open_local(any_model)
    bounds: list[Constraint] = [Choices(FILMS[start::2]) for start in range(2)] + [Choices(RELATIONS * 2)]
    decoding = Decoding(max_new_tokens=60, method="beam", num_beams=2, num_returns=2)
    for listed in (LISTED, 0):
        starts = [start_state(model.tokenizer, bound, listed=listed) for bound in bounds]
        rows, ending = encode_prompts(model.tokenizer, PROMPTS[:3]), Ending(model.tokenizer, frozenset(model.ends[:1]))
        ours = generate_batch(model.model, rows, decoding, ending=ending, starts=starts)
        for row, start, texts in zip(rows, starts, ours, strict=True):

            def allowed(batch: int, tokens: torch.Tensor, start: Any = start, num: int = len(row)) -> list[int]:
                state = start
                for token in tokens[num:].tolist():
                    state = state and state.after(token)
                return state.allowed if state else model.ends[:1]

            made = model.model.generate(
                torch.tensor([row]),
                max_new_tokens=60,
                num_beams=2,
                num_return_sequences=2,
                do_sample=False,
                length_penalty=0.0,
                eos_token_id=model.ends[0],
                pad_token_id=0,
                prefix_allowed_tokens_fn=allowed,
                return_dict_in_generate=True,
                output_scores=True,
            )
            expected = [until_end(tokens[len(row) :], ending) for tokens in made.sequences.tolist()]
            if len({ending.answer(tokens) for tokens in expected}) == 2:  # else theirs are one text in two ways
                assert [text.text for text in texts] == [ending.answer(tokens) for tokens in expected]
                assert [text.log_prob for text in texts] == pytest.approx(made.sequences_scores.tolist(), abs=1e-4)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_every_architecture_is_read_in_batches_as_alone(kind: str, tmp_path: Path) -> None:
    model = open_local(make_any(tmp_path / kind, kind))
    decoding = Decoding(max_new_tokens=6, method="beam", num_beams=3, num_returns=3)
    rows, ending = encode_prompts(model.tokenizer, PROMPTS), ending_often(model)
    options = [["drama", "Michael Mann", "film.film.genre"]] * len(rows)
    scores = model.score(PROMPTS, options)
    together = generate_batch(model.model, rows, decoding, ending=ending)
    for row, prompt, texts, scored in zip(rows, PROMPTS, together, scores, strict=True):
        expected = plain_beam_search(model, row, decoding, ending)
        told = [text for text in texts if text.log_prob is not None]  # texts that were cut may be one text
        assert [text.text for text in told] == [text for text, _ in expected]
        assert [text.log_prob for text in told] == pytest.approx([score for _, score in expected], abs=1e-4)
        assert scored == pytest.approx(model.score([prompt], options[:1])[0], abs=1e-4)
        answer = [*encode_answers(model.tokenizer, ["drama"])[0], model.ends[0]]
        plain = sum(float(plain_log_probs(model, row + answer[:at])[token]) for at, token in enumerate(answer))
        assert scored[0] == pytest.approx(plain, abs=1e-4)


def test_a_window_of_attention_needs_a_cache_of_its_own_kind(tmp_path: Path) -> None:
    model = open_local(make_mistral(tmp_path / "mistral", sliding_window=7))
    rows, ending = encode_prompts(model.tokenizer, PROMPTS), ending_often(model)
    assert max(map(len, rows)) > 7
    for prompt, texts in zip(rows, generate_batch(model.model, rows, BEAM, ending=ending), strict=True):
        expected = plain_beam_search(model, prompt, BEAM, ending)
        assert [text.text for text in texts] == [text for text, _ in expected]
        assert [text.log_prob for text in texts] == pytest.approx([score for _, score in expected], abs=1e-4)


def test_prompts_with_and_without_constraints_share_a_batch(qwen2: Path) -> None:
    model = open_local(qwen2)
    free, bound = Prompt("the plan is"), Prompt("the plan is", constraint=Choices(["drama", "Heat"]))
    decoding = Decoding(max_new_tokens=9)
    together = model.generate([free, bound, free], decoding)
    assert together[0][0].text == together[2][0].text == model.generate([free], decoding)[0][0].text
    assert together[1][0].text in ("drama", "Heat")


def test_fewer_allowed_texts_than_asked_for(qwen2: Path) -> None:
    model = open_local(qwen2)
    prompt = Prompt("the plan is", constraint=Choices(["drama"]))
    texts = model.generate([prompt], Decoding(max_new_tokens=20, method="beam", num_beams=3, num_returns=3))[0]
    assert [(text.text, text.finished) for text in texts] == [("drama", True), ("", False), ("", False)]
    assert [text.log_prob is None for text in texts] == [False, True, True]


def test_a_dead_end_gives_unfinished_empty_texts(qwen2: Path) -> None:
    class Nowhere:
        allowed: ClassVar[list[int]] = []

        def after(self, token: int) -> None:
            raise AssertionError("nothing is allowed")

    model = open_local(qwen2)
    rows, ending = encode_prompts(model.tokenizer, PROMPTS[:1]), Ending(model.tokenizer, frozenset(model.ends))
    texts = generate_batch(model.model, rows, BEAM, ending=ending, starts=[Nowhere()])
    assert [(text.text, text.finished, text.problem) for text in texts[0]] == [("", False, "")] * BEAM.num_returns


@pytest.mark.parametrize("method", ["greedy", "beam", "sample"])
def test_a_text_ends_before_a_stop_string(any_model: Path, method: Any) -> None:
    model = open_local(any_model)
    decoding = Decoding(max_new_tokens=12, method=method, num_beams=3 if method == "beam" else 1, seed=3)
    whole = [texts[0] for texts in model.generate(PROMPTS, decoding)]
    for prompt, text in zip(PROMPTS, whole, strict=True):
        readable = [place for place, letter in enumerate(text.text) if letter != "\ufffd"]
        stop = text.text[readable[0] : readable[0] + 1]
        stopped = open_local(any_model).generate([prompt], Decoding(**{**vars_of(decoding), "stop": ("no such", stop)}))
        if method != "beam":  # where a text that ends early may win
            assert stopped[0][0].text == text.text[: text.text.index(stop)]
            assert stopped[0][0].finished
        assert stop not in stopped[0][0].text


def test_a_stop_string_may_lie_across_tokens(llama: Path) -> None:
    model = open_local(llama)
    prompt = Prompt("the", constraint=Choices(["Michael Mann directed it"]))
    tokens = encode_answers(model.tokenizer, ["Michael Mann directed it"])[0]
    assert len(decode(model.tokenizer, tokens[:1])) < len("Michael Mann dir")
    text = model.generate([prompt], Decoding(max_new_tokens=30, stop=("nn di", "it")))[0][0]
    assert text.text == "Michael Ma"
    assert text.finished


def vars_of(decoding: Decoding) -> dict[str, Any]:
    return {name: getattr(decoding, name) for name in Decoding.__dataclass_fields__}
