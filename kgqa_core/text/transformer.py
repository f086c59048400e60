"""Loading a transformers folder and pooling its hidden states; the part that MiniLM and any local model share.

Shape letters here: B texts of one batch, T tokens, D width. torch and transformers are imported inside functions:
this module may be imported by a process that never encodes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kgqa_core.errors import InputError, shorten

if TYPE_CHECKING:
    from torch import Tensor

BATCH_SIZE = 32
_HASH_BLOCK = 1 << 20  # bytes

Pool = Callable[[Sequence["Tensor"], "Tensor"], "Tensor"]
"""(hidden states of all layers, each [B, T, D]; attention mask [B, T]) -> [B, D]. State 0 is the embeddings."""


@dataclass(frozen=True, slots=True)
class Backbone:
    """A loaded model with its tokenizer."""

    tokenizer: Any  # a transformers tokenizer, padding on the right
    model: Any  # a transformers model in eval mode, float32
    max_tokens: int  # longer texts are cut here


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file, hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def load_backbone(folder: Path, *, max_tokens: int) -> Backbone:
    """Load a transformers folder without network, from safetensors only and with no code of its own.

    Raises InputError when transformers cannot read the folder.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **options)
        model = transformers.AutoModel.from_pretrained(
            str(folder), use_safetensors=True, dtype=torch.float32, **options
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise InputError(
            f"{folder} is not a model folder that transformers can read: {shorten(str(error))}. It must hold "
            "config.json, a tokenizer and *.safetensors of an architecture that transformers has itself"
        ) from error
    if model.config.is_encoder_decoder:
        model = model.get_encoder()
    tokenizer.padding_side = "right"  # positions then start at 0 for every text
    if tokenizer.pad_token is None:  # decoder-only models often have none; the mask hides it anyway
        tokenizer.pad_token = tokenizer.eos_token
    return Backbone(tokenizer=tokenizer, model=model.eval(), max_tokens=max_tokens)


def mean_over_tokens(states: Tensor, mask: Tensor) -> Tensor:
    """Return the mean [B, D] of ``states`` [B, T, D] over the tokens that ``mask`` [B, T] marks with 1."""
    weights = mask.unsqueeze(-1).to(states.dtype)  # [B, T, 1]
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)


def pool_last(hidden: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Return the mean [B, D] over tokens of the last layer."""
    return mean_over_tokens(hidden[-1], mask)


def pool_first_last(hidden: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Return the mean [B, D] over tokens of (first block's output + last layer) / 2, as DualR encodes."""
    return mean_over_tokens((hidden[1] + hidden[-1]) / 2, mask)


def encode_texts(backbone: Backbone, texts: Sequence[str], *, pool: Pool, normalise: bool) -> np.ndarray:
    """Return float32 [len(texts), D] for one text or more; batches are sorted by length to spend little on padding."""
    import torch

    order = sorted(range(len(texts)), key=lambda row: (len(texts[row]), texts[row]))
    batches = []
    for start in range(0, len(order), BATCH_SIZE):
        rows = order[start : start + BATCH_SIZE]
        tokens = backbone.tokenizer(
            [texts[row] for row in rows],
            padding=True,
            truncation=True,
            max_length=backbone.max_tokens,
            return_tensors="pt",
        )
        with torch.inference_mode():
            hidden = backbone.model(**tokens, output_hidden_states=True).hidden_states
            pooled = pool(hidden, tokens["attention_mask"])  # [B, D]
            if normalise:
                pooled = torch.nn.functional.normalize(pooled, dim=1)
        batches.append(pooled.numpy())
    vectors = np.concatenate(batches)
    result = np.empty_like(vectors)
    result[order] = vectors
    return result
