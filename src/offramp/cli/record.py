"""The commands `record` and `chain`."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from offramp.cli.console import note, out
from offramp.cli.options import DataOptions, Device, Precision, network_in, there
from offramp.errors import ConfigError
from offramp.run_folder import RunFolder


def record_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", callback=there)],
    data: DataOptions,
    folder: Annotated[Path | None, typer.Option("--out")] = None,
    splits: Sequence[str] = ("held_out", "val", "test"),
    dtype: Literal["float16", "float32"] = "float32",
    device: Device = "auto",
    precision: Precision = "float32",
    batch_size: int = 256,
    workers: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Run a trained network over held_out, val and test, and save a ledger of each.

    Args:
        run: Folder of a run, or of a saved network.
        folder: Folder of the ledgers. Default: RUN/ledgers.
        splits: Comma-separated names of splits.
        dtype: Type of the stored logits.
        batch_size: Samples per batch, in each process.
        workers: Processes that read the data ahead; 0: the process that computes.
    """
    from torch.utils.data import DataLoader

    from offramp.machine import find_device, keep_memory
    from offramp.record import record
    from offramp.training.processes import Processes

    keep_memory()
    network = network_in(run)
    source = data.source(run)
    if source is None:
        raise ConfigError(f"{run} does not say what it was trained on: give --data")
    loaded = source.load()
    target = folder or RunFolder(run).ledgers
    before = network.inputs
    processes = Processes.here(find_device(device))
    found = {}
    for split in splits:
        if not hasattr(loaded, split):
            raise ConfigError(f"--splits must name splits of the data, got {split!r}")
        ledger = record(
            network,
            DataLoader(getattr(loaded, split), num_workers=workers),
            split,
            dtype=dtype,
            device=device,
            precision=precision,
            batch_size=batch_size,
        )
        processes.first(partial(ledger.save, target / split))
        if processes.is_main:
            accuracy = ledger.heads_correct.mean(axis=0).tolist()
            found[split] = {"samples": len(ledger), "accuracy": accuracy}
            note(f"{target / split}: {ledger}")
    out.give(folder=target, splits=found)
    if network.inputs != before:  # from now on it knows the size of its images
        processes.first(lambda: str(network.save(RunFolder(run).network)))


def chain_command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...")],
    folder: Annotated[Path, typer.Option("--out")],
) -> None:
    """Make one network of several: each network gets the samples that none before has answered.

    A network for small images answers easy samples, and a network for large images the rest. OUT
    is a run like any other: offramp record OUT comes next.

    Args:
        runs: Runs of networks for the same images, from the cheapest to the best; or saved
            networks.
        folder: Folder of the new run.
    """
    from offramp.data.source import Source
    from offramp.networks import ImageInput, chain, count_macs

    if len({run.resolve() for run in runs}) < len(runs):
        raise ConfigError("a chain takes every run once: give two different ones or more")
    if RunFolder(folder).has_network:
        raise ConfigError(f"--out: there is a network in {folder} already; give another folder")
    networks = [network_in(run) for run in runs]
    made = chain(networks)
    whole = [count_macs(network).mean_reference for network in networks]
    if whole != sorted(whole):
        shown = ", ".join(
            f"{run} {macs / 1e6:.1f} M" for run, macs in zip(runs, whole, strict=True)
        )
        raise ConfigError(f"give the cheapest network first; in multiply-accumulates: {shown}")
    sources = [source for source in map(Source.find, runs) if source is not None]
    if len({source.data for source in sources}) > 1:
        names = ", ".join(source.data for source in sources)
        note(f"note: the runs were trained on different data: {names}")
    made.save(RunFolder(folder).trained)
    if sources:
        assert isinstance(made.inputs, ImageInput), "a chain takes images"
        replace(sources[-1], image_size=made.inputs.height).save(folder)
    out.give(folder=folder, exits=made.num_exits, starts=made.starts, macs=whole)
    note(f"written to {folder}/: network, with {made.num_exits} exits")
