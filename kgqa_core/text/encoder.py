"""What the pipeline asks of a text encoder, and one that needs no model."""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core.artifacts import written_whole
from kgqa_core.errors import ArtifactError
from kgqa_core.schemas import ENCODINGS


class Encoder(Protocol):
    """Turns texts into vectors.

    Making an encoder and reading ``name`` and ``dim`` must be cheap and import neither torch nor transformers: weights
    are loaded by the first call of ``encode``, so that a run whose texts are all cached never loads them.
    ``name`` stands for the *content* of the model (it includes the SHA-256 of the weights, the pooling and the
    version of our code): two encoders with one name give the same vectors, and the cache relies on it.
    """

    @property
    def name(self) -> str:
        """Return the identity of the encoder, weights included."""
        ...

    @property
    def dim(self) -> int:
        """Return the width D of the vectors."""
        ...

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return float32 [len(texts), D], row i for ``texts[i]``; deterministic; an empty list gives [0, D]."""
        ...


# ------ A deterministic encoder without a model: hashed words and character trigrams.


VERSION = 1
_WORD = re.compile(r"\w+|[^\w\s]")


class HashEncoder:
    """Feature hashing with signs (words and character 3-grams), rows L2-normalised.

    It knows no meaning: paraphrases are near each other only as far as they share words or parts of words.
    """

    def __init__(self, dim: int = 256) -> None:
        """Make an encoder of width ``dim``, at least 1."""
        if dim < 1:
            raise ValueError(f"dim is {dim}; a hash encoder needs at least 1")
        self._dim = dim

    @property
    def name(self) -> str:
        """Return the identity: kind, version and width (there are no weights)."""
        return f"hash-v{VERSION}-d{self._dim}"

    @property
    def dim(self) -> int:
        """Return the width D of the vectors."""
        return self._dim

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return float32 [len(texts), D] with unit rows; the empty text has a row of its own too."""
        vectors = np.zeros((len(texts), self._dim), dtype=np.float32)
        for row, text in enumerate(texts):
            for feature in _extract_features(text):
                digest = int.from_bytes(hashlib.blake2b(feature.encode(), digest_size=8).digest(), "little")
                vectors[row, (digest >> 1) % self._dim] += 1.0 if digest & 1 else -1.0
            if not vectors[row].any():  # opposite signs can cancel everything in a narrow encoder
                vectors[row, 0] = 1.0
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors


def _extract_features(text: str) -> Iterator[str]:
    """Yield the words and character trigrams of ``text``, each kind with its own prefix."""
    words = _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
    padded = f" {' '.join(words)} "
    for word in words:
        yield f"w:{word}"
    for start in range(len(padded) - 2):
        yield f"c:{padded[start : start + 3]}"


# ------ The cache of encodings: content-addressed Parquet parts in one folder per encoder.


CHUNK_TEXTS = 64  # texts between two progress reports
PART_TEXTS = 1024  # texts per part: what a kill can lose at most
STALE_SECONDS = 24 * 3600  # an unfinished part older than this has no living writer
Progress = Callable[[int, int], None]
"""Called with (texts encoded so far, texts to encode)."""


class EncodingCacheWarning(UserWarning):
    """A part of the cache is damaged and its texts are encoded again."""


def hash_text(text: str) -> str:
    """Return the key of a text: the SHA-256 of its UTF-8 bytes, hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


class EncodingCache:
    """The encodings of one encoder at rest."""

    def __init__(self, folder: Path, encoder_name: str) -> None:
        """Use the subfolder of ``folder`` that belongs to ``encoder_name``; nothing is created before a write."""
        slug = re.sub(r"[^\w.-]+", "_", encoder_name, flags=re.ASCII)[:64]
        self.folder = folder / f"{slug}-{hash_text(encoder_name)[:16]}"  # the hash keeps apart what the slug merges

    def read(self, texts: Sequence[str], *, dim: int) -> dict[str, np.ndarray]:
        """Return text -> float32 [dim] for those of ``texts`` that the cache holds.

        A damaged part is skipped with an EncodingCacheWarning; what it held counts as missing.
        """
        wanted = {hash_text(text): text for text in texts}
        found: dict[str, np.ndarray] = {}
        for path in sorted(self.folder.glob("part-*.parquet")):
            if len(found) == len(wanted):
                break
            part = _read_part(path, dim=dim)
            if part is None:
                continue
            keys, vectors = part
            for row, key in enumerate(keys):
                text = wanted.get(key)
                if text is not None:
                    found.setdefault(text, vectors[row])
        return found

    def write(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        """Add one immutable part with ``vectors`` [len(texts), D]; writing the same content twice is harmless.

        Raises ArtifactError when the folder cannot be written (no space, no permission).
        """
        table = pa.table(
            [
                pa.array([hash_text(text) for text in texts], pa.string()),
                pa.array(list(texts), pa.string()),
                pa.ListArray.from_arrays(
                    pa.array(np.arange(len(texts) + 1) * vectors.shape[1], pa.int32()),
                    pa.array(vectors.astype(np.float32).reshape(-1)),
                ),
            ],
            schema=ENCODINGS,
        )
        buffer = pa.BufferOutputStream()
        pq.write_table(table, buffer)
        content = buffer.getvalue().to_pybytes()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()
            with written_whole(self.folder / _name_part(content)) as partial:
                partial.write_bytes(content)
        except OSError as error:
            raise ArtifactError(
                f"the cache of encodings in {self.folder} cannot be written: {error}; free some space or set another "
                "cache folder"
            ) from error

    def _remove_leftovers(self) -> None:
        """Remove unfinished parts of killed writers. A living one may rename its part meanwhile."""
        for leftover in self.folder.glob(".*.partial"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - leftover.stat().st_mtime > STALE_SECONDS:
                    leftover.unlink()


def encode_cached(
    texts: Sequence[str],
    *,
    encoder: Encoder | Callable[[], Encoder],
    cache_dir: Path,
    progress: Progress | None = None,
) -> np.ndarray:
    """Return the encodings float32 [len(texts), D] of ``texts``, computing only those that the cache does not hold.

    ``encoder`` may be a function without arguments that makes the encoder. Our encoders load torch and their weights
    in ``encode`` only, which is not called when everything is cached. Missing texts are encoded in order of length and
    stored every ``PART_TEXTS``, so that a killed run loses little. Raises ArtifactError when the cache cannot be
    written or the encoder's vectors have the wrong shape.
    """
    made = encoder() if callable(encoder) else encoder
    cache = EncodingCache(cache_dir, made.name)
    known = cache.read(texts, dim=made.dim)
    missing = sorted(set(texts).difference(known), key=lambda text: (len(text), text))
    for start in range(0, len(missing), PART_TEXTS):
        part = missing[start : start + PART_TEXTS]
        vectors = _encode_part(part, made, progress=progress, done=start, total=len(missing))
        cache.write(part, vectors)
        known.update(zip(part, vectors, strict=True))
    result = np.empty((len(texts), made.dim), dtype=np.float32)
    for row, text in enumerate(texts):
        result[row] = known[text]
    return result


def _encode_part(
    texts: Sequence[str], encoder: Encoder, *, progress: Progress | None, done: int, total: int
) -> np.ndarray:
    """Return float32 [len(texts), D], reporting progress after each chunk; ``done`` texts were encoded before."""
    chunks = []
    for start in range(0, len(texts), CHUNK_TEXTS):
        chunk = texts[start : start + CHUNK_TEXTS]
        vectors = encoder.encode(chunk)
        if vectors.shape != (len(chunk), encoder.dim) or not np.isfinite(vectors).all():
            raise ArtifactError(
                f"the encoder {encoder.name} gave {vectors.shape} for {len(chunk)} texts, expected finite numbers of "
                f"shape {(len(chunk), encoder.dim)}; check its folder and its weights"
            )
        chunks.append(vectors.astype(np.float32))
        if progress is not None:
            progress(done + start + len(chunk), total)
    return np.concatenate(chunks)


def _read_part(path: Path, *, dim: int) -> tuple[list[str], np.ndarray] | None:
    """Return keys and vectors [rows, dim] of one part, or None with a warning when it is damaged."""
    try:
        content = path.read_bytes()
        if path.name != _name_part(content):
            raise ValueError("its content does not match the hash in its name")
        table = pq.read_table(pa.BufferReader(content), schema=ENCODINGS).combine_chunks()
        keys: list[str] = table.column("key").to_pylist()
        flat = table.column("vector").combine_chunks().flatten()
        return keys, np.asarray(flat, dtype=np.float32).reshape(len(keys), dim)
    except (OSError, ValueError, pa.ArrowException) as error:
        warnings.warn(
            f"{path} is damaged and ignored ({error}); its texts are encoded again. Delete it if this warning stays",
            EncodingCacheWarning,
            stacklevel=2,
        )
        return None


def _name_part(content: bytes) -> str:
    """Return the name that a part with this content has."""
    return f"part-{hashlib.sha256(content).hexdigest()}.parquet"
