"""Choosing settings of a row of the comparison: each point of its grid answers the same dev questions.

The best point has the highest Hits@1, of equals the highest F1, then the fewest calls; then the grid's order decides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kgqa_core.config import RunConfig
from kgqa_core.config_systems import ChooseSection
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.run.stages import StageSpec

CHOICE, CHOICE_FILE = "choice", "choice.json"  # the stage, and what it writes
FIGURES = {"hits1": "hits1", "f1": "f1", "num_questions": "n"}  # of a point, and their names in scores.json
FIGURES |= {"calls": "calls_per_question", "tokens": "tokens_per_question"}


def trial_config(config: RunConfig, row: str, settings: Mapping[str, Any]) -> RunConfig:
    """Return the run in which a row answers dev questions under some settings, and nothing is chosen."""
    assert config.systems is not None
    choose = config.systems.choose
    asked = {"num_questions": choose.num_questions, "draw": choose.draw, "choose": ChooseSection()}
    systems = config.systems.with_settings(row, settings).model_copy(update=asked)
    evaluation = config.evaluation.model_copy(update={"split": "dev"})
    return config.model_copy(update={"systems": systems, "evaluation": evaluation})


def describe_choice(row: str, points: Sequence[dict[str, Any]], figures: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return as JSON what was chosen, all points with their figures (percent; per question), and a line for people."""
    ranks = [(round(one["hits1"], 9), round(one["f1"], 9), -one["calls"]) for one in figures]  # rounded: sums tie
    best = ranks.index(max(ranks))
    others = [*ranks[:best], *ranks[best + 1 :]]
    (hits1, f1, _), second = ranks[best], max(others)
    ties = sum(other[:2] == (hits1, f1) for other in others)
    shown = [{name: "none" if value is None else str(value) for name, value in point.items()} for point in points]
    told = " and ".join(
        f"{name} {value} of {', '.join(dict.fromkeys(point[name] for point in shown))}"
        for name, value in shown[best].items()
    )
    told = f"{row}: {told}, chosen on {figures[best]['num_questions']:.0f} dev questions: Hits@1 {hits1:.1f} against"
    told += f" {second[0]:.1f} of the next, F1 {f1:.1f} against {second[1]:.1f}"
    told += f"; ties with {ties} of {len(others)} others" if ties else ""
    rows = [{**point, **one, "chosen": at == best} for at, (point, one) in enumerate(zip(shown, figures, strict=True))]
    return {"chosen": points[best], "points": rows, "told": told}


def chosen_settings(pipeline: Pipeline, spec: StageSpec) -> dict[str, Any]:
    """Return what was chosen on dev for the row of a system's stage; empty where nothing is."""
    files = [pipeline.artifact(key).folder / CHOICE_FILE for key in spec.needs if key.startswith(f"{CHOICE}-")]
    return dict(json.loads(files[0].read_text(encoding="utf-8"))["chosen"]) if files else {}
