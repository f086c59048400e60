"""A whole file of questions at once, which only tests want."""

from __future__ import annotations

from pathlib import Path

from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.formats import Loaded, QuestionFile, open_format
from kgqa_core.questions.link import Resolver, link_file
from kgqa_core.types import Question, Reject, Split


def load_question_file(
    path: Path, *, format: str, graph: KnowledgeGraph, split: Split = "test", hops: int | None = None
) -> tuple[list[Question], list[Reject]]:
    """Return the questions of one file, linked to ``graph``, and the lines that could not be used.

    ``hops`` is for MetaQA files, whose lines do not say.
    """
    loaded, file = Loaded(), QuestionFile(path, split, hops)
    return [*link_file(file, loaded, read=open_format(format).read, resolver=Resolver(graph))], loaded.rejects
