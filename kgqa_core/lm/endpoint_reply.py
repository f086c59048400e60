"""Reading what a server said: any JSON whatsoever gives texts or problems, never an exception."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kgqa_core.lm.types import Generation


@dataclass(frozen=True, slots=True)
class Completion:
    """The choices of one reply."""

    generations: list[Generation]
    num_prompt_tokens: int | None  # None: not told


def read_completion(content: object, stop: Sequence[str] = ()) -> Completion | None:
    """Return the texts of a reply of either API in the order of their index; None where it holds no choices.

    A choice without a text, or of wrong types, is a generation with a problem. ``log_prob`` sums what the server
    tells, which leaves out the end token. Texts are cut before ``stop`` where the server did not.
    """
    reply = _mapping(content)
    choices = reply.get("choices")
    if not isinstance(choices, list) or not choices:
        return None
    ordered = sorted((_mapping(choice) for choice in choices), key=lambda choice: _whole(choice.get("index")) or 0)
    usage = _mapping(reply.get("usage"))
    given = _whole(usage.get("completion_tokens"))
    shares = _shares(given, len(ordered)) if given is not None else [None] * len(ordered)
    return Completion(
        [_read_choice(choice, share, stop) for choice, share in zip(ordered, shares, strict=True)],
        _whole(usage.get("prompt_tokens")),
    )


def read_echo(content: object) -> float | None:
    """Return the log-likelihood of an echoed prompt, its first token left out; None where the server tells none.

    Only the prompt's tokens count, not the token that had to be generated after it. The first token has no probability:
    where a number stands in its place, the server ignored ``echo`` and tells of the generated token alone.
    """
    reply = _mapping(content)
    choices = reply.get("choices")
    first = _mapping(choices[0]) if isinstance(choices, list) and choices else {}
    values = _mapping(first.get("logprobs")).get("token_logprobs")
    size = _whole(_mapping(reply.get("usage")).get("prompt_tokens"))
    if not isinstance(values, list) or not size or len(values) < size or values[0] is not None:
        return None
    numbers = [_number(value) for value in values[1:size]]
    known = [number for number in numbers if number is not None]
    return math.fsum(known) if len(known) == len(numbers) else None


def message_of(content: object) -> tuple[str, str]:
    """Return the message of an error reply, and the parameter that it names ("" where none)."""
    reply = _mapping(content)
    error = reply.get("error", reply)
    if isinstance(error, str):
        return error, ""
    fields = _mapping(error)
    message, param = fields.get("message", fields.get("detail", "")), fields.get("param")
    return message if isinstance(message, str) else str(message), param if isinstance(param, str) else ""


def code_of(content: object) -> str:
    """Return the code and the type of an error reply as one text."""
    fields = _mapping(_mapping(content).get("error", content))
    return f"{fields.get('code', '')} {fields.get('type', '')}"


def estimate_tokens(text: str) -> int:
    """Return about how many tokens a text has, rather too many: one per three bytes."""
    return math.ceil(len(text.encode("utf-8", "replace")) / 3)


def _read_choice(choice: dict[str, Any], share: int | None, stop: Sequence[str]) -> Generation:
    message = _mapping(choice.get("message"))
    text = message.get("content") if "message" in choice else choice.get("text")
    reason = choice.get("finish_reason")
    if reason == "content_filter" or (not isinstance(text, str) and isinstance(message.get("refusal"), str)):
        return Generation("", problem="refused")
    if not isinstance(text, str):
        return Generation("", problem="bad_response")
    clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half characters cannot be stored
    cut = min((place for place in map(clean.find, stop) if place >= 0), default=len(clean))
    log_probs = _log_probs(choice.get("logprobs"))
    if log_probs is not None:
        share = len(log_probs)
    return Generation(
        clean[:cut],
        log_prob=math.fsum(log_probs) if log_probs else None,
        num_tokens=estimate_tokens(clean) if share is None else share,
        finished=reason != "length",
    )


def _log_probs(value: object) -> list[float] | None:
    """Return the log-probability of each token in the form of either API; None where one of them is missing."""
    told = _mapping(value)
    entries = told.get("content")
    values = [_mapping(entry).get("logprob") for entry in entries] if isinstance(entries, list) else None
    if values is None:
        values = told.get("token_logprobs")
    if not isinstance(values, list) or not values:
        return None
    numbers = [_number(value) for value in values]
    known = [number for number in numbers if number is not None]
    return known if len(known) == len(numbers) else None


def _shares(total: int, count: int) -> list[int]:
    """Return ``total`` dealt out evenly."""
    return [total // count + (place < total % count) for place in range(count)]


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
