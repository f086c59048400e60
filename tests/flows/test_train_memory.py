"""The estimate of a tuning's memory: against a tuning that was measured, and what shapes alone say of a large model."""

from __future__ import annotations

import io
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from flows.train_memory import training_memory
from kgqa_core.config_lm import ReasonerSection
from kgqa_core.errors import InputError
from kgqa_core.lm.tune_data import TuneJob
from tests.lm.tiny_models import Example, make_llama, write_examples

SIZES = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 4}
SECTION = {"precision": "float32", "max_steps": 2, "batch_size": 4, "max_length": 512, "learning_rate": 1e-4}
LARGE = LlamaConfig(num_hidden_layers=2, max_position_embeddings=4096, architectures=["LlamaForCausalLM"])


def measure(warm: str, job: str) -> None:
    """Tune in this process and print the bytes by which its resident set grew at the most; ``warm`` loads the code."""
    from kgqa_core.lm.tune import tune

    def kilobytes(what: str) -> int:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(re.findall(rf"^{what}:\s+(\d+) kB", status, re.MULTILINE)[0])

    tune(TuneJob.model_validate_json(warm))
    before = kilobytes("VmRSS")
    tune(TuneJob.model_validate_json(job))
    print((kilobytes("VmHWM") - before) * 1024)


def tunable(folder: Path, section: dict[str, Any], **sizes: int) -> TuneJob:
    """A job whose rows are as long as the section lets them be, nearly, and have nothing in common."""
    draw = random.Random(0)
    texts = [" ".join(draw.choices(["Heat", "Bath", "Spa", "Mann"], k=190)) for _ in range(16)]
    rows = [Example("plan", f"q{number}", "train", "", text, "Heat Bath", 1.0) for number, text in enumerate(texts)]
    folder.mkdir()
    base = make_llama(folder / "base", num_key_value_heads=2, max_position_embeddings=600, **sizes)
    file = write_examples(folder / "examples.parquet", rows)
    return TuneJob(base=base, examples=(file,), out=folder / "out", section=ReasonerSection(**section))


@pytest.mark.slow
@pytest.mark.parametrize("tuning", ["full", "lora"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_it_is_what_was_measured_within_15_percent(tmp_path: Path, tuning: str, checkpointing: bool) -> None:
    section = {**SECTION, "tuning": tuning, "gradient_checkpointing": checkpointing}
    job, warm = tunable(tmp_path / "job", section, **SIZES), tunable(tmp_path / "warm", section, hidden_size=32)
    told = [one.model_dump_json() for one in (warm, job)]
    code = "import sys; from tests.flows.test_train_memory import measure; measure(*sys.argv[1:])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment["MALLOC_MMAP_THRESHOLD_"] = "65536"  # what is freed goes back at once
    done = subprocess.run(
        [sys.executable, "-c", code, *told], capture_output=True, text=True, env=environment, check=True
    )
    measured = int(done.stdout.split()[-1])
    estimate = training_memory(job.base, job.section)["peak_bytes"]
    assert abs(estimate / measured - 1) < 0.15, (estimate, measured)


@pytest.mark.slow
def test_shapes_tell_what_a_large_model_needs(tmp_path: Path) -> None:
    LARGE.save_pretrained(tmp_path)  # no weights are there

    def told(**changed: Any) -> dict[str, Any]:
        return training_memory(tmp_path, ReasonerSection(batch_size=4, micro_batch=1, **changed))

    full, lora = told(tuning="full"), told()
    assert full["weight_bytes"] == full["gradient_bytes"] == 4 * full["parameters"] == 4 * full["trained_parameters"]
    assert full["optimiser_bytes"] == 8 * full["parameters"] and full["peak_bytes"] > 16 * full["parameters"]
    half = 2 * (lora["parameters"] - lora["trained_parameters"]) + 4 * lora["trained_parameters"]
    assert lora["weight_bytes"] == half and lora["peak_bytes"] < full["peak_bytes"] / 3
    assert told(gradient_checkpointing=True)["activation_bytes"] < lora["activation_bytes"]
    assert full["peak_bytes_if_sharded_over_8"] < full["peak_bytes_if_sharded_over_2"] < full["peak_bytes"]
    saved = full["peak_bytes_if_sharded_over_2"] - full["peak_bytes_if_sharded_over_8"]
    assert abs(saved - 16 * full["parameters"] * 3 / 8) < 10 and "peak_bytes_if_sharded_over_2" not in lora
    # Gradients and gathered weights go block by block: four times the layers add no more than their activations.
    passing = []
    for layers in (2, 8):
        LlamaConfig(**{**LARGE.to_dict(), "num_hidden_layers": layers}).save_pretrained(tmp_path)
        found = told(tuning="full", gradient_checkpointing=True)
        passing.append(found["peak_bytes_if_sharded_over_8"] - 2 * found["parameters"])
    assert passing[1] < passing[0] * 1.1
    with pytest.raises(InputError, match=r"config\.json"):
        training_memory(tmp_path / "none", ReasonerSection())


@pytest.mark.parametrize("config", [{"model_type": "t5"}, {"model_type": "odd", "auto_map": {"AutoConfig": "odd.Odd"}}])
def test_a_folder_of_another_kind_is_refused_and_its_code_is_not_run(
    tmp_path: Path, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "odd.py").write_text("raise SystemExit('run')\n", encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(InputError, match=r"is no causal language model|cannot generate"):
        training_memory(tmp_path, ReasonerSection())
