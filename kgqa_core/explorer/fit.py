"""Training end to end: seed, train, watch dev, choose the answer threshold, save, and record the curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from kgqa_core.errors import InputError
from kgqa_core.explorer.batch import question_arrays
from kgqa_core.explorer.checkpoint import Card, save_explorer
from kgqa_core.explorer.explore import ExploreOptions
from kgqa_core.explorer.model import Explorer
from kgqa_core.explorer.predict import choose_threshold, top_hits
from kgqa_core.explorer.train import Texts, TrainSettings, TrainStep, train_explorer
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.tracking import Recorder
from kgqa_core.types import Question

CURVE_EVERY = 20  # steps per point of a curve: the mean over them


@dataclass(frozen=True, slots=True)
class FitSettings:
    """All that shapes a trained explorer; see config.ExplorerSection."""

    steps: int
    width: int
    edge_budget: int
    epochs: int
    batch_size: int
    learning_rate: float
    warmup_steps: int
    seed: int
    reenter_topic: bool
    threads: int
    encoder: str  # name of the encoder of the texts


def fit_explorer(
    graph: KnowledgeGraph,
    *,
    train: Sequence[Question],
    dev: Sequence[Question],
    encodings: Mapping[str, np.ndarray],
    settings: FitSettings,
    folder: Path,
    recorder: Recorder,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Explorer:
    """Train an explorer and save it in ``folder``.

    Args:
        graph: the knowledge graph.
        train: questions to learn from.
        dev: questions to watch and to choose the answer threshold on.
        encodings: text -> unit-norm vector of every masked text and relation label.
        settings: see ``FitSettings``.
        folder: where the checkpoint goes.
        recorder: gets the curves and the dev figures.
        progress: called with (steps done, steps in all).

    Raises:
        InputError: no training question has both a topic and a gold.
    """
    torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed)
    masked = sorted({question.masked for question in (*train, *dev)})
    text_row = {text: row for row, text in enumerate(masked)}
    texts = Texts(_stack(encodings, masked), _stack(encodings, graph.relation_labels))
    arrays = question_arrays(train, text_row)
    if not arrays.teaching().size:
        raise InputError(
            f"none of the {len(train)} training questions has a topic and an answer to learn from; see kgqa lint"
        )
    model = Explorer(encoding_dim=texts.relations.shape[1], width=settings.width, steps=settings.steps)
    options = ExploreOptions(edge_budget=settings.edge_budget, reenter_topic=settings.reenter_topic)
    curves = _Curves(recorder, progress)

    def after_epoch(epoch: int) -> None:
        if dev:
            hits1, coverage = top_hits(model, graph, dev, texts=texts, text_row=text_row, options=options)
            recorder.curve("dev.hits1", curves.step, hits1)
            recorder.curve("dev.coverage", curves.step, coverage)
            recorder.metric("dev.hits1", hits1)

    cpu_seconds = train_explorer(
        model,
        graph,
        arrays,
        texts=texts,
        options=options,
        settings=TrainSettings(
            settings.epochs, settings.batch_size, settings.learning_rate, settings.warmup_steps, settings.seed
        ),
        on_step=curves.add,
        on_epoch=after_epoch,
    )
    threshold, f1 = choose_threshold(model, graph, dev, texts=texts, text_row=text_row, options=options)
    recorder.metric("train.cpu_seconds", cpu_seconds)
    recorder.metric("dev.answer_threshold", threshold)
    if f1:
        recorder.metric("dev.f1", f1[threshold])
    card = Card(
        encoder=settings.encoder,
        encoding_dim=texts.relations.shape[1],
        width=settings.width,
        steps=settings.steps,
        edge_budget=settings.edge_budget,
        reenter_topic=settings.reenter_topic,
        answer_threshold=threshold,
    )
    save_explorer(folder, model, card)
    return model


class _Curves:
    """Averages steps into points of the training curves."""

    def __init__(self, recorder: Recorder, progress: Callable[[int, int], None]) -> None:
        self.step = 0
        self._recorder, self._progress, self._since = recorder, progress, list[TrainStep]()

    def add(self, step: TrainStep) -> None:
        self.step = step.step
        self._since.append(step)
        if len(self._since) == CURVE_EVERY or step.step == step.num_steps:
            for name in ("loss", "coverage", "learning_rate", "edges_per_question", "classes_per_node"):
                mean = float(np.mean([getattr(one, name) for one in self._since]))
                self._recorder.curve(f"train.{name}", step.step, mean)
            self._since.clear()
        self._progress(step.step, step.num_steps)


def _stack(encodings: Mapping[str, np.ndarray], texts: Sequence[str]) -> torch.Tensor:
    return torch.from_numpy(np.stack([encodings[text] for text in texts]))
