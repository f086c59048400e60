"""An evaluation of systems, killed at random points and resumed: the same bytes, and what was paid stays paid."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.killed_evaluation import LEDGER, copy_base, evaluate, kill_and_resume
from kgqa_core.run.pipeline import Pipeline

pytestmark = pytest.mark.slow

NUM_KILLS = 3
SETTINGS = ["systems.run=[fiske,tog,rog]", "systems.rog.plans=lm", "systems.chunk=5", "systems.oracle.error=0.2"]


def test_killed_at_random_points_an_evaluation_ends_with_the_same_table_and_pays_no_completed_call_twice(
    compared: Pipeline, tmp_path: Path, record_testsuite_property: Callable[[str, object], None]
) -> None:
    conf, undisturbed = compared.home.parent / "places.yaml", tmp_path / "undisturbed"
    copy_base(compared.home, undisturbed)
    evaluate(conf, undisturbed, undisturbed / LEDGER, SETTINGS)
    found = kill_and_resume(conf, undisturbed, tmp_path, settings=SETTINGS, kills=NUM_KILLS, seed=3)
    record_testsuite_property("calls in flight at a kill", found.paid_again)
    assert found.kills == NUM_KILLS
    assert found.half_made
    assert found.calls > 100
    assert found.kept_and_paid_again == 0
    assert found.paid_again <= NUM_KILLS  # the one call in flight
    assert found.paid == found.calls + found.paid_again
    assert found.compared == 3 * 3 + 2
    assert found.differing == ()
