"""What a step of tuning costs: LoRA and all weights, with our batches and loss, and with Trainer's defaults.

Same model, same examples, same batch; each in a process of its own, for its memory. On a GPU: models in the shape of
Llama-2's, and which share of the measured rate of matrix products the LoRA training reaches.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
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
    shapes: Sequence[str] = ("7B", "13B")  # on a GPU


FULL = Size(steps=12, batch_size=16, repeats=3)
SMALL = Size(steps=2, batch_size=4, repeats=1, width=32, layers=1, shapes=())
ROWS: dict[str, dict[str, Any] | None] = {  # None: Trainer's defaults
    "LoRA, buckets": {},
    "LoRA, buckets, checkpointing": {"gradient_checkpointing": True},
    "LoRA, Trainer's defaults": None,
    "all weights, buckets": {"tuning": "full"},
    "all weights, Trainer's defaults": None,
}
SHAPES = {"7B": (4096, 32, 32), "13B": (5120, 40, 40)}  # on a GPU: width, layers, heads
WAYS: dict[str, dict[str, Any]] = {
    "buckets": {"batch_size": 16},
    "buckets, checkpointing": {"batch_size": 64, "gradient_checkpointing": True},
}
MATRIX, GPU_STEPS, WARM = 8192, 12, 4


def run(home: Path, size: Size = FULL) -> None:
    """Measure on the CPU, and on a GPU where there is one, and write the table."""
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
    if torch.cuda.is_available() and size.shapes:
        lines += ["", *gpu_table(folder, examples, size.shapes)]
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


def make_base(folder: Path, examples: Path, width: int, layers: int, heads: int, device: str = "cpu") -> Path:
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
    with torch.device(device):
        model = transformers.LlamaForCausalLM(config)
    model.to(torch.float32 if device == "cpu" else torch.bfloat16).save_pretrained(folder)
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


def gpu_table(folder: Path, examples: Path, shapes: Sequence[str], device: str = "cuda") -> list[str]:
    """Return the table of a GPU: models in the shape of Llama-2's, with random weights."""
    rate = matrix_rate(device)
    rows = [
        "| model | how | examples per pass | tokens/s | memory, GiB | of the measured bfloat16 rate |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for shape in shapes:
        base = make_base(folder / shape, examples, *SHAPES[shape], device)
        for name, options in WAYS.items():
            try:
                found = run_child(tune_on, base=base, examples=examples, device=device, options=options).result
            except SystemExit:  # what it said is shown: most likely that memory does not hold a step
                rows.append(f"| {shape} | {name} | {options['batch_size']} | failed | | |")
                continue
            share = 4 * found["parameters"] * found["speed"] / rate  # forward, and backward to the inputs alone
            rows.append(
                f"| {shape} | {name} | {options['batch_size']} | {found['speed']:,.0f} | {found['memory']:.0f} | "
                f"{share:.0%} |"
            )
    rows += ["", f"{rate / 1e12:,.0f} TFLOP/s in products of {MATRIX} x {MATRIX} bfloat16 matrices. Rank 16 on all "]
    rows[-1] += f"linear modules; seconds of a step: median of {GPU_STEPS - WARM}. Padding is not counted."
    return rows


def tune_on(base: str, examples: str, device: str, options: dict[str, Any]) -> dict[str, float]:
    """Tune in this process, and return tokens per second, GiB at the peak, and parameters."""
    from kgqa_core.lm.tune import tune

    times: list[float] = []
    with TemporaryDirectory() as scratch:
        section = ReasonerSection(max_steps=GPU_STEPS, precision="bfloat16", **options)
        job = TuneJob(base=base, examples=(examples,), section=section, out=scratch, device=device)
        report = tune(job, progress=lambda done, total: times.append(time.perf_counter()))
    seconds = median([last - first for first, last in pairwise(times)][WARM - 1 :])
    memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    return {"speed": report.num_tokens / GPU_STEPS / seconds, "memory": memory, "parameters": report.num_parameters}


def matrix_rate(device: str) -> float:
    """Return the floating-point operations per second of a product of bfloat16 matrices."""
    one, seconds = torch.randn(MATRIX, MATRIX, device=device, dtype=torch.bfloat16), []
    for _ in range(20):
        started = time.perf_counter()
        (one @ one)[0, 0].item()  # waits for the GPU
        seconds.append(time.perf_counter() - started)
    return 2 * MATRIX**3 / median(seconds[10:])
