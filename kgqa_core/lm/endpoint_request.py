"""What is sent to a model server, field by field."""

from __future__ import annotations

import json
from typing import Any

from kgqa_core.lm.allowed import finite_texts
from kgqa_core.lm.endpoint_settings import EndpointSettings
from kgqa_core.lm.types import Constraint, Decoding, Prompt


def messages(prompt: Prompt) -> list[dict[str, str]]:
    """Return a prompt as turns of a chat."""
    system = [{"role": "system", "content": prompt.system}] if prompt.system else []
    return [*system, {"role": "user", "content": prompt.text}]


def plain_text(prompt: Prompt) -> str:
    """Return a prompt as one text, for servers without a chat template."""
    return f"{prompt.system}\n\n{prompt.text}" if prompt.system else prompt.text


def decoding_fields(decoding: Decoding, settings: EndpointSettings, *, number: int, seed: int) -> dict[str, Any]:
    """Return how ``number`` texts are to be drawn."""
    found: dict[str, Any] = {settings.limit_field: decoding.max_new_tokens}
    if decoding.method == "sample":
        found |= {"temperature": decoding.temperature, "top_p": decoding.top_p, "seed": seed}
    else:
        found["temperature"] = 0
    if decoding.method == "beam":
        found |= {"use_beam_search": True, "n": decoding.num_beams}
    elif number > 1:
        found["n"] = number
    if decoding.stop:
        found["stop"] = list(decoding.stop)
    if settings.log_probs:
        found["logprobs"] = True if settings.api == "chat" else 1
    return found


def choice_fields(constraint: Constraint | None, kind: str) -> dict[str, Any]:
    """Return a constraint with finitely many texts in the server's own words; nothing where it cannot be said."""
    if constraint is None or kind == "none":
        return {}
    texts = finite_texts(constraint)
    if not texts:
        return {}
    if kind == "structured_outputs":
        return {"structured_outputs": {"choice": texts}}
    if kind == "guided_choice":
        return {"guided_choice": texts}
    # GBNF takes the escapes of JSON strings, all but those of characters outside the first plane.
    return {"grammar": "root ::= " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)}
