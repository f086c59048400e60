"""The groups of questions that figures are broken down by: numbers of hops and numbers of answers."""

from __future__ import annotations

UNKNOWN_HOPS = "unknown"  # neither does the dataset say how many hops, nor is a gold near enough to the topics
HOP_BUCKETS = ("1", "2", ">=3", UNKNOWN_HOPS)
ANSWER_BUCKETS = ("0", "1", "2-4", "5-9", ">=10")


def hop_bucket(hops: int | None) -> str:
    """Return the member of ``HOP_BUCKETS`` that a number of hops belongs to; ``None`` is an unknown number."""
    if hops is None:
        return UNKNOWN_HOPS
    return str(hops) if hops < 3 else ">=3"


def answer_bucket(num_answers: int) -> str:
    """Return the member of ``ANSWER_BUCKETS`` that a number of golds belongs to.

    No gold at all have only true/false questions of which nothing but the claim is known.
    """
    if num_answers < 2:
        return str(num_answers)
    return "2-4" if num_answers < 5 else "5-9" if num_answers < 10 else ">=10"
