"""The benchmarks of language models, of tuning and of the harness do what they time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import harness, lm_gpu, lora, measure
from kgqa_core.config import RunConfig
from kgqa_core.run.pipeline import Pipeline


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
def test_every_part_of_an_evaluation_is_measured(tiny_config: RunConfig) -> None:
    pipeline = Pipeline(tiny_config)
    folders = [str(pipeline.artifact(stage).folder) for stage in ("graph", "questions")]
    found = harness.measure(*folders, count=30, systems=2)
    assert found["questions"] == 30
    assert found["ms"].keys() == harness.PARTS.keys()
    assert found["called"].keys() >= harness.WITH_CALLS.keys()
    assert "| 30 questions |" in harness.report([found], 2)
