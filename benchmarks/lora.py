"""What a step of tuning costs: LoRA and all weights, with our batches and loss, and with Trainer's defaults.

Same model, same examples, same batch; each in a process of its own, for its memory.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.child import run_child
from benchmarks.measure import peak_megabytes, write_section
from kgqa_core import schemas
from kgqa_core.config_lm import ReasonerSection
from kgqa_core.demo import DATA
from kgqa_core.lm.tune_data import TuneJob


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    steps: int
    batch_size: int
    repeats: int
    width: int = 192
    layers: int = 4


FULL = Size(steps=12, batch_size=16, repeats=3)
SMALL = Size(steps=2, batch_size=4, repeats=1, width=32, layers=1)
ROWS: dict[str, dict[str, Any] | None] = {  # None: Trainer's defaults
    "LoRA, buckets": {},
    "LoRA, buckets, checkpointing": {"gradient_checkpointing": True},
    "LoRA, Trainer's defaults": None,
    "all weights, buckets": {"tuning": "full"},
    "all weights, Trainer's defaults": None,
}


def run(home: Path, size: Size = FULL) -> None:
    """Measure each way, and write the table."""
    folder = home / "lora"
    folder.mkdir(parents=True, exist_ok=True)
    examples = write_examples(folder / "instructions.parquet", size.steps * size.batch_size)
    base = make_base(folder / "base", examples, size.width, size.layers, max(1, size.width // 48))
    found: dict[str, list[dict[str, float]]] = {what: [] for what in ROWS}
    for _ in range(size.repeats):  # in turn, so that whatever else the machine does falls on all alike
        for what in ROWS:
            options = {"what": what, "steps": size.steps, "batch_size": size.batch_size}
            found[what].append(run_child(tune_once, base=base, examples=examples, **options).result)
    head = [
        "| what | CPU s per step (range) | tokens/s | padding | peak memory, MB, beyond the opened model | "
        "trained, MB with optimiser |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    facts = found["LoRA, buckets"][0]
    note = (
        f"A Llama-shaped model of {facts['parameters'] / 1e6:.1f} M parameters, float32, one thread, rank 16 on all "
        f"linear modules; {size.steps} steps of {size.batch_size} examples, each example once: one half plans (short), "
        f"one half questions with lines of evidence ({facts['tokens'] / size.steps / size.batch_size:.0f} tokens in "
        f"the mean). Median of {size.repeats} rounds in turn. Tokens are those of the examples; a row of Trainer's "
        "defaults pads to the longest of a random batch and has a loss, and so logits, at every token."
    )
    lines = [*head, *(row(what, found[what], size.steps) for what in ROWS), "", note]
    write_section("Tuning: what a step costs", "\n".join(lines), "python -m benchmarks lora")


def row(what: str, found: Sequence[dict[str, float]], steps: int) -> str:
    """Return a row of the table."""
    seconds = [one["cpu"] / steps for one in found]
    last = found[-1]
    return (
        f"| {what} | {median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f}) | "
        f"{last['tokens'] / steps / median(seconds):,.0f} | {1 - last['tokens'] / last['read']:.0%} | "
        f"{median([one['peak'] for one in found]):,.0f} | {last['trained'] * 12 / 1e6:.1f} |"
    )


def write_examples(path: Path, count: int) -> Path:
    """Write as many plans as questions with evidence, of the demo graph; what they say is of no matter."""
    draw = random.Random(0)
    lines = (DATA / "questions" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["question"] for line in lines]
    names = sorted(line.split("\t")[1] for line in (DATA / "names.tsv").read_text(encoding="utf-8").splitlines())
    rows = []
    for number in range(count):
        text = draw.choice(texts)
        one = {"question_id": str(number), "split": "train", "system": "", "weight": 1.0}
        if number % 2:
            steps = "<SEP>".join(draw.choices(["directed_by", "^starred_actors", "has_genre"], k=draw.randint(1, 3)))
            one |= {"instruction": "plan", "prompt": f"Plan: {text}", "target": f"<PATH>{steps}</PATH>"}
        else:
            lines = [" -> ".join(draw.choices(names, k=3)) for _ in range(int(2 ** draw.uniform(1, 5)))]
            asked = "\n".join([*lines, f"Answer: {text}"])
            one |= {"instruction": "reason", "prompt": asked, "target": "\n".join(draw.choices(names, k=2))}
        rows.append(one)
    pq.write_table(pa.Table.from_pylist(rows, schema=schemas.INSTRUCTIONS), path)
    return path


def make_base(folder: Path, examples: Path, width: int, layers: int, heads: int) -> Path:
    """Make a Llama-shaped model with random weights and a tokenizer of the examples."""
    import tokenizers
    import transformers

    texts = [f"{row['prompt']} {row['target']}" for row in pq.read_table(examples).to_pylist()]
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=4000, special_tokens=["<s>", "</s>"], show_progress=False)
    bpe.train_from_iterator(texts, trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>")
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tune_once(base: str, examples: str, what: str, steps: int, batch_size: int) -> dict[str, float]:
    """Tune in this process and return what it cost; called in a process of its own."""
    options, full = ROWS[what], what.startswith("all weights")
    shape = {"max_steps": steps, "batch_size": batch_size, "tuning": "full" if full else "lora", **(options or {})}
    with TemporaryDirectory() as scratch:
        section = ReasonerSection(learning_rate=2e-5, **shape)
        job = TuneJob(base=Path(base), examples=(Path(examples),), section=section, out=Path(scratch) / "out")
        return with_defaults(job, Path(scratch)) if options is None else with_ours(job)


def with_ours(job: TuneJob) -> dict[str, float]:
    """Tune as the pipeline does."""
    from kgqa_core.lm.tune import tune
    from kgqa_core.lm.tune_loop import Loop

    read: list[int] = []
    before: list[float] = []
    step = Loop.training_step

    def counted(loop: Any, model: Any, inputs: Any, *rest: Any) -> Any:
        before.append(peak_megabytes())  # of the first step: all is opened, nothing was computed yet
        read.append(inputs["input_ids"].numel())
        return step(loop, model, inputs, *rest)

    with patch.object(Loop, "training_step", counted):
        report = tune(job)
    sizes = {"trained": report.num_trainable, "parameters": report.num_parameters, "tokens": report.num_tokens}
    return {"cpu": report.cpu_seconds, "read": sum(read), "peak": peak_megabytes() - before[0], **sizes}


def with_defaults(job: TuneJob, scratch: Path) -> dict[str, float]:
    """Tune with transformers' Trainer as it comes: its own sampler, collator, optimiser and loss."""
    from transformers import DataCollatorForLanguageModeling, Trainer, TrainerCallback, TrainingArguments

    from kgqa_core.lm.local import open_tunable
    from kgqa_core.lm.tune_data import read_tokens, write_tokens

    torch.set_num_threads(1)
    tunable = open_tunable(job)
    tunable.tokenizer.pad_token = tunable.tokenizer.eos_token
    write_tokens(job.examples, tunable.tokenizer, scratch / "tokens", max_length=tunable.max_length)
    tokens = read_tokens(scratch / "tokens")
    texts = zip(tokens.starts, tokens.starts[1:], strict=False)
    read, clock = [], {"started": 0.0, "ended": 0.0, "peak": 0.0}
    collate = DataCollatorForLanguageModeling(tunable.tokenizer, mlm=False)

    class Clock(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            clock.update(started=time.process_time(), peak=peak_megabytes())

        def on_train_end(self, *_: Any, **__: Any) -> None:
            clock["ended"] = time.process_time()

    def counted(batch: Any) -> Any:
        made = collate(batch)
        read.append(made["input_ids"].numel())
        return made

    arguments = TrainingArguments(
        str(scratch / "trainer"),
        per_device_train_batch_size=job.section.batch_size,
        max_steps=job.section.max_steps or -1,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    rows = [{"input_ids": tokens.tokens[start:end].tolist()} for start, end in texts]
    Trainer(tunable.model, arguments, train_dataset=rows, data_collator=counted, callbacks=[Clock()]).train()
    return {
        "cpu": clock["ended"] - clock["started"],
        "tokens": int(tokens.starts[-1]),
        "read": sum(read),
        "peak": peak_megabytes() - clock["peak"],
        "trained": sum(one.numel() for one in tunable.weights.values()),
        "parameters": sum(one.numel() for one in tunable.model.parameters()),
    }
