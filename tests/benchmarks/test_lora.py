"""The benchmark of tuning does what it times."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import lora, lora_gpu


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A small base and its examples."""
    folder = tmp_path_factory.mktemp("lora")
    examples = lora.write_examples(folder / "instructions.parquet", 8)
    return lora.make_base(folder / "base", examples, lora.SMALL), examples


@pytest.mark.slow
def test_each_way_reads_every_example_once(made: tuple[Path, Path]) -> None:
    base, examples = made
    threads = torch.get_num_threads()
    whats = {"packed": "LoRA, packed", "defaults": "LoRA, Trainer's defaults"}
    found = {how: lora.tune_once(str(base), str(examples), what, 2, 4) for how, what in whats.items()}
    torch.set_num_threads(threads)
    assert found["packed"]["tokens"] == found["defaults"]["tokens"] == found["packed"]["read"]
    assert found["defaults"]["read"] > found["defaults"]["tokens"]  # padding
    assert found["packed"]["trained"] == found["defaults"]["trained"]
    assert "| LoRA | " in lora.row("LoRA", [found["packed"]], 2)


@pytest.mark.slow
@pytest.mark.parametrize("way", lora_gpu.WAYS, ids=lambda way: way.name)
def test_what_is_timed_on_a_gpu_runs_without_one(way: lora_gpu.Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora_gpu, "SHAPES", {"tiny": (16, 24, 1, 2)})
    monkeypatch.setattr(lora_gpu, "STEPS", 3)
    monkeypatch.setattr(lora_gpu, "WARM", 1)
    small = lora_gpu.Way(way.name, 2, way.options)
    speed, memory, parameters = lora_gpu.measure("tiny", small, device="cpu")
    assert speed > 0 and memory == 0
    assert parameters == 4 * 16 * 16 + 3 * 16 * 24 + 3 * 16 + 16 * lora_gpu.VOCABULARY
