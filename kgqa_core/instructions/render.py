"""Parts that several prompts share: paths, triples and lists as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.label_paths import write_step
from kgqa_core.graph.subgraphs import Subgraphs
from kgqa_core.instructions.escapes import escape
from kgqa_core.instructions.prompts import Prompts
from kgqa_core.lm.types import Constraint, Prompt
from kgqa_core.types import ReasoningPath, Step

ARROW = " → "
NOTHING = "(none)"  # stands where a list is empty


@dataclass(frozen=True, slots=True)
class ScoredPath:
    """A reasoning path as a prompt shows it."""

    text: str  # see ``render_reasoning_path``
    score: float = 1.0  # its weight: EPERM's path score, else its plan's probability; the lowest is dropped first


class Names(Protocol):
    """What entities and relations are called; a KnowledgeGraph knows it of its own."""

    @property
    def relation_labels(self) -> list[str]:
        """Return the labels of the forward relations."""
        ...

    def name_of(self, entity_id: int) -> str:
        """Return an entity's name."""
        ...

    def relation_text(self, relation: int) -> str:
        """Return words for a relation id."""
        ...


@dataclass(frozen=True, slots=True)
class RowNames:
    """Names in a graph of rows, which has none itself: each row is called as its entity."""

    graph: KnowledgeGraph  # that the subgraphs were cut from
    subgraphs: Subgraphs

    @property
    def relation_labels(self) -> list[str]:
        """Return the labels of the forward relations."""
        return self.subgraphs.graph.relation_labels

    def name_of(self, entity_id: int) -> str:
        """Return the name of a row's entity."""
        return self.graph.name_of(int(self.subgraphs.entity[entity_id]))

    def relation_text(self, relation: int) -> str:
        """Return words for a relation id."""
        return self.subgraphs.graph.relation_text(relation)


def fill_prompt(
    prompts: Prompts,
    name: str,
    values: Mapping[str, str],
    *,
    question_id: str,
    instruction: str = "",
    constraint: Constraint | None = None,
) -> Prompt:
    """Return the prompt ``name``, filled in, for the accounts of ``instruction`` (``name``, unless told)."""
    text, system = prompts.fill(name, values)
    return Prompt(text, system, constraint, question_id, instruction or name)


def render_lines(items: Iterable[str]) -> str:
    """Return one item per line, or a word for none."""
    return "\n".join(items) or NOTHING


def render_paths(paths: Sequence[ScoredPath], *, scored: bool = False) -> str:
    """Return one path per line, with its score behind it where ``scored`` (EPERM A.4)."""
    return render_lines(f"{path.text} (score {path.score:.2f})" if scored else path.text for path in paths)


def render_reasoning_path(names: Names, path: ReasoningPath, *, signed: bool = True) -> str:
    """Return a path in walking order: ``Dad → written_by → William Wharton → ^written_by → Birdy``.

    ``signed=False`` leaves out "^" before relations walked backward, as published checkpoints were trained.
    """
    parts: list[str] = []
    for step in path:
        start, end = (step.tail, step.head) if step.reverse else (step.head, step.tail)
        label = names.relation_labels[step.relation]
        relation = write_step(label, step.reverse) if signed else label
        parts += [escape(relation), escape(names.name_of(end))]
        if len(parts) == 2:
            parts.insert(0, escape(names.name_of(start)))
    return ARROW.join(parts)


def render_triples(names: Names, path: ReasoningPath) -> str:
    """Return a path as its stored triples, in walking order (EtD's evidence chains)."""
    return ", ".join(
        f"({escape(names.name_of(step.head))}, {escape(names.relation_labels[step.relation])}, "
        f"{escape(names.name_of(step.tail))})"
        for step in path
    )


def neighbour_triples(graph: KnowledgeGraph, names: Names, entity: int, *, limit: int) -> tuple[str, ...]:
    """Return up to ``limit`` triples around an entity, one of each relation and direction before a second of any."""
    first, last = int(graph.group_ptr[entity]), int(graph.group_ptr[entity + 1])
    groups = [
        (int(graph.group_relation[group]), graph.edge_tail[graph.edge_ptr[group] : graph.edge_ptr[group + 1]][:limit])
        for group in range(first, min(last, first + limit))
    ]
    found: list[str] = []
    for turn in range(limit):
        for relation, tails in groups:
            if turn < len(tails) and len(found) < limit:
                reverse = relation >= graph.num_relations
                other = int(tails[turn])
                head, tail = (other, entity) if reverse else (entity, other)
                step = Step(head, relation % graph.num_relations, tail, reverse=reverse)
                found.append(render_triples(names, (step,)))
    return tuple(found)
