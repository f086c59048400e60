"""Encodings of the texts that one exploration reads: questions, relations, and the inverses that a graph names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from kgqa_core.explorer.frontier import Int
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
        """Return the same with noise on the questions ``rows``, each of unit norm again.

        Args:
            rows: [n] rows of ``questions``, each once.
            amount: expected norm of the noise; the encodings' own is 1.
            seed: of the noise.
        """
        noise = torch.randn(len(rows), self.questions.shape[1], generator=torch.Generator().manual_seed(seed))
        at = torch.from_numpy(rows).to(self.questions.device)
        moved = self.questions.index_select(0, at) + (noise * (amount / noise.shape[1] ** 0.5)).to(self.questions)
        blurred = self.questions.index_copy(0, at, torch.nn.functional.normalize(moved, dim=1))
        result = replace(self, questions=blurred)
        result.__dict__["same_text"] = self.same_text  # of the relations alone, and dear to compute
        return result

    @cached_property
    def same_text(self) -> Tensor:
        """[2R+1] int64: for each relation, reverse and identity included, the first that says the same."""
        with torch.inference_mode(False):  # made while answering, it must still serve training
            return torch.from_numpy(first_equal(self)).to(self.relations.device)


def first_equal(texts: Texts) -> Int:
    """Return for each relation, [2R+1], the first whose vector is equal: same text, same direction.

    A reverse relation without a text of its own is named by its forward text; one with a text is a text like any other.
    """
    forward = [row.tobytes() for row in texts.relations.detach().cpu().numpy()]
    keys = [(False, name) for name in forward] + [(True, name) for name in forward]
    if texts.inverse_of is not None and texts.inverses is not None:
        own = texts.inverses.detach().cpu().numpy()
        for relation, row in zip(texts.inverse_of.tolist(), own, strict=True):
            keys[len(forward) + relation] = (False, row.tobytes())
    seen: dict[tuple[bool, bytes], int] = {}
    return np.array([*(seen.setdefault(key, at) for at, key in enumerate(keys)), len(keys)], dtype=np.int64)


def texts_of(asked: Sequence[str], graph: KnowledgeGraph, encode: EncodeTexts) -> Texts:
    """Encode questions, and a graph's relations and the inverses that it names as they are."""

    def tensor(texts: Sequence[str]) -> Tensor:
        return torch.tensor(encode(texts))  # a copy: an encoder's vectors may be read-only, as a cache's are

    inverse_of, names = given_inverses(graph.inverse_labels)
    questions, relations = tensor(asked), tensor(graph.relation_labels)
    return (
        Texts(questions, relations, torch.from_numpy(inverse_of), tensor(names))
        if names
        else Texts(questions, relations)
    )


def look_up(encodings: Mapping[str, np.ndarray]) -> EncodeTexts:
    """Return an encoder of texts whose vectors are known."""
    return lambda texts: np.stack([encodings[text] for text in texts])


def given_inverses(labels: Sequence[str | None]) -> tuple[np.ndarray, list[str]]:
    """Return the relations whose inverse the graph names ([I] int64), and those names."""
    named = [(relation, label) for relation, label in enumerate(labels) if label is not None]
    return np.array([relation for relation, _ in named], dtype=np.int64), [label for _, label in named]
