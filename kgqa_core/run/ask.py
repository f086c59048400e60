"""What users do with a trained explorer: ask it questions in words, in its run or away from it, where it is served."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Annotated

from pydantic import Field, ValidationError

from kgqa_core.artifacts import Artifact, ArtifactStore, write_json
from kgqa_core.config import EncoderSection, EvaluationSection, LocalEncoderSection
from kgqa_core.config_base import Section
from kgqa_core.config_file import explain
from kgqa_core.errors import ArtifactError, InputError, LinkError, shorten
from kgqa_core.evaluation.predictions import render_path
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.questions.link import link_question
from kgqa_core.run.open import encoder_of, load_system, open_system, relation_texts, unit_norm
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.systems.etd import ExplorerSystem
from kgqa_core.text.encoder import Encoder, RememberedEncodings
from kgqa_core.types import Prediction, Question

CARD = "served.json"
NEAR_ROWS = 20  # of many that cannot be asked get near names: to find them all names of the graph are read
EXPLORER_FILES = ("model.safetensors", "model.json")  # of explorer.model, which is not imported here: it loads torch


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as a person asks it."""

    question: str
    topic: str | None = None  # label or name of the topic entity; None or empty: the exact name in the question


@dataclass(frozen=True, slots=True)
class AnswerLine:
    """One candidate of an answer."""

    name: str
    label: str  # tells homonyms apart
    score: float  # percent: the probability of Eq. 3 over all candidates
    is_answer: bool  # in the answer set, by the threshold chosen on dev
    path: str  # evidence: readable triples in walking order, empty where none is kept


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question, or why there is none."""

    question: str
    topics: tuple[str, ...]  # names of the topic entities
    candidates: tuple[AnswerLine, ...]  # best first
    error: str = ""  # why the question could not be asked; empty where it was
    nearest: tuple[str, ...] = ()  # names in the graph that look most like a topic that is not there


@dataclass(frozen=True, slots=True)
class Answerer:
    """Answers questions in words with one explorer: ``kgqa ask`` and the served model are this class."""

    system: ExplorerSystem
    one_at_a_time: Lock = field(default_factory=Lock)  # a walk uses what it allocated before, a server has threads

    def ask(self, question: str, *topics: str) -> Answer:
        """Answer one question; raises as ``link_asked``."""
        return self._answer([link_asked(question, topics, self.system.graph)])[0]

    def ask_all(self, asked: Sequence[Asked]) -> list[Answer]:
        """Answer many questions at once, in order; one that cannot be asked becomes an answer that says why."""
        linked: list[Question | Answer] = []
        num_failed = 0
        for row in asked:
            try:
                near = num_failed < NEAR_ROWS
                linked.append(link_asked(row.question, [row.topic or ""], self.system.graph, near=near))
            except InputError as problem:
                num_failed += 1
                names = problem.nearest if isinstance(problem, LinkError) else ()
                linked.append(Answer(row.question, (), (), error=str(problem), nearest=names))
        answers = iter(self._answer([item for item in linked if isinstance(item, Question)]))
        return [next(answers) if isinstance(item, Question) else item for item in linked]

    def _answer(self, questions: Sequence[Question]) -> list[Answer]:
        with self.one_at_a_time, torch_threads(1):  # not while nearest names are looked for, which takes seconds
            return list(map(self._in_words, questions, self.system.answer(questions)))

    def _in_words(self, question: Question, prediction: Prediction) -> Answer:
        graph, answers = self.system.graph, set(prediction.answers)
        kept = zip(prediction.candidates, prediction.paths, strict=False)
        paths = {entity: render_path(path, graph) for entity, path in kept}
        lines = tuple(
            AnswerLine(graph.name_of(one), graph.label_of(one), 100.0 * score, one in answers, paths.get(one, ""))
            for one, score in zip(prediction.candidates, prediction.scores, strict=True)
        )
        names = dict.fromkeys(graph.name_of(entity) for entity in question.topics)
        return Answer(question.text, tuple(names), lines)


def link_asked(question: str, topics: Sequence[str], graph: KnowledgeGraph, *, near: bool = True) -> Question:
    """Return a question with the topics that were named (empty names are none), or the one that its text names.

    Raises InputError where the question is empty or no text, LinkError where no topic is found, with the nearest names
    if ``near``.
    """
    if not question.strip():
        raise InputError("the question is empty")
    try:
        "".join((question, *topics)).encode()
    except UnicodeEncodeError:
        raise InputError(f"{shorten(question)} or its topic holds half a character, which no text has") from None
    return link_question(question, graph, topics=list(filter(None, topics)), near=near)


@contextmanager
def torch_threads(num: int) -> Iterator[None]:
    """Let torch compute with ``num`` threads for a while.

    A few questions are too small to share out: on a busy machine threads that wait for each other cost forty times
    what one does. torch keeps the number per thread that calls it, so a server sets it at each request.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(num)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def open_answerer(pipeline: Pipeline) -> Answerer:
    """Open the run's first explorer for questions in words, which explore the whole graph."""
    return Answerer(replace(open_system(pipeline), subgraphs=None))


# ------ Away from its run. Its weights travel with it. The graph does not: it is named by its content hash and found in
# the artifact store of the serving machine. The text encoder is named by its identity, and comes from the installed
# package or a local folder. All works offline.


class ServedCard(Section):
    """What a served explorer was made of, and what it needs."""

    kgqa: str  # version that wrote it
    run: str  # name of the run configuration
    config_hash: str
    dataset: str
    seed: int
    fingerprint: str  # of the explorer's artifact
    graph: str  # content hash of the graph that it was trained on
    graph_fingerprint: str  # the folder of that graph in the artifact store where it was trained
    encoder: Annotated[EncoderSection, Field(discriminator="kind")]
    encoder_name: str  # identity of the text encoder, weights hash included
    evaluation: EvaluationSection  # limits to the walk, evidence paths
    batch_size: int  # questions that are explored at once


def read_encoder_name(explorer: Artifact) -> str:
    """Return the identity of the text encoder that an explorer was trained with."""
    return str(json.loads((explorer.folder / "model.json").read_text(encoding="utf-8"))["encoder"])


def write_served(folder: Path, card: ServedCard, explorer: Artifact) -> None:
    """Write into ``folder``, which is made, all that travels: weights, their card and what they need."""
    folder.mkdir(parents=True)
    for name in EXPLORER_FILES:
        shutil.copyfile(explorer.folder / name, folder / name)
    write_json(folder / CARD, card.model_dump(mode="json"))


def read_card(folder: Path) -> ServedCard:
    """Read what ``write_served`` wrote; ArtifactError where it is missing, damaged or of another version of kgqa."""
    path = folder / CARD
    try:
        return ServedCard.model_validate_json(path.read_bytes())
    except OSError as problem:
        raise ArtifactError(f"{folder} holds no served explorer: {problem}; register it again") from None
    except ValidationError as problem:
        raise ArtifactError(f"{explain(problem, str(path), ServedCard)}\nRegister it again") from None


def open_served(folder: Path, home: Path, *, encoder_path: Path | None = None) -> Answerer:
    """Open what ``write_served`` wrote over the graph that it was trained on, which is in ``home`` (``KGQA_HOME``).

    ``encoder_path`` is the folder of a local text encoder, where it is not the one of the training machine. Where
    graph, encoder or weights are missing or others, ArtifactError says where they were looked for and what helps.
    """
    card = read_card(folder)
    graph, encoder = _find_graph(card, home), _find_encoder(card, encoder_path)
    system = load_system(
        folder,
        graph=graph,
        encoder=encoder.name,
        encode=RememberedEncodings(lambda texts: unit_norm(encoder.encode(texts)), relation_texts(graph)),
        evaluation=card.evaluation,
        batch_size=card.batch_size,
    )
    return Answerer(system)


def _find_graph(card: ServedCard, home: Path) -> KnowledgeGraph:
    root = home / "artifacts"
    found = ArtifactStore(root).find_content("graph", card.graph)
    if found is None:
        raise ArtifactError(
            f"the graph with the content hash {card.graph}, on which this explorer was trained, is not in "
            f"{root / 'graph'}. Build it there with kgqa build CONF, CONF being the run configuration {card.run!r}; or "
            f"copy artifacts/graph/{card.graph_fingerprint} from where it was trained; or set KGQA_HOME to a folder "
            "that has it"
        )
    return open_graph(found.folder)


def _find_encoder(card: ServedCard, path: Path | None) -> Encoder:
    section = card.encoder
    if isinstance(section, LocalEncoderSection):
        section = section.model_copy(update={"path": path or section.path})
        if not section.path.is_dir():
            raise ArtifactError(
                f"the text encoder {card.encoder_name} is not in {section.path}: there is no such folder. Copy it from "
                "where the explorer was trained, and name it: model_config={'encoder_path': FOLDER}"
            )
    encoder = encoder_of(section)
    if encoder.name != card.encoder_name:
        raise ArtifactError(
            f"this explorer was trained on texts encoded by {card.encoder_name}, and here is {encoder.name}: bring the "
            f"encoder that it was trained with, or train the run configuration {card.run!r} again"
        )
    return encoder
