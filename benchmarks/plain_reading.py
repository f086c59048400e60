"""The explorer as one would first write it down from the papers, for comparison only (EtD §3.2-3.4, B).

One row per (question, answer) pair, the question's text unmasked, d = 256, one message of d floats per edge, summed
with ``index_add``, a GRU between steps, Adam. All that a careful reader would do at no cost is done: edges come from a
sorted list, attention's dot products are taken once per node and once per (question, relation), W of Eq. 2 after the
sum, everything in batches of tensors.

Shapes: B rows of a batch, N nodes (row, entity), E edges, R relations, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.types import Question


@dataclass(frozen=True, slots=True)
class EdgeList:
    """Every triple in both directions, and every entity's identity edge, by ascending head."""

    start: Tensor  # [num_entities + 1] the edges of entity e are start[e]..start[e + 1]
    relation: Tensor  # 0..2R
    tail: Tensor
    num_entities: int

    @classmethod
    def of(cls, graph: KnowledgeGraph) -> EdgeList:
        """List the edges of a graph."""
        edge_ptr, group_ptr = torch.from_numpy(graph.edge_ptr.copy()), torch.from_numpy(graph.group_ptr.copy())
        group_relation = torch.from_numpy(graph.group_relation.astype("int64"))
        stay = torch.arange(graph.num_entities)
        head = torch.cat([stay.repeat_interleave(edge_ptr[group_ptr].diff()), stay])
        relation = torch.cat([group_relation.repeat_interleave(edge_ptr.diff()), torch.full_like(stay, graph.identity)])
        tail = torch.cat([torch.from_numpy(graph.edge_tail.astype("int64")), stay])
        order = torch.argsort(head, stable=True)
        counts = torch.bincount(head, minlength=graph.num_entities)
        start = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        return cls(start, relation[order], tail[order], graph.num_entities)


@dataclass(frozen=True, slots=True)
class Pairs:
    """A batch of B (question, answer) pairs."""

    text: Tensor  # [B, encoding_dim]
    topic_row: Tensor  # [T] the row of each topic
    topic: Tensor  # [T]
    answer: Tensor  # [B]


def make_pairs(pairs: Sequence[tuple[Question, int]], vectors: dict[str, Tensor]) -> Pairs:
    """Batch (question, answer) pairs; ``vectors`` has the encoding of every question's text."""
    return Pairs(
        text=torch.stack([vectors[question.text] for question, _ in pairs]),
        topic_row=torch.tensor([row for row, (question, _) in enumerate(pairs) for _ in question.topics]),
        topic=torch.tensor([topic for question, _ in pairs for topic in question.topics]),
        answer=torch.tensor([answer for _, answer in pairs]),
    )


class PlainExplorer(nn.Module):
    """Eq. 1 to 3 with the released code's GRU; the width of attention and of the MLP as in ours."""

    def __init__(self, encoding_dim: int, *, width: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.project = nn.Linear(encoding_dim, width, bias=False)  # W_L
        self.reverse = nn.Linear(width, width)
        self.identity = nn.Parameter(torch.randn(1, width))
        self.attend_head = nn.ModuleList(nn.Linear(width, 1, bias=False) for _ in range(steps))
        self.attend_relation = nn.ModuleList(nn.Linear(width, 1, bias=False) for _ in range(steps))
        self.attend_question = nn.ModuleList(nn.Linear(width, 1, bias=False) for _ in range(steps))
        self.attend_both = nn.ModuleList(nn.Linear(width, 1, bias=False) for _ in range(steps))
        self.propagate = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(steps))
        self.gate = nn.GRUCell(width, width)
        self.score = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(
        self, edges: EdgeList, batch: Pairs, relation_vectors: Tensor, edge_budget: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Explore one batch (Algorithm 1).

        Args:
            edges: the graph.
            batch: B pairs.
            relation_vectors: [R, encoding_dim].
            edge_budget: K, edges kept per head; identity edges are kept beside them.

        Returns:
            row [N], entity [N] and score [N] of the candidates.
        """
        h_q = self.project(batch.text)
        forward = self.project(relation_vectors)
        h_r = torch.cat([forward, self.reverse(forward), self.identity])
        row, entity, hidden = batch.topic_row, batch.topic, h_q[batch.topic_row]
        for step in range(self.steps):
            head, relation, tail = expand(edges, entity)
            by_pair = self.attend_both[step](h_q[:, None] * h_r[None])[..., 0] + self.attend_question[step](h_q)
            logits = (
                self.attend_head[step](hidden)[head, 0]
                + self.attend_relation[step](h_r)[relation, 0]
                + by_pair[row[head], relation]
            )
            kept = keep_strongest(logits.detach(), head, relation == len(h_r) - 1, edge_budget)
            head, relation, tail, logits = head[kept], relation[kept], tail[kept], logits[kept]
            key, target = torch.unique(row[head] * edges.num_entities + tail, return_inverse=True)
            message = torch.sigmoid(logits)[:, None] * hidden[head] * h_r[relation]  # [E, D]
            received = torch.zeros(len(key), hidden.shape[1]).index_add(0, target, message)
            before = torch.zeros_like(received)
            before[torch.searchsorted(key, row * edges.num_entities + entity)] = hidden
            hidden = self.gate(torch.relu(self.propagate[step](received)), before)
            row, entity = key // edges.num_entities, key % edges.num_entities
        return row, entity, self.score(torch.cat([hidden, h_q[row]], dim=1))[:, 0]


def expand(edges: EdgeList, entity: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return head (index of the node), relation and tail of every edge of the nodes, by ascending head."""
    count = edges.start[entity + 1] - edges.start[entity]
    head = torch.repeat_interleave(count)
    first = edges.start[entity] - (count.cumsum(0) - count)
    position = torch.arange(len(head)) + first[head]
    return head, edges.relation[position], edges.tail[position]


def keep_strongest(logits: Tensor, head: Tensor, is_identity: Tensor, edge_budget: int) -> Tensor:
    """Return the indices of the K edges of highest attention of every head, and of the identity edges, ascending."""
    crowded = torch.bincount(head)[head] - 1 > edge_budget  # less the identity edge
    candidates = torch.nonzero(crowded & ~is_identity)[:, 0]
    order = candidates[torch.argsort(logits[candidates], descending=True, stable=True)]
    order = order[torch.argsort(head[order], stable=True)]
    _, size = torch.unique_consecutive(head[order], return_counts=True)
    rank = torch.arange(len(order)) - torch.repeat_interleave(size.cumsum(0) - size, size)
    kept = ~crowded | is_identity
    kept[order[rank < edge_budget]] = True
    return torch.nonzero(kept)[:, 0]


def pair_loss(row: Tensor, entity: Tensor, score: Tensor, batch: Pairs, num_entities: int) -> Tensor:
    """Return Eq. 4, the mean over the pairs whose answer is among the candidates (zero where none is)."""
    table = torch.full((len(batch.answer), num_entities), -torch.inf)
    log_p = torch.log_softmax(table.index_put((row, entity), score), dim=1)
    found = log_p[torch.arange(len(batch.answer)), batch.answer]
    found = found[torch.isfinite(found)]
    return -found.sum() / max(len(found), 1)
