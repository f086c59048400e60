"""The figures of any predictions file, ours or another system's: what ``kgqa score`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from kgqa_core.errors import InputError, shorten
from kgqa_core.evaluation import metrics
from kgqa_core.evaluation.metrics import Outcome
from kgqa_core.evaluation.predictions import read_predictions, require_file

JSONL_SUFFIXES = (".jsonl", ".json", ".ndjson")
NAME_METRICS = ("hits1", "f1", "precision", "recall", "em")  # names have neither scores nor ids, which others need


def score_file(path: Path) -> dict[str, Any]:
    """Return ``{"n", "rog": {...}, "strict": {...}}`` of a predictions file, every figure but ``n`` in percent.

    Our Parquet is judged strictly by entity id, JSON lines of other systems by equality of names. Both get the
    published evaluator's figures too; it knows no true/false questions. Strict figures have their 95 % interval beside
    them (``hits1.low``). Raises ``InputError`` for a missing, empty or damaged file, or a bad line (with its number).
    """
    require_file(path)
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise InputError(f"cannot read {shorten(str(path))}: {error.strerror}; give a predictions file") from error
    published: list[tuple[float, ...]] = []
    names: tuple[str, ...]
    if start == b"PAR1":
        outcomes: list[Outcome] = []
        for outcome, _, prediction, golds in read_predictions(path):
            published.append(metrics.score_rog_question(prediction, golds))
            outcomes.append(outcome)
        values, names = metrics.score_outcomes(outcomes).values, metrics.METRICS
    elif not start or path.suffix.lower() in JSONL_SUFFIXES:
        shares = []
        for line, golds in read_jsonl(path):
            published.append(metrics.score_rog_question(line, golds))
            shares.append(score_names(line, golds))
        names = NAME_METRICS
        values = dict(zip(names, 100 * np.array(shares).T, strict=True)) if shares else {}
    else:
        raise InputError(
            f"cannot tell the format of {shorten(str(path))}: predictions are Parquet as written by an evaluation, or "
            f"JSON lines with a name ending in one of {', '.join(JSONL_SUFFIXES)}; convert or rename the file"
        )
    if not published:
        raise InputError(f"{shorten(str(path))} is empty: it holds no predictions; run the evaluation again")
    strict = {name: float(values[name].mean()) for name in names} | metrics.interval_figures(values)
    return {"n": len(published), "rog": metrics.summarise_rog(published), "strict": strict}


def score_names(prediction: str | Sequence[str], golds: Sequence[str]) -> tuple[float, float, float, float, float]:
    """Return one question's strict figures by name as shares, in the order of ``NAME_METRICS``.

    A repeated answer counts once.
    """
    lines = prediction.split("\n") if isinstance(prediction, str) else prediction
    answers = [name for name in map(metrics.normalise_name, lines) if name]
    right = frozenset(map(metrics.normalise_name, golds))
    precision, recall, f1, exact = metrics.score_sets(frozenset(answers), right)
    return float(bool(answers) and answers[0] in right), f1, precision, recall, exact


class _Line(BaseModel):
    """One line of JSON predictions; what else it has is ignored."""

    model_config = ConfigDict(strict=True)

    prediction: str | list[str]  # text with one answer per line, or a list
    ground_truth: list[str]


def read_jsonl(path: Path) -> Iterator[tuple[str | list[str], list[str]]]:
    """Yield (prediction, gold names) line by line; blank lines are skipped. Raises ``InputError`` for a bad line."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if not raw.strip():
                continue
            try:
                row = _Line.model_validate_json(raw.decode("utf-8-sig"))
            except UnicodeDecodeError as error:
                fault = f"not UTF-8 (byte {error.start}); convert the file"
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                where = f"{first['loc'][0]!r}: " if first["loc"] else ""
                fault = f"{where}{first['msg']}, found {shorten(first['input'])}"
            else:
                yield row.prediction, row.ground_truth
                continue
            raise InputError(
                f"{shorten(str(path))}, line {number}: {fault}; expected a JSON object with prediction (text or a list "
                "of texts) and ground_truth (a list of texts)"
            )
