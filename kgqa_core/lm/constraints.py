"""Following a constraint with any tokenizer: which tokens may come next.

A constraint speaks of pieces of text, a model of tokens, and the two do not begin and end together: a token may end
inside a piece or reach into the next ones. So every token is allowed whose text goes on along some allowed text; which
of the ways to cut a text into tokens is taken is the model's choice, its own tokenizer's among them.

What may follow is worked out once per state and kept, and the part of it that lies within one set of pieces is shared
by all states, of all constraints of this tokenizer, where these pieces may follow.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from kgqa_core.lm.token_texts import TokenTexts
from kgqa_core.lm.types import Constraint

if TYPE_CHECKING:
    from torch import Tensor

MAX_AUTOMATA = 4096  # constraints kept per tokenizer; the one not used for longest goes first
MAX_SHARED = 100_000  # sets of pieces kept per tokenizer


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
            rests = sorted(text[len(so_far) :] for text in self.texts if text.startswith(so_far) and text != so_far)
            groups: dict[str, list[str]] = {}
            for rest in rests:
                groups.setdefault(rest[0], []).append(rest)
            self._after[so_far] = tuple(shared_start(group[0], group[-1]) for group in groups.values())
        return self._after[so_far]

    def may_end(self, pieces: tuple[str, ...]) -> bool:
        """Say whether a whole text was given."""
        return "".join(pieces) in self._whole


def shared_start(first: str, last: str) -> str:
    """Return what two texts begin with alike; of the first and last of a sorted list: what all of it begins with."""
    same = 0
    while same < min(len(first), len(last)) and first[same] == last[same]:
        same += 1
    return first[:same]


@dataclass(frozen=True, slots=True)
class _Within:
    """What may follow inside a set of pieces, some bytes into them."""

    after: dict[int, tuple[str, bytes]]  # by token: the piece that it ends, b""; or "" and the bytes done after it
    tokens: list[int]  # all of ``after``
    beyond: tuple[tuple[str, bytes], ...]  # piece, text of which longer tokens begin: they reach into the next


class _Vocabulary:
    """The tokens of one tokenizer, and what was worked out about them."""

    def __init__(self, tokenizer: Any) -> None:
        self.texts = TokenTexts(tokenizer)
        self.end = int(tokenizer.eos_token_id)
        self.automata: OrderedDict[str, Automaton] = OrderedDict()
        self._shared: dict[tuple[tuple[str, ...], bytes, bytes], _Within] = {}

    def within(self, pieces: tuple[str, ...], done: bytes, taken: bytes = b"") -> _Within:
        """Return the tokens that begin with ``taken`` and go on along ``pieces``, ``done`` bytes into them."""
        key = (pieces, done, taken)
        found = self._shared.get(key)
        if found is None:
            if len(self._shared) >= MAX_SHARED:
                self._shared.clear()
            found = self._shared[key] = self._within(pieces, done, taken)
        return found

    def _within(self, pieces: tuple[str, ...], done: bytes, taken: bytes) -> _Within:
        after: dict[int, tuple[str, bytes]] = {}
        beyond: list[tuple[str, bytes]] = []
        for piece in pieces:
            body = piece.encode()
            if not body.startswith(done):
                continue
            rest = body[len(done) :]
            for length in range(1, len(rest) + 1):
                text = taken + rest[:length]
                for token in self.texts.ids.get(text, ()):
                    after[token] = (piece, b"") if length == len(rest) else ("", done + rest[:length])
                if text not in self.texts.starts:
                    break
            else:
                beyond.append((piece, text))
        return _Within(after, list(after), tuple(beyond))


@dataclass(slots=True)
class _State:
    """A place in an allowed text: after ``pieces``, and ``done`` bytes into the next."""

    pieces: tuple[str, ...]
    done: bytes
    first: bool = False  # before any token: a blank that the tokenizer takes away again may come
    within: _Within | None = None  # None: not worked out yet
    further: dict[int, tuple[tuple[str, ...], bytes]] = field(
        default_factory=dict
    )  # tokens that reach into later pieces
    allowed: list[int] = field(default_factory=list)  # the end token first, where the text may end


class Automaton:
    """One constraint over one vocabulary; states are worked out when they are reached."""

    def __init__(self, constraint: Constraint, vocabulary: _Vocabulary) -> None:
        """Stand before the first token."""
        self._constraint = constraint
        self._vocabulary = vocabulary
        self._states: dict[tuple[tuple[str, ...], bytes], _State] = {}
        self._options: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.start = _State((), b"", first=vocabulary.texts.drops_first_blank)

    def allowed(self, state: _State) -> list[int]:
        """Return the tokens that may follow; the end token alone where nothing may."""
        if state.within is None:
            self._work_out(state)
        return state.allowed

    def step(self, state: _State, token: int) -> _State | None:
        """Return the state after a token; None after one that was not allowed, and after the end."""
        within = state.within or self._work_out(state)
        if token in within.after:
            piece, done = within.after[token]
            return self._state((*state.pieces, piece) if piece else state.pieces, done)
        found = state.further.get(token)
        return None if found is None else self._state(*found)

    def _state(self, pieces: tuple[str, ...], done: bytes) -> _State:
        key = (pieces, done)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = _State(pieces, done)
        return state

    def _next(self, pieces: tuple[str, ...]) -> tuple[str, ...]:
        found = self._options.get(pieces)
        if found is None:
            found = self._options[pieces] = tuple(self._constraint.next_pieces(pieces))
        return found

    def _work_out(self, state: _State) -> _Within:
        within = state.within = self._vocabulary.within(self._next(state.pieces), state.done)
        for piece, text in within.beyond:
            self._follow((*state.pieces, piece), text, state.further)
        if state.first:
            state.further.update((token, ((), b"")) for token in self._vocabulary.texts.ids.get(b" ", ()))
            self._follow((), b" ", state.further)
        may_end = not state.done and self._constraint.may_end(state.pieces)
        ends = [self._vocabulary.end] if may_end or not (within.tokens or state.further) else []
        more = [*ends, *(token for token in state.further if token not in within.after)]
        state.allowed = [*more, *within.tokens] if more else within.tokens
        return within

    def _follow(self, pieces: tuple[str, ...], taken: bytes, further: dict[int, tuple[tuple[str, ...], bytes]]) -> None:
        """Add the tokens that begin with ``taken`` and go on along what follows ``pieces``."""
        if taken not in self._vocabulary.texts.starts:
            return
        within = self._vocabulary.within(self._next(pieces), b"", taken)
        for token, (piece, done) in within.after.items():
            further[token] = ((*pieces, piece) if piece else pieces, done)
        for piece, text in within.beyond:
            self._follow((*pieces, piece), text, further)


class CompiledConstraints:
    """The constraints of one batch, for one generation: transformers' ``prefix_allowed_tokens_fn``.

    For a prompt without a constraint all tokens are allowed.
    """

    def __init__(
        self, automata: Sequence[Automaton | None], *, end: int, vocabulary_size: int, prompt_length: int | None
    ) -> None:
        """Take one automaton per prompt; None: anything may be generated."""
        self._automata = automata
        self._end = [end]
        self._size = vocabulary_size
        self._prompt_length = prompt_length
        # By prompt and tokens so far; of the tokens before the last, and of the last.
        self._before: dict[tuple[int, tuple[int, ...]], _State | None] = {}
        self._now: dict[tuple[int, tuple[int, ...]], _State | None] = {}
        self._length = -1

    def __call__(self, batch_id: int, input_ids: Tensor) -> list[int]:
        """Return the tokens that may follow ``input_ids`` [T], prompt ``batch_id``'s."""
        if self._prompt_length is None:
            self._prompt_length = int(input_ids.shape[-1])
        return self.allowed(batch_id, input_ids[self._prompt_length :].tolist())

    def allowed(self, batch_id: int, tokens: Sequence[int]) -> list[int]:
        """Return the tokens that may follow ``tokens``, all that prompt ``batch_id``'s answer has so far."""
        if len(tokens) != self._length:  # of a new length: what was known of the last is the one before
            self._before, self._now, self._length = self._now, {}, len(tokens)
        automaton = self._automata[batch_id]
        if automaton is None:
            return list(range(self._size))
        state = self._state(batch_id, tuple(tokens))
        return self._end if state is None else automaton.allowed(state)  # None: ended, or a beam that holds nothing

    def _state(self, at: int, tokens: tuple[int, ...]) -> _State | None:
        key = (at, tokens)
        if key in self._now:
            return self._now[key]
        automaton = self._automata[at]
        assert automaton is not None
        state: _State | None = automaton.start
        if tokens:
            before = (at, tokens[:-1])
            state = self._before[before] if before in self._before else self._replay(automaton, tokens[:-1])
            state = None if state is None else automaton.step(state, tokens[-1])
        self._now[key] = state
        return state

    @staticmethod
    def _replay(automaton: Automaton, tokens: tuple[int, ...]) -> _State | None:
        state: _State | None = automaton.start
        for token in tokens:
            if state is None:
                return None
            state = automaton.step(state, token)
        return state


_VOCABULARIES: WeakKeyDictionary[Any, _Vocabulary] = WeakKeyDictionary()


def compile_constraints(
    tokenizer: Any,
    constraints: Sequence[Constraint | None],
    *,
    vocabulary_size: int | None = None,
    prompt_length: int | None = None,
) -> CompiledConstraints:
    """Return what tells ``generate`` the tokens that may follow, for one batch of prompts.

    Args:
        tokenizer: a transformers tokenizer; what is worked out is kept as long as it is.
        constraints: one per prompt, in order; None: anything may be generated.
        vocabulary_size: of the model's scores; the tokenizer's where it is not given.
        prompt_length: tokens of the prompts, padding included; None: the length at the first call.

    Raises:
        InputError: the tokenizer's tokens are no pieces of text (WordPiece).
    """
    vocabulary = _VOCABULARIES.get(tokenizer)
    if vocabulary is None:
        vocabulary = _VOCABULARIES[tokenizer] = _Vocabulary(tokenizer)
    return CompiledConstraints(
        [None if constraint is None else _automaton(constraint, vocabulary) for constraint in constraints],
        end=vocabulary.end,
        vocabulary_size=vocabulary_size or len(tokenizer),
        prompt_length=prompt_length,
    )


def _automaton(constraint: Constraint, vocabulary: _Vocabulary) -> Automaton:
    kept = vocabulary.automata
    if constraint.key in kept:
        kept.move_to_end(constraint.key)
        return kept[constraint.key]
    automaton = kept[constraint.key] = Automaton(constraint, vocabulary)
    if len(kept) > MAX_AUTOMATA:
        kept.popitem(last=False)
    return automaton
