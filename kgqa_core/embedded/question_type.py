"""What a question type is; the types themselves are data, in ``wordings``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QuestionType:
    """One thing that is asked, in all its wordings."""

    kind: str  # part of the question's id
    chain: tuple[str, ...]  # from each topic on; with two topics the answers are what both lead to
    train: tuple[str, ...]
    dev: tuple[str, ...]  # never asked in train or test
    test: tuple[str, ...]  # never asked in train or dev

    @property
    def num_topics(self) -> int:
        """Return how many topics each wording names."""
        return self.train[0].count("[topic]")

    @property
    def has_claim(self) -> bool:
        """Return whether it is a true/false question."""
        return "[claim]" in self.train[0]
