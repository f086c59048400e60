"""The benchmarks of language models, of tuning and of the harness do what they time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import harness, lm_generate, lm_gpu, lora, measure
from kgqa_core.config import RunConfig
from kgqa_core.lm.folders import encode_prompts
from kgqa_core.lm.local import open_local
from kgqa_core.lm.types import Decoding, Prompt
from kgqa_core.run.pipeline import Pipeline


@pytest.mark.slow
def test_the_table_of_speeds_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "RESULTS", tmp_path / "results.md")
    threads = torch.get_num_threads()
    lm_generate.run(tmp_path, lm_generate.SMALL)
    torch.set_num_threads(threads)
    text = (tmp_path / "results.md").read_text()
    for what in ("one at a time", "transformers' `generate`", "constraint", "samples", "read once"):
        assert what in text


def test_transformers_is_asked_for_the_same_texts(tmp_path: Path) -> None:
    texts = ["who directed Heat", "which films were made in Rome ?", "x"]
    model = open_local(lm_generate.make_model(tmp_path / "model", texts, lm_generate.SMALL))
    model.ends = [len(model.tokenizer) - 1]
    lm_generate.silence(model, model.ends[0])
    prompts = sorted((Prompt(text) for text in texts), key=lambda p: -len(encode_prompts(model.tokenizer, [p])[0]))
    for beams in (1, 3):
        decoding = Decoding(max_new_tokens=4, method="beam", num_beams=beams, num_returns=beams)
        found = [text for own in model.generate(prompts, decoding) for text in own]
        ours = [text.text for text in found if text.log_prob is not None]  # cut texts in two ways of tokens count once
        theirs = lm_generate.with_transformers(model, prompts, lm_generate.SMALL, beams)
        assert set(ours) == set(theirs)


@pytest.mark.slow
def test_all_that_is_timed_on_a_gpu_can_be_done_without(tmp_path: Path) -> None:
    device, size = torch.device("cpu"), lm_gpu.SMALL
    rate = lm_gpu.matrix_rate(device, size, repeats=1)
    rows = lm_gpu.measure_shape(size.shapes[0], device, size, rate)
    assert [row.split(" | ")[1:3] for row in rows] == [
        ["read", "2"],
        ["write", "1"],
        ["write", "3"],
        ["LoRA step", "2"],
        ["LoRA step, checkpointed", "2"],
    ]


def test_what_memory_does_not_hold_is_said() -> None:
    def fail() -> int:
        raise torch.OutOfMemoryError("CUDA out of memory")

    row = lm_gpu.row("7B", ("read", 8, 2.0, fail), parameters=7, rate=1.0, device=torch.device("cpu"))
    assert row == "| 7B | read | 8 | out of memory | | |"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")
def test_a_small_llama_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "RESULTS", tmp_path / "results.md")
    lm_gpu.run(tmp_path, lm_gpu.SMALL)
    assert "tiny" in (tmp_path / "results.md").read_text()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A small base and its examples."""
    folder = tmp_path_factory.mktemp("lora")
    examples = lora.write_examples(folder / "instructions.parquet", 8)
    return lora.make_base(folder / "base", examples, 32, 1, 2), examples


@pytest.mark.slow
def test_each_way_reads_every_example_once(made: tuple[Path, Path]) -> None:
    base, examples = made
    threads = torch.get_num_threads()
    whats = {"buckets": "LoRA, buckets", "defaults": "LoRA, Trainer's defaults"}
    found = {how: lora.tune_once(str(base), str(examples), what, 2, 4) for how, what in whats.items()}
    torch.set_num_threads(threads)
    assert found["buckets"]["tokens"] == found["defaults"]["tokens"] <= found["buckets"]["read"]
    assert found["defaults"]["read"] > found["defaults"]["tokens"]  # padding
    assert found["buckets"]["trained"] == found["defaults"]["trained"]
    assert "| LoRA | " in lora.row("LoRA", [found["buckets"]], 2)


@pytest.mark.slow
def test_what_is_timed_on_a_gpu_runs_without_one(made: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora, "GPU_STEPS", 5)
    monkeypatch.setattr(lora, "MATRIX", 16)
    found = lora.tune_on(str(made[0]), str(made[1]), "cpu", {"batch_size": 2})
    assert found["speed"] > 0 and found["memory"] == 0 and found["parameters"] > 10_000
    assert lora.matrix_rate("cpu") > 0


@pytest.mark.slow
def test_every_part_of_an_evaluation_is_measured(tiny_config: RunConfig) -> None:
    pipeline = Pipeline(tiny_config)
    folders = [str(pipeline.artifact(stage).folder) for stage in ("graph", "questions")]
    found = harness.measure(*folders, count=30, systems=2)
    assert found["questions"] == 30
    assert found["ms"].keys() == harness.PARTS.keys()
    assert found["called"].keys() >= harness.WITH_CALLS.keys()
    assert "| 30 questions |" in harness.report([found], 2)
