"""The keys of the call cache: equal keys stand for calls whose texts are equal."""

from __future__ import annotations

import hashlib
import json

from kgqa_core.lm.types import Decoding, Prompt

KEY_VERSION = 1  # raise it when the meaning of a field of Prompt or Decoding moves


def text_key(model: str, prompt: Prompt, decoding: Decoding, index: int) -> str:
    """Return the key of one generated text: SHA-256, hexadecimal.

    Args:
        model: the model's name, which stands for its content.
        prompt: what is asked; whose question it is and which instruction do not matter.
        decoding: only what shapes the text: greedy texts have no seed, and how many samples are drawn changes none.
        index: of the sample or beam.
    """
    shape: list[object] = [decoding.method, decoding.max_new_tokens, list(decoding.stop)]
    if decoding.method == "sample":
        shape += [decoding.temperature, decoding.top_p, decoding.seed]
    elif decoding.method == "beam":
        shape += [decoding.num_beams]
    constraint = None if prompt.constraint is None else prompt.constraint.key
    return _hash(["text", model, prompt.system, prompt.text, constraint, *shape, index])


def score_key(model: str, prompt: Prompt, option: str) -> str:
    """Return the key of the log-likelihood of one option: SHA-256, hexadecimal."""
    return _hash(["score", model, prompt.system, prompt.text, option])


def later_seed(seed: int, first: int) -> int:
    """Return the seed of samples ``first``, ``first`` + 1, … where those before them were drawn earlier.

    Drawing them with the same seed would give the first ones again. 31 bits: what every server takes.
    """
    return seed if first == 0 else int(_hash(["seed", seed, first])[:8], 16) >> 1


def _hash(parts: list[object]) -> str:
    return hashlib.sha256(json.dumps([KEY_VERSION, *parts]).encode()).hexdigest()
