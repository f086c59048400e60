"""What training minimises: cross-entropy of the golds among the candidates (EtD Eq. 4)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kgqa_core.explorer.batch import Batch
from kgqa_core.explorer.explore import Exploration
from kgqa_core.explorer.frontier import Bool, contains


def loss_sum(found: Exploration, batch: Batch, num_entities: int, *, per_answer: bool = False) -> tuple[Tensor, Bool]:
    """Return the cross-entropy summed over the batch's questions, and which of them have a gold among the candidates.

    One target per question, uniform over its golds among the candidates: minus the log of the *summed* probability
    would be content with one gold of many and ruins F1. With ``per_answer`` every (question, gold) pair is a term of
    its own, as the papers write it, divided by the golds per question of the batch so that it stays one loss per
    question on average.

    Args:
        found: the candidates of the batch's B questions.
        batch: the questions.
        num_entities: of the graph.
        per_answer: see above.

    Returns:
        a scalar, and [B] bool.
    """
    gold = np.flatnonzero(gold_mask(found, batch, num_entities))
    golds_of = np.bincount(found.question[gold], minlength=len(batch))
    covered = golds_of > 0
    share = covered.sum() / max(len(gold), 1) if per_answer else 1.0 / golds_of[found.question[gold]]
    log_p = found.log_probability(len(batch)).index_select(0, torch.from_numpy(gold).to(found.class_score.device))
    weight = torch.from_numpy(np.broadcast_to(share, len(gold)).copy()).to(log_p)
    return -(log_p * weight).sum(), covered


def gold_mask(found: Exploration, batch: Batch, num_entities: int) -> Bool:
    """Return [N] which candidates are golds of their question."""
    keys = found.question * num_entities + found.entity
    golds = batch.gold_question * num_entities + batch.gold_entity
    return contains(keys, golds, len(batch) * num_entities)
