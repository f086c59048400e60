"""The simulated schedule of a build: what must hold whatever tasks cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.freebase.schedule import Profile, makespan, simulate

COSTS = st.lists(st.floats(0, 100), min_size=1, max_size=23)


@pytest.mark.parametrize(
    ("workers", "seconds"),
    [
        (1, 3 + 5 + 2 + 7),
        (2, 3 + 2 + 7),  # the 2 goes behind the 3, and the 7 behind both: 3, 2, 7 and 5
        (3, 2 + 7),
        (4, 7),
    ],
)
def test_tasks_are_taken_in_turn_by_whoever_is_free_first(workers: int, seconds: float) -> None:
    assert makespan([3, 5, 2, 7], workers) == seconds


def test_every_task_of_a_worker_costs_its_message() -> None:
    assert makespan([3, 5, 2, 7], 1, per_task=0.5) == 17 + 4 * 0.5
    assert makespan([3, 5, 2, 7], 4, per_task=0.5) == 7.5


def test_serial_stretches_stay_and_each_map_waits_for_its_slowest_task() -> None:
    profile = Profile(serial=[1, 2, 3], maps=[[4, 1], [1, 1, 1]])
    assert profile.total == 6 + 5 + 3
    assert profile.serial_share == 6 / 14
    assert simulate(profile, 1) == profile.total
    assert simulate(profile, 2) == 6 + 4 + 2
    assert simulate(profile, 99) == 6 + 4 + 1


@given(COSTS, st.integers(1, 9))
def test_no_schedule_beats_its_longest_task_or_all_workers_together(costs: list[float], workers: int) -> None:
    found = makespan(costs, workers)
    best = max(max(costs), sum(costs) / workers)
    assert best <= found * (1 + 1e-9)
    assert found <= (2 - 1 / workers) * best * (1 + 1e-9)  # Graham's bound for taking tasks as they come
