"""Distributed training in several processes: `torchrun --nproc-per-node N …`.

Each process takes its share of every batch. Gradients are sums over tokens. They are summed over the processes and
divided by the total number of tokens, so N processes compute the same as one process with the whole batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

TIMEOUT = timedelta(hours=4)
"""Time that processes wait while the first one evaluates. A dead process is noticed by its closed connection."""

_groups: list[dist.ProcessGroup | None] = []
"""References to all process groups, so that DistributedDataParallel never holds the last one. It would destroy the
group while holding the GIL and wait for a gloo thread that may itself wait for the GIL: a deadlock, seen several times
with torch 2.13. Python destroys the group without the GIL."""


def is_first_process() -> bool:
    """Return whether this process writes the files of a run: the only process, or rank 0 of torchrun."""
    return os.environ.get("RANK", "0") == "0"


class Group:
    """The group of processes that train together. A single process is a group as well."""

    def __init__(self, rank: int, world: int, device: torch.device) -> None:
        self.rank, self.world, self.device = rank, world, device

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Return `values` summed over the processes."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def broadcast(self, *values: float) -> list[float]:
        """Return the values of the first process in every process."""
        if self.world == 1:
            return list(values)
        shared = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.broadcast(shared, 0)
        return shared.tolist()

    def gather(self, value: Tensor) -> list[Tensor]:
        """Return the tensors of all processes, in rank order, in every process."""
        if self.world == 1:
            return [value]
        rows = [torch.empty_like(value, device=self.device) for _ in range(self.world)]
        dist.all_gather(rows, value.to(self.device))
        return [row.cpu() for row in rows]

    def wrap(self, module: nn.Module) -> nn.Module:
        """Wrap a module so that its backward pass averages gradients over the processes."""
        return module if self.world == 1 else DistributedDataParallel(module)

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Scale a loss so that averaging its gradients over the processes gives their sum."""
        return loss * self.world if self.world > 1 else loss

    def no_sync(self, module: nn.Module, enabled: bool) -> AbstractContextManager[None]:
        """Return a context that accumulates gradients locally, without synchronizing them, if `enabled`."""
        return module.no_sync() if enabled and isinstance(module, DistributedDataParallel) else nullcontext()


@contextmanager
def group(device: torch.device) -> Iterator[Group]:
    """Enter the group of processes that torchrun started, or a group of this process only.

    Raises:
        ConnectionError: if another process ended, for example because it could not write a file.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 and not dist.is_initialized():
        yield Group(0, 1, device)
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    created = not dist.is_initialized()
    if created:
        store, rank, world = next(rendezvous("env://", timeout=TIMEOUT))
        # torchrun restarts with the same store, which still has the addresses of dead processes: prefix the keys
        store = PrefixStore(f"life-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=TIMEOUT)
        _groups.append(dist.group.WORLD)
    try:
        yield Group(dist.get_rank(), dist.get_world_size(), device)
    except RuntimeError as error:
        if "gloo" not in str(error) and not isinstance(error, dist.DistError):
            raise
        raise ConnectionError(
            f"training: process {dist.get_rank()} must reach the other processes; got the end of one of them. See its "
            "error message, and run the same command again: it resumes from the last checkpoint."
        ) from error
    finally:
        if created:
            dist.destroy_process_group()
