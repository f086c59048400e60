"""A tuning by several processes of torchrun ends as one alone does, goes on exactly, and passes errors on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from kgqa_core.errors import ConfigError
from kgqa_core.lm.local import open_local
from kgqa_core.lm.tune_journal import STATE, TENSORS
from kgqa_core.lm.types import Prompt
from tests.lm.tiny_models import Killed, files_of, make_job, told


@pytest.mark.slow
def test_two_processes_of_torchrun_tune_as_one_alone_and_go_on_exactly(
    llama: Path, instructions: Path, tmp_path: Path
) -> None:
    shape = {"max_steps": 6, "batch_size": 8, "learning_rate": 1e-2, "num_evaluations": 2, "curve_every": 1}
    one, points = told(make_job(llama, instructions, tmp_path / "one", **shape))
    whole = make_job(llama, instructions, tmp_path / "two", journal=tmp_path / "whole", save_every=0, **shape)
    two, said = told(whole, processes=2)
    assert [point[:2] for point in said] == [point[:2] for point in points]
    assert [point[2] for point in said] == pytest.approx([point[2] for point in points], rel=1e-3)
    assert two.num_tokens == one.num_tokens
    weights = [load_file(report.folder / "adapter_model.safetensors") for report in (one, two)]
    for name, expected in weights[0].items():
        assert weights[1][name] == pytest.approx(expected, abs=1e-3)
    stopped = whole.model_copy(update={"out": tmp_path / "three", "journal": tmp_path / "stopped"})
    with pytest.raises(Killed):
        told(stopped, until=3, processes=2)
    assert any((tmp_path / "stopped" / "states").glob("step-0000000[1-5]"))
    again, _ = told(stopped, processes=2)
    same = [(report.folder / "adapter_model.safetensors").read_bytes() for report in (again, two)]
    assert same[0] == same[1]


@pytest.mark.slow
def test_two_processes_that_share_the_weights_tune_as_two_that_have_them_all(
    llama: Path, instructions: Path, tmp_path: Path
) -> None:
    """What is saved is an ordinary folder, and a killed training goes on to the same bytes."""
    shape = {"max_steps": 6, "batch_size": 8, "micro_batch": 2, "learning_rate": 1e-3, "gradient_norm": 0.5}
    shape |= {"num_evaluations": 3, "curve_every": 1, "tuning": "full", "save_every": 0}
    expected, points = told(make_job(llama, instructions, tmp_path / "whole", **shape), processes=2)
    job = make_job(llama, instructions, tmp_path / "shared", sharded=True, journal=tmp_path / "journal", **shape)
    shared, said = told(job, processes=2)
    assert [point[:2] for point in said] == [point[:2] for point in points]
    assert [point[2] for point in said] == pytest.approx([point[2] for point in points], rel=1e-5)
    assert (shared.kept_step, shared.num_trainable) == (expected.kept_step, expected.num_trainable)
    assert set(files_of(job.tuned)) == set(files_of(expected.folder))
    one, other = (load_file(report.folder / "model.safetensors") for report in (shared, expected))
    assert set(one) == set(other) and all(one[name] == pytest.approx(other[name], abs=1e-5) for name in one)
    assert open_local(job.tuned).score([Prompt("plan enre of Heat")], [["film"]])[0][0] < 0
    last = tmp_path / "journal" / "states" / "step-00000006"
    assert sorted(files_of(last)) == ["state-1.safetensors", STATE, TENSORS]
    sizes = [(last / name).stat().st_size for name in ("state-1.safetensors", TENSORS)]
    assert max(sizes) < 0.6 * 4 * 4 * shared.num_trainable  # weights, the best ones and two moments, of one half
    stopped = job.model_copy(update={"out": tmp_path / "again", "journal": tmp_path / "stopped"})
    with pytest.raises(Killed):
        told(stopped, until=4, processes=2)
    assert any((tmp_path / "stopped" / "states").glob("step-0000000[1-5]"))
    again, resumed = told(stopped, processes=2)
    assert resumed == said and files_of(again.folder) == files_of(shared.folder)


@pytest.mark.parametrize("changed", [{"tuning": "lora"}, {"tuning": "full"}])
def test_what_cannot_be_sharded_is_refused(
    llama: Path, instructions: Path, tmp_path: Path, changed: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=r"runtime\.sharded is for tuning: full"):
        told(make_job(llama, instructions, tmp_path, sharded=True, **changed))


@pytest.mark.slow
def test_errors_of_processes_are_errors_here_and_they_leave_no_folder_behind(
    llama: Path, instructions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr("tempfile.tempdir", None)  # so that it is read
    with pytest.raises(ConfigError, match="batch_size 7 must be a multiple of the number of processes"):
        told(make_job(llama, instructions, tmp_path, batch_size=7), processes=2)
    assert not (tmp_path / "adapter").exists()
    assert list(scratch.iterdir()) == []
