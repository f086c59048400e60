"""Sums into groups: compiled, by torch's own ``index_add`` and by torch-scatter; on a GPU too, where there is one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from benchmarks.measure import write_section
from benchmarks.workload import interleaved, wait
from kgqa_core.explorer.batch import has_torch_scatter, spread_sum

Sum = Callable[[Tensor], Tensor]
"""Rows to sums of rows."""


@dataclass(frozen=True, slots=True)
class Case:
    """One sum as a training batch makes it."""

    label: str
    entries: int  # n: how many rows are added
    groups: int  # into how many
    width: int | None  # None: one number per row
    rows: int | None = None  # the n entries are taken from so many rows, with factors (spread_sum); None: scatter_sum
    ordered: bool = False  # do the rows of a group stand together?


# As seen in batches of 32 (the path with a state per node: 8) MetaQA 3-hop questions at d = 64.
CASES = (
    Case("messages to state classes, 2nd step", 1_300, 640, 64, rows=520),
    Case("messages to state classes, 3rd step", 64_000, 23_000, 64, rows=4_200),
    Case("messages to a state per node, 3rd step", 170_000, 66_000, 64, rows=91_000),
    Case("softmax over a question's candidates", 390_000, 32, None, ordered=True),
    Case("rows of floats", 64_000, 23_000, 64),
    Case("rows of floats, groups in order", 64_000, 23_000, 64, ordered=True),
)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    repeats: int
    calls: int  # per round


FULL = Size(repeats=15, calls=5)
SMALL = Size(repeats=2, calls=1)


def run(home: Path, size: Size = FULL) -> None:
    """Time the back ends forward and backward on each device and compare what they return."""
    if not has_torch_scatter():
        print("scatter: skipped, torch-scatter is not installed (make scatter builds it)")
        return
    torch.set_num_threads(1)
    rows = [
        "| device | sum | entries (of rows) into groups | back end | forward, ms | with backward, ms | "
        "largest difference: values / gradients |",
        "|---|---|---|---|---:|---:|---|",
    ]
    for device in ("cpu", *(["cuda"] if torch.cuda.is_available() else [])):
        for case in CASES:
            rows += measure(case, torch.device(device), size)
    missing = "" if torch.cuda.is_available() else " There was no GPU to measure on."
    note = (
        f"Medians of {size.repeats} interleaved rounds of {size.calls} calls, float32, one thread; differences to the "
        "first back end, relative to the largest value. Bold: the default there. On the CPU a sum over rows is torch's "
        "own, and the explorer's messages, few rows that are added many times, go through a compiled loop that makes "
        f"no copy per entry; elsewhere torch-scatter serves where it is installed. Nothing needs it.{missing}"
    )
    write_section("Scatter", "\n".join([*rows, "", note]), "python -m benchmarks scatter")


def measure(case: Case, device: torch.device, size: Size) -> list[str]:
    """Return the table rows of one case, one per back end."""
    source, sums = back_ends(case, device)
    calls = {
        (name, backward): lambda one=one, backward=backward: seconds_of(one, source, backward, size.calls)
        for name, one in sums.items()
        for backward in (False, True)
    }
    found = {key: 1000 * median(seconds) / size.calls for key, seconds in interleaved(calls, size.repeats).items()}
    first, *others = [value_and_gradient(one, source) for one in sums.values()]
    apart = ["", *(" / ".join(f"{one:.0e}" for one in differences(first, other)) for other in others)]
    what = f"{case.entries:,} x {case.width or 1}{f' (of {case.rows:,})' if case.rows else ''} into {case.groups:,}"
    return [
        f"| {device.type} | {case.label} | {what} | {name} | {found[name, False]:.2f} | {found[name, True]:.2f} | "
        f"{far} |"
        for name, far in zip(sums, apart, strict=True)
    ]


def back_ends(case: Case, device: torch.device) -> tuple[Tensor, dict[str, Sum]]:
    """Return rows to add, and the back ends that can, by name; the default of the device in bold."""
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(case.groups, (case.entries,), generator=generator)
    index = (index.sort().values if case.ordered else index).to(device)
    shape = (case.rows or case.entries, *([case.width] if case.width else []))
    source = torch.randn(shape, generator=generator).to(device)
    bold = {"compiled": device.type == "cpu", "torch": device.type == "cpu" and not case.rows}
    bold["torch-scatter"] = not any(bold.values())
    groups = case.groups
    if not case.rows:
        sums: dict[str, Sum] = {
            "torch": lambda rows: scatter_sum_torch(rows, index, groups),
            "torch-scatter": lambda rows: scatter_sum_extension(rows, index, groups),
        }
    else:
        taken = torch.randint(case.rows, (case.entries,), generator=generator).to(device)
        times = torch.randint(1, 5, (case.entries,), generator=generator).to(device)

        def gather(rows: Tensor) -> Tensor:
            return rows.index_select(0, taken) * times[:, None]

        sums = {
            "torch": lambda rows: scatter_sum_torch(gather(rows), index, groups),
            "torch-scatter": lambda rows: scatter_sum_extension(gather(rows), index, groups),
        }
        if device.type == "cpu":
            sums = {"compiled": lambda rows: spread_sum(rows, taken, times, index, groups), **sums}
    return source, {f"**{name}**" if bold[name] else name: one for name, one in sums.items()}


def scatter_sum_torch(source: Tensor, index: Tensor, num_groups: int) -> Tensor:
    """Return ``batch.scatter_sum`` by torch's own ``index_add``."""
    return source.new_zeros((num_groups, *source.shape[1:])).index_add(0, index, source)


def scatter_sum_extension(source: Tensor, index: Tensor, num_groups: int) -> Tensor:
    """Return ``batch.scatter_sum`` by torch-scatter."""
    import torch_scatter

    result: Tensor = torch_scatter.scatter_add(source, index, dim=0, dim_size=num_groups)
    return result


def seconds_of(add: Sum, source: Tensor, backward: bool, calls: int) -> float:
    """Return the seconds of some calls in turn: CPU seconds, or on a GPU those that pass until it is done."""
    clock = time.perf_counter if source.is_cuda else time.process_time
    wait(source.device)
    started = clock()
    for _ in range(calls):
        if backward:
            value_and_gradient(add, source)
        else:
            add(source)
    wait(source.device)
    return clock() - started


def value_and_gradient(add: Sum, source: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums, and half the gradient of their squares by ``source``."""
    leaf = source.detach().requires_grad_()
    sums = add(leaf)
    sums.backward(sums.detach())
    assert leaf.grad is not None
    return sums.detach(), leaf.grad


def differences(found: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Return by how much values, and gradients, differ, relative to the largest; raise where it is much."""
    by = [float((mine - theirs).abs().max() / mine.abs().max()) for mine, theirs in zip(found, other, strict=True)]
    if max(by) > 1e-4:
        raise AssertionError(f"the back ends differ by {by[0]:g} in values and {by[1]:g} in gradients")
    return by[0], by[1]
