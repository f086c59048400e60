"""What a local model is called: by the content of everything that decides its texts, wherever it lies."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

HashFile = Callable[[Path], str]
"""SHA-256 of a file, hexadecimal; ``FileHashes.hash`` remembers those of large files."""

_TOKENIZER = frozenset({
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "tekken.json",
})  # fmt: skip
_TEMPLATE = frozenset({"chat_template.jinja", "chat_template.json"})
_MODEL = frozenset({"config.json", "generation_config.json"})
_ADAPTER = frozenset({"adapter_config.json", "adapter_model.safetensors"})


def hash_model(folder: Path, hash_file: HashFile) -> str:
    """Return the hash of weights, configuration, tokenizer and chat template."""
    weights = {file.name for file in folder.glob("*.safetensors") if not file.name.startswith("adapter_")}
    return _hash(folder, weights | _MODEL | _TOKENIZER | _TEMPLATE, hash_file)


def hash_adapter(folder: Path, hash_file: HashFile) -> str:
    """Return the hash of an adapter, with the tokenizer that it may bring."""
    return _hash(folder, _ADAPTER | _TOKENIZER | _TEMPLATE, hash_file)


def _hash(folder: Path, names: set[str] | frozenset[str], hash_file: HashFile) -> str:
    digest = hashlib.sha256()
    for name in sorted(names):
        if (folder / name).is_file():
            digest.update(f"{name}\0{hash_file(folder / name)}\n".encode())
    return digest.hexdigest()
