"""What a retraining may cost: counted from its start, looked at now and then, and over it an error that says which."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from kgqa_core.config import GateSection
from kgqa_core.lm.calls import Account, Meter
from kgqa_core.run.pipeline import PROGRESS
from tasks import caps
from tasks.caps import HOUR, CapReached, capped, cpu_seconds


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clocks that caps read, which a test moves."""
    fake = SimpleNamespace(cpu=100.0, now=1000.0, gpus=0)
    monkeypatch.setattr(caps, "cpu_seconds", lambda: fake.cpu)
    monkeypatch.setattr(caps, "gpu_in_use", lambda: fake.gpus)
    monkeypatch.setattr(caps, "time", SimpleNamespace(monotonic=lambda: fake.now))
    return fake


def test_over_a_cap_on_cpu_hours_the_run_stops_where_it_is(spent: SimpleNamespace) -> None:
    told: list[Any] = []
    listening = PROGRESS.set(lambda *what: told.append(what))
    with capped(GateSection(max_cpu_hours=2)):
        progress = PROGRESS.get()
        assert progress is not None
        spent.cpu += 2 * HOUR
        spent.now += 5
        progress("training", 1, 9)
        spent.cpu += 1
        progress("training", 2, 9)  # too early for another look
        spent.now += 5
        with pytest.raises(CapReached) as stopped:
            progress("training", 3, 9)
    assert str(stopped.value) == "stopped in training: it takes more than 2 CPU hours (gate.max_cpu_hours)"
    assert [done for _, done, _ in told] == [1, 2, 3]
    PROGRESS.reset(listening)


def test_gpu_hours_count_from_when_a_gpu_is_in_use(spent: SimpleNamespace) -> None:
    with capped(GateSection(max_gpu_hours=1)) as found:
        spent.now += 3 * HOUR
        found.check("graph")
        spent.gpus = 1
        spent.now += HOUR
        found.check("explorer-seed0")
        spent.now += 1
        with pytest.raises(CapReached, match=r"more than 1 GPU hours \(gate.max_gpu_hours\)"):
            found.check("explorer-seed0")


def test_calls_that_are_paid_count_and_those_of_before_do_not(spent: SimpleNamespace) -> None:
    account = Account("rog", "model", "plan", "q1")
    Meter().charge(account, {"paid_calls": 100})
    with capped(GateSection(max_calls=3)) as found:
        Meter().charge(account, {"num_calls": 50, "paid_calls": 3})
        found.check("rog")
        Meter().charge(account, {"paid_calls": 1})
        with pytest.raises(CapReached, match=r"stopped in rog: .* 3 calls of language models \(gate.max_calls\)"):
            found.check("rog")


def test_a_training_in_another_pool_and_its_retraining_are_held_to_one_sum(
    spent: SimpleNamespace, tmp_path: Path
) -> None:
    shared, section = tmp_path / "spent" / "run", GateSection(max_cpu_hours=2)
    with capped(section, shared) as retraining:
        spent.cpu += HOUR
        retraining.check("encodings")
        with capped(section, shared, keep=True) as training:
            spent.cpu += 0.9 * HOUR
            training.check("explorer-seed0")
            spent.cpu += 0.2 * HOUR
            with pytest.raises(CapReached, match="stopped in explorer-seed0: it takes more than 2 CPU hours"):
                training.check("explorer-seed0")
        assert shared.is_dir()  # what the training spent still counts for what follows
        spent.cpu -= 1.1 * HOUR  # it was another process, whose seconds are not this one's
        with pytest.raises(CapReached, match="stopped in gate"):
            retraining.check("gate")
    assert not shared.exists()


def test_a_training_goes_on_whose_retraining_ends_while_it_says_what_it_spent(
    spent: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caps, "write_json", Mock(side_effect=FileNotFoundError))  # the folder, just before it
    with capped(GateSection(max_cpu_hours=2), tmp_path / "run", keep=True) as training:
        spent.cpu += HOUR
        training.check("explorer-seed0")
        spent.cpu += 1.1 * HOUR
        with pytest.raises(CapReached, match="it takes more than 2 CPU hours"):  # its own hours still count
            training.check("explorer-seed0")


@pytest.mark.parametrize("section", [None, GateSection()])
def test_without_a_cap_nothing_stops(spent: SimpleNamespace, section: GateSection | None) -> None:
    with capped(section) as found:
        spent.cpu += 1000 * HOUR
        found.check("training")


def test_children_count_while_they_run_and_when_they_have_ended() -> None:
    burn = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    before = cpu_seconds()
    with subprocess.Popen([sys.executable, "-c", burn], stdin=-1, stdout=-1) as child:
        assert child.stdout is not None and child.stdout.readline()
        running = cpu_seconds()
        child.communicate(b"\n")
    assert running - before > 0.4
    assert cpu_seconds() - before > 0.4
