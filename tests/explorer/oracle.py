"""The explorer once more, as slowly and plainly as the papers write it: what the fast one is held against.

One question at a time, dictionaries of entities, one float vector per edge, no CSR, no sharing, nothing of the
library but the weights. Kept deliberately naive; do not speed it up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kgqa_core.explorer.model import Explorer

Triple = tuple[int, int, int]
Edge = tuple[int, int, int]  # head, relation (0..2R), tail, in walking direction


@dataclass(frozen=True)
class Walk:
    """What one question found."""

    scores: dict[int, Tensor]  # entity -> logit of Eq. 3
    steps: list[dict[Edge, float]]  # per step: edge walked -> its attention before the sigmoid


def neighbours_of(triples: Iterable[Triple], num_relations: int) -> dict[int, dict[int, set[int]]]:
    """Entity -> relation (0..2R-1) -> entities reached."""
    found: dict[int, dict[int, set[int]]] = {}
    for head, relation, tail in triples:
        found.setdefault(head, {}).setdefault(relation, set()).add(tail)
        found.setdefault(tail, {}).setdefault(relation + num_relations, set()).add(head)
    return found


def explore_one(
    model: Explorer,
    triples: Iterable[Triple],
    *,
    topics: Iterable[int],
    question_vector: Tensor,
    relation_vectors: Tensor,
    edge_budget: int,
    reenter_topic: bool,
    attention_threshold: float = 0.0,
) -> Walk:
    """Algorithm 1 of EtD for one question."""
    topics, num_relations = set(topics), len(relation_vectors)
    neighbours = neighbours_of(triples, num_relations)
    h_q = encode_text(model, question_vector)
    h_r = {relation: encode_relation(model, relation, relation_vectors) for relation in range(2 * num_relations + 1)}
    states: dict[int, Tensor] = {topic: h_q for topic in topics}
    steps: list[dict[Edge, float]] = []
    for step in range(model.steps):
        received: dict[int, Tensor] = {}
        walked: dict[Edge, float] = {}
        for head, h_s in states.items():
            attention = {relation: attend(model, step, h_s, h_r[relation], h_q) for relation in h_r}
            edges = [(head, 2 * num_relations, head)]  # identity: outside the budget
            taken = 0
            for relation in sorted(neighbours.get(head, {}), key=lambda r: (-attention[r].item(), r)):
                if taken >= edge_budget or torch.sigmoid(attention[relation]).item() < attention_threshold:
                    break
                tails = neighbours[head][relation]
                taken += len(tails)
                edges += [(head, relation, tail) for tail in tails if reenter_topic or tail not in topics]
            for edge in edges:
                _, relation, tail = edge
                walked[edge] = attention[relation].item()
                message = torch.sigmoid(attention[relation]) * (model.propagate[step].weight @ (h_s * h_r[relation]))
                received[tail] = received[tail] + message if tail in received else message
        states = {entity: torch.relu(total) for entity, total in received.items()}  # Eq. 2
        steps.append(walked)
    return Walk({entity: score(model, state, h_q) for entity, state in states.items()}, steps)


def encode_text(model: Explorer, vector: Tensor) -> Tensor:
    """W_L of a unit-norm encoding brought to unit variance."""
    return model.project.weight @ (vector * len(vector) ** 0.5)


def encode_relation(model: Explorer, relation: int, relation_vectors: Tensor) -> Tensor:
    """h_r, h_-r = W_-r h_r + b_-r, or h_id (EtD B.1)."""
    num_relations = len(relation_vectors)
    if relation == 2 * num_relations:
        return model.identity
    h_r = encode_text(model, relation_vectors[relation % num_relations])
    return h_r if relation < num_relations else model.reverse.weight @ h_r + model.reverse.bias


def attend(model: Explorer, step: int, h_s: Tensor, h_r: Tensor, h_q: Tensor) -> Tensor:
    """Eq. 1 before the sigmoid."""
    return (
        model.attend_head[step] @ h_s
        + model.attend_relation[step] @ h_r
        + model.attend_question[step] @ h_q
        + model.attend_both[step] @ (h_r * h_q)
    )


def score(model: Explorer, h_e: Tensor, h_q: Tensor) -> Tensor:
    """The MLP of Eq. 3 on [h_e; h_q]."""
    first = torch.cat([model.score_node.weight, model.score_question.weight], dim=1)
    inner = torch.relu(first @ torch.cat([h_e, h_q]) + model.score_question.bias)
    return (model.score_out.weight @ inner + model.score_out.bias)[0]


def loss_of(walks: Iterable[Walk], golds: Iterable[Iterable[int]]) -> Tensor:
    """The mean over questions that reached a gold of the mean over its reached golds of -log p (Eq. 3 and 4)."""
    losses = []
    for walk, wanted in zip(walks, golds, strict=True):
        entities = list(walk.scores)
        log_p = torch.log_softmax(torch.stack([walk.scores[entity] for entity in entities]), dim=0)
        reached = [log_p[entities.index(gold)] for gold in sorted(set(wanted) & set(entities))]
        if reached:
            losses.append(-torch.stack(reached).mean())
    return torch.stack(losses).mean() if losses else torch.zeros(())


def backtrack_one(walk: Walk, candidate: int, identity: int) -> list[Edge]:
    """Algorithm 2 of EtD: the edges from a topic to ``candidate``, identity edges left out."""
    path: list[Edge] = []
    for walked in reversed(walk.steps):
        into: Mapping[Edge, float] = {edge: weight for edge, weight in walked.items() if edge[2] == candidate}
        best = min(into, key=lambda edge: (-round(into[edge], 9), edge[0], edge[1]))
        if best[1] != identity:
            path.append(best)
        candidate = best[0]
    return path[::-1]
