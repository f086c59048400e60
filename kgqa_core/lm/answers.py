"""An answer with what it cost, and models that hand answers on one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kgqa_core.lm.types import Decoding, Generation, Prompt


@dataclass(frozen=True, slots=True)
class Answer:
    """What one prompt of a batch got."""

    index: int  # of the prompt in its batch
    generations: list[Generation]  # num_returns of them
    num_prompt_tokens: int  # that were read for it
    seconds: float  # from asking to having it, waits between attempts included


@runtime_checkable
class StreamingModel(Protocol):
    """A model whose answers come one by one, so that each can be kept before the next is there."""

    def stream(self, prompts: Sequence[Prompt], decoding: Decoding) -> Iterator[Answer]:
        """Yield one answer per prompt, in the order in which they come."""
        ...
