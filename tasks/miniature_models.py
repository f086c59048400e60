"""The miniature's language models: random weights, the architectures and kinds of tokenizer of the papers' models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgqa_core.config_base import CONF

LLAMA_2 = (
    "{% for turn in messages %}{% if turn['role'] == 'system' %}{{ raise_exception('No system turn') }}{% endif %}"
    "{{ bos_token }}[INST] {{ turn['content'] | trim }} [/INST]{% endfor %}"
)
LLAMA_3 = (
    "{% for turn in messages %}<|start_header_id|>{{ turn['role'] }}<|end_header_id|>\n\n"
    "{{ turn['content'] }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
GLM_4 = (
    "[gMASK]<sop>{% for turn in messages %}<|{{ turn['role'] }}|>\n{{ turn['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Kind:
    """What a model's folder is like."""

    architecture: str  # transformers' model_type
    special: tuple[str, ...] = ()  # tokens, begin and end of a text first; none: a tokenizer like Llama-2's
    template: str | None = None
    encodes: bool = False  # reads texts and generates none


MODELS = {
    "Llama-2-7b-chat-hf": Kind("llama", template=LLAMA_2),
    "Llama-2-13b-chat-hf": Kind("llama", template=LLAMA_2),
    "alpaca-7b": Kind("llama"),
    "Meta-Llama-3-8B-Instruct": Kind(
        "llama", ("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"), LLAMA_3
    ),
    "glm-4-9b-chat-hf": Kind(
        "glm", ("[gMASK]", "<|endoftext|>", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"), GLM_4
    ),
    "roberta-large": Kind("roberta", ("<s>", "</s>", "<pad>"), encodes=True),
}
ADAPTERS = {"rog-webqsp-adapter": "Llama-2-7b-chat-hf"}  # of which model each is
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
         "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 4096}  # fmt: skip
VOCABULARY = 1200  # tokens


def write_models(folder: Path, texts: Sequence[str]) -> None:
    """Write all models, with tokenizers that learned from ``texts`` and our prompts."""
    corpus = [*texts, *(path.read_text(encoding="utf-8") for path in sorted((CONF / "prompts").glob("*.txt")))]
    for name, kind in MODELS.items():
        write_model(folder / name, kind, corpus)
    for name, base in ADAPTERS.items():
        _write_adapter(folder / base, folder / name)


def write_model(folder: Path, kind: Kind, corpus: Sequence[str]) -> None:
    """Write a transformers folder with random weights."""
    import torch
    import transformers

    if kind.special:
        begin, end, *_ = kind.special
        tokenizer = byte_level(list(kind.special), corpus=corpus, size=VOCABULARY, bos_token=begin, eos_token=end)
    else:
        tokenizer = sentencepiece_like(corpus=corpus, size=VOCABULARY)
    tokenizer.chat_template = kind.template
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 2}
    config = transformers.AutoConfig.for_model(kind.architecture, vocab_size=len(tokenizer), **SIZES, **ends)
    auto: Any = transformers.AutoModel if kind.encodes else transformers.AutoModelForCausalLM
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config.initializer_range = 0.6  # far from uniform, so that answers differ
        model = auto.from_config(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _write_adapter(base: Path, folder: Path) -> None:
    import peft
    import torch
    import transformers

    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = transformers.AutoModelForCausalLM.from_pretrained(base)
        how: dict[str, Any] = {"target_modules": "all-linear", "task_type": "CAUSAL_LM", "init_lora_weights": False}
        peft.get_peft_model(model, peft.LoraConfig(r=16, lora_alpha=32, **how)).save_pretrained(folder)


def byte_level(special: list[str], *, corpus: Sequence[str], size: int, words: bool = True, **roles: str) -> Any:
    """Byte-level BPE, as GPT-2, Llama-3 and Qwen have it; without ``words`` its tokens may reach over blanks."""
    import tokenizers
    import transformers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles)


def sentencepiece_like(*, corpus: Sequence[str], size: int) -> Any:
    """BPE with blanks written as letters, and bytes to fall back on, as Llama-2 has it."""
    import tokenizers
    import transformers
    from tokenizers import decoders, models, normalizers, processors, trainers

    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = content["added_tokens"][:3]  # the trainer makes special tokens of the bytes, too
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
