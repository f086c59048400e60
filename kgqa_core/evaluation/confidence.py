"""How far answers can be trusted: what is wrong among those that are given, where the least certain are kept back.

Risk is the share of wrong answers (Hits@1 of the fixed pick) among those given, coverage the share of all questions
that get one (Geifman and El-Yaniv, 2017). A question without an answer has no confidence (NaN): it is never covered.
The threshold and the calibration are chosen on dev, and judged on other questions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kgqa_core.evaluation.metrics import Floats

ROUNDS, PRECISION = 100, 1e-10  # of Newton's method
EDGE = 1e-6  # probabilities stay so far from 0 and 1


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
