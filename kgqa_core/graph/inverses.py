"""Relations that a file gives in both directions: ``plays_in_club`` and ``plays_in_club_inverse``.

A graph stores every triple once and walks it both ways, so a given inverse is no relation of its own: its triples are
turned round, and its label is the text of the relation walked backwards.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InverseCounts:
    """How one relation and its inverse came, in distinct triples."""

    label: str  # of the inverse
    num_both: int  # given forwards and as inverse
    num_only_forward: int
    num_only_inverse: int


def find_inverses(labels: Collection[str], suffix: str | None) -> dict[str, str]:
    """Return given inverse -> the relation that it is the inverse of.

    ``X + suffix`` is the inverse of ``X`` where the file has ``X`` and ``X`` is no inverse itself; else it is an
    ordinary relation. ``suffix=None``: there are none.
    """
    found: dict[str, str] = {}
    if suffix:
        for label in sorted(labels, key=len):  # a base before what is longer by the suffix
            base = label.removesuffix(suffix)
            if base != label and base in labels and base not in found:
                found[label] = base
    return found
