"""What the project asks of a language model, and nothing more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

Problem = Literal["", "budget", "too_long", "timeout", "rate_limit", "bad_response", "unreachable", "refused"]
"""Why a call gave nothing; empty where it went well."""


class Constraint(Protocol):
    """Which texts may be generated, piece by piece: an automaton over texts, so that any tokenizer can follow it.

    A text is allowed if it is the concatenation of pieces p1 p2 ... pn, each in ``next_pieces`` of those before it, and
    ``may_end`` after the last. Pieces that may follow each other must not be ambiguous: none is a prefix of another.
    """

    @property
    def key(self) -> str:
        """Return what tells this constraint from others, for the call cache: equal keys allow equal texts."""

    def next_pieces(self, pieces: tuple[str, ...]) -> Sequence[str]:
        """Return the pieces that may follow ``pieces``, in a fixed order; empty where the text must end."""

    def may_end(self, pieces: tuple[str, ...]) -> bool:
        """Say whether the text may end after ``pieces``."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One call: what is asked, of whom it is told in the accounts, and what may be answered."""

    text: str  # the user's turn
    system: str = ""  # the system's turn; empty: none
    constraint: Constraint | None = None
    question_id: str = ""  # whose budget it is
    instruction: str = ""  # of kgqa_core.instructions, by name
    call: tuple[Any, Any] | None = field(default=None, compare=False, repr=False)  # instruction and case; for players


@dataclass(frozen=True, slots=True)
class Decoding:
    """How texts are drawn. Greedy is beam search of one beam."""

    max_new_tokens: int = 256
    method: Literal["greedy", "sample", "beam"] = "greedy"
    num_returns: int = 1  # texts per prompt: the best beams, or that many samples
    num_beams: int = 1  # of beam search; at least num_returns
    temperature: float = 1.0  # of sampling
    top_p: float = 1.0  # of sampling
    stop: tuple[str, ...] = ()  # a text ends before the first of these
    seed: int = 0  # of sampling


GREEDY = Decoding()


@dataclass(frozen=True, slots=True)
class Generation:
    """One text that a model gave."""

    text: str  # without prompt, special tokens of the end, and stop string
    log_prob: float | None = None  # natural log, summed over the tokens given, end included; None: not told
    num_tokens: int = 0
    finished: bool = True  # False: cut at max_new_tokens
    problem: Problem = ""  # then text is empty


class LanguageModel(Protocol):
    """A model that continues prompts and weighs options.

    ``name`` stands for content (hashes of weights, adapter, tokenizer and chat template; endpoint and served id), so
    that equal names and calls give equal texts. What one prompt cannot get (it is too long, its server times out) is
    told in ``Generation.problem``; only what no prompt can get raises.
    """

    @property
    def name(self) -> str:
        """Return the identity of the model."""

    @property
    def context(self) -> int:
        """Return how many tokens prompt and answer may have together."""

    def count_tokens(self, prompts: Sequence[Prompt]) -> list[int]:
        """Return the tokens of each prompt as the model reads it, chat template included."""

    def generate(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> list[list[Generation]]:
        """Return ``num_returns`` texts per prompt, best first (of samples: in order of drawing)."""

    def score(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the log-likelihood of each prompt's options, summed over their tokens; options are whole answers.

        Raises:
            KgqaError: a model that cannot tell (an endpoint without log-probabilities of given texts).
        """


@dataclass(frozen=True, slots=True)
class Answer:
    """What one prompt of a batch got."""

    index: int  # of the prompt in its batch
    generations: list[Generation]  # num_returns of them
    num_prompt_tokens: int  # that were read for it
    seconds: float  # from asking to having it, waits between attempts included


@runtime_checkable
class StreamingModel(Protocol):
    """A model whose answers come one by one, so that each can be kept before the next is there."""

    def stream(self, prompts: Sequence[Prompt], decoding: Decoding) -> Iterator[Answer]:
        """Yield one answer per prompt, in the order in which they come."""
        ...
