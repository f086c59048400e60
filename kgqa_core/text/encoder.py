"""Text to vectors: what is asked of a text encoder, one that needs no model, and the cache that encodes no text twice.

The cache is content-addressed: Parquet parts in one folder per encoder. A part is written whole and called
``part-<SHA-256 of its bytes>.parquet``. It never changes after that, so readers need no lock, two processes may write
at once, and a damaged part is known by its name. The cache only saves cost: it never decides whether a stage runs, and
it may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import time
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core.artifacts import written_whole
from kgqa_core.errors import ArtifactError
from kgqa_core.schemas import ENCODINGS

VERSION = 1  # of HashEncoder
CHUNK_TEXTS = 64  # texts between two progress reports
RECENT_TEXTS = 4096  # encodings of questions that are kept in memory
PART_TEXTS = 1024  # texts per part: what a kill can lose at most
STALE_SECONDS = 24 * 3600  # an unfinished part older than this has no living writer
Progress = Callable[[int, int], None]  # (texts encoded so far, texts to encode)
_log = logging.getLogger(__name__)


class Encoder(Protocol):
    """Turns texts into vectors.

    Making an encoder and reading ``name`` and ``dim`` must import neither torch nor transformers: weights are loaded by
    the first call of ``encode``, so that a run whose texts are all cached never loads them. ``name`` stands for the
    *content* of the model (it includes the SHA-256 of the weights, the pooling and the version of our code): two
    encoders with one name give the same vectors, and the cache relies on it.
    """

    @property
    def name(self) -> str:
        """Return the identity of the encoder, weights included."""

    @property
    def dim(self) -> int:
        """Return the width D of the vectors."""

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return float32 [len(texts), D], row i for ``texts[i]``; deterministic; an empty list gives [0, D]."""


class HashEncoder:
    """Feature hashing with signs (words and character 3-grams), rows L2-normalised.

    It knows no meaning: paraphrases are near each other only as far as they share words or parts of words.
    """

    def __init__(self, dim: int = 256) -> None:
        """Make an encoder of width ``dim``, at least 1."""
        self.dim, self.name = dim, f"hash-v{VERSION}-d{dim}"

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return float32 [len(texts), D] with unit rows; the empty text has a row of its own too."""
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        for row, text in enumerate(texts):
            for feature in _extract_features(text):
                digest = int.from_bytes(hashlib.blake2b(feature.encode(), digest_size=8).digest(), "little")
                vectors[row, (digest >> 1) % self.dim] += 1.0 if digest & 1 else -1.0
            if not vectors[row].any():  # opposite signs can cancel everything in a narrow encoder
                vectors[row, 0] = 1.0
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors


def _extract_features(text: str) -> Iterator[str]:
    words = re.findall(r"\w+|[^\w\s]", unicodedata.normalize("NFKC", text).casefold())
    yield from (f"w:{word}" for word in words)
    padded = f" {' '.join(words)} "
    yield from (f"c:{padded[start : start + 3]}" for start in range(len(padded) - 2))


def hash_text(text: str) -> str:
    """Return the key of a text in the cache: the SHA-256 of its UTF-8 bytes, hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


class EncodingCacheWarning(UserWarning):
    """A part of the cache is damaged and its texts are encoded again."""


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
            for key, vector in _read_part(path, dim=dim):
                if key in wanted:
                    found.setdefault(wanted[key], vector)
        return found

    def write(self, texts: Sequence[str], vectors: np.ndarray) -> bool:
        """Add one immutable part with ``vectors`` [len(texts), D]; writing the same content twice is harmless.

        Says whether the folder could be written: where it could not (no space, somebody else's), that is a warning.
        """
        rows = pa.FixedSizeListArray.from_arrays(pa.array(vectors.astype(np.float32).reshape(-1)), vectors.shape[1])
        keys = [hash_text(text) for text in texts]
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.table([keys, list(texts), rows.cast(ENCODINGS.field("vector").type)], ENCODINGS), buffer)
        content = buffer.getvalue().to_pybytes()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for leftover in self.folder.glob(".*.partial"):  # of a killed writer; a living one may rename its own
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - leftover.stat().st_mtime > STALE_SECONDS:
                        leftover.unlink()
            with written_whole(self.folder / _name_part(content)) as partial:
                partial.write_bytes(content)
        except OSError as error:
            said = "texts are encoded anew each time, as their cache %s cannot be written: %s"
            _log.warning(said, self.folder, error.strerror)
            return False
        return True


def _read_part(path: Path, *, dim: int) -> list[tuple[str, np.ndarray]]:
    """Return key and vector [dim] of each row of a part; none, with a warning, when it is damaged."""
    try:
        content = path.read_bytes()
        if path.name != _name_part(content):
            raise ValueError("its content does not match the hash in its name")
        table = pq.read_table(pa.BufferReader(content), schema=ENCODINGS).combine_chunks()
        flat = np.asarray(table["vector"].combine_chunks().flatten(), dtype=np.float32)
        return list(zip(table["key"].to_pylist(), flat.reshape(table.num_rows, dim), strict=True))
    except (OSError, ValueError, pa.ArrowException) as error:
        warnings.warn(
            f"{path} is damaged and ignored ({error}); its texts are encoded again. Delete it if this warning stays",
            EncodingCacheWarning,
            stacklevel=2,
        )
        return []


def _name_part(content: bytes) -> str:
    return f"part-{hashlib.sha256(content).hexdigest()}.parquet"


def encode_cached(
    texts: Sequence[str], *, encoder: Encoder, cache_dir: Path, progress: Progress = lambda done, total: None
) -> np.ndarray:
    """Return the encodings float32 [len(texts), D] of ``texts``, computing only those that the cache does not hold.

    Missing texts are encoded in order of length and stored every ``PART_TEXTS``, so that a killed run loses little.
    Raises ArtifactError when the encoder's vectors have the wrong shape.
    """
    cache, writable = EncodingCache(cache_dir, encoder.name), True
    known = cache.read(texts, dim=encoder.dim)
    missing = sorted(set(texts).difference(known), key=lambda text: (len(text), text))
    for begin in range(0, len(missing), PART_TEXTS):
        part = missing[begin : begin + PART_TEXTS]
        chunks = []
        for start in range(0, len(part), CHUNK_TEXTS):
            chunk = part[start : start + CHUNK_TEXTS]
            vectors = encoder.encode(chunk)
            if vectors.shape != (len(chunk), encoder.dim) or not np.isfinite(vectors).all():
                raise ArtifactError(
                    f"the encoder {encoder.name} gave {vectors.shape} for {len(chunk)} texts, expected finite numbers "
                    f"of shape {(len(chunk), encoder.dim)}; check its folder and its weights"
                )
            chunks.append(vectors.astype(np.float32))
            progress(begin + start + len(chunk), len(missing))
        writable = writable and cache.write(part, np.concatenate(chunks))
        known.update(zip(part, np.concatenate(chunks), strict=True))
    return np.array([known[text] for text in texts], dtype=np.float32).reshape(len(texts), encoder.dim)


class RememberedEncodings:
    """Keeps vectors in memory: those of relations for good, those of questions for a while.

    ``encode`` makes what is missing. A server lets it leave the cache on disk alone, to which every new question would
    add a file.
    """

    def __init__(self, encode: Callable[[Sequence[str]], np.ndarray], relations: Iterable[str]) -> None:
        self._make = encode
        self._recent: dict[str, np.ndarray] = {}  # by the last time that they were asked for
        self._relations = self._encode({*relations})  # loads the encoder's weights: what is wrong with them shows here

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Return unit-norm encodings [n, encoding_dim]."""
        recent, asked = dict(self._recent), {text: None for text in texts if text not in self._relations}
        recent |= self._encode({*asked}.difference(recent))
        again = {text: recent.pop(text) for text in asked}
        kept = recent | again
        self._recent = dict(islice(kept.items(), max(len(kept) - RECENT_TEXTS, 0), None))
        found = [self._relations[text] if text in self._relations else again[text] for text in texts]
        return np.stack(found) if found else self._make([])

    def _encode(self, texts: set[str]) -> dict[str, np.ndarray]:
        ordered = sorted(texts, key=lambda text: (len(text), text))  # as the cache on disk does
        return dict(zip(ordered, self._make(ordered), strict=True)) if ordered else {}
