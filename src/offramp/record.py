"""`record`: run a network over a split once, and keep every exit's logits as a `Ledger`."""

import inspect
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from offramp import check
from offramp.arrays import as_tensor, is_module
from offramp.costs import Costs
from offramp.errors import ConfigError, LedgerError, NetworkError, SplitError
from offramp.ledger import Ledger
from offramp.machine import (
    AutoPrecision,
    autocast,
    describe_device,
    device_for,
    device_of,
    to_precision,
)
from offramp.networks.inputs import AnyInput
from offramp.networks.state import evaluating
from offramp.progress import Progress, showing

if TYPE_CHECKING:
    from torch import Tensor, nn

    from offramp.training.batches import Batch, Samples
    from offramp.training.processes import Processes
    from offramp.training.teacher import Teacher

DTYPES = ("float16", "float32")


@runtime_checkable
class Recordable(Protocol):
    """What records itself: a `Cascade`."""

    def record(
        self,
        data: Any,  # noqa: ANN401
        split: str | None,
        batch_size: int,
        *,
        progress: bool | Progress,
    ) -> Ledger:
        """Call it on all data, and keep its answers."""


def record(  # noqa: PLR0913 - all but the first three by name
    network: "nn.Module | Recordable",
    data: Any,  # noqa: ANN401 - any data set or loader, checked
    split: str | None = None,
    *,
    costs: Costs | Sequence[float] | None = None,
    dtype: Literal["float16", "float32"] = "float32",
    device: str = "auto",
    precision: AutoPrecision = "float32",
    batch_size: int = 256,
    progress: bool | Progress = True,
) -> Ledger:
    """Run a network over data and keep the logits of all exits.

    The network runs in eval mode, on the data in their own order and without any augmentation.
    Under `torchrun` or `accelerate launch` the processes share the batches, and each of them
    returns the whole ledger, the same as one process alone would.

    Args:
        network: An `EarlyExitNetwork`; a `Cascade`, for which only `batch_size` and `progress`
            count; or any module that returns a list of M logits `[n, K]`, or a tensor
            `[n, M, K]`, with `costs` given. A wrapper that exits early by default and runs all
            exits with `mode="training"`, such as earlyon's, is called with that.
        data: A data set of `(inputs, label)`, or a `DataLoader` of one, whose workers then read
            it. Its `sample_ids` and `class_names` are kept in the ledger if it has them.
        split: `train`, `held_out`, `val`, `test` or `all`; the data's own by default.
        costs: `Costs`, or cumulative costs `[M]`; MACs are counted by default.
        dtype: How logits are stored.
        device: Where to run the network: `cpu`, `cuda`, `cuda:1`, `mps`, ... `auto`: where it is
            if that is a GPU; else on the first CUDA GPU, Apple's GPU or the CPU, whichever is
            there. The network is moved and stays there.
        precision: `bfloat16` and `float16` run the network under autocast; `auto`: what the device
            is fastest in.
        batch_size: Of each process.
        progress: Whether progress is shown, on stderr; or an `offramp.progress.Progress`.

    Returns:
        A ledger with the network's fingerprint; `recorded_on` says where and in which precision.

    Raises:
        SplitError: The split is not known, or not what the data say.
        ConfigError: An impossible setting, or costs that are missing.
        LedgerError: Labels that are not classes of the network.

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from offramp.networks import build
        >>> network = build("convnet", num_classes=10, image_size=8)
        >>> data = TensorDataset(torch.rand(20, 3, 8, 8), torch.arange(20) % 10)
        >>> record(network, data, split="val", progress=False)
        Ledger(split='val', 20 samples, 4 exits, 10 classes, macs costs)
    """
    check.one_of("dtype", dtype, DTYPES)
    check.whole("batch_size", batch_size, 1)
    if is_module(network):
        settings = costs, dtype, device, precision, batch_size, progress
        return _recorded(network, data, split, *settings)
    # A cascade, which needs no torch.
    check.instance("network", network, Recordable, "a module of torch, or a Cascade")
    cascade: Any = network
    found: Ledger = cascade.record(data, split, batch_size, progress=progress)
    return found


def _recorded(  # noqa: PLR0913 - as `record`
    network: Any,  # noqa: ANN401 - a module
    data: Any,  # noqa: ANN401
    split: str | None,
    costs: Costs | Sequence[float] | None,
    dtype: str,
    device: str,
    precision: AutoPrecision,
    batch_size: int,
    progress: bool | Progress,
) -> Ledger:
    import torch

    from offramp.networks.network import EarlyExitNetwork, fingerprint
    from offramp.training.batches import Samples, compute_rows
    from offramp.training.checkpoint import kept_randomness
    from offramp.training.processes import Processes

    samples = Samples(data)
    split = _split(samples.known("split"), split)
    processes = Processes.here(device_for(network, device))
    chosen = to_precision(precision, processes.device)
    where = f"{describe_device(processes.device)}, {chosen}"
    moves = "" if device_of(network) == processes.device else "; the network is moved there"
    network.to(processes.device)
    all_exits = _with_all_exits(network)

    def compute(batch: "Batch") -> "list[Tensor]":
        inputs, labels = batch
        if isinstance(network, EarlyExitNetwork):
            network.inputs.begin(inputs, counted=True)  # raises if costs are of other inputs
        with autocast(processes.device, chosen):
            logits = _stacked(all_exits(inputs), len(labels))
        _check_labels(labels, logits.shape[2])
        return [logits.to(getattr(torch, dtype)), labels]

    with (
        torch.no_grad(),
        evaluating(network),
        kept_randomness(),
        closing(samples),
        showing(processes.is_main and progress) as shown,
    ):
        shown.say(f"recording {split} on {where}{moves}")
        if isinstance(network, EarlyExitNetwork):
            network.settle(samples.example()[0])
        if costs is None:
            costs = _counted(network, samples, processes)
        shown.start(f"recording {split}", total=len(samples))
        logits, labels = compute_rows(
            samples, torch.arange(len(samples)), batch_size, processes, compute, shown.advance
        )
    return Ledger(
        logits,
        labels,
        costs,
        split=split,
        sample_ids=samples.known("sample_ids"),
        network=fingerprint(network),
        class_names=samples.known("class_names"),
        recorded_on=where,
    )


def as_teacher(
    ledger: Ledger,
    data: Any,  # noqa: ANN401 - any data set or loader
    share: float = 0.5,
    temperature: float = 1.0,
) -> "Teacher":
    """A recorded network as the teacher of another one, for `train(teacher=...)`.

    Args:
        ledger: Of the split train, such as `record(network, data.train)`; what counts is the last
            exit.
        data: What is trained on. Samples are found in the ledger by their ids or, where a side
            has none, by their order.
        share: How much of a target is the teacher's answer; the rest is the label.
        temperature: By which the teacher's logits are divided.

    Raises:
        SplitError: The ledger is of another split.
        LedgerError: Samples of the data are not in the ledger.
        ConfigError: A share outside [0, 1], or a temperature that is not above 0.

    Example:
        >>> import torch
        >>> ledger = Ledger(torch.zeros(2, 3, 4), [0, 1], [1, 2, 3], split="train")
        >>> data = torch.utils.data.TensorDataset(torch.rand(2, 3), torch.tensor([0, 1]))
        >>> as_teacher(ledger, data).logits.shape
        torch.Size([2, 4])
    """
    Ledger.require("ledger", ledger)
    if ledger.split != "train":
        raise SplitError(
            f"a teacher must have been recorded on the split 'train', and this ledger is "
            f"{ledger.split!r}"
        )
    from offramp.training.batches import Samples
    from offramp.training.teacher import Teacher

    rows = _rows_of(Samples(data), ledger)
    logits, labels = ledger.logits[rows, -1], ledger.labels[rows]
    return Teacher(as_tensor(logits), as_tensor(labels), share, temperature, ledger.network)


def _rows_of(samples: "Samples", ledger: Ledger) -> list[int]:
    """Where the samples of the data are in a ledger."""
    ids = samples.known("sample_ids")
    if ids is None or ledger.sample_ids is None:
        if len(ledger) != len(samples):
            raise LedgerError(
                f"the teacher's ledger has {len(ledger):,} samples and the data {len(samples):,}; "
                "without sample ids, they must be the same in the same order"
            )
        return list(range(len(samples)))
    rows = {str(sample): row for row, sample in enumerate(ledger.sample_ids)}
    missing = [str(sample) for sample in ids if str(sample) not in rows]
    if missing:
        raise LedgerError(
            f"{len(missing):,} of the {len(ids):,} training samples are not in the teacher's "
            f"ledger, such as {missing[0]!r}: record the teacher on the same data"
        )
    return [rows[str(sample)] for sample in ids]


def _split(known: str | None, split: str | None) -> str:
    if split is None and known is None:
        raise SplitError("the data do not say which split they are; pass for example split='val'")
    if None not in (split, known) and split != known:
        raise SplitError(
            f"the data are the split {known!r}, and split={split!r} was given; leave it out, or "
            "pass other data"
        )
    return split or str(known)


def _counted(network: "nn.Module", samples: "Samples", processes: "Processes") -> Costs:
    from offramp.networks.macs import count_macs
    from offramp.networks.network import EarlyExitNetwork
    from offramp.training.batches import moved

    if not isinstance(network, EarlyExitNetwork):
        raise ConfigError(
            f"the costs of a {type(network).__name__} are not known: pass costs=, one per exit "
            "and cumulative"
        )
    if not isinstance(network.inputs, AnyInput):
        return count_macs(network)
    # A network that does not know its inputs is counted on a sample of the data.
    return count_macs(network, moved(samples.example()[0], processes.device))


def _with_all_exits(network: "nn.Module") -> Callable[[Any], Any]:
    """The network, called so that it returns the logits of all its exits."""
    mode = inspect.signature(network.forward).parameters.get("mode")
    if mode is not None and mode.default == "inference":
        return partial(network, mode="training")
    return network


def _stacked(outputs: Any, samples: int) -> "Tensor":  # noqa: ANN401 - whatever the module returns
    import torch
    from torch import Tensor

    if isinstance(outputs, list | tuple) and all(isinstance(each, Tensor) for each in outputs):
        outputs = torch.stack(list(outputs), 1) if outputs else None
    if not isinstance(outputs, Tensor) or outputs.ndim != 3 or len(outputs) != samples:
        found = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise NetworkError(
            "the network must return a list of logits [n, K], one per exit, or a tensor "
            f"[n, M, K], got {found} for {samples} samples"
        )
    return outputs


def _check_labels(labels: "Tensor", num_classes: int) -> None:
    from offramp.training.batches import check_targets

    if labels.is_floating_point():
        raise LedgerError("a ledger needs classes as labels, and the data have soft targets")
    check_targets(labels, num_classes)
