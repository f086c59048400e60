"""Transformers folders with random weights, asked in milliseconds; instruction data to tune them on, and jobs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import transformers

from kgqa_core import schemas
from kgqa_core.config_lm import ReasonerSection
from kgqa_core.instructions.types import Example
from kgqa_core.lm.tune import TuneReport, tune_in_processes
from kgqa_core.lm.tune_data import TuneJob
from tasks import miniature_models

RELATIONS = ("film.film.directed_by", "film.film.genre", "people.person.place_of_birth")
CORPUS = [
    "who directed the film Heat ? Michael Mann directed it",
    "what does Bath Spa say about 42 trains : nothing , naïve as ever",
    "<PATH>film.film.directed_by<SEP>^people.person.place_of_birth</PATH>",
    "Answer: the plan is film.film.genre and the answer is drama\n",
]
CHATML = (
    "{% for turn in messages %}<|im_start|>{{ turn['role'] }}\n{{ turn['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA_2 = (
    "{% for turn in messages %}{% if turn['role'] not in ('user', 'assistant') %}"
    "{{ raise_exception('Only user and assistant turns') }}{% endif %}"
    "{{ bos_token }}[INST] {{ turn['content'] | trim }} [/INST]{% endfor %}"
)


def make_llama(folder: Path, *, template: str | None = None, **sizes: int) -> Path:
    """Llama-2's kind: blanks as letters, byte fallback, a begin token before every text."""
    return _save(folder, "llama", sentencepiece_like(template), bos_token_id=1, eos_token_id=2, **sizes)


def make_qwen2(folder: Path, *, template: str | None = None, **sizes: int) -> Path:
    """Qwen2's kind: byte-level tokens, nothing before a text, <|im_end|> or <|endoftext|> after."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = byte_level(special, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = template
    return _save(folder, "qwen2", tokenizer, eos_token_id=[2, 0], **sizes)


def make_gpt2(folder: Path) -> Path:
    """GPT-2's kind: byte-level tokens, no padding token, learned positions."""
    tokenizer = byte_level(["<|endoftext|>"], eos_token="<|endoftext|>", bos_token="<|endoftext|>")
    return _save(folder, "gpt2", tokenizer, num_key_value_heads=2, bos_token_id=0, eos_token_id=0)


ARCHITECTURES = (
    *("bloom", "gemma", "gemma2", "gpt2", "gpt_neox", "gptj", "granite", "llama", "mistral", "mixtral"),
    *("olmo2", "opt", "phi", "phi3", "qwen2", "qwen3", "qwen3_moe", "stablelm"),
)


def make_any(folder: Path, kind: str) -> Path:
    """Any architecture that transformers has, by its ``model_type``, with byte-level tokens."""
    tokenizer = byte_level(["<|endoftext|>"], eos_token="<|endoftext|>", bos_token="<|endoftext|>")
    narrow = {"head_dim": 16, "rotary_dim": 8, "query_pre_attn_scalar": 16, "ffn_dim": 40, "word_embed_proj_dim": 32}
    experts = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    window: dict[str, Any] = {"sliding_window": 7} if kind in ("gemma2", "mistral") else {}  # tokens; others see all
    if kind == "gpt_neo":
        window = {"window_size": 7, "attention_types": [[["global", "local"], 1]]}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    return _save(folder, kind, tokenizer, hidden_size=32, intermediate_size=40, **narrow, **experts, **window, **ends)


def _save(folder: Path, kind: str, tokenizer: Any, **settings: Any) -> Path:
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 24, "intermediate_size": 37, "num_hidden_layers": 2,
             "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 257}  # fmt: skip
    config = transformers.AutoConfig.for_model(kind, **{**sizes, **settings})
    with torch.random.fork_rng():
        torch.manual_seed(5)
        config.initializer_range = 0.6  # far from uniform, so that answers differ and ties do not occur
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.generation_config.eos_token_id = config.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def byte_level(
    special: list[str], *, corpus: Sequence[str] = CORPUS, size: int = 331, words: bool = True, **roles: str
) -> Any:
    """Byte-level BPE, as GPT-2, Llama-3 and Qwen have it; without ``words`` its tokens may reach over blanks."""
    return miniature_models.byte_level(special, corpus=corpus, size=size, words=words, **roles)


def sentencepiece_like(template: str | None = None, *, corpus: Sequence[str] = CORPUS, size: int = 389) -> Any:
    """BPE with blanks written as letters, and bytes to fall back on, as Llama-2 has it."""
    made = miniature_models.sentencepiece_like(corpus=corpus, size=size)
    made.chat_template = template
    return made


def make_examples(count: int = 30) -> list[Example]:
    """Return ``count`` plans and half as many reasonings; one in five is for dev."""
    generator = random.Random(3)
    examples = []
    for number in range(count):
        split = "dev" if number % 5 == 0 else "train"
        films = " ".join(generator.choices(["Heat", "Bath", "Spa", "Mann"], k=generator.randint(1, 7)))
        relation = generator.choice(RELATIONS)
        question, weight = f"q{number}", generator.choice([0.25, 0.5, 1.0])
        examples.append(
            Example("plan", question, split, "", f"plan {relation[-4:]} of {films}", f"<PATH>{relation}</PATH>", weight)
        )
        if number % 2 == 0:
            lines = "\n".join(f"{films} is {relation}" for _ in range(generator.randint(1, 3)))
            examples.append(Example("reason", question, split, "Be short.", f"{lines}\nwho ?", films, 1.0))
    return examples


def write_examples(path: Path, examples: list[Example]) -> Path:
    """Write instruction data as the pipeline does."""
    rows = [{name: getattr(example, name) for name in schemas.INSTRUCTIONS.names} for example in examples]
    pq.write_table(pa.Table.from_pylist(rows, schema=schemas.INSTRUCTIONS), path)
    return path


def make_job(base: Path, examples: Path, out: Path, **changed: Any) -> TuneJob:
    """Return a short tuning; what is changed is a field of the job or of its section."""
    own = {name: changed.pop(name) for name in list(changed) if name in TuneJob.model_fields}
    section = {"max_steps": 12, "batch_size": 4, "rank": 3, "learning_rate": 2e-2, "max_length": 250, **changed}
    return TuneJob(base=base, examples=(examples,), out=out, section=ReasonerSection(**section), **own)


def make_adapter(base: Path, folder: Path, *, seed: int = 3, **options: Any) -> Path:
    """Save a LoRA adapter of ``base`` with random weights."""
    import peft

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_pretrained(base)
        how = {"target_modules": "all-linear", **options}
        config = peft.LoraConfig(r=3, init_lora_weights=False, task_type="CAUSAL_LM", **how)
        peft.get_peft_model(model, config).save_pretrained(folder)
    return folder


Point = tuple[str, int, float]


class Killed(Exception):
    """What ends a training in the middle, as far as this process can be killed."""


def told(job: TuneJob, *, until: int | None = None, processes: int = 1) -> tuple[TuneReport, list[Point]]:
    """Tune, and return the report and the points told; stop as if killed after step ``until``."""
    points: list[Point] = []

    def progress(done: int, total: int) -> None:
        if done == until:
            raise Killed

    return tune_in_processes(job, processes, lambda *point: points.append(point), progress), points


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}
