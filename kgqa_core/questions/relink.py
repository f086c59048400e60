"""Questions as if nobody had said what they are about: topics and masked text from the text alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.linking import mask_topics, spans_of
from kgqa_core.questions.linking_index import NameIndex
from kgqa_core.questions.linking_text import Context, LinkSettings, TextLinker
from kgqa_core.questions.linking_wording import learn_wording
from kgqa_core.types import Question


def relink(
    questions: Sequence[Question],
    graph: KnowledgeGraph,
    *,
    settings: LinkSettings | None = None,
    examples: Sequence[Question] = (),
    context: Context | None = None,
) -> list[Question]:
    """Return the questions with their topics hidden, and linked again by the text alone.

    ``masked`` goes by the names that were found, so a wrong link costs what it costs. What a true/false question
    claims stays known, and is no topic. A question without a topic has none: ``topics`` is empty.

    Args:
        questions: whose topics are hidden.
        graph: whose names and aliases are looked for.
        settings: see ``LinkSettings``.
        examples: training questions: their masked texts tell names from wording. None needed, but without any a
            graph's entity "director" is found wherever the word stands.
        context: tells homonyms apart; None: what surrounds the topics of ``examples``.
    """
    index = NameIndex(graph)
    linker = TextLinker(index, learn_wording(index, examples), settings=settings, context=context)
    return relink_with(linker, questions)


def relink_with(linker: TextLinker, questions: Sequence[Question]) -> list[Question]:
    """Return ``relink(questions, …)`` by a linker that was made before: making one reads all names."""
    graph = linker.index.graph
    claims = [() if one.claim is None else (graph.name_of(one.claim),) for one in questions]
    linked = linker.link([_without(one.text, names) for one, names in zip(questions, claims, strict=True)])
    relinked = []
    for question, names, mentions in zip(questions, claims, linked, strict=True):
        pieces = {question.text[slice(*mention.span)] for mention in mentions}
        topics = tuple(sorted({entity for mention in mentions for entity in mention.entities}))
        relinked.append(replace(question, topics=topics, masked=mask_topics(question.text, pieces, claims=names)))
    return relinked


def _without(text: str, names: Iterable[str]) -> str:
    """Return the text with blanks where the names stand."""
    for name in names:
        for start, end in spans_of(text, name):
            text = text[:start] + " " * (end - start) + text[end:]
    return text
