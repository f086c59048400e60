"""The same rows on a GPU, absolute: training, inference, and the share of the memory bandwidth that a copy reaches."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.inference import distinct
from benchmarks.measure import write_section
from benchmarks.workload import WHOLE, Workload, median, open_workload


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    questions: int | None  # to train on; None: all
    answered: int | None  # None: all of test and dev
    batch_sizes: Sequence[int]
    copied: int  # bytes of the copy that measures the bandwidth


FULL = Size(questions=None, answered=None, batch_sizes=(32, 128), copied=2**30)
SMALL = Size(questions=256, answered=64, batch_sizes=(32,), copied=2**24)


@dataclass(frozen=True, slots=True)
class Measured:
    """What some work took."""

    cpu: float  # seconds, all threads
    wall: float  # seconds, until the device was done
    busy: float  # seconds in which the device computed
    moved: float  # bytes that its operations had to read and write at least


def run(home: Path, size: Size = FULL) -> None:
    """Measure on the GPU; without one, say so and write nothing."""
    if not torch.cuda.is_available():
        print("gpu: skipped, torch finds no CUDA device")
        return
    device = torch.device("cuda")
    workload = on_device(open_workload(home), device)
    bandwidth = copy_bandwidth(device, size.copied)
    rows = [
        "| what | K | batch | questions per s | wall s | CPU s | GPU busy s | share of copy bandwidth while busy |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    train = workload.questions("train", size.questions)
    asked = distinct([*workload.questions("test", size.answered), *workload.questions("dev", size.answered)])
    for budget in (workload.config.explorer.edge_budget, WHOLE):
        for batch_size in size.batch_sizes:
            model, options = workload.explorer(), workload.options(budget)
            train_once = partial(workload.train, train, options, model=model, batch_size=batch_size)
            answer_all = partial(workload.answer, model, asked, options, batch_size=batch_size)
            for what, questions, work in (
                ("training, an epoch", train, train_once),
                ("inference", asked, answer_all),
            ):
                found = measure(work, device)
                rows.append(
                    f"| {what} | {budget if budget < WHOLE else 'none'} | {batch_size} | "
                    f"{len(questions) / found.wall:,.0f} | {found.wall:.2f} | {found.cpu:.2f} | {found.busy:.2f} | "
                    f"{found.moved / max(found.busy, 1e-9) / bandwidth:.0%} |"
                )
    note = (
        f"{torch.cuda.get_device_name(device)}; a copy of {size.copied / 2**20:,.0f} MiB on it reads and writes "
        f"{bandwidth / 1e9:,.0f} GB/s. MetaQA 3-hop, {len(train):,} questions trained on and {len(asked):,} answered. "
        "Bytes: what each operation's tensors hold (of gathers, the rows gathered). Floats are on the GPU, the walk "
        "over edges on the CPU."
    )
    write_section("GPU", "\n".join([*rows, "", note]), "python -m benchmarks gpu")


def on_device(workload: Workload, device: torch.device) -> Workload:
    """Return the workload with its encodings on a device."""
    return replace(workload, texts=workload.texts.to(device))


def measure(work: Callable[[], object], device: torch.device) -> Measured:
    """Do some work four times: to warm up, for the clocks, for the device's own time and for the bytes."""
    work()
    wait(device)
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    wait(device)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
        work()
        wait(device)
    busy = sum(event.self_device_time_total for event in profiled.key_averages()) / 1e6
    with CountBytes() as counted:
        work()
    return Measured(cpu, wall, busy, counted.bytes)


class CountBytes(TorchDispatchMode):
    """Adds up the bytes that operations, backward ones too, must at least read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Count one operation's tensors and do it."""
        done = func(*args, **(kwargs or {}))
        if func.is_view:
            return done
        written = [leaf for leaf in tree_leaves(done) if isinstance(leaf, Tensor)]
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if "index_select" in func.__name__:  # reads the rows that it returns, not the whole table
            read = [*written, *read[1:]]
        self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in (*read, *written))
        return done


def copy_bandwidth(device: torch.device, num_bytes: int, repeats: int = 20) -> float:
    """Return the bytes read and written per second by a copy on the device, the median of some."""
    source = torch.empty(num_bytes // 4, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(repeats + 2):
        wait(device)
        started = time.perf_counter()
        target.copy_(source)
        wait(device)
        seconds.append(time.perf_counter() - started)
    return 2 * num_bytes / median(seconds[2:])


def wait(device: torch.device) -> None:
    """Wait until the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
