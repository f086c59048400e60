"""The figures of any predictions file, ours or another system's: what ``kgqa score`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from kgqa_core.errors import InputError, counted, shorten
from kgqa_core.evaluation import metrics
from kgqa_core.evaluation.metrics import Outcome
from kgqa_core.evaluation.predictions import read_predictions, require_file

JSONL_SUFFIXES = (".jsonl", ".json", ".ndjson")
NAME_METRICS = ("hits1", "f1", "precision", "recall", "em")  # names have neither scores nor ids, which others need


def score_file(path: Path) -> dict[str, Any]:
    """Return ``{"n", "no_ground_truth", "rog": {...}, "strict": {...}}`` of a predictions file, figures in percent.

    Our Parquet is judged strictly by entity id, JSON lines of other systems by equality of names. Both get the
    published evaluator's figures too; it knows no true/false questions. Strict figures have their 95 % interval beside
    them (``hits1.low``). The ``no_ground_truth`` questions of which no answer is known are wrong in all figures, as in
    the published ones. Raises ``InputError`` for a missing, empty or damaged file, a bad line (with its number), or
    where no question has a ground truth.
    """
    require_file(path)
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise InputError(f"cannot read {shorten(str(path))}: {error.strerror}; give a predictions file") from error
    published: list[tuple[float, ...]] = []
    num_unknown = 0
    names: tuple[str, ...]
    if start == b"PAR1":
        outcomes: list[Outcome] = []
        for outcome, _, prediction, golds in read_predictions(path):
            published.append(metrics.score_rog_question(prediction, golds))
            outcomes.append(outcome)
            num_unknown += not golds and outcome.gold_verdict is None
        values, names = metrics.score_outcomes(outcomes).values, metrics.METRICS
    elif not start or path.suffix.lower() in JSONL_SUFFIXES:
        shares = []
        for line, golds in read_jsonl(path):
            published.append(metrics.score_rog_question(line, golds))
            shares.append(score_names(line, golds))
            num_unknown += not golds
        names = NAME_METRICS
        values = dict(zip(names, 100 * np.array(shares).T, strict=True)) if shares else {}
    else:
        raise InputError(
            f"cannot tell the format of {shorten(str(path))}: predictions are Parquet as written by an evaluation, or "
            f"JSON lines with a name ending in one of {', '.join(JSONL_SUFFIXES)}; convert or rename the file"
        )
    if not published:
        raise InputError(f"{shorten(str(path))} is empty: it holds no predictions; run the evaluation again")
    if num_unknown == len(published):
        raise InputError(
            f"{shorten(str(path))}: none of its {counted(num_unknown, 'question')} has a ground truth: nothing can be "
            "scored. Write one into each line, or answer questions that have some: kgqa evaluate CONF --questions FILE"
        )
    strict = {name: float(values[name].mean()) for name in names} | metrics.interval_figures(values)
    return {"n": len(published), "no_ground_truth": num_unknown, "rog": summarise_rog(published), "strict": strict}


def summarise_rog(shares: Sequence[tuple[float, ...]]) -> dict[str, float]:
    """Return the means over questions of ``metrics.score_rog_question`` in percent, 0 where there is no question.

    The sums are taken one by one from left to right: ``sum`` of floats compensates rounding from Python 3.12 on, and
    the published figures, printed to the last digit, come from sums that did not.
    """
    totals = np.cumsum([(0.0,) * len(metrics.ROG_METRICS), *shares], axis=0)[-1].tolist()
    return {name: total * 100 / max(len(shares), 1) for name, total in zip(metrics.ROG_METRICS, totals, strict=True)}


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
