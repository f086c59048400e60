"""Sums into groups: torch's own ``index_add`` against torch-scatter, on the CPU and, where there is one, a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.measure import write_section
from benchmarks.workload import interleaved, median
from kgqa_core.explorer.scatter import has_torch_scatter, scatter_sum_extension, scatter_sum_torch

BackEnd = Callable[[Tensor, Tensor, int], Tensor]


@dataclass(frozen=True, slots=True)
class Case:
    """One call as a training batch makes it."""

    label: str
    rows: int
    groups: int
    width: int | None  # None: one number per row
    ordered: bool = False  # are the rows of a group side by side?


# As seen in batches of 32 (the unmerged path: 8) MetaQA 3-hop questions at d = 64.
CASES = (
    Case("state classes, 2nd step", 1_400, 700, 64),
    Case("state classes, 3rd step", 73_000, 26_000, 64),
    Case("state classes, 3rd step, receivers in order", 73_000, 26_000, 64, ordered=True),
    Case("a state per node, 3rd step", 323_000, 110_000, 64),
    Case("softmax over a question's candidates", 393_000, 32, None, ordered=True),
)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    repeats: int
    calls: int  # per round


FULL = Size(repeats=15, calls=5)
SMALL = Size(repeats=2, calls=1)


def run(home: Path, size: Size = FULL) -> None:
    """Time both back ends forward and backward on each device and compare what they return."""
    if not has_torch_scatter():
        print("scatter: skipped, torch-scatter is not installed (make scatter builds it)")
        return
    torch.set_num_threads(1)
    rows = [
        "| device | sum | rows into groups | forward, ms: torch / torch-scatter | with backward, ms | "
        "largest difference: values / gradients |",
        "|---|---|---|---|---|---|",
    ]
    for device in ("cpu", *(["cuda"] if torch.cuda.is_available() else [])):
        rows += [measure(case, torch.device(device), size) for case in CASES]
    missing = "" if torch.cuda.is_available() else " There was no GPU to measure on."
    note = (
        f"Medians of {size.repeats} interleaved rounds of {size.calls} calls, float32, one thread; differences are "
        "relative to the largest value. `scatter_sum` takes torch's own on the CPU, and elsewhere torch-scatter where "
        f"it is installed; nothing needs it.{missing}"
    )
    write_section("Scatter", "\n".join([*rows, "", note]), "python -m benchmarks scatter")


def measure(case: Case, device: torch.device, size: Size) -> str:
    """Return the table row of one case."""
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(case.groups, (case.rows,), generator=generator)
    index = (index.sort().values if case.ordered else index).to(device)
    shape = (case.rows,) if case.width is None else (case.rows, case.width)
    source = torch.randn(shape, generator=generator).to(device)
    back_ends: dict[str, BackEnd] = {"torch": scatter_sum_torch, "extension": scatter_sum_extension}
    calls = {
        f"{name} {backward}": lambda back_end=back_end, backward=backward: seconds_of(
            back_end, source, index, case.groups, backward=backward, calls=size.calls
        )
        for name, back_end in back_ends.items()
        for backward in (False, True)
    }
    found = {name: 1000 * median(seconds) / size.calls for name, seconds in interleaved(calls, size.repeats).items()}
    values, gradients = differences([value_and_gradient(one, source, index, case.groups) for one in back_ends.values()])
    return (
        f"| {device.type} | {case.label} | {case.rows:,} x {case.width or 1} into {case.groups:,} | "
        f"{found['torch False']:.2f} / {found['extension False']:.2f} | "
        f"{found['torch True']:.2f} / {found['extension True']:.2f} | {values:.0e} / {gradients:.0e} |"
    )


def seconds_of(
    back_end: BackEnd, source: Tensor, index: Tensor, num_groups: int, *, backward: bool, calls: int
) -> float:
    """Return the wall seconds of some calls, one after the other (on one thread: CPU seconds; on a GPU: the GPU's)."""
    wait(source)
    started = time.perf_counter()
    for _ in range(calls):
        if backward:
            value_and_gradient(back_end, source, index, num_groups)
        else:
            back_end(source, index, num_groups)
    wait(source)
    return time.perf_counter() - started


def wait(tensor: Tensor) -> None:
    """Wait until the tensor's device has nothing left to do."""
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


def value_and_gradient(back_end: BackEnd, source: Tensor, index: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
    """Return the sums, and the gradient of their squares by ``source``."""
    leaf = source.detach().requires_grad_()
    sums = back_end(leaf, index, num_groups)
    sums.backward(sums.detach())
    assert leaf.grad is not None
    return sums.detach(), leaf.grad


def differences(found: Sequence[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Return by how much two values, and two gradients, differ, relative to the largest; raise where it is much."""
    (value, gradient), (other_value, other_gradient) = found
    pairs = ((value, other_value), (gradient, other_gradient))
    by = [float((one - other).abs().max() / one.abs().max()) for one, other in pairs]
    if max(by) > 1e-4:
        raise AssertionError(f"the back ends differ by {by[0]:g} in values and {by[1]:g} in gradients")
    return by[0], by[1]
