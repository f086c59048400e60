"""What answering costs: how much of the graph is explored per question, and how long it takes."""

from __future__ import annotations

from dataclasses import dataclass

from kgqa_core.explorer.explore import Exploration


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
