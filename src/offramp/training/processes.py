"""Several processes that share one task, through `accelerate`; or a single one.

All of them run the same code. Where one has to act for all, such as writing a file, the first
process does, and the others wait and then read: `Processes.first`. Processes that die are the
launcher's business: `torchrun` and `accelerate launch` end all processes when one has failed.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from offramp.errors import ConfigError, ProcessError
from offramp.imports import require
from offramp.machine import find_device

T = TypeVar("T")

# How long a process waits for the others: the first one may work for hours while they do. The
# launcher ends them long before if it has died.
PATIENCE = timedelta(days=2)


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
    def here(cls, device: torch.device | None = None) -> "Processes":
        """The processes that `accelerate launch` or `torchrun` started; one without them.

        Args:
            device: Where to compute in a single process. Several processes have a GPU each if
                it is a CUDA one, and else share the CPU.
        """
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls(0, 1, device or torch.device("cpu"))
        device = device or find_device()
        _check_gpus(device)
        accelerate = require("accelerate", extra="train")
        settings = [
            # Not every parameter takes part in every phase, nor in every user's forward pass.
            accelerate.DistributedDataParallelKwargs(find_unused_parameters=True),
            accelerate.InitProcessGroupKwargs(backend=None, timeout=PATIENCE),
        ]
        accelerator = accelerate.Accelerator(cpu=device.type != "cuda", kwargs_handlers=settings)
        if (accelerator.device.type == "cuda") != (device.type == "cuda"):
            raise ConfigError(
                f"the processes compute on {accelerator.device} already, and {device} is asked "
                "for: name one device in all calls"
            )
        rank, world = accelerator.process_index, accelerator.num_processes
        return cls(rank, world, accelerator.device, accelerator)

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

    def gather(self, rows: Tensor) -> list[Tensor]:
        """Every process's rows, in the order of the processes.

        Args:
            rows: `[n, ...]`, n may differ between processes.

        Returns:
            For each process its rows, and zeros below them up to the largest n.
        """
        if self.accelerator is None:
            return [rows]
        padded = self.accelerator.pad_across_processes(rows)
        everything: Tensor = self.accelerator.gather(padded)
        return list(everything.chunk(self.world))

    def align(self, network: nn.Module) -> None:
        """Copy the first process's buffers, such as the means of batch norm, to all others."""
        if self.accelerator is not None:
            for buffer in network.buffers():
                torch.distributed.broadcast(buffer, src=0)

    def wait(self) -> None:
        """Wait until all processes have reached this point."""
        if self.accelerator is not None:
            self.accelerator.wait_for_everyone()

    def first(self, work: Callable[[], T]) -> T:
        """Do in the first process what must be done once, such as taking a lock or writing.

        The others wait for as long as it takes, and fail if it fails.

        Returns:
            What `work` returns, in every process.

        Raises:
            ProcessError: It failed in the first process, and this is another one.

        Example:
            >>> Processes.here().first(lambda: "written")
            'written'
        """
        if self.accelerator is None:
            return work()
        done: list[Any] = [None, None]  # the value, or what went wrong
        try:
            if self.is_main:
                done[0] = work()
        except Exception as error:
            done[1] = f"{type(error).__name__}: {error}"
            raise
        finally:
            torch.distributed.broadcast_object_list(done, src=0)
        if done[1] is not None:
            raise ProcessError(f"the first process failed with {done[1]}")
        value: T = done[0]
        return value


def _check_gpus(device: torch.device) -> None:
    """Raise if the processes on this machine would have to share GPUs."""
    processes, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    if device.type == "cuda" and processes > gpus:
        raise ConfigError(
            f"every process needs a GPU of its own, and this machine has {gpus} for {processes} "
            "processes: start fewer processes, or say --device cpu"
        )
