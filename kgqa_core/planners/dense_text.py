"""How a relation path reads for a text encoder."""

from __future__ import annotations

import re

from kgqa_core.graph.label_paths import read_step
from kgqa_core.planners.types import LabelPath

_BREAKS = re.compile(r"[\W_]+")
BACKWARD = "of"  # "directed by of": what a step walked backward is told by
STAY = "itself"  # the empty path


def render_step_text(step: str) -> str:
    """Return a step's words, each once: ``people.person.place_of_birth`` is people person place of birth."""
    label, backward = read_step(step)
    words = list(dict.fromkeys(word for word in _BREAKS.split(label) if word))
    return " ".join([*(words or [label]), *([BACKWARD] if backward else [])])


def render_path_text(path: LabelPath) -> str:
    """Return the words of a path, its steps apart."""
    return " ; ".join(map(render_step_text, path)) or STAY
