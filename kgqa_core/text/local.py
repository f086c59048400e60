"""Any local transformers folder as a text encoder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from kgqa_core.errors import InputError, nearest, shorten
from kgqa_core.text.transformer import (
    Backbone,
    Pool,
    encode_texts,
    hash_file,
    load_backbone,
    pool_first_last,
    pool_last,
)

VERSION = 1
Pooling = Literal["last", "first_last"]
POOLS: dict[str, Pool] = {"last": pool_last, "first_last": pool_first_last}
_CONTENT = (".safetensors", ".json", ".txt", ".model")  # the files that decide what a text's vector is
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")


class LocalEncoder:
    """A transformers folder with mean pooling.

    ``pooling="last"`` is the mean over tokens of the last layer; ``"first_last"`` is the mean over tokens of (first
    block's output + last layer) / 2, as DualR encodes. The folder is checked at once, the weights are loaded by the
    first ``encode``.
    """

    def __init__(
        self, folder: Path, *, pooling: Pooling = "last", max_tokens: int = 256, normalise: bool = True
    ) -> None:
        """Check the folder; ``normalise`` gives rows of unit length, else they are as the model made them.

        Raises InputError for a missing folder, an unknown pooling, pickled weights or an unreadable config.json.
        """
        if pooling not in POOLS:
            near = nearest(str(pooling), POOLS)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(f"pooling is {shorten(pooling)}; legal: {', '.join(POOLS)}{hint}")
        _check_weights(folder)
        self._folder = folder
        self._pooling = pooling
        self._max_tokens = max_tokens
        self._normalise = normalise
        self._dim = _read_width(folder)
        self._backbone: Backbone | None = None

    @cached_property
    def name(self) -> str:
        """Return the identity: pooling, and the SHA-256 over weights, configuration and tokenizer; not the folder."""
        unit = "unit" if self._normalise else "raw"
        content = _hash_content(self._folder)
        return f"local-{self._pooling}-{unit}-t{self._max_tokens}-v{VERSION}-{content}"

    @property
    def dim(self) -> int:
        """Return the width D of the vectors."""
        return self._dim

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return float32 [len(texts), D]. Raises InputError when transformers cannot load the folder."""
        if not texts:
            return np.zeros((0, self._dim), dtype=np.float32)
        if self._backbone is None:
            self._backbone = load_backbone(self._folder, max_tokens=self._max_tokens)
        return encode_texts(self._backbone, texts, pool=POOLS[self._pooling], normalise=self._normalise)


def _check_weights(folder: Path) -> None:
    """Raise InputError unless ``folder`` holds safetensors; pickled weights can run code and are never read."""
    if not folder.is_dir():
        raise InputError(f"the encoder folder {shorten(str(folder))} does not exist; give a local transformers folder")
    if any(folder.glob("*.safetensors")):
        return
    pickled = sorted(file.name for file in folder.iterdir() if file.suffix in _PICKLED)
    if not pickled:
        raise InputError(f"{folder} holds no *.safetensors; give a local transformers folder with its weights")
    raise InputError(
        f"{folder} holds pickled weights ({shorten(pickled[0])}), which can run code when read and are never loaded "
        "here. If you trust the file, convert it once yourself:\n"
        f"  python -c \"from transformers import AutoModel as M, AutoTokenizer as T; f = '{folder}'; "
        "M.from_pretrained(f).save_pretrained(f + '-safe'); T.from_pretrained(f).save_pretrained(f + '-safe')\"\n"
        f"and give {folder}-safe instead"
    )


def _read_width(folder: Path) -> int:
    """Return the hidden size that config.json states, without importing transformers."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read ({shorten(str(error))}); give a complete transformers folder"
        ) from error
    for key in ("hidden_size", "d_model", "n_embd", "dim"):  # transformers' own aliases of the width
        if isinstance(config, dict) and isinstance(config.get(key), int):
            return int(config[key])
    raise InputError(f"{path} states no hidden_size (nor d_model, n_embd, dim); this architecture is not supported")


def content_files(folder: Path) -> list[Path]:
    """Return the files in ``folder`` that shape an encoding: weights, configuration, tokenizer."""
    return sorted(file for file in folder.iterdir() if file.is_file() and file.suffix in _CONTENT)


def _hash_content(folder: Path) -> str:
    """Return the SHA-256 over names and contents of all files in ``folder`` that shape an encoding."""
    digest = hashlib.sha256()
    for file in content_files(folder):
        digest.update(f"{file.name}\0{hash_file(file)}\n".encode())
    return digest.hexdigest()
