"""Two of the failure drills, for real: kill -9 at three points of a whole retraining, and SIGTERM."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.drills.__main__ import kills, sigterm

pytestmark = pytest.mark.slow


def test_killed_at_any_point_a_retraining_ends_with_the_bytes_and_the_alias_of_one_that_was_not(
    tmp_path: Path, server: str
) -> None:
    found = kills(tmp_path, server, points=3)
    assert found["same"] == 3
    assert not all(point["ended"] for point in found["points"])


def test_sigterm_stops_cleanly_and_the_next_run_goes_on(tmp_path: Path, server: str) -> None:
    found = sigterm(tmp_path, server, points=0)
    assert found["code"] == 143
    assert found["stages_kept"] >= 3
