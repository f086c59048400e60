"""The figures of any predictions file, for ``kgqa score``.

Two kinds of file are read, told apart by content and suffix: our Parquet (``schemas.PREDICTIONS``), judged strictly by
entity id, and JSONL of other systems with ``prediction`` (text with one answer per line, or a list) and
``ground_truth`` (a list), judged strictly by equality of names. Both also get the published evaluator's figures.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kgqa_core.errors import InputError, nearest, shorten
from kgqa_core.evaluation.metrics import (
    METRICS,
    Outcome,
    interval_figures,
    normalise_name,
    score_outcomes,
    score_rog_question,
    score_sets,
    summarise_rog,
)
from kgqa_core.evaluation.predictions import read_predictions

PARQUET_START = b"PAR1"
JSONL_SUFFIXES = (".jsonl", ".json", ".ndjson")
NAME_METRICS = ("hits1", "f1", "precision", "recall", "em")
"""Strict metrics that names alone can give: there are neither scores nor candidates beside the answers."""


def score_file(path: Path) -> dict[str, Any]:
    """Return ``{"n", "rog": {...}, "strict": {...}}`` of a predictions file, every figure but ``n`` in percent.

    Beside the strict figures that have a 95 % interval stand its bounds: ``hits1.low``, ``hits1.high``.
    Raises ``InputError`` for a missing, empty or damaged file, an unknown format, or a bad line (with its number).
    """
    try:
        with path.open("rb") as file:
            start = file.read(len(PARQUET_START))
    except FileNotFoundError as error:
        siblings = [sibling.name for sibling in path.parent.iterdir()] if path.parent.is_dir() else []
        near = nearest(path.name, siblings)
        hint = f"; did you mean {shorten(near[0])}?" if near else ""
        raise InputError(f"there is no predictions file {shorten(str(path))}{hint}") from error
    except OSError as error:
        raise InputError(f"cannot read {shorten(str(path))}: {error.strerror}; give a predictions file") from error
    if not start:
        raise InputError(f"{shorten(str(path))} is empty; expected predictions, run the evaluation again")
    if start == PARQUET_START:
        return score_parquet(path)
    if path.suffix.lower() in JSONL_SUFFIXES:
        return score_jsonl(path)
    raise InputError(
        f"cannot tell the format of {shorten(str(path))}: predictions are Parquet as written by an evaluation, or "
        f"JSON lines with a name ending in one of {', '.join(JSONL_SUFFIXES)}; convert or rename the file"
    )


def score_parquet(path: Path) -> dict[str, Any]:
    """Score a predictions table: strict metrics by entity id, the published ones by the names beside them.

    The published evaluator knows no true/false questions: there it judges the names of the answer set all the same.
    """
    published: list[tuple[float, ...]] = []
    outcomes: list[Outcome] = []
    for batch in read_predictions(path):
        published += map(score_rog_question, batch.predictions, batch.ground_truths)
        outcomes += batch.outcomes
    if not outcomes:
        raise InputError(f"{shorten(str(path))} holds no predictions; run the evaluation again")
    scores = score_outcomes(outcomes)
    strict = scores.summary()
    named = {name: strict[name] for name in METRICS}
    return {
        "n": len(outcomes),
        "rog": summarise_rog(published),
        "strict": {**named, **interval_figures(scores.values)},
    }


def score_jsonl(path: Path) -> dict[str, Any]:
    """Score JSON lines, one at a time: strict metrics by equality of names, a repeated answer counted once."""
    published, shares = [], []
    for prediction, golds in read_jsonl(path):
        published.append(score_rog_question(prediction, golds))
        shares.append(score_names(prediction, golds))
    if not shares:
        raise InputError(f"{shorten(str(path))} is empty; expected one JSON object per line")
    values = dict(zip(NAME_METRICS, 100 * np.array(shares).T, strict=True))
    strict = {name: float(column.mean()) for name, column in values.items()}
    return {"n": len(shares), "rog": summarise_rog(published), "strict": {**strict, **interval_figures(values)}}


def score_names(prediction: str | Sequence[str], golds: Sequence[str]) -> tuple[float, float, float, float, float]:
    """Return one question's strict figures by name as shares, in the order of ``NAME_METRICS``."""
    lines = prediction.split("\n") if isinstance(prediction, str) else prediction
    answers = [name for name in map(normalise_name, lines) if name]
    right = frozenset(map(normalise_name, golds))
    precision, recall, f1, exact = score_sets(frozenset(answers), right)
    return float(bool(answers) and answers[0] in right), f1, precision, recall, exact


def read_jsonl(path: Path) -> Iterator[tuple[str | list[str], list[str]]]:
    """Yield (prediction, gold names) line by line; blank lines are skipped. Raises ``InputError`` for a bad line."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if raw.strip():
                yield parse_line(raw, f"{shorten(str(path))}, line {number}")


def parse_line(raw: bytes, place: str) -> tuple[str | list[str], list[str]]:
    """Return (prediction, gold names) of one JSON line; ``place`` names it in the ``InputError`` of a bad one."""
    try:
        row = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: not UTF-8 (byte {error.start}); convert the file") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{place}: not JSON: {shorten(raw.decode('utf-8', 'replace').strip())}") from error
    if not isinstance(row, dict):
        raise InputError(f"{place}: expected an object with prediction and ground_truth, found {shorten(row)}")
    for key in ("prediction", "ground_truth"):
        if key not in row:
            raise InputError(f"{place}: no field '{key}'; the fields are {shorten(sorted(row))}")
    prediction, golds = row["prediction"], row["ground_truth"]
    if not isinstance(prediction, str) and not _is_names(prediction):
        raise InputError(f"{place}: 'prediction' must be text or a list of texts, found {shorten(prediction)}")
    if not _is_names(golds):
        raise InputError(f"{place}: 'ground_truth' must be a list of texts, found {shorten(golds)}")
    return prediction, golds


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)
