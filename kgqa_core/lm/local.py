"""A transformers folder on this machine as a language model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kgqa_core.artifacts import hash_file
from kgqa_core.lm.adapters import check_same_base
from kgqa_core.lm.chat import encode_answers, encode_prompts, end_tokens
from kgqa_core.lm.checks import read_config
from kgqa_core.lm.constraints import compile_constraints
from kgqa_core.lm.decoding import check_decoding
from kgqa_core.lm.generate import Allowed, generate_batch
from kgqa_core.lm.identity import HashFile, hash_adapter, hash_model
from kgqa_core.lm.load import Dtype, Loaded, Quantise, load
from kgqa_core.lm.memory import Batcher
from kgqa_core.lm.score import score_batch
from kgqa_core.lm.searches import Ending
from kgqa_core.lm.types import GREEDY, Constraint, Decoding, Generation, Prompt

SMALL = 10**8  # parameters; below, a batch of 64 does not fill even one core
VERSION = 1  # of how texts are made from weights; part of a model's name


class LocalModel:
    """A causal language model in memory. Implements ``LanguageModel``."""

    def __init__(self, loaded: Loaded, name: str, *, batch_size: int = 64) -> None:
        """Take what ``load`` gave; ``batch_size`` is how many texts (beams and samples count) grow at a time."""
        self.name = name
        self.context = loaded.context
        self.model = loaded.model
        self.tokenizer = loaded.tokenizer
        self.ends = end_tokens(loaded.tokenizer, loaded.model.generation_config)
        self._batcher = Batcher(batch_size)
        self._option_batcher = Batcher(batch_size)

    def count_tokens(self, prompts: Sequence[Prompt]) -> list[int]:
        """Return the tokens of each prompt as the model reads it, chat template included."""
        return [len(tokens) for tokens in encode_prompts(self.tokenizer, prompts)]

    def generate(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> list[list[Generation]]:
        """Return ``num_returns`` texts per prompt, best first; samples in order of drawing.

        The texts of a beam are distinct. Where a constraint allows fewer, the rest are empty and unfinished.
        A prompt that leaves no room for ``max_new_tokens`` in the context is ``too_long``. ``log_prob`` is the model's
        own: neither constraint nor temperature changes it, and it equals ``score`` of a finished text.

        Raises:
            InputError: the decoding makes no sense.
            KgqaError: memory does not hold a single prompt.
        """
        check_decoding(decoding)
        rows = encode_prompts(self.tokenizer, prompts)
        results = [[Generation("", problem="too_long")] * decoding.num_returns for _ in prompts]
        fitting = [number for number, row in enumerate(rows) if len(row) + decoding.max_new_tokens <= self.context]

        def run(batch: list[int]) -> list[list[Generation]]:
            constraints = [prompts[number].constraint for number in batch]
            return generate_batch(
                self.model,
                [rows[number] for number in batch],
                decoding,
                ending=self._ending(decoding),
                allowed=self._allowed(constraints),
            )

        lengths = [len(rows[number]) + decoding.max_new_tokens for number in fitting]
        width = decoding.num_returns if decoding.method == "sample" else decoding.num_beams
        for number, texts in zip(fitting, self._batcher.map(fitting, lengths, run, width=width), strict=True):
            results[number] = texts
        return results

    def score(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the log-likelihood of each prompt's options as whole answers: summed over tokens, end included.

        An option that does not fit the context with its prompt gets minus infinity.

        Raises:
            KgqaError: memory does not hold a single prompt.
        """
        rows = encode_prompts(self.tokenizer, prompts)
        flat = iter(encode_answers(self.tokenizer, [text for own in options for text in own]))
        answers = [[[*next(flat), self.ends[0]] for _ in own] for own in options]
        fitting = [
            [place for place, answer in enumerate(own) if len(row) + len(answer) <= self.context]
            for row, own in zip(rows, answers, strict=True)
        ]
        asked = [number for number, places in enumerate(fitting) if places]

        def run(batch: list[int]) -> list[list[float]]:
            own = [[answers[number][place] for place in fitting[number]] for number in batch]
            return score_batch(self.model, [rows[number] for number in batch], own, self._option_batcher)

        lengths = [len(rows[number]) + max(map(len, answers[number])) for number in asked]
        scores = [[float("-inf")] * len(own) for own in options]
        for number, found in zip(asked, self._batcher.map(asked, lengths, run), strict=True):
            for place, score in zip(fitting[number], found, strict=True):
                scores[number][place] = score
        return scores

    def _ending(self, decoding: Decoding) -> Ending:
        return Ending(self.tokenizer, frozenset(self.ends), decoding.stop)

    def _allowed(self, constraints: Sequence[Constraint | None]) -> Allowed | None:
        if not any(constraint is not None for constraint in constraints):
            return None
        compiled = compile_constraints(
            self.tokenizer, constraints, vocabulary_size=len(self.tokenizer), prompt_length=0
        )
        return lambda row, tokens: None if constraints[row] is None else compiled.allowed(row, tokens)


def open_local(
    folder: Path,
    *,
    adapter: Path | None = None,
    dtype: Dtype = "auto",
    quantise: Quantise = "none",
    device: str = "cpu",
    batch_size: int | None = None,
    hash_file: HashFile = hash_file,
) -> LocalModel:
    """Open a transformers folder as a language model.

    Args:
        folder: config.json, a tokenizer and *.safetensors of a causal language model.
        adapter: a folder in peft's own format, trained for this model.
        dtype: of the weights; "auto" is float32 on a CPU and elsewhere as they were saved.
        quantise: weights in 8 or 4 bits; needs bitsandbytes and a GPU.
        device: as torch names it.
        batch_size: texts (beams and samples count) that grow at a time, halved when memory runs out; None: 64, and 256
            of a small model.
        hash_file: ``FileHashes(...).hash`` spares a large model's hashing after the first time.

    Raises:
        InputError: something of it cannot be used; the message says what and what to do.
    """
    read_config(folder)
    if adapter is not None:
        check_same_base(adapter, folder, hash_file)
    loaded = load(folder, adapter=adapter, dtype=dtype, quantise=quantise, device=device)
    name = f"local-v{VERSION}-{loaded.dtype}-{quantise}-{hash_model(folder, hash_file)}"
    if adapter is not None:
        name += f"+{hash_adapter(adapter, hash_file)}"
    is_small = sum(weight.numel() for weight in loaded.model.parameters()) < SMALL
    return LocalModel(loaded, name, batch_size=batch_size or (256 if is_small else 64))
