"""Errors a user can act on. Every message names the value, where it came from, what is legal and the next step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path

NEAR = 0.65  # of 1: how alike names are of which one may be meant; "limit" and "split" are 0.6
MAX_SHOWN = 200  # characters of a user's value that an error message repeats


def is_out_of_memory(problem: BaseException) -> bool:
    """Say whether a CPU or GPU had no memory left, as Python, NumPy, C++ or torch's allocators put it."""
    told = ("out of memory", "can't allocate memory", "bad_alloc")
    return isinstance(problem, MemoryError) or any(words in str(problem) for words in told)


class KgqaError(Exception):
    """Base of every error that is the input's or the environment's fault, not the program's."""

    exit_code = 1


class ConfigError(KgqaError):
    """The run configuration is not usable."""

    exit_code = 2


class QueryError(KgqaError):
    """An SQL query is not usable."""

    exit_code = 2


class InputError(KgqaError):
    """A graph, question or prediction file is missing, malformed or empty."""

    exit_code = 3


class LinkError(InputError):
    """No topic entity was found in a question, or a name is not in the graph."""

    exit_code = 4

    def __init__(self, message: str, nearest: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.nearest = tuple(nearest)  # names in the graph that look most like what was given


class ArtifactError(KgqaError):
    """An artifact is damaged, or the store cannot be written (no space, no permission)."""

    exit_code = 5


class DriftError(KgqaError):
    """A new build differs from the last one by more than the configuration lets pass."""

    exit_code = 6


class EndpointError(KgqaError):
    """A model server cannot be used at all: it is not there, refuses the key, or serves another model."""

    exit_code = 7


class UnableError(EndpointError):
    """A model server can never do what one system needs of it; whoever needs something else may go on."""


def shorten(value: object, limit: int = MAX_SHOWN) -> str:
    """Return ``repr(value)`` cut to ``limit`` characters, so that one bad line cannot flood a terminal."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def counted(num: int, noun: str) -> str:
    """Return a number of things: ``1 question``, ``2,000 questions``, ``2 entities``."""
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{num:,} {noun if num == 1 else many}"


def nearest(value: str, legal: Iterable[str], count: int = 1, *, cutoff: float = NEAR) -> list[str]:
    """Return up to ``count`` members of ``legal`` that look most like ``value``, by ``cutoff`` or more, best first."""
    return get_close_matches(value, list(legal), n=count, cutoff=cutoff)


def did_you_mean(
    given: object, legal: Iterable[str], show: Callable[[str], str] = repr, *, cutoff: float = NEAR
) -> str:
    """Return a hint at the legal value nearest to ``given``, as ``show`` writes it; empty where none is near."""
    near = nearest(str(given), legal, cutoff=cutoff)
    return f"; did you mean {show(near[0])}?" if near else ""


def nearest_beside(path: Path) -> str:
    """Return a hint at the file or folder beside ``path`` whose name is nearest; empty where none is near."""
    return did_you_mean(path.name, [entry.name for entry in path.parent.glob("*")])


def with_nearest(given: object, legal: Iterable[str]) -> str:
    """Return the legal values for an error, and the one that is nearest to what was given."""
    legal = list(legal)
    return f"{', '.join(legal)}{did_you_mean(given, legal)}"
