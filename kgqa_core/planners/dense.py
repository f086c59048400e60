"""How a relation path reads for a text encoder."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any

import numpy as np

from kgqa_core.config_lm import DensePlannerSection
from kgqa_core.errors import ArtifactError, InputError
from kgqa_core.graph.kg import read_step
from kgqa_core.planners.dense_rank import (
    DenseModel,
    Floats,
    Member,
    Taught,
    View,
    log_sum,
    read_dense,
    save_dense,
    see,
    spread_first,
    unseen_scores,
)
from kgqa_core.planners.dense_train import Progress, SplitEncoder, path_vectors, train_vectors
from kgqa_core.planners.types import LabelPath, Plan, PlanQuestion

if TYPE_CHECKING:
    from kgqa_core.instructions.path_constraint import PathConstraints

_BREAKS = re.compile(r"[\W_]+")
BACKWARD = "of"  # "directed by of": what a step walked backward is told by
STAY = "itself"  # the empty path


def render_step_text(step: str) -> str:
    """Return a step's words, each once: ``people.person.place_of_birth`` is people person place of birth."""
    label, backward = read_step(step)
    words = list(dict.fromkeys(word for word in _BREAKS.split(label) if word))
    return " ".join([*(words or [label]), *([BACKWARD] if backward else [])])


def render_path_text(path: LabelPath) -> str:
    """Return the words of a path, its steps apart."""
    return " ; ".join(map(render_step_text, path)) or STAY


# ------ Relation paths that no training question has, step by step: a beam over what may follow, ...


Exists = Callable[[PlanQuestion, LabelPath], Collection[str]]
"""(question, path) -> the steps that may follow it around the question's topics; none where nothing does."""


def steps_around(space: PathConstraints) -> Exists:
    """Return what exists in a graph: steps that lead somewhere from the topics."""
    from kgqa_core.graph.kg import to_relations, write_step

    labels, num = space.graph.relation_labels, space.graph.num_relations
    steps = [write_step(label, backward) for backward in (False, True) for label in labels]

    def exists(question: PlanQuestion, path: LabelPath) -> Collection[str]:
        relations = to_relations(space.graph, path)
        if relations is None or len(path) >= space.max_hops:
            return ()
        ending, _ = space.around(question.topics).next_relations(relations)
        return [steps[relation] for relation in ending.tolist() if relation < 2 * num]

    return exists


def steps_of(paths: Iterable[LabelPath]) -> Exists:
    """Return what may exist where there is no graph: a step follows another as it does in some training path."""
    after: dict[str, set[str]] = {}
    for path in paths:
        for before, step in zip(("", *path), path, strict=False):
            after.setdefault(before, set()).add(step)
    kept = {before: tuple(sorted(steps)) for before, steps in after.items()}
    return lambda _, path: kept.get(path[-1] if path else "", ())


def path_exists(path: LabelPath, allowed: Callable[[LabelPath], Collection[str]]) -> bool:
    """Say whether every step of ``path`` is allowed after those before it."""
    return all(step in allowed(path[:place]) for place, step in enumerate(path))


def beam(
    allowed: Callable[[LabelPath], Collection[str]],
    weigh: Callable[[Sequence[LabelPath]], Floats],
    *,
    width: int,
    max_hops: int,
) -> dict[LabelPath, float]:
    """Return the scores of all paths that a beam of ``width`` visits, of 1 to ``max_hops`` steps.

    Args:
        allowed: the steps that may follow a path.
        weigh: scores of paths, as if they ended there.
        width: paths that are gone on from, after each step.
        max_hops: steps of the longest path.
    """
    found: dict[LabelPath, float] = {}
    front: list[LabelPath] = [()]
    for _ in range(max_hops):
        longer = [(*path, step) for path in front for step in sorted(allowed(path))]
        if not longer:
            break
        scores = dict(zip(longer, weigh(longer).tolist(), strict=True))
        front = sorted(scores, key=lambda path: (-scores[path], path))[:width]
        found |= {path: scores[path] for path in front}
    return found


# ------ The dense planner: questions and relation paths as vectors of one text encoder.


NUM_CANDIDATES = 50  # existing paths of a question that are ranked and normalised
MEMBER_SEEDS = 1000  # between the seeds of the members of one planner


def fit_dense(
    train: Sequence[PlanQuestion],
    settings: DensePlannerSection,
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
        model = replace(model, settings=model.settings.model_copy(update=ranking))
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

        "Best" is what a further plan adds (setting ``spread``), so ``log_prob`` may rise from one to the next.
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


def _encoder(folder: Path | None, settings: DensePlannerSection) -> SplitEncoder:
    return SplitEncoder(folder, frozen_layers=settings.frozen_layers, max_tokens=settings.max_tokens)


def _kept(curve: list[float], progress: Progress, members: int, number: int) -> Progress:
    """Return what keeps the loss and tells ``progress`` the steps of all members."""

    def told(step: int, total: int, loss: float) -> None:
        curve.append(loss)
        progress(number * total + step, members * total, loss)

    return told
