"""The figures that a sweep can show: what each measures, in words that a plot's axis can carry.

Their names are those under which stages record them (``tracking.json``). ``.hop2`` at the end means the 2-hop questions
alone; ``template_control.`` or ``ceiling.`` before it, that control instead of the explorer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kgqa_core.errors import ConfigError, nearest, shorten

CONTROLS = {"template_control": "template control", "ceiling": "ceiling"}
SCORES = {
    "hits1": "Hits@1, percent",
    "hits3": "Hits@3, percent",
    "hits10": "Hits@10, percent",
    "f1": "F1, percent",
    "precision": "precision, percent",
    "recall": "recall, percent",
    "em": "exact match, percent",
    "coverage": "coverage, percent",
    "mean_top_tie": "candidates tied at the top",
}
COSTS = {
    "answer.candidates_per_question": "candidates per question",
    "answer.edges_per_question": "edges per question",
    "answer.classes_per_node": "state classes per node",
    "answer.cpu_seconds": "answering, CPU seconds",
    "answer.questions_per_second": "questions per CPU second",
    "train.cpu_seconds": "training, CPU seconds",
    "dev.hits1": "Hits@1 on dev, percent",
    "dev.f1": "F1 on dev, percent",
    "tune.cpu_seconds": "choosing thresholds, CPU seconds",
    "dev.answer_threshold": "answer threshold chosen on dev",
    "dev.attention_threshold": "attention threshold chosen on dev",
    "num_train": "training questions",
    "num_test": "test questions",
    "num_masked_texts": "distinct masked texts",
    "num_masked_texts_held_out": "masked texts held out",
    "encoding_dim": "width of the encodings",
}
CURVES = {
    "dev.hits1": "Hits@1 on dev, percent",
    "dev.coverage": "coverage on dev, percent",
    "train.loss": "training loss",
    "train.coverage": "coverage in training, percent",
    "train.edges_per_question": "edges per question in training",
}
SETTINGS = {
    "base": "run",
    "point": "",
    "dataset.questions.train_size": "training questions",
    "evaluation.edge_budget": "edge budget K while answering",
    "evaluation.attention_threshold": "attention threshold while answering",
    "explorer.edge_budget": "edge budget K",
    "explorer.width": "width of the explorer",
    "explorer.init_from": "initial weights",
}
"""What is varied, in words; a setting that is not here is called by its key."""

_SCORE = re.compile(r"(?:(?P<control>[a-z_]+)\.)?(?P<score>[a-z0-9_]+)(?:\.hop(?P<hops>\d+))?")


def label_of(name: str) -> str:
    """Return what a figure measures, with its unit; raises ``ConfigError`` for a name that is none."""
    if name in COSTS:
        return COSTS[name]
    found = _SCORE.fullmatch(name)
    if found is None or found["score"] not in SCORES or found["control"] not in (None, *CONTROLS):
        raise ConfigError(f"no stage records {shorten(name)}; legal: {', '.join(_known())}, and {_FORMS}{_hint(name)}")
    label = SCORES[found["score"]]
    if found["hops"]:
        label = f"{label}, {found['hops']}-hop"
    return f"{CONTROLS[found['control']]}: {label}" if found["control"] else label


def short_label(name: str) -> str:
    """Return ``label_of`` without the unit where it is percent, as all scores are."""
    return label_of(name).replace(", percent", "")


def curve_label(name: str) -> str:
    """Return what a curve of training shows; raises ``ConfigError`` for a name that is none."""
    if name not in CURVES:
        near = nearest(name, CURVES)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"no curve is called {shorten(name)}; legal: {', '.join(CURVES)}{hint}")
    return CURVES[name]


def is_score(name: str) -> bool:
    """Say whether a figure is one that the controls have too."""
    found = _SCORE.fullmatch(name)
    return name not in COSTS and found is not None and found["control"] is None


_FORMS = f"of each score {' and '.join(f'{name}.<score>' for name in CONTROLS)}, and <score>.hop<number>"


def _known() -> Iterable[str]:
    return [*SCORES, *COSTS]


def _hint(name: str) -> str:
    near = nearest(name, _known())
    return f"; did you mean {near[0]!r}?" if near else ""
