"""The benchmark of tuning does what it times."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import lora


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
