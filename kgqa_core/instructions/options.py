"""Finding what a model means among options that it was shown: relations, entities, clues."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kgqa_core.instructions.escapes import unescape

_BETWEEN_WORDS = re.compile(r"[\s_./:-]+")
_AROUND = " \t\"'`*“”.,;()[]{}<>"


class Options:
    """Texts to choose from, found by themselves or, where that is no other's, by nearly the same text."""

    def __init__(self, texts: Sequence[str]) -> None:
        """Take the texts; of two that are equal the first is found."""
        self.texts = tuple(texts)
        self._exact: dict[str, int] = {}
        folded: dict[str, list[int]] = {}
        for index, text in enumerate(self.texts):
            self._exact.setdefault(text, index)
            folded.setdefault(_fold(text), []).append(index)
        self._folded = {text: ids[0] for text, ids in folded.items() if text and len(ids) == 1}

    def find(self, text: str) -> int | None:
        """Return the index of the option that ``text`` names: exactly, else whatever its case, quotes and blanks."""
        for form in (text, text.strip(), unescape(text.strip())):
            if form in self._exact:
                return self._exact[form]
        return self._folded.get(_fold(unescape(text)))


def _fold(text: str) -> str:
    return _BETWEEN_WORDS.sub(" ", text.strip(_AROUND).casefold()).strip()
