"""What every stand-in shares: the contract of a language model around something that says texts."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kgqa_core.lm.types import GREEDY, Decoding, Generation, Prompt

VERSION = 1  # of what stand-ins say: part of their names, which key the call cache
CONTEXT = 32_768  # tokens
CHARACTERS_PER_TOKEN = 4  # tokens of a stand-in are an estimate
NO_TEXT = -100.0  # log-probability of the empty texts that fill up a beam

Said = tuple[str, float]  # text, natural log of its probability


class Mind(Protocol):
    """What a stand-in says to one prompt: of the prompt alone, whatever was asked before."""

    def say(self, prompt: Prompt, num: int) -> list[Said]:
        """Return up to ``num`` distinct texts, best first; at least one."""
        ...

    def weigh(self, prompt: Prompt, options: Sequence[str]) -> list[float]:
        """Return the log-probability of each option as the whole answer."""
        ...


@dataclass(frozen=True, slots=True)
class StandIn:
    """A mind behind the contract of a language model. Implements ``LanguageModel``; tokens are an estimate."""

    name: str  # stands for all that its answers follow from
    mind: Mind
    context: int = CONTEXT

    def count_tokens(self, prompts: Sequence[Prompt]) -> list[int]:
        """Return an estimate of each prompt's tokens."""
        return [num_tokens(prompt.system) + num_tokens(prompt.text) for prompt in prompts]

    def generate(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> list[list[Generation]]:
        """Return ``num_returns`` texts per prompt; samples are all the best text, beams that lack a text are empty."""
        return [self._texts(prompt, decoding) for prompt in prompts]

    def score(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the log-probability of each prompt's options."""
        return [self.mind.weigh(prompt, own) for prompt, own in zip(prompts, options, strict=True)]

    def _texts(self, prompt: Prompt, decoding: Decoding) -> list[Generation]:
        num = decoding.num_returns
        if num_tokens(prompt.system) + num_tokens(prompt.text) >= self.context:
            return [Generation("", problem="too_long")] * num
        said = self.mind.say(prompt, num if decoding.method == "beam" else 1)[:num]
        if decoding.method == "beam":
            said += [("", NO_TEXT)] * (num - len(said))
        else:
            said *= num
        return [_generation(text, log_prob, decoding) for text, log_prob in said]


def num_tokens(text: str) -> int:
    """Return an estimate of a text's tokens."""
    return math.ceil(len(text) / CHARACTERS_PER_TOKEN)


def seed_of(*parts: object) -> int:
    """Return a seed of 256 bits that follows from ``parts`` alone."""
    return int.from_bytes(hashlib.sha256("\x1f".join(map(str, parts)).encode("utf-8", "replace")).digest(), "big")


def share_of(*parts: object) -> float:
    """Return a number 0 <= x < 1 that follows from ``parts`` alone, evenly spread."""
    return (seed_of(*parts) >> 203) / 2**53


def _generation(text: str, log_prob: float, decoding: Decoding) -> Generation:
    places = [place for stop in decoding.stop if (place := text.find(stop)) >= 0]
    text = text[: min(places)] if places else text
    most = decoding.max_new_tokens * CHARACTERS_PER_TOKEN
    return Generation(text[:most], log_prob, num_tokens(text[:most]), finished=len(text) <= most)
