"""The explorer as a system: questions in, ranked entities with evidence out, and what answering costs.

EtD and DualR stand on it; alone it is their ablation without a language model. torch is imported when it answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from kgqa_core.config_systems import SystemType
from kgqa_core.evaluation.predictions import render_path
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.subgraphs import Subgraphs
from kgqa_core.systems.types import Parts, Steps, SystemAnswer
from kgqa_core.types import Prediction, Question, ReasoningPath

if TYPE_CHECKING:
    from kgqa_core.explorer.checkpoint import Card
    from kgqa_core.explorer.explore import Exploration
    from kgqa_core.explorer.model import EncodeTexts, Explorer
    from kgqa_core.explorer.walk import WalkStep


@dataclass(slots=True)
class AnswerCost:
    """Sums over the batches that were answered."""

    num_questions: int = 0  # explored: those with a topic
    num_candidates: int = 0  # nodes after the last step
    num_nodes: int = 0  # of all steps
    num_classes: int = 0
    num_edges: int = 0  # walked, identity edges included
    cpu_seconds: float = 0.0  # of this process, all its threads; encoding of texts not included

    def add(self, found: Exploration, num_questions: int) -> None:
        """Add one batch."""
        self.num_questions += num_questions
        self.num_candidates += len(found.entity)
        self.num_nodes += sum(count.nodes for count in found.counts)
        self.num_classes += sum(count.classes for count in found.counts)
        self.num_edges += sum(count.edges for count in found.counts)

    def figures(self) -> dict[str, float]:
        """Return the figures per question; empty where none was explored."""
        if not self.num_questions:
            return {}
        return {
            "candidates_per_question": self.num_candidates / self.num_questions,
            "edges_per_question": self.num_edges / self.num_questions,
            "classes_per_node": self.num_classes / self.num_nodes,
            "cpu_seconds": self.cpu_seconds,
            "questions_per_second": self.num_questions / max(self.cpu_seconds, 1e-9),
        }


@dataclass(frozen=True, slots=True)
class ExplorerSystem:
    """A trained explorer over one graph, or over a subgraph per question."""

    graph: KnowledgeGraph
    model: Explorer  # on the device where questions are answered
    card: Card
    encode: EncodeTexts
    evidence_paths: int = 3
    evidence_of_answers: bool = False  # one for every answer as well
    batch_size: int = 64
    walk: WalkStep | None = None  # how a step is taken; None: as the product does
    subgraphs: Subgraphs | None = None  # where each question explores its own, not the graph

    def answer(
        self,
        questions: Sequence[Question],
        progress: Callable[[int, int], None] = lambda done, total: None,
        cost: AnswerCost | None = None,
    ) -> list[Prediction]:
        """Return one prediction per question, in order; what it costs is added to ``cost``.

        Raises:
            InputError: a question has no subgraph, where each explores its own.
        """
        from kgqa_core.explorer.explore import ExploreOptions
        from kgqa_core.explorer.model import texts_of
        from kgqa_core.explorer.predict import predict
        from kgqa_core.explorer.walk import MERGED

        inside = self.subgraphs
        asked = sorted({question.asked(self.card.mask_topics) for question in questions})
        texts = texts_of(asked, self.graph, self.encode).to(self.model.identity.device)
        cost = AnswerCost() if cost is None else cost
        started = time.process_time()
        predictions = predict(
            self.model,
            inside.graph if inside else self.graph,
            inside.all_to_rows(questions) if inside else questions,
            texts=texts,
            text_row={text: row for row, text in enumerate(asked)},
            options=ExploreOptions(
                edge_budget=self.card.edge_budget,
                reenter_topic=self.card.reenter_topic,
                attention_threshold=self.card.attention_threshold,
                walk=self.walk or MERGED,
            ),
            answer_threshold=self.card.answer_threshold,
            mask_topics=self.card.mask_topics,
            evidence_paths=self.evidence_paths,
            evidence_of_answers=self.evidence_of_answers,
            batch_size=self.batch_size,
            progress=progress,
            on_batch=cost.add,
        )
        cost.cpu_seconds += time.process_time() - started
        return [inside.to_entities(prediction) for prediction in predictions] if inside else predictions

    def limited(
        self, *, edge_budget: int | Literal["all"] | None = None, attention_threshold: float | None = None
    ) -> ExplorerSystem:
        """Return the same explorer under other limits to its walk; None leaves one as the checkpoint has it.

        Args:
            edge_budget: K; with ``all``, every edge of every head may be walked.
            attention_threshold: 0..1, groups of less attention are not entered.
        """
        budget = 2 * self.graph.num_triples + 1 if edge_budget == "all" else edge_budget
        card = self.card
        return replace(
            self,
            card=replace(
                card,
                edge_budget=card.edge_budget if budget is None else budget,
                attention_threshold=card.attention_threshold if attention_threshold is None else attention_threshold,
            ),
        )

    def render(self, path: ReasoningPath) -> str:
        """Return a path as readable triples, in walking order."""
        return render_path(path, entity_names=self.graph.entity_names, relation_labels=self.graph.relation_labels)


@dataclass(frozen=True, slots=True)
class ExplorerAlone:
    """The answer set of the checkpoint's threshold, each answer with its evidence path. Implements ``System``."""

    explorer: ExplorerSystem
    name: str = "explorer"
    needs_topic: bool = True
    on_rows: bool = False  # the explorer turns rows back into entities itself

    def prepare(self, questions: Sequence[Question]) -> Sequence[Prediction]:
        """Return the explorer's predictions."""
        return replace(self.explorer, evidence_of_answers=True).answer(questions)

    def steps(self, question: Question, prepared: Prediction) -> Steps:
        """Answer without a call."""
        return SystemAnswer(prepared)
        yield  # what makes this a generator: it asks nothing


def open_explorer_alone(parts: Parts) -> ExplorerAlone:
    """Open the explorer alone."""
    return ExplorerAlone(parts.explorer())


EXPLORER = SystemType(open_explorer_alone, asks=False, explores=True)
