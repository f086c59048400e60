"""MetaQA's questions in other words than the data set's, written one by one for every relation path.

``paraphrases.tsv`` holds them, in two halves that were drawn before anything was measured: ``dev`` is filled with the
topics of dev questions, and settings are chosen on it; ``test`` with those of test questions. No paraphraser made
them, and nothing is trained on them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.measure import open_run, write_section
from kgqa_core.evaluation.metrics import bootstrap_bounds, score_predictions
from kgqa_core.graph.kg import KnowledgeGraph, write_step
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.questions.build import read_questions
from kgqa_core.run.open import encode_all, open_system, search_graph
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.systems.controls import answer_by_path, load_template_control
from kgqa_core.types import Prediction, Question, Split

FILE = Path(__file__).with_name("paraphrases.tsv")
TOPIC = "[topic]"
HALVES: tuple[Split, ...] = ("dev", "test")
Answer = Callable[[Sequence[Question]], list[Prediction]]


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    runs: Sequence[str]
    per_chain: int  # questions of one gold chain, each asked in all wordings of a half
    settings: Sequence[str] = ()


FULL = Size(("metaqa-1hop", "metaqa-2hop"), 40)
SMALL = Size(("metaqa-1hop",), 5, ("explorer.seeds=[0]", "explorer.epochs=1"))

NOTE = (
    "Percent, mean over the seeds. The wordings were written one by one, in sight of those of the training questions "
    "and before anything was measured; none of them is in any question. By questions: every question counts, so that "
    "kinds weigh as MetaQA asks them. By wordings: every wording counts the same, with the interval of 95 % over "
    "wordings, drawn anew. Uncut: the same explorers with no attention threshold. The template control has never seen "
    "any of them, so it takes the path of most training questions. Names alone: no training; of the relations around "
    "the topic the one whose name lies nearest to the question, both encoded. Dev was looked at to choose settings."
)


def run(home: Path, size: Size = FULL) -> None:
    """Train where that is not done, ask in all wordings of both halves and write the section."""
    rows = [
        "| run | half | answered by | wordings | questions | Hits@1 by questions | by wordings | uncut, by questions | "
        "as MetaQA words them |",
        "|---|---|---|---:|---:|---:|---|---:|---:|",
    ]
    for name in size.runs:
        rows += rows_of(open_run("run", f"conf/{name}.yaml", home, size.settings), size)
    write_section("Other wordings", "\n".join([*rows, "", NOTE]), "python -m benchmarks paraphrases")


def rows_of(pipeline: Pipeline, size: Size) -> list[str]:
    """Return the rows of one run, for both halves."""
    search, folder = search_graph(pipeline), pipeline.artifact("questions").folder
    split = {half: read_questions(folder, half) for half in HALVES}
    known = {question.masked for question in read_questions(folder)}
    control = load_template_control(pipeline.artifact("controls").folder / "template_control.json", search)
    explorers = [replace(open_system(pipeline, seed), evidence_paths=0) for seed in pipeline.config.exploration.seeds]
    answered_by: dict[str, list[Answer]] = {
        "explorer": [one.answer for one in explorers],
        "template control": [control.answer],
    }
    if pipeline.config.exploration.steps == 1:
        answered_by["names alone"] = [NamesAlone(pipeline, search).answer]
    uncut = [one.limited(attention_threshold=0.0).answer for one in explorers]
    rows = []
    for half in HALVES:
        asked = reword(split[half], search.graph, half, size.per_chain)
        worded = sorted({question.masked for question in asked})
        if seen := known.intersection(worded):
            raise ValueError(f"{FILE.name}: {min(seen)!r} is a wording of the data set")
        for name, answers in answered_by.items():
            hits = np.mean([hits_of(answer, asked) for answer in answers], axis=0)
            by_wording = np.array([[hits[[one.masked == text for one in asked]].mean()] for text in worded])
            low, high = bootstrap_bounds(by_wording)[:, 0]
            plain = np.mean([hits_of(answer, split[half]).mean() for answer in answers])
            whole = np.mean([hits_of(answer, asked).mean() for answer in uncut]) if name == "explorer" else None
            rows.append(
                f"| {pipeline.config.dataset.name} | {half} | {name} | {len(worded)} | {len(asked):,} | "
                f"{hits.mean():.1f} | {by_wording.mean():.1f} [{low:.1f}, {high:.1f}] | "
                f"{'' if whole is None else format(whole, '.1f')} | {plain:.1f} |"
            )
    return rows


def reword(questions: Sequence[Question], graph: KnowledgeGraph, half: Split, per_chain: int) -> list[Question]:
    """Return the first ``per_chain`` questions of each gold chain, in every wording that a half has for it."""
    wordings, counts, asked = wordings_of(half), defaultdict[str, int](int), []
    for question in questions:
        chain = " ".join(
            write_step(graph.relation_labels[step % graph.num_relations], step >= graph.num_relations)
            for step in question.chain or ()
        )
        counts[chain] += 1
        for number, masked in enumerate(wordings[chain] if counts[chain] <= per_chain else ()):
            text = masked.replace(TOPIC, graph.name_of(question.topics[0]))
            asked.append(replace(question, id=f"{question.id}/{number}", text=text, masked=masked))
    return asked


def wordings_of(half: Split) -> dict[str, list[str]]:
    """Return the wordings of a half by gold chain, empty for a chain without any; they hold ``TOPIC``."""
    wordings = defaultdict[str, list[str]](list)
    for line in FILE.read_text(encoding="utf-8").splitlines()[1:]:
        chain, of_half, wording = line.split("\t")
        if of_half == half:
            wordings[chain].append(wording)
    return wordings


def hits_of(answer: Answer, asked: Sequence[Question]) -> np.ndarray:
    """Return Hits@1 of every question [B], in percent."""
    return np.asarray(score_predictions(asked, answer(asked)).values["hits1"])


class NamesAlone:
    """Takes the relation around the topic, either way, whose name lies nearest to the question."""

    def __init__(self, pipeline: Pipeline, search: SearchGraph) -> None:
        self._pipeline, self._search = pipeline, search
        self._names = encode_all(pipeline, search.graph.relation_labels)

    def answer(self, questions: Sequence[Question]) -> list[Prediction]:
        """Return one prediction per question: all that the relation leads to."""
        texts = sorted({question.masked for question in questions})
        likeness = dict(zip(texts, encode_all(self._pipeline, texts) @ self._names.T, strict=True))
        predictions, graph = [], self._search.graph
        for question in questions:
            _, around, _ = graph.edges_of(np.array(question.topics))
            steps = np.unique(around)
            best = steps[np.argmax(likeness[question.masked][steps % graph.num_relations])]
            predictions.append(answer_by_path(self._search, question, (int(best),)))
        return predictions
