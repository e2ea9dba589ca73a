"""Several processes that share one task, through `accelerate`; or a single one.

All of them run the same code. Where one has to act for all, such as taking a lock or writing a
file, the first process does, and the others wait and then read: `Processes.first`.
"""

import atexit
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from threading import Event, Thread
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from offramp.errors import ConfigError, OfframpError, ProcessError
from offramp.extras import require
from offramp.machine import find_device

T = TypeVar("T")
_distributed: Any = torch.distributed  # which does not declare all that it documents
_Store: TypeAlias = Any

BEAT = 3.0  # seconds between two signs of life
SILENCE = 40.0  # seconds without one after which a process is taken for dead
GRACE = 10.0  # seconds to stop in an orderly way once another process has failed
_PAUSE = 0.1  # longest time between two looks at what is waited for


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


class Peers:
    """Waiting for the other processes, and noticing that one has failed or died.

    Waiting looks into a store again and again. A collective operation would end with a timeout
    when the first process works alone for an hour, and a longer timeout would keep the others
    waiting for a dead one. Instead, a thread in each process gives signs of life. The first
    process listens to all others, and they to it.

    Args:
        rank: The number of this process.
        world: The number of processes.
    """

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        store, _, _ = next(iter(_distributed.rendezvous("env://")))
        self._store = _distributed.PrefixStore("offramp", store)
        self._task = 0  # number of the task, counted alike in all processes
        self._depth = 0  # of nested calls of `together`
        self._turn = 0  # how often the processes have waited for each other in this task
        self._failure: str | None = None  # of another process, seen by the thread
        self._over = Event()
        self._thread = Thread(target=self._watch, name="offramp-peers", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    @contextmanager
    def together(self) -> Iterator[None]:
        """A task of all processes, which none leaves before the others, and which fails for all.

        Raises:
            ProcessError: Another process failed or died.
        """
        if self._depth == 0:
            self._task, self._turn, self._failure = self._task + 1, 0, None
        self._depth += 1
        try:
            yield
            if self._depth == 1:
                self.wait()
        except BaseException as error:
            if self._depth == 1:
                self._report(error)
            raise
        finally:
            self._depth -= 1

    def first(self, work: Callable[[], T]) -> T:
        """See `Processes.first`."""
        key = self._next_turn()
        if self.rank == 0:
            value = work()
            self._store.set(key, json.dumps(value))
            return value
        self._wait_until(lambda: self._store.check([key]))
        received: T = json.loads(self._store.get(key))
        return received

    def wait(self) -> None:
        """Wait until all processes have reached this point."""
        key = self._next_turn()
        self._store.add(key, 1)
        self._wait_until(lambda: self._store.add(key, 0) >= self.world)
        # The store may end with the first process, which therefore leaves last.
        self._store.add(f"{key} left", 1)
        if self.rank == 0:
            self._wait_until(lambda: self._store.add(f"{key} left", 0) >= self.world)

    def _next_turn(self) -> str:
        self._turn += 1
        return f"task {self._task}/turn {self._turn}"

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        pause = 0.001
        while not condition():
            found = self._failure or self._reported(self._store)
            if found:
                raise ProcessError(f"{found}; {_ADVICE}")
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE)

    def _report(self, error: BaseException) -> None:
        """Tell the others why this process fails; where another one is to blame, say so here."""
        try:
            found = self._failure or self._reported(self._store)
            if found is None:
                text = f"process {self.rank} failed with {type(error).__name__}: {error}"
                self._store.set(self._failed, _DIED if _is_lost_connection(error) else text)
        except RuntimeError:
            found = _LOST
        if _is_lost_connection(error):
            raise ProcessError(f"{found or _DIED}; {_ADVICE}") from error

    @property
    def _failed(self) -> str:
        return f"task {self._task}/failed"

    def _reported(self, store: "_Store") -> str | None:
        key = self._failed
        return str(store.get(key).decode()) if store.check([key]) else None

    def _watch(self) -> None:
        store = self._store.clone()
        heard: dict[int, tuple[int, float]] = {}
        since: tuple[int, float] | None = None  # task and time at which trouble was seen
        while not self._over.wait(BEAT):
            task = self._task
            try:
                store.add(f"beat {self.rank}", 1)
                trouble = self._reported(store) or self._silent(store, heard)
            except RuntimeError:
                trouble = _LOST
            if trouble is None or not self._depth:
                continue
            self._failure = trouble
            if since is None or since[0] != task:
                since = task, time.monotonic()
            elif time.monotonic() - since[1] >= GRACE:
                # The main thread hangs in a collective operation, which nothing else can end.
                os.write(2, f"offramp: {trouble}; {_ADVICE}\n".encode())
                os._exit(1)

    def _silent(self, store: "_Store", heard: dict[int, tuple[int, float]]) -> str | None:
        now = time.monotonic()
        for rank in range(1, self.world) if self.rank == 0 else (0,):
            beats = store.add(f"beat {rank}", 0)
            if heard.get(rank, (-1, now))[0] != beats:
                heard[rank] = beats, now
            elif now - heard[rank][1] > SILENCE:
                text = f"process {rank} gave no sign of life for {SILENCE:.0f} seconds"
                store.set(self._failed, text)
                return text
        return None

    def _end(self) -> None:
        self._over.set()
        self._thread.join(timeout=2 * BEAT)


_DIED = "the connection to another process is lost, which may have died"
_LOST = "the connection to the first process, or to the launcher, is lost"
_ADVICE = "this process stops, too, and the same command resumes the run"


def _is_lost_connection(error: BaseException) -> bool:
    if isinstance(error, OfframpError) or not isinstance(error, RuntimeError):
        return False
    # gloo raises plain errors, with the name of its source file.
    return isinstance(error, _distributed.DistError) or "gloo" in str(error)


_peers = cache(Peers)
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Processes:
    """This process among all of them, and how they exchange tensors.

    Args:
        rank: The number of this process, counted from 0.
        world: The number of processes.
        device: Where this process computes.
        accelerator: An `accelerate.Accelerator`, if there are several processes.
        peers: How this process waits for the others, if there are several.

    Example:
        >>> Processes.here(torch.device("cpu")).world
        1
    """

    rank: int
    world: int
    device: torch.device
    accelerator: Any = None
    peers: Peers | None = None

    @classmethod
    def here(cls, device: torch.device | None = None) -> "Processes":
        """The processes that `accelerate launch` or `torchrun` started; one without them.

        Args:
            device: Where to compute in a single process. Several processes have a GPU each if
                it is a CUDA one, and else share the CPU.
        """
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls(0, 1, device or _CPU)
        device = device or find_device()
        _check_gpus(device)
        accelerate = require("accelerate", extra="train")
        # Not every parameter takes part in every phase, nor in every user's forward pass.
        unused = accelerate.DistributedDataParallelKwargs(find_unused_parameters=True)
        accelerator = accelerate.Accelerator(cpu=device.type != "cuda", kwargs_handlers=[unused])
        if (accelerator.device.type == "cuda") != (device.type == "cuda"):
            raise ConfigError(
                f"the processes compute on {accelerator.device} already, and {device} is asked "
                "for: name one device in all calls"
            )
        rank, world = accelerator.process_index, accelerator.num_processes
        return cls(rank, world, accelerator.device, accelerator, _peers(rank, world))

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
        if self.peers is not None:
            self.peers.wait()

    @contextmanager
    def together(self) -> Iterator[None]:
        """A task of all processes: if one fails or dies, the others stop with a message, too.

        Without it, they would wait for it in a collective operation. Calls may be nested.

        Raises:
            ProcessError: Another process failed or died.
        """
        with nullcontext() if self.peers is None else self.peers.together():
            yield

    def first(self, work: Callable[[], T]) -> T:
        """Do in the first process what must be done once, such as taking a lock or writing.

        The others wait for as long as it takes, and fail if it fails.

        Args:
            work: Returns a JSON value.

        Returns:
            The value, in every process.

        Example:
            >>> Processes.here().first(lambda: "written")
            'written'
        """
        if self.peers is None:
            return work()
        with self.peers.together():
            return self.peers.first(work)


ALONE = Processes(0, 1, _CPU)


def _check_gpus(device: torch.device) -> None:
    """Raise if the processes on this machine would have to share GPUs."""
    processes, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    if device.type == "cuda" and processes > gpus:
        raise ConfigError(
            f"every process needs a GPU of its own, and this machine has {gpus} for {processes} "
            "processes: start fewer processes, or say --device cpu"
        )
