"""What the timing benchmarks share: a run's graph, questions and encodings opened, and CPU time taken of calls."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from benchmarks.measure import cpu_seconds, open_run
from kgqa_core.config import ExplorerSection, RunConfig
from kgqa_core.explorer.batch import QuestionArrays, question_arrays
from kgqa_core.explorer.explore import ExploreOptions, Lessons
from kgqa_core.explorer.model import Explorer, Texts, look_up, texts_of
from kgqa_core.explorer.predict import predict
from kgqa_core.explorer.train import Trainer
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.build import read_questions
from kgqa_core.run.open import graph_of, read_encodings
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.types import Prediction, Question, Split

THREE_HOP = "conf/metaqa-3hop.yaml"
WHOLE = 2**40  # an edge budget that cuts nothing


@dataclass(frozen=True, slots=True)
class Workload:
    """A graph, the encoded texts, and the run they belong to."""

    graph: KnowledgeGraph
    texts: Texts
    text_row: dict[str, int]
    pipeline: Pipeline

    @property
    def config(self) -> RunConfig:
        """The run's configuration."""
        return self.pipeline.config

    def questions(self, split: Split, count: int | None = None, seed: int = 0) -> list[Question]:
        """Return ``count`` random questions of a split that have a topic and an answer, or all of them."""
        folder = self.pipeline.artifact("questions").folder
        usable = [question for question in read_questions(folder, split) if question.topics and question.answers]
        return usable if count is None else random.Random(seed).sample(usable, min(count, len(usable)))

    def arrays(self, questions: Sequence[Question]) -> QuestionArrays:
        """Return questions as the explorer takes them."""
        return question_arrays(questions, self.text_row, mask_topics=self.config.explorer.mask_topics)

    def explorer(self, *, width: int | None = None, steps: int | None = None) -> Explorer:
        """Return a new explorer of the run's size."""
        torch.manual_seed(0)
        section, dim = self.config.explorer, self.texts.relations.shape[1]
        return Explorer(encoding_dim=dim, width=width or section.width, steps=steps or section.steps)

    def options(self, edge_budget: int | None = None) -> ExploreOptions:
        """Return how the run walks, under another edge budget where one is given, and without a threshold."""
        budget = edge_budget or self.config.explorer.edge_budget
        return ExploreOptions(edge_budget=budget, reenter_topic=self.config.dataset.reenter_topic)

    def train(
        self,
        questions: Sequence[Question],
        options: ExploreOptions,
        *,
        model: Explorer | None = None,
        batch_size: int | None = None,
    ) -> float:
        """Train one epoch of full exploration and return its CPU seconds; a new explorer, where none is given."""
        section = self.config.explorer
        changes = {"epochs": 1, "batch_size": batch_size or section.batch_size, "prune_below": 0.0}
        settings = section.model_copy(update=changes)
        return self.train_with(questions, options, settings, model or self.explorer())

    def answer(self, model: Explorer, questions: Sequence[Question], options: ExploreOptions) -> list[Prediction]:
        """Answer questions, evidence paths included, without a threshold that was chosen on dev."""
        return predict(
            model,
            self.graph,
            questions,
            texts=self.texts,
            text_row=self.text_row,
            options=options,
            answer_threshold=0.5,
            batch_size=64,
        )

    def train_with(
        self, questions: Sequence[Question], options: ExploreOptions, settings: ExplorerSection, model: Explorer
    ) -> float:
        """Train as the settings say and return the CPU seconds."""
        lessons = Lessons(self.graph, self.arrays(questions), self.texts, options)
        return cpu_seconds(lambda: deque(Trainer(model, [lessons], settings, seed=0).steps(), maxlen=0))


def open_workload(home: Path, *, command: str = "encode", settings: Sequence[str] = ()) -> Workload:
    """Make what MetaQA's 3-hop run lacks with ``kgqa COMMAND`` and open it, torch on the run's number of threads.

    Args:
        home: artifacts of the run.
        command: how far the run is to be made: "encode", or "train-explorer" for the trained explorers too.
        settings: as after ``--set``.
    """
    pipeline = open_run(command, THREE_HOP, home, settings)
    graph = graph_of(pipeline)
    questions = read_questions(pipeline.artifact("questions").folder)
    asked = sorted({question.asked(pipeline.config.explorer.mask_topics) for question in questions})
    texts = texts_of(asked, graph, look_up(read_encodings(pipeline.artifact("encodings").folder)))
    torch.set_num_threads(pipeline.config.runtime.threads)
    return Workload(graph, texts, {text: row for row, text in enumerate(asked)}, pipeline)


def interleaved(calls: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Call each in turn, ``repeats`` times over, after one round that is not counted (compilation, caches).

    In turn, so that whatever else the machine does meanwhile falls on all of them alike.

    Args:
        calls: name -> a call that returns its own CPU seconds.
        repeats: rounds that count.

    Returns:
        name -> the seconds of each round.
    """
    rounds = [{name: call() for name, call in calls.items()} for _ in range(repeats + 1)][1:]
    return {name: [found[name] for found in rounds] for name in calls}


def ratio_of(slow: Sequence[float], fast: Sequence[float]) -> str:
    """Return the median over rounds of slow / fast, with the least and the largest."""
    ratios = [one / other for one, other in zip(slow, fast, strict=True)]
    return f"{median(ratios):.1f} ({min(ratios):.1f}-{max(ratios):.1f})"


def wait(device: torch.device) -> None:
    """Wait until the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
