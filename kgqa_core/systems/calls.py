"""Keeping within a cap of calls per question, and giving each call the room that its answer needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kgqa_core.lm.types import Decoding
from kgqa_core.systems.types import Ask

ROOMS = (64, 128, 256, 512, 1024, 2048)  # tokens of an answer; few sizes, so that calls of a round share batches
LINE_TOKENS = 16  # of a line with two names


@dataclass(slots=True)
class CallsLeft:
    """How many calls one question may still make; the last one is kept for its answer."""

    limit: int | None = None  # FiSKE holds every system to 30 (its section 4.1); None: no limit
    used: int = 0
    refused: int = 0  # calls that there was no room for

    def fit(self, asks: Sequence[Ask[Any]]) -> list[Ask[Any]]:
        """Return the first of ``asks`` that leave a call for the answer, and count them as made."""
        room = len(asks) if self.limit is None else max(0, self.limit - 1 - self.used)
        kept = list(asks[:room])
        self.used += len(kept)
        self.refused += len(asks) - len(kept)
        return kept


def room_for(num_lines: int) -> Decoding:
    """Return a greedy decoding with room for so many lines with two names each."""
    wanted = LINE_TOKENS * (num_lines + 2)
    return Decoding(max_new_tokens=next((room for room in ROOMS if room >= wanted), ROOMS[-1]))
