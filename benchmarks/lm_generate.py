"""How fast a local model writes and weighs: in batches, under a constraint, with the prompt read once.

Random weights in the shape of a small planner, on the demo graph's questions: what is timed is the machinery, and
no text ends early. Transformers' own ``generate`` is asked for the same tokens.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import cpu_seconds, write_section
from benchmarks.workload import interleaved, median, ratio_of
from kgqa_core.demo import DATA
from kgqa_core.lm.folders import encode_prompts
from kgqa_core.lm.local import LocalModel, open_local
from kgqa_core.lm.types import Decoding, Prompt

RELATIONS = (  # of the demo's graph
    "directed",
    "wrote_the_script_for",
    "acted_in",
    "composed_the_music_for",
    "produced",
    "belongs_to_genre",
    "premiered_in_year",
    "was_filmed_in",
    "has_dialogue_in_language",
    "lasts_minutes",
)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    prompts: int
    batch_size: int  # prompts, or beams, at a time
    new_tokens: int
    options: int  # per prompt that is scored
    scored: int  # prompts
    repeats: int
    width: int = 128
    layers: int = 4


FULL = Size(prompts=256, batch_size=256, new_tokens=20, options=20, scored=64, repeats=5)
SMALL = Size(prompts=8, batch_size=8, new_tokens=4, options=3, scored=4, repeats=1, width=32, layers=1)
BEAMS = 3


class Steps:
    """Relations one after another, without end: a constraint that lets no text end early, another for each prompt."""

    def __init__(self, relations: Sequence[str], key: str) -> None:
        self.key = key
        self._pieces = tuple(f"{relation}<SEP>" for relation in relations)

    def next_pieces(self, pieces: tuple[str, ...]) -> Sequence[str]:
        """Return any step."""
        return self._pieces

    def may_end(self, pieces: tuple[str, ...]) -> bool:
        """Never."""
        return False


def run(home: Path, size: Size = FULL) -> None:
    """Time every way to ask, and write the table."""
    torch.set_num_threads(1)
    lines = (DATA / "questions" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["question"] for line in lines[: size.prompts]]
    names = dict(line.split("\t") for line in (DATA / "names.tsv").read_text(encoding="utf-8").splitlines())
    folder = make_model(home / "lm_generate", texts, size)
    model = open_local(folder, batch_size=size.batch_size)
    single = open_local(folder, batch_size=1)
    for each in (model, single):
        each.ends = [len(each.tokenizer) - 1]  # a token that no prompt has: texts go on to the last token
        silence(each, each.ends[0])
    prompts = [Prompt(text) for text in texts]
    rows = [*generation_rows(model, single, prompts, size), *score_rows(model, prompts[: size.scored], names, size)]
    parameters = sum(weight.numel() for weight in model.model.parameters()) / 1e6
    head = ["| what | tokens/s | against | tokens/s | ratio (range) |", "|---|---:|---|---:|---:|"]
    note = (
        f"A Llama-shaped model of {parameters:.1f} M parameters with random weights, float32, one thread; "
        f"{size.prompts} questions, {size.new_tokens} new tokens each, up to {size.batch_size} texts at a time. CPU "
        f"time, median of {size.repeats} rounds in turn. Tokens per second are those of the {BEAMS} texts that beams "
        "or samples return. "
        f"Scored: {size.scored} prompts with {size.options} options each; their tokens are the options'."
    )
    write_section(
        "Local language models: speed", "\n".join([*head, *rows, "", note]), "python -m benchmarks lm_generate"
    )


def generation_rows(model: LocalModel, single: LocalModel, prompts: Sequence[Prompt], size: Size) -> list[str]:
    """Return the rows about generating."""
    greedy = Decoding(max_new_tokens=size.new_tokens)
    beam = Decoding(max_new_tokens=size.new_tokens, method="beam", num_beams=BEAMS, num_returns=BEAMS)
    sample = Decoding(max_new_tokens=size.new_tokens, method="sample", num_returns=BEAMS, top_p=0.9)
    few = prompts[: max(1, len(prompts) // 8)]  # one at a time takes its time
    rounds = itertools.count()
    once, beams = len(prompts) * size.new_tokens, BEAMS * len(prompts) * size.new_tokens

    def bound() -> object:
        return model.generate(constrained(prompts, next(rounds)), beam)

    calls: dict[str, tuple[int, Callable[[], object]]] = {
        "greedy": (once, lambda: model.generate(prompts, greedy)),
        "greedy, one at a time": (len(few) * size.new_tokens, lambda: single.generate(few, greedy)),
        "greedy, transformers": (once, lambda: with_transformers(model, prompts, size, 1)),
        "beam": (beams, lambda: model.generate(prompts, beam)),
        "beam, one at a time": (BEAMS * len(few) * size.new_tokens, lambda: single.generate(few, beam)),
        "beam, transformers": (beams, lambda: with_transformers(model, prompts, size, BEAMS)),
        "beam, constrained": (beams, bound),
        "samples": (beams, lambda: model.generate(prompts, sample)),
    }
    times = timed(calls, size.repeats)
    return [
        row("greedy", "one at a time", times["greedy"], times["greedy, one at a time"]),
        row("greedy", "transformers' `generate`", times["greedy"], times["greedy, transformers"]),
        row(f"{BEAMS} beams", "one at a time", times["beam"], times["beam, one at a time"]),
        row(f"{BEAMS} beams", "transformers' `generate`", times["beam"], times["beam, transformers"]),
        row(f"{BEAMS} beams, each prompt under its own new constraint", "unconstrained", times["beam, constrained"],
            times["beam"]),
        row(f"{BEAMS} samples, top_p 0.9", f"{BEAMS} beams", times["samples"], times["beam"]),
    ]  # fmt: skip


def score_rows(model: LocalModel, prompts: Sequence[Prompt], names: Mapping[str, str], size: Size) -> list[str]:
    """Return the row about scoring: long prompts, short options."""
    draw = random.Random(0)
    long = [Prompt("\n".join(draw.sample([other.text for other in prompts], min(8, len(prompts))))) for _ in prompts]
    options = [draw.sample(sorted(set(names.values())), size.options) for _ in long]
    repeated = [prompt for prompt in long for _ in range(size.options)]
    alone = [[option] for own in options for option in own]
    tokens = sum(len(row) for row in model.tokenizer([option for own in options for option in own])["input_ids"])
    times = timed(
        {
            "shared": (tokens, lambda: model.score(long, options)),
            "alone": (tokens, lambda: model.score(repeated, alone)),
        },
        size.repeats,
    )
    mean = sum(model.count_tokens(long)) // len(long)
    return [
        row(f"options after a prompt of {mean} tokens, read once", "read for each", times["shared"], times["alone"])
    ]


def timed(calls: Mapping[str, tuple[int, Callable[[], object]]], repeats: int) -> dict[str, list[float]]:
    """Return the CPU seconds per token of each call, per round."""
    found = interleaved({name: lambda call=call: cpu_seconds(call) for name, (_, call) in calls.items()}, repeats)
    return {name: [seconds / calls[name][0] for seconds in rounds] for name, rounds in found.items()}


def row(what: str, against: str, ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return a row of the table."""
    return f"| {what} | {1 / median(ours):,.0f} | {against} | {1 / median(theirs):,.0f} | {ratio_of(theirs, ours)} |"


def constrained(prompts: Sequence[Prompt], number: int) -> list[Prompt]:
    """Return the prompts with constraints that were never seen before."""
    draw = random.Random(number)
    steps = [*RELATIONS, *(f"^{relation}" for relation in RELATIONS)]
    return [
        Prompt(prompt.text, constraint=Steps(draw.sample(steps, 12), f"{number}:{place}"))
        for place, prompt in enumerate(prompts)
    ]


def with_transformers(model: LocalModel, prompts: Sequence[Prompt], size: Size, num_beams: int) -> object:
    """Ask transformers for the same tokens, in the same batches."""
    rows = sorted(encode_prompts(model.tokenizer, prompts), key=lambda row: -len(row))
    beams: dict[str, Any] = {"num_beams": num_beams, "num_return_sequences": num_beams, "length_penalty": 0.0}
    texts = []
    for start in range(0, len(rows), max(1, size.batch_size // num_beams)):
        batch = rows[start : start + max(1, size.batch_size // num_beams)]
        tokens = torch.zeros((len(batch), len(batch[0])), dtype=torch.int64)
        mask = torch.zeros_like(tokens)
        for place, own in enumerate(batch):
            tokens[place, -len(own) :] = torch.tensor(own)
            mask[place, -len(own) :] = 1
        made = model.model.generate(
            tokens,
            attention_mask=mask,
            max_new_tokens=size.new_tokens,
            do_sample=False,
            eos_token_id=model.ends[0],
            pad_token_id=0,
            **(beams if num_beams > 1 else {}),
        )
        texts += model.tokenizer.batch_decode(made[:, tokens.shape[1] :])
    return texts


def silence(model: LocalModel, token: int) -> None:
    """Let a model never say a token."""

    def hide(module: Any, arguments: Any, output: Any) -> Any:
        output[..., token] = -1e4
        return output

    model.model.lm_head.register_forward_hook(hide)


def make_model(folder: Path, texts: Sequence[str], size: Size) -> Path:
    """Make a model folder with random weights and byte-level tokens of the questions."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2047,
        special_tokens=["<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*texts, *RELATIONS], trainer)
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="<s>")
    made.add_tokens(["<end>"])
    made.eos_token = "<end>"
    config = transformers.LlamaConfig(
        vocab_size=len(made),
        hidden_size=size.width,
        intermediate_size=2 * size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=max(1, size.width // 32),
        max_position_embeddings=1024,
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    made.save_pretrained(folder)
    return folder
