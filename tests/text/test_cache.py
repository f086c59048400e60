"""The cache computes each text once, survives kills, damage and a second writer, and loads no model when warm."""

import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from kgqa_core.errors import ArtifactError
from kgqa_core.schemas import ENCODINGS
from kgqa_core.text import encoder as cache_module
from kgqa_core.text.encoder import EncodingCache, EncodingCacheWarning, HashEncoder, encode_cached


class CountingEncoder:
    """A hash encoder that remembers what it was asked."""

    def __init__(self, name: str = "counting", dim: int = 11) -> None:
        self.name = name
        self.dim = dim
        self.asked: list[str] = []

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        self.asked += texts
        return HashEncoder(self.dim).encode(texts)


def parts(folder: Path) -> list[Path]:
    return sorted(folder.rglob("part-*.parquet"))


def run_python(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start ``code`` in a real process that sees the same modules."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_rows_follow_the_texts_with_repetitions(tmp_path: Path) -> None:
    texts = ["a long one", "b", "a long one", "", "ß"]
    vectors = encode_cached(texts, encoder=CountingEncoder(), cache_dir=tmp_path)
    np.testing.assert_array_equal(vectors, HashEncoder(11).encode(texts))
    assert vectors.dtype == np.float32


def test_only_texts_not_seen_before_are_encoded(tmp_path: Path) -> None:
    first, second = CountingEncoder(), CountingEncoder()
    encode_cached(["bb", "a", "bb"], encoder=first, cache_dir=tmp_path)
    vectors = encode_cached(["ccc", "a", "dddd", "bb"], encoder=second, cache_dir=tmp_path)
    assert first.asked == ["a", "bb"]
    assert second.asked == ["ccc", "dddd"]
    np.testing.assert_array_equal(vectors, HashEncoder(11).encode(["ccc", "a", "dddd", "bb"]))


def test_no_texts_give_no_rows_and_no_files(tmp_path: Path) -> None:
    assert encode_cached([], encoder=CountingEncoder(), cache_dir=tmp_path / "c").shape == (0, 11)
    assert not (tmp_path / "c").exists()


def test_encoders_do_not_share_a_folder(tmp_path: Path) -> None:
    """Names that differ only in characters that a folder cannot have must be kept apart too."""
    encoders = [CountingEncoder("a/b"), CountingEncoder("a:b"), CountingEncoder("a_b")]
    for encoder in encoders:
        encode_cached(["x"], encoder=encoder, cache_dir=tmp_path)
    assert [encoder.asked for encoder in encoders] == [["x"]] * 3


def test_progress_counts_the_missing_texts_in_order_of_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "CHUNK_TEXTS", 2)
    monkeypatch.setattr(cache_module, "PART_TEXTS", 5)
    encode_cached(["known"], encoder=CountingEncoder(), cache_dir=tmp_path)
    seen: list[tuple[int, int]] = []
    encoder = CountingEncoder()
    texts = ["known", *("x" * length for length in (6, 2, 7, 1, 4, 5, 3))]
    encode_cached(texts, encoder=encoder, cache_dir=tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(2, 7), (4, 7), (5, 7), (7, 7)]
    assert [len(text) for text in encoder.asked] == [1, 2, 3, 4, 5, 6, 7]


def test_an_interrupted_run_keeps_its_finished_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "CHUNK_TEXTS", 3)
    monkeypatch.setattr(cache_module, "PART_TEXTS", 3)
    texts = [f"{number:02d}" for number in range(10)]

    def stop_after_six(done: int, total: int) -> None:
        if done > 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_cached(texts, encoder=CountingEncoder(), cache_dir=tmp_path, progress=stop_after_six)
    encoder = CountingEncoder()
    encode_cached(texts, encoder=encoder, cache_dir=tmp_path)
    assert encoder.asked == texts[6:]


def test_a_process_killed_in_the_middle_of_a_write_leaves_a_usable_cache(tmp_path: Path) -> None:
    code = """
        import os, signal, sys
        from pathlib import Path
        from kgqa_core.text import encoder as cache
        from kgqa_core.text.encoder import HashEncoder
        cache.PART_TEXTS = 5
        real, calls = Path.write_bytes, []
        def write_bytes(path, content):
            calls.append(path)
            if len(calls) == 3:
                real(path, content[:99])
                os.kill(os.getpid(), signal.SIGKILL)
            real(path, content)
        Path.write_bytes = write_bytes
        texts = [f"{n:02d}" for n in range(23)]
        cache.encode_cached(texts, encoder=HashEncoder(11), cache_dir=Path(sys.argv[1]))
    """
    process = run_python(code, tmp_path)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert len(list(tmp_path.rglob("*.partial"))) == 1
    encoder = CountingEncoder(name=HashEncoder(11).name)
    texts = [f"{number:02d}" for number in range(23)]
    vectors = encode_cached(texts, encoder=encoder, cache_dir=tmp_path)
    assert encoder.asked == texts[10:]
    np.testing.assert_array_equal(vectors, HashEncoder(11).encode(texts))


@pytest.mark.slow
def test_two_processes_may_write_at_once(tmp_path: Path) -> None:
    """Both write dozens of parts with overlapping texts, started together by a gate file."""
    code = """
        import sys, time
        from pathlib import Path
        import numpy as np
        from kgqa_core.text import encoder as cache
        from kgqa_core.text.encoder import HashEncoder
        cache.PART_TEXTS = 7
        folder, first = Path(sys.argv[1]), int(sys.argv[2])
        (folder / f"ready-{first}").touch()
        while not (folder / "go").exists():
            time.sleep(0.001)
        texts = [f"text {number}" for number in range(first, first + 200)]
        vectors = cache.encode_cached(texts, encoder=HashEncoder(11), cache_dir=folder / "cache")
        assert np.array_equal(vectors, HashEncoder(11).encode(texts))
    """
    processes = [run_python(code, tmp_path, first) for first in (0, 100)]
    try:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("ready-*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        (tmp_path / "go").touch()
        outputs = [process.communicate(timeout=60) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
    encoder = CountingEncoder(name=HashEncoder(11).name)
    texts = [f"text {number}" for number in range(300)]
    vectors = encode_cached(texts, encoder=encoder, cache_dir=tmp_path / "cache")
    assert encoder.asked == []
    np.testing.assert_array_equal(vectors, HashEncoder(11).encode(texts))
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_part_is_reported_recomputed_and_healed(tmp_path: Path, damage: str) -> None:
    encode_cached(["a", "bb"], encoder=CountingEncoder(), cache_dir=tmp_path)
    (part,) = parts(tmp_path)
    assert pq.read_schema(part).equals(ENCODINGS)
    content = part.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    part.write_bytes({"cut": content[:middle], "flip": flipped, "empty": b""}[damage])
    encoder = CountingEncoder()
    with pytest.warns(EncodingCacheWarning, match="does not match the hash"):
        vectors = encode_cached(["a", "bb"], encoder=encoder, cache_dir=tmp_path)
    assert encoder.asked == ["a", "bb"]
    np.testing.assert_array_equal(vectors, HashEncoder(11).encode(["a", "bb"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encode_cached(["a", "bb"], encoder=CountingEncoder(), cache_dir=tmp_path)


def test_a_part_of_another_width_is_damage(tmp_path: Path) -> None:
    EncodingCache(tmp_path, "counting").write(["a", "bb"], np.ones((2, 7)))
    with pytest.warns(EncodingCacheWarning):
        vectors = encode_cached(["a", "bb"], encoder=CountingEncoder(), cache_dir=tmp_path)
    assert vectors.shape == (2, 11)


def test_duplicate_keys_are_harmless(tmp_path: Path) -> None:
    cache = EncodingCache(tmp_path, "counting")
    cache.write(["a", "bb"], HashEncoder(11).encode(["a", "bb"]))
    cache.write(["bb", "ccc"], HashEncoder(11).encode(["bb", "ccc"]))
    cache.write(["bb", "ccc"], HashEncoder(11).encode(["bb", "ccc"]))
    assert len(parts(tmp_path)) == 2
    encoder = CountingEncoder()
    vectors = encode_cached(["ccc", "bb", "a"], encoder=encoder, cache_dir=tmp_path)
    assert encoder.asked == []
    np.testing.assert_array_equal(vectors, HashEncoder(11).encode(["ccc", "bb", "a"]))


def test_only_old_unfinished_files_are_removed(tmp_path: Path) -> None:
    cache = EncodingCache(tmp_path, "counting")
    cache.folder.mkdir(parents=True)
    for name in (".old.partial", ".young.partial"):
        (cache.folder / name).write_text("half")
    os.utime(cache.folder / ".old.partial", (0, 0))
    cache.write(["a"], np.ones((1, 3)))
    assert [path.name for path in cache.folder.glob(".*.partial")] == [".young.partial"]


def test_a_cache_that_cannot_be_written_is_an_artifact_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ArtifactError, match="cannot be written"):
        encode_cached(["a"], encoder=CountingEncoder(), cache_dir=tmp_path / "file")


@pytest.mark.parametrize("vectors", [np.ones((1, 7), np.float32), np.full((1, 11), np.nan, np.float32)])
def test_a_broken_encoder_never_reaches_the_cache(tmp_path: Path, vectors: np.ndarray) -> None:
    class Broken(CountingEncoder):
        def encode(self, texts: Sequence[str]) -> np.ndarray:
            return vectors

    with pytest.raises(ArtifactError, match=r"counting gave .* expected finite numbers of shape \(1, 11\)"):
        encode_cached(["a"], encoder=Broken(), cache_dir=tmp_path)
    assert not parts(tmp_path)


def test_a_warm_cache_loads_neither_torch_nor_transformers(tmp_path: Path) -> None:
    from kgqa_core.text.transformer import DIM, MiniLmEncoder

    EncodingCache(tmp_path, MiniLmEncoder().name).write(["a", "bb"], np.ones((2, DIM)))
    code = """
        import sys
        from pathlib import Path
        from kgqa_core.text.encoder import encode_cached
        from kgqa_core.text.transformer import LocalEncoder
        from kgqa_core.text.transformer import MiniLmEncoder
        print(encode_cached(["bb", "a"], encoder=MiniLmEncoder, cache_dir=Path(sys.argv[1])).sum())
        assert not {"torch", "transformers"} & set(sys.modules)
    """
    output, errors = run_python(code, tmp_path).communicate(timeout=60)
    assert output == f"{2.0 * DIM}\n", errors
