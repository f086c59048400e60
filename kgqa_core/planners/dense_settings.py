"""Settings of the dense planner."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DenseSettings:
    """How the dense planner is trained and how it ranks; the defaults were chosen by cross-validation on WebQSP."""

    members: int = 1  # encoders trained from different seeds, and averaged
    epochs: float = 4.0  # passes over the training questions, of each member
    max_steps: int | None = None  # optimiser steps of a member at most, for large training sets; None: no limit
    batch_size: int = 32  # questions
    learning_rate: float = 2e-4  # of the encoder's upper layers
    path_learning_rate: float = 5e-3  # of the free part of the path vectors
    warmup: float = 0.1  # share of the steps; then the rate falls linearly
    weight_decay: float = 0.01  # of the upper layers
    dropout: float = 0.1  # in the upper layers
    frozen_layers: int = 3  # lower layers of the encoder that stay as they are
    max_tokens: int = 48  # of a question or a path; longer ones are cut
    scale: float = 20.0  # of the cosine of question and path
    neighbour_loss: float = 0.0  # weight of the loss of the neighbours' vote
    neighbour_temperature: float = 0.05  # of the cosine of two questions
    neighbour_weight: float = 1.0  # of the log of the neighbours' vote beside the log of a path's own probability
    spread: float = 0.9  # 0..1: how much a further plan has to serve neighbours that the plans before it miss
    num_unseen: int = 8  # width of the beam for paths that no training question has; 0: none is proposed
    guess_unseen: bool = False  # propose such paths also where no graph tells that they exist
    unseen_penalty: float = 3.0  # natural log: how much less probable they are than their text says
