"""Searches, samples and scores against those without cache, batch or cleverness; constraints; stop strings; memory."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from kgqa_core.errors import KgqaError
from kgqa_core.lm.constraints import LISTED, Choices, start_state
from kgqa_core.lm.folders import Ending, decode, encode_answers, encode_prompts
from kgqa_core.lm.generate import Batcher, generate_batch, pick
from kgqa_core.lm.local import LocalModel, open_local
from kgqa_core.lm.types import Constraint, Decoding, Prompt
from tests.lm.tiny_models import ARCHITECTURES, make_any

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


def ask_transformers(
    model: LocalModel, prompt: list[int], decoding: Decoding, ending: Ending, **options: Any
) -> list[tuple[str, float]]:
    """Return the texts of transformers' own beam search, best first; two ways of tokens may write one text."""
    made = model.model.generate(
        torch.tensor([prompt]),
        max_new_tokens=decoding.max_new_tokens,
        num_beams=decoding.num_beams,
        num_return_sequences=decoding.num_returns,
        do_sample=False,
        length_penalty=0.0,  # the plain sum, where transformers' default is the mean
        eos_token_id=sorted(ending.tokens),
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    rows = [until_end(tokens[len(prompt) :], ending) for tokens in made.sequences.tolist()]
    return [(ending.answer(row), score) for row, score in zip(rows, made.sequences_scores.tolist(), strict=True)]


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
        assert [text.finished for text in texts] == [text.log_prob is not None for text in texts]
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

            expected = ask_transformers(model, row, decoding, ending, prefix_allowed_tokens_fn=allowed)
            if len({text for text, _ in expected}) == 2:  # else theirs are one text in two ways
                assert [text.text for text in texts] == [text for text, _ in expected]
                assert [text.log_prob for text in texts] == pytest.approx([score for _, score in expected], abs=1e-4)


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
        plain = plain_score(model, prompt, "drama")
        assert scored[0] == pytest.approx(plain, abs=1e-4)


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


SCORED = [Prompt(text) for text in ("who directed Heat ?", "x", "the plan is film.film.genre and the answer is")]
OPTIONS = [["Michael Mann", "drama", ""], [], ["film.film.genre", "x", "naïve 42 trains", "the plan is film", "drama"]]


def plain_score(model: LocalModel, prompt: Prompt, option: str) -> float:
    start = encode_prompts(model.tokenizer, [prompt])[0]
    answer = [*encode_answers(model.tokenizer, [option])[0], model.ends[0]]
    return sum(float(plain_log_probs(model, start + answer[:at])[token]) for at, token in enumerate(answer))


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_scores_are_those_of_reading_one_by_one(any_model: Path, batch_size: int) -> None:
    model = open_local(any_model, batch_size=batch_size)
    for prompt, options, scores in zip(SCORED, OPTIONS, model.score(SCORED, OPTIONS), strict=True):
        assert scores == pytest.approx([plain_score(model, prompt, option) for option in options], abs=1e-4)


def test_an_option_that_does_not_fit_the_context_is_impossible(qwen2: Path) -> None:
    model = open_local(qwen2)
    long = "film " * model.context
    scores = model.score([Prompt("x"), Prompt(long), Prompt("who")], [["drama", long], ["drama"], ["drama"]])
    assert scores[0][1] == scores[1][0] == float("-inf")
    assert scores[0][0] > float("-inf") and scores[2][0] > float("-inf")


def test_nothing_asked_nothing_told(qwen2: Path) -> None:
    model = open_local(qwen2)
    assert model.score([], []) == []
    assert model.score(SCORED[:1], [[]]) == [[]]
    assert model.generate([]) == []
    assert model.count_tokens([]) == []


SAMPLES = Decoding(max_new_tokens=6, method="sample", num_returns=3, seed=7)


def test_the_rest_of_the_batch_changes_no_sample(any_model: Path) -> None:
    together = open_local(any_model).generate(SCORED, SAMPLES)
    shuffled = open_local(any_model, batch_size=2).generate(SCORED[::-1], SAMPLES)[::-1]
    for one, other in zip(together, shuffled, strict=True):
        assert [text.text for text in one] == [text.text for text in other]
    fewer = open_local(any_model).generate(SCORED[:1], Decoding(max_new_tokens=6, method="sample", seed=7))
    assert fewer[0][0].text == together[0][0].text  # the first sample is the first, however many are drawn


def test_samples_and_seeds_differ(qwen2: Path) -> None:
    model = open_local(qwen2)
    first = model.generate(SCORED[:1], SAMPLES)[0]
    assert len({text.text for text in first}) == 3
    other = model.generate(SCORED[:1], Decoding(max_new_tokens=6, method="sample", num_returns=3, seed=8))[0]
    assert first != other


def test_a_sample_follows_its_constraint(any_model: Path) -> None:
    model = open_local(any_model)
    options = ["drama", "Heat", "Michael Mann"]
    prompts = [Prompt(prompt.text, constraint=Choices(options)) for prompt in SCORED]
    for texts in model.generate(prompts, Decoding(max_new_tokens=20, method="sample", num_returns=5)):
        assert {text.text for text in texts} <= set(options)
        assert len(texts) == 5


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (2.0, 0.8)])
def test_tokens_are_drawn_with_the_probabilities_told(temperature: float, top_p: float) -> None:
    logits = torch.tensor([[0.3, 2.0, -1.0, 1.2, 0.0]])
    num = 4001
    draws = [(number + 0.5) / num for number in range(num)]  # evenly: shares come out as they are
    decoding = Decoding(method="sample", temperature=temperature, top_p=top_p)
    picked = pick(logits.expand(num, -1), decoding, count=1, draws=draws, legal=None)
    drawn = Counter(row[0][0] for row in picked)
    probs = (logits[0] / temperature).softmax(0)
    order = probs.argsort(descending=True)
    kept = order[: int((probs[order].cumsum(0) < top_p).sum()) + 1]
    expected = {int(token): float(probs[token] / probs[kept].sum()) for token in kept}
    assert {token: count / num for token, count in drawn.items()} == pytest.approx(expected, abs=1e-3)


def test_a_drawn_token_tells_the_models_own_log_prob() -> None:
    logits = torch.tensor([[0.3, 2.0, -1.0, 1.2, 0.0]])
    decoding = Decoding(method="sample", temperature=0.1)
    picked = pick(logits, decoding, count=1, draws=[0.0], legal=[[4, 2]])
    assert picked == [[(4, pytest.approx(float(logits[0].log_softmax(0)[4])))]]


def test_the_last_draw_finds_a_token_that_is_allowed() -> None:
    logits, sample = torch.tensor([[0.0, 1.0, float("-inf"), float("-inf")]]), Decoding(method="sample")
    assert pick(logits, sample, count=1, draws=[1 - 1e-17], legal=None)[0][0][0] == 1
    assert pick(logits, sample, count=1, draws=[0.5], legal=[[]]) == [[]]


def test_the_best_of_the_allowed_tokens() -> None:
    logits = torch.tensor([[0.3, 2.0, -1.0, 1.2], [0.3, 2.0, -1.0, 1.2], [5.0, 0.0, 1.0, 2.0]])
    picked = pick(logits, Decoding(), count=2, draws=[0.0] * 3, legal=[[3, 2, 0], None, [1]])
    assert [[token for token, _ in row] for row in picked] == [[3, 0], [1, 3], [1]]
    assert picked[2][0][1] == pytest.approx(float(logits[2].log_softmax(0)[1]))


class Memory:
    """Holds so many cells; a batch takes rows x its longest."""

    def __init__(self, cells: int) -> None:
        self.cells = cells
        self.batches: list[list[int]] = []  # that fitted
        self.num_failed = 0

    def run(self, batch: list[int]) -> list[str]:
        if len(batch) * max(batch) > self.cells:
            self.num_failed += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.batches.append(batch)
        return [f"<{length}>" for length in batch]


LENGTHS = [3, 100, 5, 90, 4, 80, 2, 70]


@pytest.mark.parametrize(
    ("cells", "size", "width", "batches", "num_failed"),
    [
        (10**6, 3, 1, [[100, 90, 80], [70, 5, 4], [3, 2]], 0),  # the longest go first
        (200, 8, 1, [[100, 90], [80, 70], [5, 4, 3, 2]], 2),  # halved until they fit; short rows stay many
        (10**6, 6, 3, [[100, 90], [80, 70], [5, 4], [3, 2]], 0),  # beams count as rows
        (10**6, 2, 3, [[length] for length in (100, 90, 80, 70, 5, 4, 3, 2)], 0),
    ],
)
def test_batches_are_as_large_as_memory_holds_and_results_in_the_order_of_the_items(
    cells: int, size: int, width: int, batches: list[list[int]], num_failed: int
) -> None:
    memory, batcher = Memory(cells), Batcher(size)
    for _ in range(2):  # what did not fit is remembered
        assert batcher.map(LENGTHS, LENGTHS, memory.run, width=width) == [f"<{length}>" for length in LENGTHS]
    assert (memory.batches[: len(batches)], memory.num_failed) == (batches, num_failed)


def test_one_prompt_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(KgqaError, match="single prompt of 100 tokens"):
        Batcher(8).map(LENGTHS, LENGTHS, Memory(50).run)


def test_other_errors_pass() -> None:
    def fail(batch: list[int]) -> list[str]:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        Batcher(8).map(LENGTHS, LENGTHS, fail)


def test_generation_and_scores_survive_a_small_memory(qwen2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [Prompt("film " * number) for number in range(1, 12)]
    options = [["drama", "Heat", "Michael Mann", "x"]] * len(prompts)
    decoding = Decoding(max_new_tokens=5, method="beam", num_beams=2)
    roomy = open_local(qwen2)
    expected = [texts[0].text for texts in roomy.generate(prompts, decoding)], roomy.score(prompts, options)
    model = open_local(qwen2)
    forward = model.model.forward
    failures = []

    def short_of_memory(*args: Any, **kwargs: Any) -> Any:
        if kwargs["attention_mask"].numel() > 100:
            failures.append(kwargs["attention_mask"].shape)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(*args, **kwargs)

    short_of_memory.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    monkeypatch.setattr(model.model, "forward", short_of_memory)
    assert [texts[0].text for texts in model.generate(prompts, decoding)] == expected[0]
    for scores, known in zip(model.score(prompts, options), expected[1], strict=True):
        assert scores == pytest.approx(known, abs=1e-4)
    assert failures
