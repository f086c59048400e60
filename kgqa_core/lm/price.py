"""The price of a model. Apart from the reader of the file, which a metered model can do without."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

PER = 1_000_000  # tokens that a price is for


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one model, in the file's currency per million tokens."""

    input: float
    output: float
    as_of: date  # when it was looked up
    source: str = ""  # where

    def of(self, prompt_tokens: int, tokens: int) -> float:
        """Return what reading and giving so many tokens costs."""
        return (self.input * prompt_tokens + self.output * tokens) / PER
