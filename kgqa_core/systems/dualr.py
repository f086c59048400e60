"""DualR: EtD's way with first-and-last-layer encodings (Liu et al., 2025; §3.3, §4.2).

The two papers differ in how texts are encoded (DualR: the mean of the first block's output and the last layer) and in
what answers: DualR's Table 5 has ``choose`` tuned, which here is the run's tuned model. The prompts that they print are
the same, word for word, so there is one prompt, ``choose``.
"""

from __future__ import annotations

from kgqa_core.config_systems import DualrSection
from kgqa_core.instructions.prompts import Prompts
from kgqa_core.systems.etd import CandidateSource, Etd
from kgqa_core.systems.walk import Walk


def dualr(walk: Walk, prompts: Prompts, explorer: CandidateSource, settings: DualrSection) -> Etd:
    """Return EtD's system under DualR's name; ``explorer`` is that of ``settings.explorer``, or EtD's own."""
    return Etd(walk, prompts, explorer, settings, name="dualr")


def note(settings: DualrSection) -> str:
    """Return what the row of DualR has to say of itself; empty where its explorer is its own."""
    return "" if settings.explorer else "shares the explorer of etd, so the two rows are one method"
