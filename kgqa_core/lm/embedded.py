"""The embedded model: a tokenizer and a small Llama, made from the graph and the training questions.

It becomes a folder that transformers opens like any other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kgqa_core.artifacts import written_whole
from kgqa_core.errors import ConfigError, InputError
from kgqa_core.lm.constraints import shared_start
from kgqa_core.lm.tune_data import Loop, Tokens, collate, encode_examples, training_arguments
from kgqa_core.lm.types import EmbeddedLmSection

MIN_FRAME = 12  # characters; a shorter text that all prompts share is left to the tokenizer
END_TOKEN, PAD_TOKEN, NUM_BYTES = "<end>", "<pad>", 256
COLUMNS = ["instruction", "system", "prompt", "target"]
Row = dict[str, Any]  # COLUMNS, and the weight of all examples that are equal


@dataclass(frozen=True, slots=True)
class EmbeddedReport:
    """What was made, and what it cost."""

    folder: Path
    num_parameters: int
    num_tokens: int  # of the vocabulary
    num_examples: int  # distinct ones that the weights learned from
    num_too_long: int  # distinct ones beyond the context
    losses: tuple[float, ...]  # per step: mean over the examples drawn of the natural log-loss of a whole target
    flops: float  # of matrix products in training, forward and backward
    cpu_seconds: float  # of the whole process while it was made


def make_embedded(
    examples: Sequence[Path],
    section: EmbeddedLmSection,
    out: Path,
    *,
    steps: Sequence[str] = (),
    markers: Sequence[str] = (),
    names: Iterable[str] = (),
    device: str = "cpu",
    progress: Callable[[int, int, float], None] = lambda step, steps, loss: None,
) -> EmbeddedReport:
    """Make and train a model and write it to the folder ``out``, whole or not at all.

    Of ``examples`` (schemas.INSTRUCTIONS) the train split is read: by the tokenizer all of it, and the ``names`` of
    entities; by the weights ``section.train_on``. ``steps``: relations as plans write them ("^label" backward), for
    ``relations: single``; ``markers``: texts around them, one token each; ``progress``: told (step, of all, loss).

    Raises InputError without an example that is short enough, ConfigError without room in the vocabulary.
    """
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    began = time.process_time()
    rows = read_distinct(examples)
    taught = [row for row in rows if row["instruction"] in section.train_on]
    if not taught:
        there = ", ".join(sorted({row["instruction"] for row in rows}))
        raise InputError(f"no example of {', '.join(section.train_on)} to train on; there are: {there}")
    tokenizer = _make_tokenizer(rows, section, steps=steps, markers=markers, names=names)
    tokens = _encode(taught, tokenizer, section.context)
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(section.seed)
        torch.set_num_threads(1)
        try:
            model = _new_model(tokenizer, section).to(device)
            losses, flops = _train(model, tokens, section, pad=tokenizer.pad_token_id, progress=progress)
        finally:
            torch.set_num_threads(threads)
    out.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(out) as partial:
        model.config.use_cache = True
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
    num_parameters, num_long = sum(one.numel() for one in model.parameters()), len(taught) - len(tokens.weights)
    seconds = time.process_time() - began
    return EmbeddedReport(out, num_parameters, len(tokenizer), len(tokens.weights), num_long, losses, flops, seconds)


def read_distinct(files: Sequence[Path]) -> list[Row]:
    """Return the distinct training examples of schemas.INSTRUCTIONS files, sorted, with the weight of all equal ones.

    Questions repeat their wording: where topics are masked, tens of thousands of planning examples are a few thousand
    distinct pairs of prompt and plan. Raises InputError where a file cannot be read, or there is no example.
    """
    tables = []
    for file in files:
        try:
            tables.append(pq.read_table(file, columns=[*COLUMNS, "weight"], filters=[("split", "=", "train")]))
        except (OSError, ValueError) as problem:
            raise InputError(f"{file} cannot be read as instruction data: {problem}") from problem
    summed = pa.concat_tables(tables).group_by(COLUMNS).aggregate([("weight", "sum")])
    rows = summed.sort_by([(name, "ascending") for name in COLUMNS]).rename_columns([*COLUMNS, "weight"]).to_pylist()
    if not (rows := [row for row in rows if row["weight"] > 0]):
        raise InputError(f"no train example is in {', '.join(map(str, files))}: nothing to learn from")
    return rows


def _make_tokenizer(
    rows: list[Row], section: EmbeddedLmSection, *, steps: Sequence[str], markers: Sequence[str], names: Iterable[str]
) -> Any:
    """Return a transformers tokenizer: byte-level BPE of targets, names, and what prompts say beside their frames.

    Frames and markers are one token each wherever they stand. So are single relations, where they are words of their
    own.
    """
    import transformers
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    asked: dict[str, list[str]] = {}  # instruction -> its prompts, as ``render`` makes them without a template
    for row in rows:
        text = "\n\n".join(part for part in (row["system"], row["prompt"]) if part)
        asked.setdefault(row["instruction"], []).append(text)
    frames = {name: find_frames(texts) for name, texts in asked.items()}
    texts: list[str] = []
    for row, text in zip(rows, [text for own in asked.values() for text in own], strict=True):  # rows are sorted
        for frame in frames[row["instruction"]]:
            text = text.removeprefix(frame).removesuffix(frame)
        texts += [text, row["target"]] * max(1, round(row["weight"]))  # as often as the data has it: names are many
    whole = list(dict.fromkeys([*markers, *(frame for own in frames.values() for frame in own)]))
    single = [step for step in dict.fromkeys(steps if section.relations == "single" else ()) if step not in whole]
    room = section.vocabulary - len(whole) - len(single)
    if room < NUM_BYTES + 2:
        raise ConfigError(
            f"a vocabulary of {section.vocabulary} has no room for {NUM_BYTES + 2} bytes and ends and {len(single)} "
            f"relations; give at least {section.vocabulary - room + NUM_BYTES + 2}, or set relations: pieces"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=room,
        min_frequency=2,
        special_tokens=[END_TOKEN, PAD_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*texts, *names], trainer)
    # Longest first: of two that fit, the one that was added first is taken.
    for added, alone in ((whole, False), (single, True)):
        longest = sorted(added, key=len, reverse=True)
        tokenizer.add_tokens([AddedToken(text, normalized=False, single_word=alone) for text in longest])
    return transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token=END_TOKEN, pad_token=PAD_TOKEN, clean_up_tokenization_spaces=False
    )


def find_frames(texts: Iterable[str]) -> list[str]:
    """Return what distinct prompts of one instruction all begin with, and all end with, where that is long enough.

    Both are cut where a word ends, so that nothing of a question gets into them.
    """
    distinct = sorted(set(texts))
    if len(distinct) < 2:
        return []
    start = shared_start(distinct)
    start = start[: max(start.rfind(" "), start.rfind("\n")) + 1].rstrip(" ")
    rests = [text[len(start) :][::-1] for text in distinct]
    end = shared_start(rests)[::-1]
    cuts = [at for at in (end.find(" "), end.find("\n")) if at >= 0]
    end = end[min(cuts) :] if cuts else ""
    return [frame for frame in (start, end) if len(frame) >= MIN_FRAME]


def _encode(rows: Sequence[Row], tokenizer: Any, context: int) -> Tokens:
    encoded = encode_examples(rows, tokenizer)
    fits = [(row["weight"], prompt, target) for row, prompt, target in encoded if len(prompt) + len(target) <= context]
    if not fits:
        raise InputError(f"no example is short enough for a context of {context} tokens; the context can be set")
    texts = [prompt + target for _, prompt, target in fits]
    starts, stream = np.cumsum([0, *map(len, texts)]), np.concatenate(texts).astype(np.int32)
    sizes = np.array([len(prompt) for _, prompt, _ in fits], np.int32)
    weights, zeros = np.array([weight for weight, *_ in fits], np.float32), np.zeros(len(fits), np.int16)
    return Tokens(stream, starts, sizes, weights, zeros, zeros > 0, ("taught",), {})


def draw_chances(tokens: Tokens, flatten: float) -> NDArray[np.float64]:
    """Return how probable it is that an example is drawn [N].

    A prompt's share is its weight to the power ``flatten``; its targets share that by their weights, so that what is
    learned about a prompt is what the data say of it.
    """
    ends = tokens.starts[:-1] + tokens.num_prompt
    prompts = [tokens.tokens[start:end].tobytes() for start, end in zip(tokens.starts, ends, strict=False)]
    number = {prompt: at for at, prompt in enumerate(dict.fromkeys(prompts))}
    prompt_of, weights = np.array([number[prompt] for prompt in prompts]), tokens.weights.astype(np.float64)
    chances = weights * np.bincount(prompt_of, weights=weights)[prompt_of] ** (flatten - 1)
    return np.asarray(chances / chances.sum())


def _new_model(tokenizer: Any, section: EmbeddedLmSection) -> Any:
    """Return a Llama with random weights, its output table tied to its input's."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=section.width,
        intermediate_size=int(section.width * section.feed_forward),
        num_hidden_layers=section.layers,
        num_attention_heads=section.heads,
        max_position_embeddings=section.context,
        tie_word_embeddings=True,
        initializer_range=section.width**-0.5 / 2,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return transformers.LlamaForCausalLM(config)


def _train(
    model: Any, tokens: Tokens, section: EmbeddedLmSection, *, pad: int, progress: Callable[[int, int, float], None]
) -> tuple[tuple[float, ...], float]:
    """Train ``model`` in place, as tuning does; return the loss per step, and the operations of matrix products."""
    from torch.optim.lr_scheduler import LambdaLR
    from transformers import TrainerCallback

    head = model.get_output_embeddings().weight.numel()
    inner = sum(one.numel() for one in model.parameters()) - head  # the tied table is counted once
    losses: list[float] = []
    flops, steps, warm = 0.0, section.steps, max(1, round(section.warmup * section.steps))

    def passes() -> Iterator[dict[str, Any]]:
        nonlocal flops
        draws, chances = np.random.default_rng(section.seed), draw_chances(tokens, section.flatten)
        for _ in range(steps):
            drawn, counts = np.unique(draws.choice(len(chances), section.batch_size, p=chances), return_counts=True)
            made = collate(tokens, drawn, (counts / section.batch_size).astype(np.float32), pad=pad)
            flops += 6.0 * (inner * made["input_ids"].numel() + head * made["targets"].numel())
            yield made

    def share(step: int) -> float:
        """Return the rate's share of its peak: the first step learns too, unlike in transformers' own schedule."""
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))

    class Scheduled(Loop):
        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            used: Any = optimizer or self.optimizer
            self.lr_scheduler = LambdaLR(used, share)
            return self.lr_scheduler

    class Tell(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if "loss" in kwargs["logs"]:
                losses.append(kwargs["logs"]["loss"])
                progress(len(losses), steps, losses[-1])

    with TemporaryDirectory(prefix="kgqa-lm-") as scratch:
        arguments = training_arguments(
            scratch,
            model.device.type,
            max_steps=steps,
            per_device_train_batch_size=section.batch_size,
            learning_rate=section.learning_rate,
            weight_decay=section.weight_decay,
            adam_beta2=0.98,
            max_grad_norm=section.gradient_norm,
            seed=section.seed,
        )
        Scheduled(passes(), steps, model=model, args=arguments, callbacks=[Tell()]).train()
    model.eval()
    return tuple(losses), flops
