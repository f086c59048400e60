"""Two ways to make names comparable: as the published evaluator does it, and as equality of names should be."""

from __future__ import annotations

import re
import string
import unicodedata
from functools import lru_cache

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


@lru_cache(maxsize=65_536)
def normalise_published(text: str) -> str:
    """Return ``text`` as the published RoG evaluator compares it.

    Lower case; ASCII punctuation removed; the words a, an and the dropped; white space collapsed. The published code
    also means to drop ``<pad>`` but has removed the angle brackets by then, so ``pad`` stays: kept so, because its
    figures are to be met to the last digit. A name of nothing but punctuation or articles becomes the empty string.
    """
    lowered = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", lowered).split())


@lru_cache(maxsize=65_536)
def normalise_name(text: str) -> str:
    """Return ``text`` for strict equality of names: composed characters, no case, white space collapsed.

    Punctuation and articles stay, since they tell entities apart ("It" and "It!", "Thing" and "The Thing").
    """
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())
