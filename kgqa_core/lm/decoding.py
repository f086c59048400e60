"""What a decoding may ask for."""

from __future__ import annotations

from kgqa_core.errors import InputError, shorten
from kgqa_core.lm.types import Decoding


def check_decoding(decoding: Decoding) -> None:
    """Raise InputError where a decoding makes no sense."""
    problems = {
        f"max_new_tokens is {decoding.max_new_tokens}; at least 1": decoding.max_new_tokens >= 1,
        f"num_returns is {decoding.num_returns}; at least 1": decoding.num_returns >= 1,
        f"method is {shorten(decoding.method)}; legal: greedy, sample, beam": decoding.method
        in ("greedy", "sample", "beam"),
        f"num_returns is {decoding.num_returns} with greedy decoding, which has one text; use beam or sample": (
            decoding.method != "greedy" or decoding.num_returns == 1
        ),
        f"num_beams is {decoding.num_beams} with {decoding.method} decoding; legal: 1 (use method beam)": (
            decoding.method == "beam" or decoding.num_beams == 1
        ),
        f"num_beams is {decoding.num_beams}, num_returns {decoding.num_returns}; at least as many beams": (
            decoding.method != "beam" or decoding.num_beams >= decoding.num_returns
        ),
        f"temperature is {decoding.temperature}; above 0": decoding.temperature > 0,
        f"top_p is {decoding.top_p}; above 0 and at most 1": 0 < decoding.top_p <= 1,
        "an empty stop string would end every text; leave it out": all(decoding.stop),
    }
    for problem, fine in problems.items():
        if not fine:
            raise InputError(problem)
