"""Which texts and which tokens a constraint allows, with any tokenizer. Imports neither torch nor transformers.

A constraint speaks of pieces of text, a model of tokens, and the two do not begin and end together: a token may end
inside a piece or reach into the next ones. There are two ways to follow a constraint token by token.

``Spelling``, where at most ``LISTED`` texts are allowed: each as its own tokenizer writes it. So an allowed text is one
sequence of tokens, its log-probability is its score, and beams that are at least as many as the texts find them all.
``Place``, where there are more: every token whose text goes on along some allowed text. Which of the ways to cut a text
into tokens is taken is the model's choice. What may follow is worked out once per place and kept; the part of it that
lies within one set of pieces is shared by all constraints of a tokenizer.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from kgqa_core.errors import InputError
from kgqa_core.lm.types import Constraint

LISTED = 256  # texts of a constraint that are listed and spelled, at most
MAX_TEXTS = 1000  # a larger choice is no choice that a server takes
MAX_PIECES = 64  # of one text: automata with a loop have no longest
MAX_STARTS = 4096  # constraints kept per tokenizer; the one not used for longest goes first
MAX_SHARED = 100_000  # sets of pieces kept per tokenizer
shared_start = os.path.commonprefix  # of any texts, character by character


class Choices:
    """One of some texts: the answer is one of them as a whole. A radix tree, so that one may begin another."""

    def __init__(self, texts: Sequence[str]) -> None:
        """Take the texts; empty ones and repetitions are passed over."""
        self.texts = tuple(dict.fromkeys(text for text in texts if text))
        self.key = "choices:" + hashlib.sha256("\0".join(sorted(self.texts)).encode()).hexdigest()
        self._whole = frozenset(self.texts)
        self._after: dict[str, tuple[str, ...]] = {}

    def next_pieces(self, pieces: tuple[str, ...]) -> Sequence[str]:
        """Return what may follow: per next character, what all texts that go on with it share."""
        so_far = "".join(pieces)
        if so_far not in self._after:
            self._after[so_far] = _next_on(self.texts, so_far)
        return self._after[so_far]

    def may_end(self, pieces: tuple[str, ...]) -> bool:
        """Say whether a whole text was given."""
        return "".join(pieces) in self._whole


class Lines:
    """Some of some lines, each once, in any order; or one text instead of all of them."""

    def __init__(self, lines: Sequence[str], instead: str) -> None:
        """Take the lines; empty ones and repetitions are passed over."""
        self.lines, self.instead = tuple(dict.fromkeys(line for line in lines if line)), instead
        self.key = "lines:" + hashlib.sha256("\0".join([instead, *sorted(self.lines)]).encode()).hexdigest()
        self._whole = frozenset(self.lines)

    def next_pieces(self, pieces: tuple[str, ...]) -> Sequence[str]:
        """Return what goes on with the last line, as of ``Choices``, or its end where it is whole and more are left."""
        *done, begun = "".join(pieces).split("\n")
        left = self._whole.difference(done)
        more = _next_on(left if done else {*left, self.instead}, begun)
        return (*more, "\n") if begun in left and len(left) > 1 else more

    def may_end(self, pieces: tuple[str, ...]) -> bool:
        """Say whether the last line is whole."""
        *done, begun = "".join(pieces).split("\n")
        return begun in self._whole.difference(done) or (not done and begun == self.instead)


def _next_on(texts: Iterable[str], so_far: str) -> tuple[str, ...]:
    """Return per next character what all texts that go on from ``so_far`` share, in order."""
    groups: dict[str, list[str]] = {}
    for rest in sorted(text[len(so_far) :] for text in texts if text.startswith(so_far) and text != so_far):
        groups.setdefault(rest[0], []).append(rest)
    return tuple(shared_start([group[0], group[-1]]) for group in groups.values())


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


def start_state(
    tokenizer: Any, constraint: Constraint | None, ends: Sequence[int] = (), *, listed: int = LISTED
) -> TokenState | None:
    """Return the state before the first token, a ``Spelling`` up to ``listed`` texts; None without a constraint.

    Each of the tokens ``ends`` may end a text; without any, the tokenizer's own end may. The state is kept as long as
    the transformers tokenizer is. Where a constraint allows no text at all, an end is all that may follow. Raises
    InputError where the tokenizer's tokens are no pieces of text (WordPiece).
    """
    if constraint is None:
        return None
    ends = tuple(ends) or (int(tokenizer.eos_token_id),)
    vocabularies = _VOCABULARIES.setdefault(tokenizer, {})
    if ends not in vocabularies:
        vocabularies[ends] = _Vocabulary(tokenizer, ends)
    kept, key = vocabularies[ends].starts, (constraint.key, listed)
    if key not in kept:
        kept[key] = _spell(tokenizer, constraint, listed, ends) or Place(constraint, vocabularies[ends], {})
        if len(kept) > MAX_STARTS:
            kept.popitem(last=False)
    kept.move_to_end(key)
    return kept[key]


@dataclass(frozen=True, slots=True)
class Spelling:
    """Some tokens of allowed texts, each as its own tokenizer writes it."""

    follow: dict[int, Spelling]  # by token
    allowed: list[int]  # the end too, where a text is whole

    @property
    def heading(self) -> int:
        """Return what no other state has: each text is spelled in one way."""
        return id(self)

    def after(self, token: int) -> Spelling | None:
        """Return the state after a token; None after one that is not allowed, and after the end."""
        return self.follow.get(token)


def _spell(tokenizer: Any, constraint: Constraint, most: int, ends: Sequence[int]) -> Spelling | None:
    """Return the start of the allowed texts' tokens; None where there are none or too many, or tokens say otherwise."""
    texts = list(dict.fromkeys(finite_texts(constraint, limit=most) or ()))
    rows = tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
    written = tokenizer.batch_decode(rows, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if not texts or written != texts or not all(map(set(ends).isdisjoint, rows)):
        return None
    start = Spelling({}, [])
    for row in rows:
        state = start
        for token in row:
            if token not in state.follow:
                state.follow[token] = Spelling({}, [])
                state.allowed.append(token)
            state = state.follow[token]
        state.allowed.extend(ends)
    return start


class Place:
    """A place in an allowed text: after ``pieces``, and ``done`` bytes into the next."""

    def __init__(self, constraint: Constraint, vocabulary: _Vocabulary, known: dict[Any, Place], *at: Any) -> None:
        """Stand at (pieces, done), or before the first token; ``known`` holds the places met so far."""
        self._constraint, self._vocabulary, self._known = constraint, vocabulary, known
        self._pieces, self._done = at or ((), b"")
        self._is_first = not at

    @cached_property
    def _within(self) -> _Within:
        return self._vocabulary.within(tuple(self._constraint.next_pieces(self._pieces)), self._done)

    @cached_property
    def _further(self) -> dict[int, tuple[tuple[str, ...], bytes]]:
        """By token that reaches into later pieces: where it ends."""
        found: dict[int, tuple[tuple[str, ...], bytes]] = {}
        reaching = [((*self._pieces, piece), text) for piece, text in self._within.beyond]
        if self._is_first and self._vocabulary.drops_first_blank:
            found.update((token, ((), b"")) for token in self._vocabulary.ids.get(b" ", ()))
            reaching.append(((), b" "))
        while reaching:
            pieces, taken = reaching.pop()
            if taken not in self._vocabulary.longer:
                continue
            within = self._vocabulary.within(tuple(self._constraint.next_pieces(pieces)), b"", taken)
            for token, (piece, done) in within.after.items():
                found[token] = ((*pieces, piece) if piece else pieces, done)
            reaching += [((*pieces, piece), text) for piece, text in within.beyond]
        return found

    @cached_property
    def heading(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the pieces that are certain by now, and those of which one comes next: equal for all spellings."""
        pieces, done = self._pieces, self._done
        while True:
            following = [piece for piece in self._constraint.next_pieces(pieces) if piece.encode().startswith(done)]
            if len(following) != 1 or (not done and self._constraint.may_end(pieces)):
                return pieces, tuple(following)
            pieces, done = (*pieces, following[0]), b""

    @cached_property
    def allowed(self) -> list[int]:
        """Return the tokens that may follow; the ends first where the text may end, alone where nothing may."""
        within, further = self._within, self._further
        may_end = not self._done and self._constraint.may_end(self._pieces)
        ends = self._vocabulary.ends if may_end or not (within.tokens or further) else ()
        more = [*ends, *(token for token in further if token not in within.after)]
        return [*more, *within.tokens] if more else within.tokens

    def after(self, token: int) -> Place | None:
        """Return the state after a token; None after one that is not allowed, and after the end."""
        at = self._further.get(token)
        if token in self._within.after:
            piece, done = self._within.after[token]
            at = ((*self._pieces, piece) if piece else self._pieces, done)
        if at is not None and at not in self._known:
            self._known[at] = Place(self._constraint, self._vocabulary, self._known, *at)
        return None if at is None else self._known[at]


TokenState = Spelling | Place
"""What of a constraint's texts is written: ``allowed`` tokens may follow, ``after`` one of them is the next state."""


class _Vocabulary:
    """What each token of a tokenizer adds to a text, in bytes, looked up from the text's side.

    Special tokens are left out: they are no text. Where a byte has both a token of its own and a fallback token
    (``<0x41>``), the fallback is left out: no tokenizer would give it.
    """

    def __init__(self, tokenizer: Any, ends: tuple[int, ...]) -> None:
        """Read a transformers tokenizer; ``ends`` are the tokens that end a text, and are none of it."""
        from transformers.convert_slow_tokenizer import bytes_to_unicode  # loaded before: the tokenizer is its own

        decoders = _decoders(tokenizer)
        if decoders & {"WordPiece", "CTC", "BPEDecoder"}:
            raise InputError(
                f"Generation cannot be constrained with this tokenizer (decoder {', '.join(sorted(decoders))}): its "
                "tokens are not pieces of the text. Use a model with a byte-level or SentencePiece tokenizer"
            )
        byte_level = "ByteLevel" in decoders
        pieces = not byte_level and bool(decoders & {"ByteFallback", "Metaspace", "Replace"} or not decoders)
        self.ends = ends
        self.starts: OrderedDict[tuple[str, int], TokenState] = OrderedDict()  # of constraints
        self._shared: dict[tuple[tuple[str, ...], bytes, bytes], _Within] = {}
        known = tokenizer.added_tokens_decoder
        special = {*ends, *tokenizer.all_special_ids, *(number for number, token in known.items() if token.special)}
        added = set(known) | set(tokenizer.get_added_vocab().values())
        of_bytes: Any = bytes_to_unicode
        letters = {letter: byte for byte, letter in of_bytes().items()} if byte_level else {}
        self.ids: dict[bytes, list[int]] = {}
        fallback: dict[bytes, int] = {}
        for token, number in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]):
            if number in special or not token:
                continue
            text = token.encode()
            if number not in added:
                if byte_level and all(letter in letters for letter in token):
                    text = bytes(letters[letter] for letter in token)
                elif pieces and (found := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", token)):
                    fallback[bytes([int(found[1], 16)])] = number
                    continue
                elif pieces:
                    text = token.replace("\u2581", " ").encode()  # SentencePiece's blank
            self.ids.setdefault(text, []).append(number)
        for text, number in fallback.items():
            self.ids.setdefault(text, [number])
        # Most of SentencePiece's kind take away the blank that a text begins with, so its first token may have one.
        blank = self.ids.get(max((text for text in self.ids if text.startswith(b" ")), default=b""), [])[:1]
        self.drops_first_blank = bool(blank) and not tokenizer.decode(
            blank, clean_up_tokenization_spaces=False
        ).startswith(" ")
        self.longer = {text[:end] for text in self.ids for end in range(1, len(text))}  # what longer tokens begin with

    def within(self, pieces: tuple[str, ...], done: bytes, taken: bytes = b"") -> _Within:
        """Return the tokens that begin with ``taken`` and go on along ``pieces``, ``done`` bytes into them."""
        key = (pieces, done, taken)
        if key in self._shared:
            return self._shared[key]
        after: dict[int, tuple[str, bytes]] = {}
        beyond: list[tuple[str, bytes]] = []
        for piece in pieces:
            body = piece.encode()
            if not body.startswith(done):
                continue
            rest = body[len(done) :]
            for length in range(1, len(rest) + 1):
                text = taken + rest[:length]
                for token in self.ids.get(text, ()):
                    after[token] = (piece, b"") if length == len(rest) else ("", done + rest[:length])
                if text not in self.longer:
                    break
            else:
                beyond.append((piece, text))
        if len(self._shared) >= MAX_SHARED:
            self._shared.clear()
        return self._shared.setdefault(key, _Within(after, list(after), tuple(beyond)))


_VOCABULARIES: WeakKeyDictionary[Any, dict[tuple[int, ...], _Vocabulary]] = WeakKeyDictionary()


def _decoders(tokenizer: Any) -> set[str]:
    """Return the types of decoders that a tokenizer turns tokens into text with."""
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is None:
        return set()  # a SentencePiece model read by Python
    decoder = json.loads(backend.to_str())["decoder"] or {"type": "Fuse"}  # without one: tokens as they are
    return {str(part["type"]) for part in decoder.get("decoders", [decoder])}


@dataclass(frozen=True, slots=True)
class _Within:
    """What may follow inside a set of pieces, some bytes into them."""

    after: dict[int, tuple[str, bytes]]  # by token: the piece that it ends, b""; or "" and the bytes done after it
    tokens: list[int]  # all of ``after``
    beyond: tuple[tuple[str, bytes], ...]  # piece, text of which longer tokens begin: they reach into the next
