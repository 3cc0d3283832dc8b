"""Several processes as one: `torchrun --nproc-per-node N …`.

Each process takes its share of every batch. Gradients are sums over tokens; they are added up over the processes and
divided by the tokens of all, so that N processes compute what one would with the whole batch, whatever the lengths.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

PATIENCE = timedelta(hours=4)
"""How long processes wait while the first one evaluates. One that dies is noticed at once, by its closed connection."""

_groups: list[dist.ProcessGroup | None] = []
"""Groups that were left are kept, so that DistributedDataParallel is never the last to hold one. It would take the
group down with the interpreter's lock in hand, and wait for a thread of gloo that may be waiting for that lock, for
ever (seen several times with torch 2.13). Python takes it down without the lock."""


def is_first_process() -> bool:
    """Whether this process writes the files of a run: the only one, or the first of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


class Group:
    """The processes that train together; one process is a group too."""

    def __init__(self, rank: int, world: int, device: torch.device) -> None:
        self.rank, self.world, self.device = rank, world, device

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Added up over the processes."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def agree(self, *values: float) -> list[float]:
        """What the first process says, everywhere."""
        if self.world == 1:
            return list(values)
        told = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.broadcast(told, 0)
        return told.tolist()

    def gather(self, value: Tensor) -> list[Tensor]:
        """The tensors of all processes, in order, in all of them."""
        if self.world == 1:
            return [value]
        rows = [torch.empty_like(value, device=self.device) for _ in range(self.world)]
        dist.all_gather(rows, value.to(self.device))
        return [row.cpu() for row in rows]

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module with gradients that become means over the processes in the backward pass."""
        return module if self.world == 1 else DistributedDataParallel(module)

    def summed(self, loss: Tensor) -> Tensor:
        """The loss whose gradients, once they are means over the processes, are sums."""
        return loss * self.world if self.world > 1 else loss

    def quiet(self, module: nn.Module, on: bool) -> AbstractContextManager[None]:
        """Gradients that stay here while more batches are to come."""
        return module.no_sync() if on and isinstance(module, DistributedDataParallel) else nullcontext()


@contextmanager
def group(device: torch.device) -> Iterator[Group]:
    """The group that torchrun started this process in, or this process alone."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 and not dist.is_initialized():
        yield Group(0, 1, device)
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    ours = not dist.is_initialized()
    if ours:
        store, rank, world = next(dist.rendezvous("env://", timeout=PATIENCE))
        # torchrun restarts with the same store, which holds the addresses of the dead: each life has names of its own
        store = dist.PrefixStore(f"life-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=PATIENCE)
        _groups.append(dist.group.WORLD)
    try:
        yield Group(dist.get_rank(), dist.get_world_size(), device)
    finally:
        if ours:
            dist.destroy_process_group()
