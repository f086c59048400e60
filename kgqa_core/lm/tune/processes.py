"""The processes that tune together: one alone, or those that torchrun or accelerate started."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import Tensor

MEETING = "KGQA_TUNE_MEETING"  # file by which processes find each other; without it, as torchrun says


@dataclass(frozen=True, slots=True)
class Processes:
    """This process's place among them."""

    rank: int = 0
    count: int = 1
    device: str = "cpu"

    @property
    def is_first(self) -> bool:
        """Is it this one that writes?"""
        return self.rank == 0

    def agree(self, mine: bool) -> bool:
        """Return what the first process says."""
        if self.count == 1:
            return mine
        said = torch.tensor([int(mine)], device=self.device)
        torch.distributed.broadcast(said, src=0)
        return bool(said.item())

    def gather(self, row: Tensor) -> Tensor:
        """Return the rows [1, ...] of all processes as [P, ...]."""
        if self.count == 1:
            return row
        rows = [torch.empty_like(row) for _ in range(self.count)]
        torch.distributed.all_gather(rows, row.contiguous())
        return torch.cat(rows)

    def add(self, mine: Tensor) -> Tensor:
        """Return the sum over the processes."""
        if self.count == 1:
            return mine
        total = mine.to(self.device)
        torch.distributed.all_reduce(total)
        return total.to(mine.device)

    def leave(self) -> None:
        """Part from the others, once all are here."""
        if self.count > 1:
            torch.distributed.barrier()
            torch.distributed.destroy_process_group()

    def wait(self) -> None:
        """Wait until all are here."""
        if self.count > 1:
            torch.distributed.barrier()


def join_processes(device: str) -> Processes:
    """Join the processes that the environment tells of (WORLD_SIZE, RANK, LOCAL_RANK) and return this one's place."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        return Processes(device=device)
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    if device.startswith("cuda"):
        device = f"cuda:{local}"
        torch.cuda.set_device(local)
    if not torch.distributed.is_initialized():
        place = os.environ.get(MEETING)
        torch.distributed.init_process_group(
            "nccl" if device.startswith("cuda") else "gloo",
            init_method=f"file://{place}" if place else "env://",
            rank=rank,
            world_size=count,
        )
    return Processes(rank, count, device)
