"""The hash encoder is deterministic; the cache computes a text once, survives kills, damage and a second writer."""

import errno
import os
import signal
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.errors import ArtifactError
from kgqa_core.schemas import ENCODINGS
from kgqa_core.text import encoder as encoder_module
from kgqa_core.text.encoder import EncodingCache, EncodingCacheWarning, HashEncoder, encode_cached
from kgqa_core.text.transformer import DIM, minilm_encoder
from tests.conftest import Start


class CountingEncoder:
    """A hash encoder that remembers what it was asked."""

    def __init__(self, name: str = "counting", dim: int = 11) -> None:
        self.name, self.dim, self.asked = name, dim, list[str]()

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        self.asked += texts
        return HashEncoder(self.dim).encode(texts)


def encode(folder: Path, texts: Sequence[str], name: str = "counting") -> list[str]:
    """Encode through the cache, check the vectors, and return what the encoder was asked."""
    encoder = CountingEncoder(name)
    vectors = encode_cached(texts, encoder=encoder, cache_dir=folder)
    np.testing.assert_array_equal(vectors, HashEncoder(11).encode(texts))
    assert vectors.dtype == np.float32
    return encoder.asked


# The hash encoder.


@given(st.lists(st.text(max_size=23), max_size=5))
def test_every_text_has_a_unit_row_of_its_own(texts: list[str]) -> None:
    vectors = HashEncoder(13).encode(texts)
    assert vectors.shape == (len(texts), 13)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-5)
    for text, vector in zip(texts, vectors, strict=True):
        np.testing.assert_array_equal(vector, HashEncoder(13).encode([text])[0])


def test_shared_words_bring_texts_together() -> None:
    one, near, far = HashEncoder(251).encode(["who sails the boat", "who sails that boat", "Zürich um 5"])
    assert one @ near > 0.5 > 0.2 > one @ far


def test_equal_in_another_process_with_another_hash_seed(start: Start) -> None:
    code = "from kgqa_core.text.encoder import HashEncoder; print(HashEncoder(31).encode(['who sails?']).tolist())"
    outputs = {start(code, env={"PYTHONHASHSEED": seed}).communicate(timeout=60)[0] for seed in ("1", "2")}
    assert outputs == {f"{HashEncoder(31).encode(['who sails?']).tolist()}\n"}


# The cache.


def test_only_texts_not_seen_before_are_encoded_and_rows_follow_the_texts(tmp_path: Path) -> None:
    assert encode(tmp_path, ["bb", "a", "bb", "", "ß"]) == ["", "a", "ß", "bb"]
    assert encode(tmp_path, ["ccc", "a", "dddd", "bb"]) == ["ccc", "dddd"]


def test_no_texts_give_no_rows_and_no_files(tmp_path: Path) -> None:
    assert encode_cached([], encoder=CountingEncoder(), cache_dir=tmp_path / "c").shape == (0, 11)
    assert not (tmp_path / "c").exists()


def test_encoders_do_not_share_a_folder(tmp_path: Path) -> None:
    """Names that differ only in characters that a folder cannot have must be kept apart too."""
    assert [encode(tmp_path, ["x"], name) for name in ("a/b", "a:b", "a_b")] == [["x"]] * 3


def test_progress_counts_the_missing_texts_in_order_of_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_module, "CHUNK_TEXTS", 2)
    monkeypatch.setattr(encoder_module, "PART_TEXTS", 5)
    encode(tmp_path, ["known"])
    seen: list[tuple[int, int]] = []
    encoder = CountingEncoder()
    texts = ["known", *("x" * length for length in (6, 2, 7, 1, 4, 5, 3))]
    encode_cached(texts, encoder=encoder, cache_dir=tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(2, 7), (4, 7), (5, 7), (7, 7)]
    assert [len(text) for text in encoder.asked] == [1, 2, 3, 4, 5, 6, 7]


def test_a_process_killed_in_the_middle_of_a_write_leaves_its_finished_parts(tmp_path: Path, start: Start) -> None:
    code = """
        import os, signal, sys
        from pathlib import Path
        from kgqa_core.text import encoder
        encoder.PART_TEXTS = 5
        real, calls = Path.write_bytes, []
        def write_bytes(path, content):
            calls.append(path)
            if len(calls) == 3:
                real(path, content[:99])
                os.kill(os.getpid(), signal.SIGKILL)
            real(path, content)
        Path.write_bytes = write_bytes
        texts = [f"{n:02d}" for n in range(23)]
        encoder.encode_cached(texts, encoder=encoder.HashEncoder(11), cache_dir=Path(sys.argv[1]))
    """
    process = start(code, tmp_path)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert len(list(tmp_path.rglob("*.partial"))) == 1
    texts = [f"{number:02d}" for number in range(23)]
    assert encode(tmp_path, texts, HashEncoder(11).name) == texts[10:]


@pytest.mark.slow
def test_two_processes_may_write_at_once(tmp_path: Path, start: Start) -> None:
    """Both write dozens of parts with overlapping texts, started together by a gate file."""
    code = """
        import sys, time
        from pathlib import Path
        from kgqa_core.text import encoder
        encoder.PART_TEXTS = 7
        folder, first = Path(sys.argv[1]), int(sys.argv[2])
        (folder / f"ready-{first}").touch()
        while not (folder / "go").exists():
            time.sleep(0.001)
        texts = [f"text {number}" for number in range(first, first + 200)]
        encoder.encode_cached(texts, encoder=encoder.HashEncoder(11), cache_dir=folder / "cache")
    """
    processes = [start(code, tmp_path, first) for first in (0, 100)]
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("ready-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    (tmp_path / "go").touch()
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert encode(tmp_path / "cache", [f"text {number}" for number in range(300)], HashEncoder(11).name) == []
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "another width"])
def test_a_damaged_part_is_reported_recomputed_and_healed(tmp_path: Path, damage: str) -> None:
    cache = EncodingCache(tmp_path, "counting")
    width = 7 if damage == "another width" else 11
    cache.write(["a", "bb"], HashEncoder(width).encode(["a", "bb"]))
    (part,) = cache.folder.iterdir()
    assert pq.read_schema(part).equals(ENCODINGS)
    content = part.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    part.write_bytes({"cut": content[:middle], "flip": flipped, "empty": b""}.get(damage, content))
    with pytest.warns(EncodingCacheWarning, match="is damaged and ignored"):
        assert encode(tmp_path, ["a", "bb"]) == ["a", "bb"]
    if width == 11:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert encode(tmp_path, ["a", "bb"]) == []


def test_duplicate_keys_are_harmless_and_only_old_unfinished_files_are_removed(tmp_path: Path) -> None:
    cache = EncodingCache(tmp_path, "counting")
    cache.folder.mkdir(parents=True)
    for name in (".old.partial", ".young.partial"):
        (cache.folder / name).write_text("half")
    os.utime(cache.folder / ".old.partial", (0, 0))
    for texts in (["a", "bb"], ["bb", "ccc"], ["bb", "ccc"]):
        cache.write(texts, HashEncoder(11).encode(texts))
    assert [path.name for path in cache.folder.glob(".*.partial")] == [".young.partial"]
    assert len(list(cache.folder.glob("part-*"))) == 2
    assert encode(tmp_path, ["ccc", "bb", "a"]) == []


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_cache_that_cannot_be_written_is_one_warning_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    """Who asked in a home that is read-only, or on a full disk, got an error in place of an answer, or no word."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(encoder_module, "PART_TEXTS", 1)
    vectors = encode_cached(["a", "bb"], encoder=HashEncoder(11), cache_dir=tmp_path)
    assert vectors.tolist() == HashEncoder(11).encode(["a", "bb"]).tolist()
    assert not list(tmp_path.iterdir())
    (said,) = caplog.messages
    assert f"{tmp_path}/hash-v1-d11" in said and os.strerror(code) in said


@pytest.mark.parametrize("vectors", [np.ones((1, 7), np.float32), np.full((1, 11), np.nan, np.float32)])
def test_a_broken_encoder_never_reaches_the_cache(tmp_path: Path, vectors: np.ndarray) -> None:
    encoder = CountingEncoder()
    encoder.encode = lambda texts: vectors  # type: ignore[method-assign]
    with pytest.raises(ArtifactError, match=r"counting gave .* expected finite numbers of shape \(1, 11\)"):
        encode_cached(["a"], encoder=encoder, cache_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_warm_cache_loads_neither_torch_nor_transformers(tmp_path: Path, start: Start) -> None:
    EncodingCache(tmp_path, minilm_encoder().name).write(["a", "bb"], np.ones((2, DIM)))
    code = """
        import sys
        from pathlib import Path
        from kgqa_core.text.encoder import encode_cached
        from kgqa_core.text.transformer import minilm_encoder
        print(encode_cached(["bb", "a"], encoder=minilm_encoder(), cache_dir=Path(sys.argv[1])).sum())
        assert not {"torch", "transformers"} & set(sys.modules)
    """
    output, errors = start(code, tmp_path).communicate(timeout=60)
    assert output == f"{2.0 * DIM}\n", errors
