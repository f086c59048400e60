"""Searches, samples and scores against those without cache, batch or cleverness; constraints; stop strings; memory."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from kgqa_core.lm.constraints import Choices, start_state
from kgqa_core.lm.folders import Ending, decode, encode_answers, encode_prompts
from kgqa_core.lm.generate import Cached, generate_batch, pick, read_prompts, shared_prefix
from kgqa_core.lm.local import LocalModel, open_local
from kgqa_core.lm.types import Constraint, Decoding, Prompt
from tests.lm.tiny_models import ARCHITECTURES, make_any

TEXTS = ["who directed Heat ?", "what is the genre of the film that Michael Mann directed ?", "x", "the plan is"]
PROMPTS = [Prompt(text) for text in TEXTS]
BEAM = Decoding(max_new_tokens=6, method="beam", num_beams=4, num_returns=3)
SAMPLES = Decoding(max_new_tokens=6, method="sample", num_returns=3, seed=7)
RELATIONS = ["has_genre", "directed_by", "starred_actors"]
FILMS = [f"{verb} the film {number}" for verb in ("drama", "Michael Mann directed", "^written") for number in range(9)]
END = 2  # of qwen2: <|im_end|>
LOGITS = torch.tensor([[0.3, 2.0, -1.0, 1.2, 0.0]])


def ending_often(model: LocalModel) -> Ending:
    """Random models hardly ever say their end token: here every fifth token is one."""
    return Ending(model.tokenizer, frozenset(range(0, len(model.tokenizer), 5)))


def plain_log_probs(model: LocalModel, tokens: Sequence[int]) -> torch.Tensor:
    """Return the log-probabilities [V] of what follows, read from the start."""
    with torch.inference_mode():
        return model.model(torch.tensor([tokens])).logits[0, -1].double().log_softmax(0)


def plain_score(model: LocalModel, prompt: Prompt, option: str) -> float:
    start = encode_prompts(model.tokenizer, [prompt])[0]
    answer = encode_answers(model.tokenizer, [option])[0]
    end = float(plain_log_probs(model, start + answer)[model.ends].max())
    return sum((float(plain_log_probs(model, start + answer[:at])[one]) for at, one in enumerate(answer)), end)


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


@pytest.mark.parametrize("options", [["A", "AB", "ABBA", "x"], FILMS], ids=["prefixes", "films"])
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
        assert [text.finished for text in texts] == [text.log_prob is not None for text in texts]
        assert [text.finished for text in texts] == [True] * len(best) + [False] * more
        sizes = [1 + len(encode_answers(model.tokenizer, [option])[0]) for _, option in best]
        assert [text.num_tokens for text in texts[: len(best)]] == sizes


def test_beams_under_constraints_are_those_of_transformers(any_model: Path) -> None:
    """Through its prefix_allowed_tokens_fn, another constraint for each prompt."""
    model = open_local(any_model)
    bounds: list[Constraint] = [Choices(FILMS[start::2]) for start in range(2)] + [Choices(RELATIONS * 2)]
    decoding = Decoding(max_new_tokens=60, method="beam", num_beams=2, num_returns=2)
    starts = [start_state(model.tokenizer, bound) for bound in bounds]
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
            length_penalty=0.0,  # the plain sum, where transformers' default is the mean
            eos_token_id=model.ends[0],
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
            prefix_allowed_tokens_fn=allowed,
        )
        said = [tokens[len(row) :] for tokens in made.sequences.tolist()]
        said = [ending.answer(tokens[: tokens.index(model.ends[0]) + 1]) for tokens in said]
        if len(set(said)) == 2:  # else theirs are one text in two ways
            assert [text.text for text in texts] == said
            scores = made.sequences_scores.tolist()
            assert [text.log_prob for text in texts] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("options", [["Bath", "Mann", "Heat"], ["film", "drama", "genre"]])
def test_as_many_beams_as_texts_find_them_all_however_they_are_spelled(any_model: Path, options: list[str]) -> None:
    model = open_local(any_model)
    ending, start = (
        Ending(model.tokenizer, frozenset(model.ends[:1])),
        start_state(model.tokenizer, Choices(options), listed=0),
    )
    decoding = Decoding(max_new_tokens=60, method="beam", num_beams=3, num_returns=3)
    rows = encode_prompts(model.tokenizer, PROMPTS)
    for texts in generate_batch(model.model, rows, decoding, ending=ending, starts=[start] * len(rows)):
        assert {text.text for text in texts} == set(options)
        assert all(text.finished for text in texts)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_every_architecture_is_read_in_batches_as_alone(kind: str, tmp_path: Path) -> None:
    model = open_local(make_any(tmp_path / kind, kind))
    decoding = Decoding(max_new_tokens=6, method="beam", num_beams=3, num_returns=3)
    rows, ending = encode_prompts(model.tokenizer, PROMPTS[1:3]), ending_often(model)
    options = [["drama", "Michael Mann", "film.film.genre"]] * len(rows)
    scores = model.score(PROMPTS[1:3], options)
    together = generate_batch(model.model, rows, decoding, ending=ending)
    for row, prompt, texts, scored in zip(rows, PROMPTS[1:3], together, scores, strict=True):
        expected = plain_beam_search(model, row, decoding, ending)
        told = [text for text in texts if text.log_prob is not None]  # texts that were cut may be one text
        assert [text.text for text in told] == [text for text, _ in expected]
        assert [text.log_prob for text in told] == pytest.approx([score for _, score in expected], abs=1e-4)
        assert scored == pytest.approx(model.score([prompt], options[:1])[0], abs=1e-4)
        assert scored[0] == pytest.approx(plain_score(model, prompt, "drama"), abs=1e-4)


def test_prompts_with_and_without_constraints_share_a_batch(qwen2: Path) -> None:
    model = open_local(qwen2)
    free, bound = Prompt("the plan is"), Prompt("the plan is", constraint=Choices(["drama", "Heat"]))
    decoding = Decoding(max_new_tokens=9)
    together = model.generate([free, bound, free], decoding)
    assert together[0][0].text == together[2][0].text == model.generate([free], decoding)[0][0].text
    assert together[1][0].text in ("drama", "Heat")


def test_a_dead_end_gives_unfinished_empty_texts(qwen2: Path) -> None:
    class Nowhere:
        allowed: ClassVar[list[int]] = []

    model = open_local(qwen2)
    rows, ending = encode_prompts(model.tokenizer, PROMPTS[:1]), Ending(model.tokenizer, frozenset(model.ends))
    texts = generate_batch(model.model, rows, BEAM, ending=ending, starts=[Nowhere()])
    assert [(text.text, text.finished, text.problem) for text in texts[0]] == [("", False, "")] * BEAM.num_returns


@pytest.mark.parametrize("method", ["greedy", "beam", "sample"])
def test_a_text_ends_before_a_stop_string(any_model: Path, method: Any) -> None:
    model = open_local(any_model)
    decoding = Decoding(max_new_tokens=12, method=method, num_beams=3 if method == "beam" else 1, seed=3)
    for prompt, (text,) in zip(PROMPTS, model.generate(PROMPTS, decoding), strict=True):
        stop = next(letter for letter in text.text if letter != "\ufffd")
        ((stopped,),) = model.generate([prompt], replace(decoding, stop=("no such", stop)))
        if method != "beam":  # where a text that ends early may win
            assert stopped.text == text.text[: text.text.index(stop)] and stopped.finished
        assert stop not in stopped.text


def test_a_stop_string_may_lie_across_tokens(llama: Path) -> None:
    model = open_local(llama)
    prompt = Prompt("the", constraint=Choices(["Michael Mann directed it"]))
    tokens = encode_answers(model.tokenizer, ["Michael Mann directed it"])[0]
    assert len(decode(model.tokenizer, tokens[:1])) < len("Michael Mann dir")
    text = model.generate([prompt], Decoding(max_new_tokens=30, stop=("nn di", "it")))[0][0]
    assert text.text == "Michael Ma" and text.finished


SCORED = [Prompt(text) for text in ("who directed Heat ?", "x", "the plan is film.film.genre and the answer is")]
OPTIONS = [["Michael Mann", "drama", ""], [], ["film.film.genre", "x", "naïve 42 trains", "the plan is film", "drama"]]


@pytest.mark.parametrize("batch_size", [2, 64])
def test_scores_are_those_of_reading_one_by_one(any_model: Path, batch_size: int) -> None:
    model = open_local(any_model, batch_size=batch_size)
    for prompt, options, scores in zip(SCORED, OPTIONS, model.score(SCORED, OPTIONS), strict=True):
        assert scores == pytest.approx([plain_score(model, prompt, option) for option in options], abs=1e-4)


@pytest.mark.parametrize("together", [20, 2048])
@pytest.mark.parametrize("kind", [*ARCHITECTURES, "gpt_neo", "mpt"])
def test_every_architecture_reads_prompts_that_begin_alike_as_alone(
    kind: str, together: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where layers see a window, which padding behind the shared tokens must not fill."""
    monkeypatch.setattr("kgqa_core.lm.generate.READ_TOKENS", together)
    model = open_local(make_any(tmp_path / kind, kind))
    begin = "which of the films of that year did they make before "
    prompts = [Prompt(begin + end) for end in ("x", "the war was over and everybody had gone home again", "1990")]
    rows = encode_prompts(model.tokenizer, prompts)
    cached, read = read_prompts(model.model, rows)
    alone = torch.cat([read_prompts(model.model, [row])[1] for row in rows])
    torch.testing.assert_close(read, alone, rtol=1e-4, atol=1e-4)
    assert len(cached.mask) == 3


def test_batches_of_a_large_model_on_a_cpu_end_where_short_prompts_would_be_padded(
    qwen2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts, and options with the prompt whose cache each takes a copy of."""
    monkeypatch.setattr("kgqa_core.lm.local.CPU_CELLS", 120)
    asked = [Prompt("film " * words) for words in (2, 30, 3, 4, 25, 2)]
    sizes: list[tuple[int, int]] = []
    read = Cached.read

    def spy(cached: Cached, tokens: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        logits = read(cached, tokens, *args, **options)
        sizes.append((len(cached.mask), cached.mask.shape[1]))
        return logits

    monkeypatch.setattr(Cached, "read", spy)
    for small, most in ((10**8, None), (0, 120)):
        monkeypatch.setattr("kgqa_core.lm.local.SMALL", small)
        model = open_local(qwen2)
        sizes.clear()
        model.score(asked, [["drama", "x y z", "Michael Mann"]] * len(asked))
        model.generate(asked, Decoding(max_new_tokens=1))
        several = max(rows * length for rows, length in sizes if rows > 1)
        assert several > 240 if most is None else several <= most


@pytest.mark.parametrize("method", ["greedy", "sample", "beam"])
def test_what_prompts_begin_with_is_read_once_and_what_is_read_together_changes_no_text(
    any_model: Path, method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, asked = open_local(any_model), [Prompt(f"which film did they make {end}") for end in ("", "x", "of Heat?")]
    decoding = Decoding(max_new_tokens=6, method=method, num_returns=2 if method != "greedy" else 1, num_beams=2)
    found = []
    for least, together in ((1, 2048), (1, 20), (10**9, 2048), (10**9, 20)):
        monkeypatch.setattr("kgqa_core.lm.generate.LEAST_SHARED", least)
        monkeypatch.setattr("kgqa_core.lm.generate.READ_TOKENS", together)
        assert bool(shared_prefix(encode_prompts(model.tokenizer, asked))) == (least == 1)
        found.append([one.text for own in model.generate(asked, decoding) for one in own])
        found[-1] += [round(score, 3) for own in model.score(asked, [["drama", "x"]] * 3) for score in own]
    assert found == [found[0]] * 4


def test_what_does_not_fit_is_impossible_and_of_nothing_comes_nothing(qwen2: Path) -> None:
    model = open_local(qwen2)
    long = "film " * model.context
    scores = model.score([Prompt("x"), Prompt(long), Prompt("who")], [["drama", long], ["drama"], ["drama"]])
    assert scores[0][1] == scores[1][0] == float("-inf") < min(scores[0][0], scores[2][0])
    assert model.score([], []) == model.generate([]) == model.count_tokens([]) == []
    assert model.score(SCORED[:1], [[]]) == [[]]


def test_the_rest_of_the_batch_changes_no_sample_and_seeds_differ(any_model: Path) -> None:
    model = open_local(any_model)
    together = model.generate(SCORED, SAMPLES)
    shuffled = open_local(any_model, batch_size=2).generate(SCORED[::-1], SAMPLES)[::-1]
    for one, other in zip(together, shuffled, strict=True):
        assert [text.text for text in one] == [text.text for text in other]
    fewer = model.generate(SCORED[:1], replace(SAMPLES, num_returns=1))
    assert fewer[0][0].text == together[0][0].text  # the first sample is the first, however many are drawn
    assert len({text.text for text in together[0]}) == 3
    assert model.generate(SCORED[:1], replace(SAMPLES, seed=8))[0] != together[0]


def test_a_sample_follows_its_constraint(any_model: Path) -> None:
    options = ["drama", "Heat", "Michael Mann"]
    prompts = [Prompt(prompt.text, constraint=Choices(options)) for prompt in SCORED]
    decoding = Decoding(max_new_tokens=20, method="sample", num_returns=5)
    for texts in open_local(any_model).generate(prompts, decoding):
        assert len(texts) == 5 and {text.text for text in texts} <= set(options)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_tokens_are_drawn_with_the_probabilities_told(temperature: float) -> None:
    num = 4001
    draws = [(number + 0.5) / num for number in range(num)]  # evenly: shares come out as they are
    decoding = Decoding(method="sample", temperature=temperature)
    picked = pick(LOGITS.expand(num, -1), decoding, count=1, draws=draws, legal=None)
    drawn = Counter(row[0][0] for row in picked)
    probs = (LOGITS[0] / temperature).softmax(0)
    assert {token: count / num for token, count in drawn.items()} == pytest.approx(
        dict(enumerate(probs.tolist())), abs=1e-3
    )


def test_a_pick_keeps_to_what_is_allowed_and_tells_the_models_own_log_prob() -> None:
    cold, sample = Decoding(method="sample", temperature=0.1), Decoding(method="sample")
    picked = pick(LOGITS, cold, count=1, draws=[0.0], legal=[[4, 2]])
    assert picked == [[(4, pytest.approx(float(LOGITS[0].log_softmax(0)[4])))]]
    half = torch.tensor([[0.0, 1.0, float("-inf"), float("-inf")]])
    assert pick(half, sample, count=1, draws=[1 - 1e-17], legal=None)[0][0][0] == 1  # rounding passes no last token
    assert pick(half, sample, count=1, draws=[0.5], legal=[[]]) == [[]]
    logits = torch.tensor([[0.3, 2.0, -1.0, 1.2], [0.3, 2.0, -1.0, 1.2], [5.0, 0.0, 1.0, 2.0]])
    best = pick(logits, Decoding(), count=2, draws=[0.0] * 3, legal=[[3, 2, 0], None, [1]])
    assert [[token for token, _ in row] for row in best] == [[3, 0], [1, 3], [1]]
    assert best[2][0][1] == pytest.approx(float(logits[2].log_softmax(0)[1]))


def test_a_free_row_among_bound_ones_makes_no_list_of_the_vocabulary_for_each_of_them() -> None:
    """63 lists of 49,152 numbers took a second per token."""
    logits, legal = torch.zeros(64, 49_152), [[row, row + 9] for row in range(63)]
    tracemalloc.start()
    picked = pick(logits, Decoding(), count=1, draws=[0.0] * 64, legal=[*legal, None])
    most = tracemalloc.get_traced_memory()[1]  # of Python's own
    tracemalloc.stop()
    assert len(picked) == 64 and most < 5_000_000
