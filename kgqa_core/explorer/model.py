"""The explorer's weights and equations (EtD §3.2 and appendix B.1; DualR §3.2), and the texts that it reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from kgqa_core.artifacts import write_tensors
from kgqa_core.errors import ArtifactError, shorten
from kgqa_core.explorer.batch import Int
from kgqa_core.graph.kg import KnowledgeGraph

EncodeTexts = Callable[[Sequence[str]], np.ndarray]
"""Texts in, unit-norm float32 [n, encoding_dim] out."""


@dataclass(frozen=True)
class Texts:
    """Unit-norm text encodings on one device."""

    questions: Tensor  # [T, encoding_dim], one row per distinct text
    relations: Tensor  # [R, encoding_dim] of the forward relations
    inverse_of: Tensor | None = None  # [I] int64, ascending: relations whose inverse has a text of its own in the graph
    inverses: Tensor | None = None  # [I, encoding_dim] of those texts

    def to(self, device: torch.device | str) -> Texts:
        """Return the same on another device."""
        moved = [tensor if tensor is None else tensor.to(device) for tensor in (self.inverse_of, self.inverses)]
        return Texts(self.questions.to(device), self.relations.to(device), *moved)

    def blurred(self, rows: Int, amount: float, seed: int) -> Texts:
        """Return the same with noise of norm ``amount`` (expected) on the questions ``rows``, of unit norm again."""
        noise = torch.randn(len(rows), self.questions.shape[1], generator=torch.Generator().manual_seed(seed))
        at = torch.from_numpy(rows).to(self.questions.device)
        moved = self.questions.index_select(0, at) + (noise * (amount / noise.shape[1] ** 0.5)).to(self.questions)
        blurred = self.questions.index_copy(0, at, torch.nn.functional.normalize(moved, dim=1))
        result = replace(self, questions=blurred)
        result.__dict__["same_text"] = self.same_text  # of the relations alone, and dear to compute
        return result

    @cached_property
    def same_text(self) -> Tensor:
        """[2R+1] int64: for each relation, reverse and identity included, the first that says the same.

        A reverse relation without a text of its own is named by its forward text; one with a text is like any other.
        """
        forward = [row.tobytes() for row in self.relations.detach().cpu().numpy()]
        keys = [(False, name) for name in forward] + [(True, name) for name in forward]
        if self.inverse_of is not None and self.inverses is not None:
            own = self.inverses.detach().cpu().numpy()
            for relation, row in zip(self.inverse_of.tolist(), own, strict=True):
                keys[len(forward) + relation] = (False, row.tobytes())
        seen: dict[tuple[bool, bytes], int] = {}
        first = [*(seen.setdefault(key, at) for at, key in enumerate(keys)), len(keys)]
        with torch.inference_mode(False):  # made while answering, it must still serve training
            return torch.tensor(first, dtype=torch.int64, device=self.relations.device)


def texts_of(asked: Sequence[str], graph: KnowledgeGraph, encode: EncodeTexts) -> Texts:
    """Encode questions, and a graph's relations and the inverses that it names as they are."""

    def tensor(texts: Sequence[str]) -> Tensor:
        return torch.tensor(encode(texts))  # a copy: an encoder's vectors may be read-only, as a cache's are

    questions, relations = tensor(asked), tensor(graph.relation_names)
    named = {relation: label for relation, label in enumerate(graph.inverse_labels) if label is not None}
    if not named:
        return Texts(questions, relations)
    return Texts(questions, relations, torch.tensor(list(named), dtype=torch.int64), tensor(list(named.values())))


def look_up(encodings: Mapping[str, np.ndarray]) -> EncodeTexts:
    """Return an encoder of texts whose vectors are known."""
    return lambda texts: np.stack([encodings[text] for text in texts])


class Explorer(nn.Module):
    """Attend (Eq. 1), propagate (Eq. 2) and score (Eq. 3).

    No weight belongs to an entity or a relation, so a trained explorer carries to any graph whose texts come from
    the same encoder. Under autocast only the matrix products on states are in half precision: sums over a hub's
    thousands of messages, and attention, are not.
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
        """Return Eq. 1 before the sigmoid in two parts: [C] the head's, [T, 2R+1] that of question and relation."""
        with torch.autocast(h_q.device.type, enabled=False):  # attention orders groups: rounding would make ties
            by_question = (h_q @ self.attend_question[step])[:, None] + (h_q * self.attend_both[step]) @ h_r.T
            return hidden @ self.attend_head[step], by_question + (h_r @ self.attend_relation[step])[None]

    def update(self, step: int, received: Tensor) -> Tensor:
        """Return the new states [C, D] of Eq. 2 from the summed messages; W is applied after the sum: it is linear."""
        return torch.relu(self.propagate[step](received)).to(received.dtype)

    def score(self, hidden: Tensor, h_q: Tensor, class_text: Tensor) -> Tensor:
        """Return [C] the logits of Eq. 3 of final states; ``class_text`` [C]: each class's row in ``h_q``."""
        inner = self.score_node(hidden) + self.score_question(h_q).index_select(0, class_text)  # see explore.py
        scores: Tensor = self.score_out(torch.relu(inner))[:, 0].to(hidden.dtype)
        return scores


# ------ A trained explorer at rest: ``model.safetensors`` and ``model.json``.

WEIGHTS, CARD = "model.safetensors", "model.json"
PER_STEP = ("attend_head", "attend_relation", "attend_question", "attend_both")  # [L, D], a row per step
Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True)
class Card:
    """What must be known to use the weights."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}

    encoder: str  # name of the text encoder, weights hash included
    encoding_dim: Count
    width: Count  # D
    steps: Count  # L
    edge_budget: Count  # K
    reenter_topic: bool
    answer_threshold: float  # a candidate is an answer from this share of the best probability on; chosen on dev
    attention_threshold: float = 0.0  # groups of less attention are not entered; chosen on dev
    mask_topics: bool = True  # does it read questions with their topics masked?


def save_explorer(folder: Path, model: Explorer, card: Card) -> None:
    """Write both files into ``folder``."""
    write_tensors(folder / WEIGHTS, model.state_dict())
    (folder / CARD).write_text(json.dumps(asdict(card), indent=1, sort_keys=True) + "\n", encoding="utf-8")


def load_explorer(folder: Path, *, encoder: str) -> tuple[Explorer, Card]:
    """Read an explorer for texts of ``encoder``; ``ArtifactError`` for a damaged one, or one of another encoder."""
    model, card = _read(folder)
    if card.encoder != encoder:
        raise ArtifactError(
            f"the explorer in {folder} was trained on texts encoded by {card.encoder!r}, not {encoder!r}: "
            "use that encoder, or train again"
        )
    return model, card


def start_from(model: Explorer, folder: Path, *, encoder: str, attention: float = 1.0) -> list[str]:
    """Give a fresh model the weights of a trained one, of whatever graph: no weight belongs to an entity or relation.

    Steps that both have are shared; steps that only ``model`` has keep their fresh weights, whose names are returned.
    ``attention`` is a factor on the attention weights. Trained attention is near 0 or 1, where the sigmoid has no
    gradient: what it wrongly leaves out of another graph it would never learn to enter. Scaled down it keeps its order.

    Raises ``ArtifactError`` for a missing or damaged file, and for an explorer of another encoder or width.
    """
    trained, card = _read(folder)
    for name, ours in (("encoder", encoder), ("encoding_dim", model.encoding_dim), ("width", model.width)):
        if (theirs := getattr(card, name)) != ours:
            raise ArtifactError(
                f"explorer.init_from: the explorer in {folder} has {name} {theirs!r}, this one {ours!r}; "
                "start from one that agrees, or from none"
            )
    own, weights = model.state_dict(), trained.state_dict()
    fresh = []
    for name, weight in own.items():
        given = weights.get(name)
        if given is None:  # a matrix of a step that it has not
            fresh.append(name)
        elif name in PER_STEP:
            shared = min(len(given), len(weight))
            own[name] = torch.cat([attention * given[:shared], weight[shared:]])
            fresh += [f"{name}[{step}]" for step in range(shared, len(weight))]
        else:
            own[name] = given
    model.load_state_dict(own)
    return fresh


def _read(folder: Path) -> tuple[Explorer, Card]:
    try:
        card, weights = TypeAdapter(Card).validate_json((folder / CARD).read_bytes()), load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as problem:
        what = shorten(str(problem))
        if isinstance(problem, ValidationError):
            fault = problem.errors(include_url=False)[0]
            what = f"{'.'.join([CARD, *map(str, fault['loc'])])}: {fault['msg']}, given {shorten(fault['input'], 60)}"
        raise ArtifactError(f"{folder} holds no readable explorer: {what}; train it again") from None
    try:
        model = Explorer(encoding_dim=card.encoding_dim, width=card.width, steps=card.steps)
        model.load_state_dict(weights)
    except RuntimeError as problem:
        what = shorten(str(problem))
        raise ArtifactError(f"{folder / WEIGHTS} does not fit {CARD}: {what}; train it again") from None
    return model, card
