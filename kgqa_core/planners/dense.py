"""The dense planner: which relation paths a question asks for, by vectors of one text encoder.

A training path's score is its own probability times the vote of the nearest training questions; paths that no training
question has are found by a beam over the steps that exist, and scored by their texts. Shape letters: B questions, P
training paths, n training questions, m of them near, C candidate paths, D width. All vectors have unit length.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kgqa_core.errors import ArtifactError
from kgqa_core.graph.kg import to_labels, to_relations
from kgqa_core.instructions.plan import PathConstraints, Plan, PlanQuestion
from kgqa_core.planners.dense_train import TINY, DenseModel, open_encoder, read_dense, render_path_text
from kgqa_core.text.transformer import Floats, SplitEncoder
from kgqa_core.types import LabelPath

NUM_CANDIDATES = 50  # existing paths of a question that are ranked and normalised
FLOOR = 1e-3  # added to votes before their log: a path that no neighbour has is not impossible
NUM_NEIGHBOURS = 64  # training questions that plans are spread over
SCALE = 20.0  # of cosines where nothing is trained: what the trained planner starts from
STEP_COST = 2.0  # nats of each further step then: there and back along a relation has the same words
MOST_TEXTS = 100_000  # vectors of unseen paths that are kept: some 150 MB of MiniLM's


@dataclass(frozen=True, slots=True)
class View:
    """How the planner sees one question."""

    vectors: tuple[Floats, ...]  # [D] of each member
    totals: tuple[float, ...]  # log of the sum of exponentials of each member's path scores
    scores: Floats  # [P] log-linear, of the training paths
    near: npt.NDArray[np.int64]  # [m] the nearest training questions
    weights: Floats  # [m] of their votes


def log_sum(scores: Floats) -> Floats:
    """Return the logs of the sums of exponentials over the last axis."""
    high = scores.max(axis=-1)
    total: Floats = high + np.log(np.exp(scores - high[..., None]).sum(axis=-1))
    return total


def see(model: DenseModel, questions: Sequence[Floats]) -> list[View]:
    """Return the views of a batch, whose vectors [B, D] each member of ``model`` has given.

    A path's score is log P(path) + ``neighbour_weight`` log(vote), of both the mean over the members.
    """
    settings, members = model.settings, list(zip(questions, model.members, strict=True))
    raw: list[Floats] = [(settings.scale * (own @ one.paths.T) + one.bias).astype(np.float32) for own, one in members]
    totals = [log_sum(scores) for scores in raw]
    log_probs = np.mean([scores - total[:, None] for scores, total in zip(raw, totals, strict=True)], axis=0)
    temperature = np.float32(settings.neighbour_temperature)
    cosines: list[Floats] = [own @ one.bank.T / temperature for own, one in members]  # [B, n]
    weights = np.mean([np.exp(one - log_sum(one)[:, None]) for one in cosines], axis=0)
    votes = (model.targets.T @ weights.T).T
    scores = log_probs + np.float32(settings.neighbour_weight) * np.log(votes + FLOOR)
    views = []
    for row, own in enumerate(weights):
        near = np.argsort(-own, kind="stable")[:NUM_NEIGHBOURS]
        vectors, sums = tuple(one[row] for one in questions), tuple(float(one[row]) for one in totals)
        views.append(View(vectors, sums, scores[row], near, own[near]))
    return views


def spread_first(probabilities: Floats, weights: Floats, rows: Any, *, num_plans: int, strength: float) -> list[int]:
    """Return the columns of ``probabilities`` [C] to propose first: a further plan counts where the others miss.

    Each next plan is the one of the greatest probability times the share of its votes that come from neighbours none
    of whose paths is proposed yet (a greedy cover): ``weights`` [m] are of neighbours, ``rows`` [m, C] is 1 where a
    neighbour has a path. ``strength`` 0 goes by probability alone, 1 as told.
    """
    chosen: list[int] = []
    missed = np.ones(len(weights), dtype=np.float32)  # of neighbours: is none of their paths proposed?
    votes = weights @ rows + TINY
    while len(chosen) < min(num_plans, len(probabilities)):
        share = ((weights * missed) @ rows + TINY / 2) / votes if chosen else np.ones_like(votes)
        gains = probabilities * (1 - strength + strength * share)
        gains[chosen] = -1.0
        chosen.append(int(gains.argmax()))
        missed = missed * (1 - rows[:, chosen[-1]])
    return chosen


Exists = Callable[[PlanQuestion, LabelPath], Collection[str]]
"""(question, path) -> the steps that may follow it around the question's topics; none where nothing does."""


def steps_around(space: PathConstraints) -> Exists:
    """Return what exists in a graph: steps that lead somewhere from the topics."""

    def exists(question: PlanQuestion, path: LabelPath) -> Collection[str]:
        relations = to_relations(space.graph, path)
        if relations is None or len(path) >= space.max_hops:
            return ()
        ending, _ = space.around(question.topics).next_relations(relations)
        return to_labels(space.graph, ending.tolist())

    return exists


def beam(
    allowed: Sequence[Callable[[LabelPath], Collection[str]]],
    weigh: Callable[[Sequence[Sequence[LabelPath]]], Sequence[Sequence[float]]],
    *,
    width: int,
    max_hops: int,
) -> list[dict[LabelPath, float]]:
    """Return, for each question, the scores of all paths that a beam of ``width`` visits, of 1 to ``max_hops`` steps.

    ``allowed`` gives the steps that may follow a path, ``weigh`` the scores of paths as if they ended there: those of
    one more step, of all questions together.
    """
    found: list[dict[LabelPath, float]] = [{} for _ in allowed]
    fronts: list[list[LabelPath]] = [[()] for _ in allowed]
    for _ in range(max_hops):
        longer = [
            [(*path, step) for path in front for step in sorted(own(path))]
            for own, front in zip(allowed, fronts, strict=True)
        ]
        if not any(longer):
            break
        for place, (paths, told) in enumerate(zip(longer, weigh(longer), strict=True)):
            scores = dict(zip(paths, told, strict=True))
            fronts[place] = sorted(scores, key=lambda path: (-scores[path], path))[:width]
            found[place] |= {path: scores[path] for path in fronts[place]}
    return found


def open_dense(folder: Path, *, exists: Exists | None = None) -> DensePlanner:
    """Open what ``fit_dense`` wrote; ArtifactError where it is no such folder, or was trained on another encoder.

    ``exists`` says what may follow a path around a question's topics (``steps_around``); None: there is no graph.
    """
    model = read_dense(folder)
    base = open_encoder(model.settings)
    if base.name != model.encoder:
        raise ArtifactError(f"{folder} was trained on the encoder {model.encoder}; this one is {base.name}")
    return DensePlanner(model, base, exists=exists)


class DensePlanner:
    """Implements ``Planner``."""

    def __init__(self, model: DenseModel, encoder: SplitEncoder, *, exists: Exists | None = None) -> None:
        self._model, self._encoder, self._exists = model, encoder, exists
        self._place = {path: place for place, path in enumerate(model.paths)}
        self._max_hops = max(map(len, model.paths))
        self._texts: dict[LabelPath, Floats] = {}  # vectors of the texts of unseen paths

    def plan(self, questions: Sequence[PlanQuestion], *, num_plans: int = 3) -> list[list[Plan]]:
        """Return up to ``num_plans`` distinct plans per question, that first which adds most (setting ``spread``)."""
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
        @cache
        def allowed(path: LabelPath) -> Collection[str]:
            return frozenset(self._exists(question, path) if self._exists else ())

        def exists(place: int) -> bool:
            path = self._model.paths[place]
            return self._exists is None or all(step in allowed(path[:end]) for end, step in enumerate(path))

        known = filter(exists, np.argsort(-view.scores, kind="stable").tolist())
        places = list(islice(known, max(num_plans, NUM_CANDIDATES)))
        unseen = self._beam(view, allowed)
        paths = [self._model.paths[place] for place in places] + list(unseen)
        if not paths:
            return []
        scores = np.concatenate([view.scores[places], np.array(list(unseen.values()), dtype=np.float32)])
        log_probs, sure = scores - log_sum(scores), np.minimum(np.exp(scores - log_sum(view.scores)), 1.0)
        rows = np.zeros((len(view.near), len(paths)), dtype=np.float32)
        rows[:, : len(places)] = self._model.targets[view.near][:, places].toarray()
        spread, probabilities = self._model.settings.spread, np.exp(log_probs)
        first = spread_first(probabilities, view.weights, rows, num_plans=num_plans, strength=spread)
        return [Plan(paths[column], float(log_probs[column]), float(sure[column])) for column in first]

    def _beam(self, view: View, allowed: Callable[[LabelPath], Collection[str]]) -> dict[LabelPath, float]:
        width = self._model.settings.num_unseen
        if not width or self._exists is None:
            return {}

        def weigh(fronts: Sequence[Sequence[LabelPath]]) -> list[list[float]]:
            return [list(self._unseen(view, front).values()) for front in fronts]

        (visited,) = beam([allowed], weigh, width=width, max_hops=self._max_hops)
        return {path: score for path, score in visited.items() if path not in self._place}

    def _unseen(self, view: View, paths: Sequence[LabelPath]) -> dict[LabelPath, float]:
        """Return the scores of paths that no training question has, by the vectors of their texts."""
        if not paths:
            return {}
        if len(self._texts) + len(paths) > MOST_TEXTS:
            self._texts.clear()
        new = [path for path in dict.fromkeys(paths) if path not in self._texts]
        if new:
            vectors = self._encoder.encode_published([render_path_text(path) for path in new])
            self._texts.update(zip(new, vectors, strict=True))
        texts, settings = np.stack([self._texts[path] for path in paths]), self._model.settings  # [C, D]
        scores = np.zeros(len(paths), dtype=np.float32)
        for member, vector, total in zip(self._model.members, view.vectors, view.totals, strict=True):
            mapped = texts @ member.map
            cosines = (mapped @ vector) / np.maximum(np.linalg.norm(mapped, axis=1), TINY)
            scores += (settings.scale * cosines - total) / len(self._model.members)
        scores += np.float32(settings.neighbour_weight * np.log(FLOOR) - settings.unseen_penalty)
        return dict(zip(paths, scores.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class EncoderPlanner:
    """The published text encoder as a ``Planner``: paths whose names are most like the question. Nothing is trained."""

    encode: Callable[[Sequence[str]], Floats]  # texts -> unit-norm rows
    exists: Exists
    max_hops: int

    def plan(self, questions: Sequence[PlanQuestion], *, num_plans: int = 3) -> list[list[Plan]]:
        """Return up to ``num_plans`` distinct plans that exist per question, the most similar first."""
        vectors = self.encode([question.text for question in questions])
        vector_of: dict[LabelPath, Floats] = {}  # of paths: questions of one kind visit the same

        def weigh(fronts: Sequence[Sequence[LabelPath]]) -> list[list[float]]:
            if new := [path for path in dict.fromkeys(chain.from_iterable(fronts)) if path not in vector_of]:
                vector_of.update(zip(new, self.encode([*map(render_path_text, new)]), strict=True))
            scores = [
                [SCALE * float(vector_of[path] @ vector) - STEP_COST * (len(path) - 1) for path in paths]
                for vector, paths in zip(vectors, fronts, strict=True)
            ]
            return [np.array(own, dtype=np.float32).tolist() for own in scores]

        allowed = [partial(self.exists, question) for question in questions]
        found = []
        for scores in beam(allowed, weigh, width=NUM_CANDIDATES, max_hops=self.max_hops):
            best = sorted(scores, key=lambda path: (-scores[path], path))[:num_plans]
            total = float(log_sum(np.array([*scores.values()], dtype=np.float32))) if scores else 0.0
            found.append([Plan(path, scores[path] - total) for path in best])
        return found
