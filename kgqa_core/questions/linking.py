"""Topic entities from text: the exact name, else an error with the nearest names; and masking of mentions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kgqa_core.errors import LinkError, shorten
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.strings import key_of
from kgqa_core.questions.records import Span

TOPIC = "[topic]"
CLAIM = "[claim]"
NUM_NEAREST = 5
GOOD_MATCH = 80.0  # percent of characters in common
MAX_WORDS = 20  # of an unlinked question that are compared with the names


@dataclass(frozen=True, slots=True)
class Mention:
    """A name that stands in a text."""

    span: Span
    entities: tuple[int, ...]  # all that bear the name, ascending


def find_mention(text: str, graph: KnowledgeGraph) -> Mention | None:
    """Return the entity name that ``text`` mentions between word boundaries: the longest, of equals the first.

    Names that stand there letter for letter and hold a capital come first: a graph may well have entities called
    "film" or "director". Without one, case does not count, and all entities whose name differs in case alone are meant.
    """
    exact = [span for span in _name_spans(text, graph, folded=False) if any(map(str.isupper, text[slice(*span)]))]
    spans = exact or _name_spans(text, graph, folded=True)
    if not spans:
        return None
    span = max(spans, key=lambda span: (span[1] - span[0], -span[0]))
    name = text[slice(*span)]
    return Mention(span, graph.ids_of_name(name) if exact else graph.ids_of_folded_name(name))


def _name_spans(text: str, graph: KnowledgeGraph, *, folded: bool) -> list[Span]:
    """Return every span that is a name: from each start on, as long as some name begins that way."""
    index = graph.folded_index if folded else graph.name_index
    edges = [place for place in range(len(text) + 1) if _is_boundary(text, place)]
    spans = []
    for number, start in enumerate(edges):
        for end in edges[number + 1 :]:
            piece = key_of(text[start:end].casefold() if folded else text[start:end])
            row = index.first(piece)
            if not index.starts_with(row, piece):
                break
            if index.key(row) == piece:
                spans.append((start, end))
    return spans


def _is_boundary(text: str, place: int) -> bool:
    """Is ``place`` not inside a word?"""
    return not (0 < place < len(text) and text[place - 1].isalnum() and text[place].isalnum())


def link_topics(text: str, graph: KnowledgeGraph) -> tuple[int, ...]:
    """Return the entities whose name is the longest in ``text`` (see ``find_mention``): several where it is shared.

    Raises LinkError, naming the five nearest entity names, where the text holds none.
    """
    mention = find_mention(text, graph)
    if mention is None:
        near = nearest_names(text, graph)
        raise LinkError(
            f"no entity name stands in the question {shorten(text)}. "
            f"Nearest names in the graph: {_quoted(near)}. Name the topic yourself: --topic NAME, or "
            "the field topic",
            near,
        )
    return mention.entities


def ids_of(value: str, graph: KnowledgeGraph) -> tuple[int, ...]:
    """Return the entities that ``value`` means: the one with this label, else all with this name, else none."""
    entity_id = graph.ids_of_label(value)
    return graph.ids_of_name(value) if entity_id is None else (entity_id,)


def require_ids(value: str, graph: KnowledgeGraph) -> tuple[int, ...]:
    """Return ``ids_of(value)``; LinkError with the five nearest names where there is none."""
    found = ids_of(value, graph)
    if not found:
        near = nearest_names(value, graph)
        raise LinkError(
            f"{shorten(value)} is no entity of the graph, neither a label nor a name (upper and lower case count). "
            f"Nearest names: {_quoted(near)}.",
            near,
        )
    return found


def nearest_names(value: str, graph: KnowledgeGraph, count: int = NUM_NEAREST) -> list[str]:
    """Return the ``count`` entity names most like ``value`` or some words in it. Reads all names: for errors only."""
    from rapidfuzz import fuzz, process

    names = sorted(set(graph.entity_names))
    folded = [name.casefold() for name in names]
    words = value.casefold().split()[:MAX_WORDS]
    windows = {" ".join(words[i : i + size]) for size in (1, 2, 3, 4) for i in range(len(words) - size + 1)}
    best: dict[int, float] = {}
    for window in sorted({value.casefold(), *windows}):
        for _, score, row in process.extract(window, folded, scorer=fuzz.ratio, limit=count):
            best[row] = max(score, best.get(row, 0.0))
    # Of good matches the one with most characters in common: short common words match something anyway.
    order = sorted(best, key=lambda row: (best[row] < GOOD_MATCH, -best[row] * len(names[row]), row))
    return [names[row] for row in order[:count]]


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(shorten(name, 60) for name in names)


def spans_of(text: str, name: str) -> list[Span]:
    """Return where ``name`` stands in ``text`` between word boundaries: exact case, else any case."""
    for flags in (re.NOFLAG, re.IGNORECASE):
        found = [match.span() for match in re.finditer(re.escape(name), text, flags)]
        found = [span for span in found if _is_boundary(text, span[0]) and _is_boundary(text, span[1])]
        if found:
            return found
    return []


def mask_spans(text: str, spans: Sequence[tuple[Span, str]]) -> str:
    """Replace each span by its placeholder; of spans that overlap the longest counts."""
    taken: list[tuple[Span, str]] = []
    for span, placeholder in sorted(spans, key=lambda item: (item[0][0] - item[0][1], item[0])):
        if all(span[1] <= other[0] or other[1] <= span[0] for other, _ in taken):
            taken.append((span, placeholder))
    for (start, end), placeholder in sorted(taken, reverse=True):
        text = text[:start] + placeholder + text[end:]
    return text


def mask_topics(text: str, names: Iterable[str], *, claims: Iterable[str] = ()) -> str:
    """Return ``text`` with every mention of a topic's name replaced by ``[topic]`` and of a claim by ``[claim]``."""
    wanted = [(name, TOPIC) for name in names] + [(name, CLAIM) for name in claims]
    return mask_spans(text, [(span, placeholder) for name, placeholder in wanted for span in spans_of(text, name)])
