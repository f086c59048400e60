"""Making the embedded model: tokenizer, weights, training, and a folder that transformers opens like any other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kgqa_core.artifacts import written_whole
from kgqa_core.errors import InputError
from kgqa_core.lm.chat import encode_answers, encode_prompts
from kgqa_core.lm.embedded.examples import Distinct, find_frames, read_distinct
from kgqa_core.lm.embedded.settings import EmbeddedSettings
from kgqa_core.lm.embedded.tokenizer import train_tokenizer
from kgqa_core.lm.embedded.train import Encoded, train
from kgqa_core.lm.types import Prompt


@dataclass(frozen=True, slots=True)
class EmbeddedReport:
    """What was made, and what it cost."""

    folder: Path
    num_parameters: int
    num_tokens: int  # of the vocabulary
    num_examples: int  # distinct ones that the weights learned from
    num_too_long: int  # distinct ones beyond the context
    losses: tuple[float, ...]  # per step, natural log, of whole targets
    num_read: int  # tokens read in training, padding included
    flops: float  # of matrix products in training
    cpu_seconds: float  # of the whole process while it was made
    wall_seconds: float


def make_embedded(
    examples: Path | Sequence[Path],
    settings: EmbeddedSettings,
    out: Path,
    *,
    steps: Sequence[str] = (),
    markers: Sequence[str] = (),
    names: Iterable[str] = (),
    device: str = "cpu",
    progress: Callable[[int, int, float], None] = lambda step, steps, loss: None,
) -> EmbeddedReport:
    """Make and train a model and write it to the folder ``out``, whole or not at all.

    Args:
        examples: instruction data (schemas.INSTRUCTIONS); its train split is read. All of it shapes the tokenizer; the
            weights learn ``settings.train_on``.
        settings: what shapes the model.
        out: gets tokenizer.json, config.json, model.safetensors and what else transformers writes.
        steps: relations as plans write them ("^label" backward), for ``relations="single"``.
        markers: texts around them that are one token each.
        names: more texts for the tokenizer: names of entities.
        device: to train on.
        progress: told (step, steps in all, loss).

    Raises:
        InputError: no example of ``train_on``.
        ConfigError: settings that do not fit each other.
    """
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    began, cpu = time.perf_counter(), time.process_time()
    rows = read_distinct([examples] if isinstance(examples, Path) else list(examples))
    taught = [row for row in rows if row.instruction in settings.train_on]
    if not taught:
        there = ", ".join(sorted({row.instruction for row in rows}))
        raise InputError(f"no example of {', '.join(settings.train_on)} to train on; there are: {there}")
    tokenizer = _make_tokenizer(rows, settings, steps=steps, markers=markers, names=names)
    data = _encode(taught, tokenizer, settings.context)
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        torch.set_num_threads(1)
        try:
            model = _new_model(tokenizer, settings).to(device)
            trained = train(model, data, settings, pad=tokenizer.pad_token_id, progress=progress)
        finally:
            torch.set_num_threads(threads)
    out.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(out) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
    return EmbeddedReport(
        folder=out,
        num_parameters=sum(one.numel() for one in model.parameters()),
        num_tokens=len(tokenizer),
        num_examples=len(data.prompts),
        num_too_long=len(taught) - len(data.prompts),
        losses=trained.losses,
        num_read=trained.num_tokens,
        flops=trained.flops,
        cpu_seconds=time.process_time() - cpu,
        wall_seconds=time.perf_counter() - began,
    )


def _make_tokenizer(
    rows: Sequence[Distinct],
    settings: EmbeddedSettings,
    *,
    steps: Sequence[str],
    markers: Sequence[str],
    names: Iterable[str],
) -> Any:
    """Return a tokenizer of what prompts say beside their frames, of targets, and of names."""
    frames = {
        name: find_frames(_asked(row) for row in rows if row.instruction == name)
        for name in dict.fromkeys(row.instruction for row in rows)
    }
    texts: list[str] = []
    for row in rows:
        text = _asked(row)
        for frame in frames[row.instruction]:
            text = text.removeprefix(frame).removesuffix(frame)
        texts += [text, row.target] * max(1, round(row.weight))  # as often as the data has it: names are many
    whole = [*markers, *(frame for own in frames.values() for frame in own)]
    single = steps if settings.relations == "single" else ()
    return train_tokenizer([*texts, *names], whole=whole, steps=single, vocabulary=settings.vocabulary)


def _asked(row: Distinct) -> str:
    """Return the whole text that the model continues, as ``chat.render`` makes it without a chat template."""
    return "\n\n".join(part for part in (row.system, row.prompt) if part)


def _encode(rows: Sequence[Distinct], tokenizer: Any, context: int) -> Encoded:
    prompts = encode_prompts(tokenizer, [Prompt(row.prompt, row.system) for row in rows])
    targets = encode_answers(tokenizer, [row.target for row in rows])
    ends = [[*target, tokenizer.eos_token_id] for target in targets]
    fits = [len(prompt) + len(target) <= context for prompt, target in zip(prompts, ends, strict=True)]
    if not any(fits):
        raise InputError(f"no example is short enough for a context of {context} tokens; the context can be set")
    return Encoded(
        prompts=[tuple(prompt) for prompt, fit in zip(prompts, fits, strict=True) if fit],
        targets=[tuple(target) for target, fit in zip(ends, fits, strict=True) if fit],
        weights=np.array([row.weight for row, fit in zip(rows, fits, strict=True) if fit]),
    )


def _new_model(tokenizer: Any, settings: EmbeddedSettings) -> Any:
    """Return a Llama with random weights, its output table tied to its input's."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.width,
        intermediate_size=int(settings.width * settings.feed_forward),
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        max_position_embeddings=settings.context,
        tie_word_embeddings=True,
        initializer_range=settings.width**-0.5 / 2,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return transformers.LlamaForCausalLM(config)
