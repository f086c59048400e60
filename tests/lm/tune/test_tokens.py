"""Instruction data becomes tokens once: the prompt as the model is asked, the target as it answers, and its end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kgqa_core.errors import InputError
from kgqa_core.instructions.types import Example
from kgqa_core.lm.chat import encode_prompts
from kgqa_core.lm.local import load_tokenizer
from kgqa_core.lm.tune import tokens as module
from kgqa_core.lm.tune.tokens import read_tokens, tokens_key, write_tokens
from kgqa_core.lm.types import Prompt
from tests.lm.tune.conftest import make_examples, write_examples


def test_an_example_is_the_prompt_as_it_is_asked_then_the_target_and_the_end(qwen2: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(qwen2)
    example = Example("plan", "q1", "train", "Be short.", "who directed Heat", "Michael Mann", 1.0)
    write_tokens([write_examples(tmp_path / "one.parquet", [example])], tokenizer, tmp_path / "tokens", max_length=200)
    tokens = read_tokens(tmp_path / "tokens")
    asked = encode_prompts(tokenizer, [Prompt(example.prompt, example.system)])[0]
    assert tokens.tokens[: tokens.num_prompt[0]].tolist() == asked
    assert tokenizer.decode(tokens.tokens[tokens.num_prompt[0] :]) == "Michael Mann" + tokenizer.eos_token
    assert tokens.num_targets.tolist() == [len(tokens.tokens) - len(asked)]


def test_rows_stay_in_order_however_many_are_read_at_once(
    llama: Path, instructions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load_tokenizer(llama)
    write_tokens([instructions, instructions], tokenizer, tmp_path / "whole", max_length=200)
    monkeypatch.setattr(module, "ROWS", 7)
    write_tokens([instructions, instructions], tokenizer, tmp_path / "pieces", max_length=200)
    for file in sorted((tmp_path / "whole").iterdir()):
        assert file.read_bytes() == (tmp_path / "pieces" / file.name).read_bytes()
    tokens = read_tokens(tmp_path / "whole")
    assert isinstance(tokens.tokens, np.memmap)
    assert tokens.starts[-1] == len(tokens.tokens)
    expected = make_examples() * 2
    assert [tokens.names[kind] for kind in tokens.instruction] == [example.instruction for example in expected]
    assert tokens.dev.tolist() == [example.split == "dev" for example in expected]


def test_weights_are_one_in_the_mean_over_training(llama: Path, instructions: Path, tmp_path: Path) -> None:
    write_tokens([instructions], load_tokenizer(llama), tmp_path / "tokens", max_length=200)
    tokens = read_tokens(tmp_path / "tokens")
    given = np.array([example.weight for example in make_examples()])
    assert tokens.weights[~tokens.dev].mean() == pytest.approx(1)
    assert np.allclose(tokens.weights / tokens.weights[0], given / given[0])


def test_what_is_too_long_is_dropped_and_counted(llama: Path, instructions: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(llama)
    write_tokens([instructions], tokenizer, tmp_path / "all", max_length=1000)
    lengths, kinds = read_tokens(tmp_path / "all").lengths, read_tokens(tmp_path / "all").instruction
    limit = int(np.quantile(lengths, 0.8))
    write_tokens([instructions], tokenizer, tmp_path / "short", max_length=limit)
    short = read_tokens(tmp_path / "short")
    assert short.lengths.max() <= limit
    dropped = {name: int((lengths[kinds == kind] > limit).sum()) for kind, name in enumerate(short.names)}
    assert short.too_long == {name: count for name, count in dropped.items() if count}


def test_other_splits_are_not_learned_from(llama: Path, tmp_path: Path) -> None:
    test = Example("plan", "q", "test", "", "who", "Mann", 1.0)
    file = write_examples(tmp_path / "test.parquet", [test])
    with pytest.raises(InputError, match=r"no training example is in .*test\.parquet"):
        write_tokens([file], load_tokenizer(llama), tmp_path / "tokens", max_length=100)
    assert not (tmp_path / "tokens").exists()


def test_a_file_of_something_else_is_refused(llama: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"instruction": ["plan"]}), tmp_path / "odd.parquet")
    with pytest.raises(InputError, match="no column prompt, split, system, target, weight"):
        write_tokens([tmp_path / "odd.parquet"], load_tokenizer(llama), tmp_path / "tokens", max_length=100)
    with pytest.raises(InputError, match="cannot read the instruction data"):
        write_tokens([tmp_path / "none.parquet"], load_tokenizer(llama), tmp_path / "tokens", max_length=100)


def test_tokens_are_known_by_all_that_they_are_made_of(llama: Path, llama_chat: Path, instructions: Path) -> None:
    plain, chat = load_tokenizer(llama), load_tokenizer(llama_chat)
    keys = {tokens_key([instructions], plain, 9), tokens_key([instructions], chat, 9), tokens_key([], plain, 9)}
    assert len({*keys, tokens_key([instructions], plain, 10)}) == 4
    assert tokens_key([instructions], load_tokenizer(llama), 9) in keys
