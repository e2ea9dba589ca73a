"""Several processes that share one task, through `accelerate`; or a single one."""

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from offramp.extras import require


def mean_over_processes(tensor: Tensor) -> Tensor:
    """The mean over all processes; the tensor itself where there is one process.

    Example:
        >>> mean_over_processes(torch.tensor(2.0))
        tensor(2.)
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return tensor
    total = tensor.detach().clone()
    torch.distributed.all_reduce(total)
    return total / torch.distributed.get_world_size()


@dataclass(frozen=True)
class Processes:
    """This process among all of them, and how they exchange tensors.

    Args:
        rank: The number of this process, counted from 0.
        world: The number of processes.
        device: Where this process computes.
        accelerator: An `accelerate.Accelerator`, if there are several processes.

    Example:
        >>> Processes.here(torch.device("cpu")).world
        1
    """

    rank: int
    world: int
    device: torch.device
    accelerator: Any = None

    @classmethod
    def here(cls, device: torch.device) -> "Processes":
        """The processes that `accelerate launch` or `torchrun` started; one without them.

        Args:
            device: Where to compute in a single process.
        """
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls(0, 1, device)
        accelerate = require("accelerate", extra="train")
        # Not every parameter takes part in every phase, nor in every user's forward pass.
        unused = accelerate.DistributedDataParallelKwargs(find_unused_parameters=True)
        accelerator = accelerate.Accelerator(
            cpu=not torch.cuda.is_available(), kwargs_handlers=[unused]
        )
        return cls(
            accelerator.process_index, accelerator.num_processes, accelerator.device, accelerator
        )

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and shows progress."""
        return self.rank == 0

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module, with gradients averaged over the processes."""
        if self.accelerator is None:
            return module
        wrapped: nn.Module = self.accelerator.prepare_model(module)
        return wrapped

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.accelerator is None:
            return tensor
        summed: Tensor = self.accelerator.reduce(tensor, reduction="sum")
        return summed

    def gather(self, rows: Tensor, most: int) -> list[Tensor]:
        """Every process's rows, in the order of the processes.

        Args:
            rows: `[n, ...]`, n may differ between processes.
            most: The largest n of all.

        Returns:
            For each process `[most, ...]`, of which the first n rows are its own.
        """
        if self.accelerator is None:
            return [rows]
        padded = rows.new_zeros((most, *rows.shape[1:]))
        padded[: len(rows)] = rows
        everything: Tensor = self.accelerator.gather(padded)
        return list(everything.split(most))

    def align(self, network: nn.Module) -> None:
        """Copy the first process's buffers, such as the means of batch norm, to all others."""
        if self.accelerator is not None:
            for buffer in network.buffers():
                torch.distributed.broadcast(buffer, src=0)

    def wait(self) -> None:
        """Wait until all processes have reached this point."""
        if self.accelerator is not None:
            self.accelerator.wait_for_everyone()
