"""How far answers can be trusted: what is wrong among those that are given, where the least certain are kept back.

Risk is the share of wrong answers (Hits@1 of the fixed pick) among those given, coverage the share of all questions
that get one (Geifman and El-Yaniv, 2017). A question without an answer has no confidence (NaN): it is never covered.
The threshold and the calibration are chosen on dev, and judged on other questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kgqa_core.errors import InputError, counted, shorten
from kgqa_core.evaluation.metrics import Floats, calibration_error, risk_area
from kgqa_core.evaluation.predictions import SystemSource
from kgqa_core.evaluation.runs import EvaluatedRun

ROUNDS, PRECISION = 100, 1e-10  # of Newton's method
EDGE = 1e-6  # probabilities stay so far from 0 and 1
NUM_POINTS = 12  # of the curve that is shown


@dataclass(frozen=True, slots=True)
class RiskCoverage:
    """The curve, one point per distinct confidence, falling: all answers at or above it are given."""

    thresholds: Floats  # [K]
    coverage: Floats  # [K] percent of all questions
    risk: Floats  # [K] percent of those answered

    def least(self, risk: float) -> int | None:
        """Return the point that covers most at no more than ``risk`` percent; None where no point has so little."""
        allowed = np.flatnonzero(self.risk <= risk)
        return int(allowed[-1]) if len(allowed) else None

    def at(self, threshold: float) -> tuple[float, float]:
        """Return coverage and risk, percent, where answers below ``threshold`` are kept back; nothing given: (0, 0)."""
        given = int((self.thresholds >= threshold).sum())
        return (float(self.coverage[given - 1]), float(self.risk[given - 1])) if given else (0.0, 0.0)


def risk_coverage(confidence: Floats, right: Floats) -> RiskCoverage:
    """Return the curve of answers with a ``confidence`` [B] that are ``right`` [B] (0 to 1)."""
    answered = ~np.isnan(confidence)
    thresholds, group = np.unique(-confidence[answered], return_inverse=True)
    given = np.cumsum(np.bincount(group, minlength=len(thresholds)))
    wrong = np.cumsum(np.bincount(group, weights=1.0 - right[answered], minlength=len(thresholds)))
    return RiskCoverage(-thresholds, 100 * given / max(1, len(confidence)), 100 * wrong / np.maximum(given, 1))


@dataclass(frozen=True, slots=True)
class Calibration:
    """Confidence to probability: logistic in the confidence's log-odds (Platt, 1999)."""

    slope: float
    offset: float

    def probability(self, confidence: Floats) -> Floats:
        """Return the probability [B] of being right."""
        found: Floats = 1 / (1 + np.exp(-(self.slope * _log_odds(confidence) + self.offset)))
        return found


def calibrate(confidence: Floats, right: Floats) -> Calibration:
    """Fit a calibration to answers of dev, with Platt's targets: they keep it finite where all are right or wrong."""
    known = ~np.isnan(confidence)
    odds, hits = _log_odds(confidence[known]), right[known]
    num_right = float(hits.sum())
    num_wrong = len(hits) - num_right
    targets = np.where(hits > 0.5, (num_right + 1) / (num_right + 2), 1 / (num_wrong + 2))
    columns = np.stack([odds, np.ones_like(odds)], axis=1)
    fitted = np.zeros(2)
    for _ in range(ROUNDS):  # ridge: confidences that are all equal leave the slope open
        told = 1 / (1 + np.exp(-columns @ fitted))
        gradient = columns.T @ (told - targets)
        curvature = (columns * (told * (1 - told))[:, None]).T @ columns + 1e-6 * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        fitted -= step
        if np.abs(step).max() < PRECISION:
            break
    return Calibration(*fitted.tolist())


def _log_odds(confidence: Floats) -> Floats:
    inside = np.clip(confidence, EDGE, 1 - EDGE)
    found: Floats = np.log(inside / (1 - inside))
    return found


def trust_document(dev: Sequence[EvaluatedRun], test: Sequence[EvaluatedRun], *, risk: float) -> dict[str, Any]:
    """Choose a threshold and a calibration on dev, and judge both on other questions; runs are seeds of one system.

    The threshold is None, and no answer is given, where no confidence on dev has so little ``risk``.
    InputError where systems, their settings or models differ, questions are in both, or nobody told a confidence.
    """
    if len({(run.about.system, run.about.answered_by) if run.about else run.name for run in (*dev, *test)}) > 1:
        raise InputError(f"{dev[0].name} and {test[0].name} are not of one system: name one, as CONF@SYSTEM")
    alike = [{repr(_chosen_for(run.about)) for run in runs if run.about} for runs in (dev, test)]
    if not alike[1] <= alike[0]:
        raise InputError(f"{test[0].name} was answered by other settings or another model than {dev[0].name}")
    if both := sorted(dev[0].asked.keys() & test[0].asked.keys()):
        raise InputError(
            f"dev and {test[0].name} share {counted(len(both), 'question')}: {shorten(both[0])}; judge on others"
        )
    (chosen_on, right_there), (told, right) = _pooled(dev), _pooled(test)
    curve, own = risk_coverage(chosen_on, right_there), risk_coverage(told, right)
    least = curve.least(risk)
    threshold = None if least is None else float(curve.thresholds[least])
    there, (coverage, reached) = ((0.0, 0.0) if threshold is None else one.at(threshold) for one in (curve, own))
    all_given, all_wrong = own.at(0.0)
    fitted = calibrate(chosen_on, right_there)
    errors = calibration_error(told, right), calibration_error(fitted.probability(told), right)
    points = np.unique(np.linspace(0, len(own.thresholds) - 1, NUM_POINTS).astype(np.int64))
    return {
        "num_questions": len(test[0].asked),  # each of all seeds
        "wanted_risk": risk,
        "threshold": threshold,
        "dev": {"coverage": there[0], "risk": there[1], "least_risk": float(curve.risk.min())},
        "test": {"coverage": coverage, "risk": reached},
        "without": {"coverage": all_given, "risk": all_wrong},
        "aurc": risk_area(told, right),
        "aurc_best": risk_area(right, right),
        "calibration": {"slope": fitted.slope, "offset": fitted.offset, "error": errors[0], "error_fitted": errors[1]},
        "curve": [
            {"threshold": own.thresholds[at], "coverage": own.coverage[at], "risk": own.risk[at]} for at in points
        ],
    }


def _chosen_for(about: SystemSource) -> SystemSource:
    """Return what a threshold is chosen for, whatever the seed. The names of an oracle say which questions it knows."""
    if about.answered_by == "oracle":
        about = replace(about, model="", base="")
    return replace(about, seed=None)


def _pooled(runs: Sequence[EvaluatedRun]) -> tuple[Any, Any]:
    """Return confidence and right [B] of all questions of some seeds."""
    if lost := next((run.name for run in runs if run.record is None or np.isnan(run.record.confidence).all()), ""):
        raise InputError(f"{lost} says of no answer how sure it is: it is no system's, or its model tells nothing")
    told = np.concatenate([run.record.confidence for run in runs if run.record])
    return told, np.concatenate([run.picked_right for run in runs]).astype(np.float64)
