"""The explorer's weights and equations (EtD §3.2 and appendix B.1; DualR §3.2). What is walked where: explore.py.

Shapes: T distinct masked texts, C state classes, P messages, R relations, D width, L steps.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kgqa_core.explorer.texts import Texts


class Explorer(nn.Module):
    """Attend (Eq. 1), propagate (Eq. 2) and score (Eq. 3).

    No weight belongs to an entity or a relation, so a trained explorer carries to any graph whose texts come from
    the same encoder. Under autocast only the matrix products on states are in half precision: sums over a hub's
    thousands of messages, and attention, are not.

    Args:
        encoding_dim: width of the text encodings.
        width: D.
        steps: L.
    """

    def __init__(self, *, encoding_dim: int, width: int, steps: int) -> None:
        super().__init__()
        self.encoding_dim, self.width, self.steps = encoding_dim, width, steps
        self.project = nn.Linear(encoding_dim, width, bias=False)  # W_L, shared by questions and relations
        self.reverse = nn.Linear(width, width)  # W_-r, b_-r: a relation walked backwards
        self.identity = nn.Parameter(torch.randn(width))  # h_id
        self.attend_head = nn.Parameter(torch.randn(steps, width) / width)  # W_s of each step
        self.attend_relation = nn.Parameter(torch.randn(steps, width) / width)  # W_r
        self.attend_question = nn.Parameter(torch.randn(steps, width) / width)  # W_q
        self.attend_both = nn.Parameter(torch.randn(steps, width) / width)  # W_qr
        self.propagate = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(steps))  # W of Eq. 2
        self.score_node = nn.Linear(width, width, bias=False)  # Eq. 3's MLP on [h_e; h_q]: its first layer in two parts
        self.score_question = nn.Linear(width, width)
        self.score_out = nn.Linear(width, 1)

    def encode(self, texts: Texts, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return h_q [T, D] of some of the questions and h_r [2R+1, D]: forward, reverse, identity (B.1).

        What a relation means backwards is learned (W_-r), but where the graph names the inverse its text says it.
        """
        forward = self._project(texts.relations)
        reverse = self.reverse(forward).to(forward.dtype)
        if texts.inverses is not None and texts.inverse_of is not None:
            reverse = reverse.index_copy(0, texts.inverse_of, self._project(texts.inverses))
        relations = torch.cat([forward, reverse, self.identity[None]])
        return self._project(texts.questions.index_select(0, rows)), relations

    def _project(self, vectors: Tensor) -> Tensor:
        """Apply W_L; a unit vector's entries are about 1/sqrt(dim), so they are brought to unit variance first."""
        projected: Tensor = self.project(vectors * self.encoding_dim**0.5)
        return projected.to(self.identity.dtype)

    def attention_logits(self, step: int, hidden: Tensor, h_q: Tensor, h_r: Tensor) -> tuple[Tensor, Tensor]:
        """Return Eq. 1 before the sigmoid in its two parts, to be added per (class, relation).

        Args:
            step: 0..L-1.
            hidden: [C, D].
            h_q: [T, D].
            h_r: [2R+1, D].

        Returns:
            [C] the head's part, and [T, 2R+1] the part of question and relation.
        """
        with torch.autocast(h_q.device.type, enabled=False):  # attention orders groups: rounding would make ties
            by_question = (h_q @ self.attend_question[step])[:, None] + (h_q * self.attend_both[step]) @ h_r.T
            return hidden @ self.attend_head[step], by_question + (h_r @ self.attend_relation[step])[None]

    def update(self, step: int, received: Tensor) -> Tensor:
        """Return the new states [C, D] of Eq. 2 from the summed messages; W is applied after the sum: it is linear."""
        return torch.relu(self.propagate[step](received)).to(received.dtype)

    def score(self, hidden: Tensor, h_q: Tensor, class_text: Tensor) -> Tensor:
        """Return [C] the logits of Eq. 3.

        Args:
            hidden: [C, D] final states.
            h_q: [T, D].
            class_text: [C] row in ``h_q`` of each class's question.
        """
        inner = self.score_node(hidden) + self.score_question(h_q).index_select(0, class_text)  # see explore.py
        scores: Tensor = self.score_out(torch.relu(inner))[:, 0].to(hidden.dtype)
        return scores
