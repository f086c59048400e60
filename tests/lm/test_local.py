"""Local models: what is asked comes back, with adapters and without; what is told of a model."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flows import model_facts
from flows.model_facts import describe
from kgqa_core.lm.constraints import Choices, Lines
from kgqa_core.lm.folders import Quantise, decode, encode_prompts
from kgqa_core.lm.generate import Batcher, DoesNotFit, read_prompts
from kgqa_core.lm.local import open_local
from kgqa_core.lm.types import Constraint, Decoding, Prompt
from tests.lm.tiny_models import make_adapter, make_any

PROMPTS = [
    Prompt("who directed Heat ?"),
    Prompt("what does Bath Spa say about 42 trains , and the plan is what genre of film ?"),
    Prompt("x"),
    Prompt("Answer: the", system="the plan is drama"),
    Prompt("naïve"),
]
ASKED, OPTIONS = [Prompt("the plan is"), Prompt("x")], [["drama", "Heat"], ["Heat"]]


def test_greedy_equals_transformers(any_model: Path) -> None:
    model = open_local(any_model)
    for prompt, texts in zip(PROMPTS, model.generate(PROMPTS, Decoding(max_new_tokens=7)), strict=True):
        tokens = torch.tensor(encode_prompts(model.tokenizer, [prompt]))
        made = model.model.generate(tokens, max_new_tokens=7, do_sample=False, eos_token_id=model.ends, pad_token_id=0)
        assert texts[0].text == decode(model.tokenizer, [t for t in made[0, tokens.shape[1] :] if t not in model.ends])


@pytest.mark.parametrize(
    ("constraint", "short"),
    [
        (Lines(["Dawn", "Dusk", "Heat"], "none"), {"Dawn", "Dusk", "Heat", "none"}),
        (Choices(["yes", "yes it is"]), {"yes"}),
    ],
)
@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_bound_text_may_end_with_any_token_that_ends_one(
    qwen2: Path, constraint: Constraint, short: set[str], num_beams: int
) -> None:
    """Gemma's and Phi's chats end with another token than the tokenizer names, which those models never give."""
    model = open_local(qwen2)
    own, other = model.ends

    def prefer_the_other(module: object, args: object, logits: torch.Tensor) -> torch.Tensor:
        more = torch.tensor([-60.0, 60.0]).expand(*logits.shape[:-1], 2)
        return logits.index_add(-1, torch.tensor([own, other]), more)

    model.model.lm_head.register_forward_hook(prefer_the_other)
    decoding = Decoding(60, "beam", num_beams=num_beams, num_returns=num_beams)
    best = model.generate([Prompt("x", constraint=constraint)], decoding)[0][0]
    assert best.text in short and best.finished
    assert model.score([Prompt("x")], [[best.text]])[0] == [pytest.approx(best.log_prob, abs=1e-3)]


def test_a_prompt_that_leaves_no_room_for_its_answer_is_too_long(any_model: Path) -> None:
    model = open_local(any_model)
    prompts = [Prompt("x" * number) for number in range(180, 258, 4)]
    answers = model.generate(prompts, Decoding(max_new_tokens=7))
    for num_tokens, (text,) in zip(model.count_tokens(prompts), answers, strict=True):
        too_long = num_tokens + 7 > model.context
        assert (text.problem == "too_long") == too_long == (text.num_tokens == 0)
    assert {texts[0].problem for texts in answers} == {"", "too_long"}


@pytest.mark.parametrize("kind", ["qwen2", "mixtral", "qwen3_moe"])  # the latter two with fused experts
def test_an_adapted_model_scores_as_in_plain_peft(kind: str, tmp_path: Path) -> None:
    import peft
    import transformers

    base = make_any(tmp_path / kind, kind)
    adapter = make_adapter(base, tmp_path / "lora")
    model, plain = open_local(base, adapter=adapter), open_local(base)
    assert model.score(ASKED, OPTIONS)[0] != pytest.approx(plain.score(ASKED, OPTIONS)[0], abs=0.1)
    bare = transformers.AutoModelForCausalLM.from_pretrained(base)
    plain.model = peft.PeftModel.from_pretrained(bare, adapter).eval()
    for scores, known in zip(model.score(ASKED, OPTIONS), plain.score(ASKED, OPTIONS), strict=True):
        assert scores == pytest.approx(known, abs=1e-3)


def test_an_adapter_that_is_not_merged_is_asked_in_the_same_way(gpt2: Path, qwen2: Path, tmp_path: Path) -> None:
    adapter = make_adapter(qwen2, tmp_path / "lora")
    model = open_local(qwen2, adapter=adapter, dtype="bfloat16")  # where adding it into the weights would round
    merged = open_local(qwen2, adapter=adapter)
    assert str(model.model.dtype) == "torch.bfloat16" and model.name != merged.name
    assert hasattr(model.model, "peft_config") and not hasattr(merged.model, "peft_config")
    assert model.score(ASKED, OPTIONS)[1] == pytest.approx(merged.score(ASKED, OPTIONS)[1], rel=0.1)
    assert model.generate(ASKED, Decoding(max_new_tokens=3))[1][0].num_tokens > 0
    turned = make_adapter(gpt2, tmp_path / "gpt2", target_modules=["c_attn"], fan_in_fan_out=True)
    assert open_local(gpt2, adapter=turned).score(ASKED, OPTIONS) != open_local(gpt2).score(ASKED, OPTIONS)


def test_facts_are_those_of_the_loaded_model(any_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, model = describe(any_model), open_local(any_model)
    assert told["parameters"] == sum(weight.numel() for weight in model.model.parameters())
    assert told["weight_bytes"] == 4 * told["parameters"]
    assert (told["context"], told["vocabulary"], told["name"]) == (257, len(model.tokenizer), model.name)
    assert told["read_tokens_per_second"] and told["new_tokens_per_second"]
    cached, _ = read_prompts(model.model, [[5, 6, 7]])
    numbers = sum(layer.keys[:, :, :3].numel() + layer.values[:, :, :3].numel() for layer in cached.states.layers)
    assert told["cache_bytes_per_token"] == 4 * numbers // 3
    monkeypatch.setattr(model_facts, "free_memory", lambda device: 1000)  # it does not fit: it is not loaded
    unloaded = describe(any_model)
    assert unloaded["read_tokens_per_second"] is None and unloaded["parameters"] == told["parameters"]


@pytest.mark.parametrize(("quantise", "bytes_per_weight"), [("none", 2), ("int8", 1), ("int4", 0.5)])
def test_quantisation_shrinks_matrices_but_not_tables(
    qwen2: Path, monkeypatch: pytest.MonkeyPatch, quantise: Quantise, bytes_per_weight: float
) -> None:
    monkeypatch.setattr(model_facts, "free_memory", lambda device: 1)  # so that it is not loaded
    told = describe(qwen2, dtype="bfloat16", quantise=quantise)
    layers = open_local(qwen2).model.model.layers
    matrices = sum(weight.numel() for weight in layers.parameters() if weight.dim() == 2)
    assert told["weight_bytes"] == 2 * (told["parameters"] - matrices) + bytes_per_weight * matrices


def test_batches_are_no_smaller_for_ever_because_one_found_the_memory_full() -> None:
    """Options are weighed in batches inside one of prompts, which is halved when not even one option fits beside it."""

    def nothing_fits(rows: list[int]) -> list[int]:
        raise MemoryError

    batcher, sizes = Batcher(8), list[int]()
    with pytest.raises(DoesNotFit):
        batcher.map(range(8), [10] * 8, nothing_fits)
    assert batcher.map(range(8), [10] * 8, lambda rows: sizes.append(len(rows)) or rows) == list(range(8))
    assert sizes == [8]


FAULTS = """
import resource, sys
from pathlib import Path
import torch
from kgqa_core.lm.local import open_local
open_local(Path(sys.argv[1]))
torch.ones(2**24)  # 64 MiB
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left as they are")
def test_memory_of_freed_tensors_is_not_fetched_from_the_kernel_anew(gpt2: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS, gpt2], check=True, capture_output=True, text=True)
    # All ten have 10 * 2**14 pages. One or two may be new, where something small took a part of the hole left behind.
    assert int(done.stdout) < 5 * 2**14
