"""Scripts of exact calls, for following a system step by step."""

from __future__ import annotations

from kgqa_core.oracle.script import ScriptedModel


def script(*lines: tuple[str, str, str]) -> ScriptedModel:
    """Return a model that says these lines, (instruction, what its prompt holds, text), in this order alone."""
    model = ScriptedModel(in_order=True)
    for instruction, asks, text in lines:
        model.on(instruction, asks, text)
    return model
