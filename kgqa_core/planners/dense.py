"""The dense planner: questions and relation paths as vectors of one text encoder.

A path's score joins the probability that its own vector gives it with the vote of the nearest training questions. The
first plans are spread: they are to hit together. Where a graph is given, only what exists around the topics is
proposed, also paths that no training question has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from kgqa_core.errors import ArtifactError, InputError
from kgqa_core.planners.dense_beam import Exists, beam, path_exists, steps_of
from kgqa_core.planners.dense_encoder import SplitEncoder
from kgqa_core.planners.dense_files import DenseModel, Member, Taught, read_dense, save_dense
from kgqa_core.planners.dense_rank import Floats, View, log_sum, see, spread_first, unseen_scores
from kgqa_core.planners.dense_settings import DenseSettings
from kgqa_core.planners.dense_text import render_path_text
from kgqa_core.planners.dense_train import Progress, path_vectors, train_vectors
from kgqa_core.planners.types import LabelPath, Plan, PlanQuestion

NUM_CANDIDATES = 50  # existing paths of a question that are ranked and normalised
MEMBER_SEEDS = 1000  # between the seeds of the members of one planner


def fit_dense(
    train: Sequence[PlanQuestion],
    settings: DenseSettings,
    out: Path,
    *,
    seed: int = 0,
    encoder: Path | None = None,
    progress: Progress = lambda step, total, loss: None,
) -> dict[str, Any]:
    """Train a dense planner and write it to the folder ``out``.

    Args:
        train: those without paths are left out, and counted.
        settings: see there.
        out: must not exist.
        seed: equal seeds give equal planners.
        encoder: a folder of another BERT-shaped encoder; None: MiniLM.
        progress: told (steps done, steps in all, loss) after each step; members one after the other.

    Returns:
        A report: questions, those left out, paths, CPU seconds, loss per step of each member.

    Raises:
        InputError: no question has a path.
    """
    import torch

    started = process_time()
    used = [question for question in train if question.paths]
    if not used:
        raise InputError(
            f"none of the {len(train)} training questions has a relation path; the dense planner needs some"
        )
    taught = Taught.of(used)
    base = _encoder(encoder, settings)
    states = base.lower_states([question.text for question in used])
    texts = base.encode_published([render_path_text(path) for path in taught.paths])
    members, losses = [], []
    for number in range(settings.members):
        curve: list[float] = []
        base.publish()
        parts = train_vectors(
            base,
            states,
            torch.from_numpy(texts),
            taught.targets,
            settings=settings,
            seed=seed + MEMBER_SEEDS * number,
            progress=_kept(curve, progress, settings.members, number),
        )
        vectors = path_vectors(torch.from_numpy(texts), parts)
        bank = base.encode_all(states)
        upper = {name: weight.clone() for name, weight in base.upper.state_dict().items()}
        arrays = [part.numpy() for part in (vectors, parts["bias"], parts["map"], bank)]
        members.append(Member(upper, *arrays))
        losses.append(curve)
    model = DenseModel(settings, seed, base.name, taught, texts, tuple(members))
    save_dense(model, [question.id for question in used], out)
    return {
        "num_questions": len(used),
        "num_without_paths": len(train) - len(used),
        "num_paths": len(taught.paths),
        "cpu_seconds": process_time() - started,
        "losses": losses,
    }


def open_dense(
    folder: Path, *, exists: Exists | None = None, encoder: Path | None = None, ranking: dict[str, Any] | None = None
) -> DensePlanner:
    """Open what ``fit_dense`` wrote.

    Args:
        folder: of a trained dense planner.
        exists: what may follow a path around a question's topics (``dense_beam.steps_around``); None: no graph.
        encoder: as in training.
        ranking: settings of ranking that differ from those at training, by name.

    Raises:
        ArtifactError: it is no such folder, or was trained on another encoder.
    """
    model = read_dense(folder)
    if ranking:
        model = replace(model, settings=replace(model.settings, **ranking))
    base = _encoder(encoder, model.settings)
    if base.name != model.encoder:
        raise ArtifactError(f"{folder} was trained on the encoder {model.encoder}; this one is {base.name}")
    return DensePlanner(model, base, exists=exists)


class DensePlanner:
    """Implements ``Planner``."""

    name = "dense"

    def __init__(self, model: DenseModel, encoder: SplitEncoder, *, exists: Exists | None = None) -> None:
        """Plan with ``model``; ``encoder`` has its lower layers."""
        self._model, self._encoder, self._exists = model, encoder, exists
        self._place = {path: place for place, path in enumerate(model.taught.paths)}
        self._max_hops = max(map(len, model.taught.paths))
        self._may_follow = exists or steps_of(model.taught.paths)
        self._texts: dict[LabelPath, Floats] = {}  # vectors of the texts of unseen paths

    def plan(self, questions: Sequence[PlanQuestion], *, num_plans: int = 3) -> list[list[Plan]]:
        """Return up to ``num_plans`` distinct plans per question, best first.

        "Best" is what a further plan adds (``DenseSettings.spread``), so ``log_prob`` may rise from one to the next.
        """
        views = self._views(questions)
        return [self._plan(question, view, num_plans) for question, view in zip(questions, views, strict=True)]

    def weigh(self, questions: Sequence[PlanQuestion], paths: Sequence[Sequence[LabelPath]]) -> list[list[float]]:
        """Return the log-probability of each question's ``paths``, whether they exist or not."""
        found = []
        for view, own in zip(self._views(questions), paths, strict=True):
            scores = self._unseen(view, [path for path in own if path not in self._place])
            total = float(log_sum(view.scores))
            found.append([float(scores.get(path, view.scores[self._place.get(path, 0)])) - total for path in own])
        return found

    def _views(self, questions: Sequence[PlanQuestion]) -> list[View]:
        if not questions:
            return []
        states = self._encoder.lower_states([question.text for question in questions])
        vectors = []
        for member in self._model.members:
            self._encoder.upper.load_state_dict(member.upper)
            vectors.append(self._encoder.encode_all(states).numpy())
        return see(self._model, vectors)

    def _plan(self, question: PlanQuestion, view: View, num_plans: int) -> list[Plan]:
        known: dict[LabelPath, Collection[str]] = {}

        def allowed(path: LabelPath) -> Collection[str]:
            if path not in known:
                known[path] = frozenset(self._may_follow(question, path))
            return known[path]

        places = self._candidates(view, allowed, max(num_plans, NUM_CANDIDATES))
        unseen = self._beam(view, allowed)
        paths = [self._model.taught.paths[place] for place in places] + list(unseen)
        if not paths:
            return []
        scores = np.concatenate([view.scores[places], np.array(list(unseen.values()), dtype=np.float32)])
        log_probs = scores - log_sum(scores)
        rows = np.zeros((len(view.near), len(paths)), dtype=np.float32)
        rows[:, : len(places)] = self._model.taught.targets[view.near][:, places].toarray()
        first = spread_first(
            np.exp(log_probs), view.weights, rows, num_plans=num_plans, strength=self._model.settings.spread
        )
        return [Plan(paths[column], float(log_probs[column])) for column in first]

    def _candidates(self, view: View, allowed: Callable[[LabelPath], Collection[str]], most: int) -> list[int]:
        """Return the places of the best training paths that exist, best first."""
        found: list[int] = []
        for place in np.argsort(-view.scores, kind="stable").tolist():
            if self._exists is None or path_exists(self._model.taught.paths[place], allowed):
                found.append(place)
                if len(found) == most:
                    break
        return found

    def _beam(self, view: View, allowed: Callable[[LabelPath], Collection[str]]) -> dict[LabelPath, float]:
        width = self._model.settings.num_unseen
        if not width or (self._exists is None and not self._model.settings.guess_unseen):
            return {}

        def weigh(paths: Sequence[LabelPath]) -> Floats:
            scores = self._unseen(view, paths)
            return np.array([scores[path] for path in paths], dtype=np.float32)

        visited = beam(allowed, weigh, width=width, max_hops=self._max_hops)
        return {path: score for path, score in visited.items() if path not in self._place}

    def _unseen(self, view: View, paths: Sequence[LabelPath]) -> dict[LabelPath, float]:
        """Return the scores of ``paths`` by their texts."""
        if not paths:
            return {}
        new = [path for path in dict.fromkeys(paths) if path not in self._texts]
        if new:
            vectors = self._encoder.encode_published([render_path_text(path) for path in new])
            self._texts.update(zip(new, vectors, strict=True))
        scores = unseen_scores(self._model, view, np.stack([self._texts[path] for path in paths]))
        return dict(zip(paths, scores.tolist(), strict=True))


def _encoder(folder: Path | None, settings: DenseSettings) -> SplitEncoder:
    return SplitEncoder(folder, frozen_layers=settings.frozen_layers, max_tokens=settings.max_tokens)


def _kept(curve: list[float], progress: Progress, members: int, number: int) -> Progress:
    """Return what keeps the loss and tells ``progress`` the steps of all members."""

    def told(step: int, total: int, loss: float) -> None:
        curve.append(loss)
        progress(number * total + step, members * total, loss)

    return told
