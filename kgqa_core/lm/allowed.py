"""Constraints for those who cannot follow them token by token: is a text allowed, and which texts are?"""

from __future__ import annotations

from kgqa_core.lm.types import Constraint

MAX_TEXTS = 1000  # a larger choice is no choice that a server takes
MAX_PIECES = 64  # of one text: automata with a loop have no longest


def is_allowed(constraint: Constraint, text: str) -> bool:
    """Say whether ``text`` is one that ``constraint`` lets be generated.

    Every way to read the text is tried, so constraints whose pieces are prefixes of each other are judged rightly too.
    """
    ends: list[tuple[tuple[str, ...], int]] = [((), 0)]
    while ends:
        pieces, position = ends.pop()
        if position == len(text) and constraint.may_end(pieces):
            return True
        ends.extend(
            ((*pieces, piece), position + len(piece))
            for piece in constraint.next_pieces(pieces)
            if piece and text.startswith(piece, position)
        )
    return False


def finite_texts(constraint: Constraint, *, limit: int = MAX_TEXTS) -> list[str] | None:
    """Return every allowed text in the constraint's order, or None where there are more than ``limit``, or no end."""
    texts: list[str] = []
    open_ends: list[tuple[str, ...]] = [()]
    num_seen = 0
    while open_ends:
        pieces = open_ends.pop()
        num_seen += 1
        if len(pieces) > MAX_PIECES or len(texts) > limit or num_seen > 10 * limit:
            return None
        if constraint.may_end(pieces):
            texts.append("".join(pieces))
        following = [(*pieces, piece) for piece in constraint.next_pieces(pieces) if piece]
        if len(following) > limit:
            return None
        open_ends.extend(reversed(following))
    return texts if len(texts) <= limit else None
