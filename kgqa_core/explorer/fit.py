"""Training end to end: seed, start, train, watch dev, keep the best epoch, choose the two thresholds, save."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kgqa_core.artifacts import hash_json
from kgqa_core.config import ExplorerSection
from kgqa_core.errors import InputError
from kgqa_core.explorer.batch import question_arrays
from kgqa_core.explorer.explore import ExploreOptions, Lessons, gold_mask
from kgqa_core.explorer.model import Card, Explorer, look_up, save_explorer, start_from, texts_of
from kgqa_core.explorer.predict import TIE, explore_all
from kgqa_core.explorer.train import Journal, Trainer, TrainStep
from kgqa_core.graph.kg import KnowledgeGraph, golds_of
from kgqa_core.tracking import Recorder
from kgqa_core.types import Question

ANSWER_THRESHOLDS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
ATTENTION_THRESHOLDS = (1e-4, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
TOLERANCE = 0.1  # points, the mean of Hits@1 and F1 on dev, that a threshold may cost which is above 0 and
SAFE = 0.01  # not above this: there groups are cut that other wordings need, which dev, worded like training, hides
LOOK_EVERY = 25  # steps at least between two looks at dev, where no number of epochs is given
CURVE_EVERY = 20  # steps per point of a curve: the mean over them
CURVES = ("loss", "coverage", "learning_rate", "edges_per_question", "classes_per_node", "explored_again")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DevFigures:
    """How an explorer does on dev, in percent."""

    hits1: float  # in expectation over ties
    coverage: float  # questions with a gold among their candidates
    f1: dict[float, float]  # answer threshold -> mean F1; empty without questions to measure it on

    @property
    def best_f1(self) -> float:
        """The F1 of the best answer threshold."""
        return max(self.f1.values(), default=0.0)

    @property
    def answer_threshold(self) -> float:
        """The answer threshold of highest F1; of those within 0.01 points the one nearest to a half."""
        good = [threshold for threshold, value in self.f1.items() if value >= self.best_f1 - 0.01]
        return min(good, key=lambda threshold: abs(threshold - 0.5), default=0.5)


def measure(model: Explorer, dev: Lessons, attention_threshold: float = 0.0) -> DevFigures:
    """Return the figures of a model on questions that have a topic and a gold; groups of less attention are cut."""
    dev = replace(dev, options=replace(dev.options, attention_threshold=attention_threshold))
    asked = dev.questions
    hits = covered = 0.0
    totals = np.zeros(len(ANSWER_THRESHOLDS))
    for rows, batch, found in explore_all(model, dev):
        gold = gold_mask(found, batch, dev.graph.num_entities)
        log_p, best = found.log_probability(len(batch)).cpu().numpy(), np.full(len(batch), -np.inf)
        np.maximum.at(best, found.question, log_p)
        share = np.exp(log_p - best[found.question])  # [N] of the probability of the question's best
        top = share >= 1 - TIE
        num_tied = np.bincount(found.question[top], minlength=len(batch))
        hits += (np.bincount(found.question[top & gold], minlength=len(batch)) / num_tied).sum()
        covered += np.count_nonzero(np.bincount(found.question[gold], minlength=len(batch)))
        num_golds = np.bincount(batch.gold_question, minlength=len(batch))
        for index, threshold in enumerate(ANSWER_THRESHOLDS):
            taken = share >= threshold * (1 - TIE)
            right = np.bincount(found.question[taken & gold], minlength=len(batch))
            num_taken = np.bincount(found.question[taken], minlength=len(batch))
            totals[index] += (2 * right / (num_taken + num_golds))[asked.has_answers[rows]].sum()
    num_answered = np.count_nonzero(asked.has_answers)
    f1 = {} if not num_answered else dict(zip(ANSWER_THRESHOLDS, (100.0 * totals / num_answered).tolist(), strict=True))
    return DevFigures(100.0 * hits / max(len(asked), 1), 100.0 * covered / max(len(asked), 1), f1)


def choose_thresholds(model: Explorer, dev: Lessons) -> tuple[float, DevFigures]:
    """Return the attention threshold that does best on dev, of equals the largest, and the figures with it.

    Attention is not calibrated, so what is lossless differs from one checkpoint to the next. The best is that of the
    highest Hits@1 + F1. To cut nothing is many times slower, and to cut above ``SAFE`` costs wordings that dev does not
    have, so either has to be better by more than ``TOLERANCE``; without dev questions nothing is cut.
    """
    tried = {threshold: measure(model, dev, threshold) for threshold in ATTENTION_THRESHOLDS if len(dev.questions)}
    tried[0.0] = measure(model, dev)
    figure = {at: one.hits1 + one.best_f1 - (0 if 0 < at <= SAFE else 2 * TOLERANCE) for at, one in tried.items()}
    chosen = max(figure, key=lambda at: (figure[at], at))
    return chosen, tried[chosen]


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """One dataset to learn from."""

    graph: KnowledgeGraph
    train: Sequence[Question]
    dev: Sequence[Question]  # watched, and thresholds are chosen on it; only that of the first dataset
    encodings: Mapping[str, np.ndarray]  # text -> unit-norm vector of every question text, relation and given inverse
    reenter_topic: bool


@dataclass(frozen=True, slots=True)
class FitRun:
    """Where and how the work is done; shapes nothing."""

    folder: Path  # where the checkpoint goes
    recorder: Recorder  # gets the curves and the dev figures
    threads: int = 1
    device: str = "cpu"
    journal: Path | None = None  # folder from which a killed training goes on
    progress: Callable[[int, int], None] = field(default=lambda done, total: None)  # (steps done, steps in all)


def fit_explorer(
    sets: Sequence[QuestionSet],
    section: ExplorerSection,
    run: FitRun,
    *,
    seed: int,
    encoder: str,
    init_from: Path | None = None,
) -> Explorer:
    """Train an explorer on one dataset or several at once, and save it.

    ``section`` shapes it, with ``seed`` (weights, order and noise), the name of the texts' ``encoder``, and the folder
    of the explorer whose weights are the start. Raises ``InputError`` where no training question of a dataset has both
    a topic and a gold, ``ArtifactError`` where the start is missing, or of another encoder or width.
    """
    torch.set_num_threads(run.threads)
    lessons, dev = _lessons(sets, section, run.device)
    width = dev.texts.relations.shape[1]
    identity = [len(sets), section.model_dump(mode="json"), seed, encoder, run.device, [len(one.train) for one in sets]]
    torch.manual_seed(seed)
    model = Explorer(encoding_dim=width, width=section.width, steps=section.steps)
    if init_from is not None:
        fresh = start_from(model, init_from, encoder=encoder, attention=section.init_attention)
        run.recorder.param("init_fresh", ", ".join(fresh) or "none")
    trainer = Trainer(model.to(run.device), lessons, section, seed=seed)
    cpu_seconds = _train(trainer, dev, section, Journal(run.journal, hash_json(identity)), run)
    started = time.process_time()
    if section.variant == "paper" or section.learn_dev:  # by the budget alone; or as training walked at last
        attention_threshold = 0.0 if section.variant == "paper" else trainer.threshold
        figures = measure(model, dev, attention_threshold)
    else:
        attention_threshold, figures = choose_thresholds(model, dev)
    answer_threshold = figures.answer_threshold
    found = {
        "train.cpu_seconds": cpu_seconds,
        "tune.cpu_seconds": time.process_time() - started,
        "dev.answer_threshold": answer_threshold,
        "dev.attention_threshold": attention_threshold,
    }
    found |= {"dev.hits1": figures.hits1, "dev.coverage": figures.coverage} if len(dev.questions) else {}
    found |= {"dev.f1": figures.f1[answer_threshold]} if figures.f1 else {}
    run.recorder.metrics(found)
    card = Card(
        encoder=encoder,
        encoding_dim=width,
        width=section.width,
        steps=section.steps,
        edge_budget=section.edge_budget,
        reenter_topic=sets[0].reenter_topic,
        answer_threshold=answer_threshold,
        attention_threshold=attention_threshold,
        mask_topics=section.mask_topics,
    )
    save_explorer(run.folder, model.cpu(), card)
    return model


def _lessons(sets: Sequence[QuestionSet], section: ExplorerSection, device: str) -> tuple[list[Lessons], Lessons]:
    """Return what is learned from, and the dev questions of the first dataset that have a topic and a gold.

    Where dev is learned from it holds none: what is taught cannot tell how well the rest is known.
    """
    lessons, devs = [], []
    for one in sets:
        taught, held = ((*one.train, *one.dev), ()) if section.learn_dev else (one.train, one.dev)
        asked = {question.asked(section.mask_topics) for question in (*taught, *held)}
        text_row = {text: row for row, text in enumerate(sorted(asked))}
        train = question_arrays(taught, text_row, mask_topics=section.mask_topics)
        if not train.teaching().size:
            raise InputError(
                f"none of the {len(taught)} training questions has a topic and an answer to learn from; see kgqa lint"
            )
        texts = texts_of(list(text_row), one.graph, look_up(one.encodings)).to(device)
        options = ExploreOptions(edge_budget=section.edge_budget, reenter_topic=one.reenter_topic)
        golden = [question for question in held if question.topics and golds_of(question, reenter_topic=True)]
        dev = question_arrays(golden, text_row, mask_topics=section.mask_topics)
        lessons.append(Lessons(one.graph, train, texts, options))
        devs.append(Lessons(one.graph, dev, texts, options))
    return lessons, devs[0]


def _train(trainer: Trainer, dev: Lessons, section: ExplorerSection, journal: Journal, run: FitRun) -> float:
    """Train to the end or until dev gains no more; leave the weights of the best epoch; return the CPU seconds.

    Where no number of epochs is given, half of them without a gain is the end, and a later epoch counts as equal if it
    is worse by no more than one dev question: few of these say little.
    """
    recorder, best, watch = run.recorder, dict[str, Tensor](), _Watch()
    if kept := journal.go_on(trainer, _read_notes):
        best, (watch, curves) = kept
        recorder.restore_curves(curves)
        _log.info("going on after step %d of %d", trainer.state.step, trainer.num_steps)
    patience = section.patience or (math.inf if section.epochs else trainer.num_epochs // 2)
    slack = 0.0 if section.epochs else 200.0 / max(len(dev.questions), 1)
    started = time.process_time() - watch.cpu_seconds
    for step in trainer.steps():
        watch.since.append(step)
        is_last = trainer.share_done >= 1
        if len(watch.since) == CURVE_EVERY or is_last:
            for name in CURVES:
                mean = float(np.mean([getattr(one, name) for one in watch.since]))
                recorder.curve(f"train.{name}", step.step, mean)
            watch.since.clear()
        run.progress(step.step, step.num_steps)
        watch.cpu_seconds = time.process_time() - started
        is_due = step.ends_epoch and (section.epochs or step.step - watch.looked_at >= LOOK_EVERY)
        if len(dev.questions) and (is_due or is_last):
            watch.looked_at = step.step
            figures = measure(trainer.model, dev, trainer.threshold)
            for name, value in (("hits1", figures.hits1), ("f1", figures.best_f1), ("coverage", figures.coverage)):
                recorder.curve(f"dev.{name}", step.step, value)
            if watch.is_best(step.epoch, figures.hits1 + figures.best_f1, slack):
                best = {name: weight.detach().clone() for name, weight in trainer.model.state_dict().items()}
            if step.epoch - watch.gained_epoch >= patience:
                recorder.metric("train.stopped_after_epoch", step.epoch)
                break
        journal.save(trainer, best, {**asdict(watch), "curves": recorder.curves()}, now=step.ends_epoch or is_last)
    watch.cpu_seconds = time.process_time() - started
    if best:
        trainer.model.load_state_dict(best)
        recorder.metric("train.best_epoch", watch.best_epoch)
    return watch.cpu_seconds


@dataclass(slots=True)
class _Watch:
    """How the epochs went; with the curves, what the journal notes beside the weights."""

    best_epoch: int = 0
    best_figure: float = -1.0
    gained_epoch: int = 0  # the last that was better than all before it
    looked_at: int = 0  # the last step at which dev was measured
    cpu_seconds: float = 0.0
    since: list[TrainStep] = field(default_factory=list)  # steps since the last point of the curves

    def is_best(self, epoch: int, figure: float, slack: float) -> bool:
        """Note an epoch's figure; of those equal within ``slack`` the later is the best: its rate was lower."""
        if figure > self.best_figure:
            self.gained_epoch = epoch
        if not figure >= self.best_figure - slack:  # NaN is never the best
            return False
        self.best_figure, self.best_epoch = max(figure, self.best_figure), epoch
        return True


def _read_notes(notes: dict[str, Any]) -> tuple[_Watch, dict[str, Any]]:
    """Return how the epochs went, and the curves, from what a journal kept."""
    curves, since = notes.pop("curves"), [TrainStep(**step) for step in notes.pop("since")]
    return _Watch(**notes, since=since), curves
