"""The sub-commands `predict` and `bench`: parse, and one public call."""

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import torch
import typer
from rich.table import Table

from offramp.cli.console import err, out
from offramp.cli.options import Device, Precision
from offramp.cli.train_record import Domain, TokenizerName, load_network
from offramp.data import Data
from offramp.data.load import Source
from offramp.errors import ConfigError
from offramp.machine import describe_device, find_device, to_precision
from offramp.networks import EarlyExitNetwork
from offramp.policy import Policy
from offramp.runtime import Runner, measure_speed
from offramp.runtime.output import RECORD_FIELDS
from offramp.serving.images import find_images, images_of_run
from offramp.storage import atomic_path, check_target

SHOWN = 3  # failed inputs that are named

NetworkPath = Annotated[
    Path, typer.Argument(metavar="NETWORK", help="Folder of a saved network, or of a run.")
]
PolicyPath = Annotated[Path, typer.Argument(metavar="POLICY", help="Folder of its policy.")]
Budget = Annotated[
    float | None,
    typer.Option(help="Mean cost, as a share of the full network. Default: the policy's own."),
]
ChannelsLast = Annotated[
    bool, typer.Option(help="Store images with the channels last: faster for convolutions.")
]


def predict_command(
    network: NetworkPath,
    policy: PolicyPath,
    inputs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="INPUT", help="Image files, or folders of them."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="Without INPUT: the data set to predict. With it: the data set of the training, "
            "whose normalisation and class names are used. Default: the run's.",
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="Split of the data set.")] = "test",
    limit: Annotated[int | None, typer.Option(help="Largest number of samples.")] = None,
    target: Annotated[
        Path | None,
        typer.Option("--out", help="A .csv or .jsonl file. Default: CSV on the screen."),
    ] = None,
    budget: Budget = None,
    domain: Domain = None,
    tokenizer: TokenizerName = None,
    batch_size: Annotated[int, typer.Option(help="Samples read at a time.")] = 32,
    device: Device = "auto",
    precision: Precision = "float32",
) -> None:
    """Predict class, confidence, exit and cost of images; each stops at its own exit.

    The confidence is the calibrated probability that the class is right. A sample that was
    stopped with a confidence below 0.5 is marked likely_wrong. Costs are shares of the network
    without exits.

    An image that cannot be decoded has an empty class; all others are answered.
    """
    if batch_size < 1:
        raise ConfigError(f"--batch-size must be at least 1, got {batch_size}")
    made = load_network(network)
    runner = _runner(made, load_policy(policy, budget), device, precision)
    batches: Iterable[Any]
    class_names: Sequence[str] | None
    if inputs:
        files = find_images(inputs)[:limit]
        names = [str(file) for file in files]
        reader, class_names = images_of_run(made.inputs, network, data, domain)
        batches = reader.batches(files, batch_size)
    else:
        source = Source.find(network, data, domain, tokenizer)
        if source is None:
            raise ConfigError("give image files, a folder of images, or --data")
        samples = _load_split(source, split)
        names, class_names = samples.sample_ids[:limit], samples.class_names
        rows = torch.arange(len(names)).split(batch_size)
        batches = (samples.batch(some)[0] for some in rows)
    records = (
        record for output in runner.stream(batches) for record in output.records(class_names)
    )
    failed = []
    with _writer(target) as write:
        for name, record in zip(names, records, strict=True):
            write({"input": name, **record})
            if record["class"] is None:
                failed.append(name)
    _note(str(runner.stats))
    if failed:
        shown = ", ".join(failed[:SHOWN]) + (", ..." if len(failed) > SHOWN else "")
        _note(
            f"note: no answer for {len(failed)} of {len(names)}, which cannot be decoded or have "
            f"NaN or infinite values: {shown}"
        )
    if failed and len(failed) == len(names):
        raise typer.Exit(1)


def _note(text: str) -> None:
    err.print(text, markup=False, highlight=False)


def bench_command(
    network: NetworkPath,
    policy: PolicyPath,
    data: Annotated[
        str | None,
        typer.Option("--data", help="Data set to run on. Default: the run's, or noise."),
    ] = None,
    split: Annotated[str, typer.Option(help="Split of the data set.")] = "test",
    batch_sizes: Annotated[str, typer.Option(help="Comma-separated.")] = "1,32,256",
    seconds: Annotated[float, typer.Option(help="Seconds per batch size.")] = 5.0,
    budget: Budget = None,
    domain: Domain = None,
    tokenizer: TokenizerName = None,
    device: Device = "auto",
    precision: Precision = "float32",
    channels_last: ChannelsLast = False,
    threads: Annotated[int | None, typer.Option(help="Threads of torch.")] = None,
) -> None:
    """Measure samples per second with and without exits, at several batch sizes.

    Both take turns in one process, and the best round of each counts.
    """
    sizes = _sizes(batch_sizes)
    if threads is not None:
        torch.set_num_threads(threads)
    made = load_network(network)
    chosen = load_policy(policy, budget)
    runner = _runner(made, chosen, device, precision, channels_last)
    source = Source.find(network, data, domain, tokenizer)
    if source is None:
        err.print("note: noise as input; give --data for the exits of real samples")
        batch = made.example(max(sizes))
    else:
        samples = _load_split(source, split)
        batch, _ = samples.batch(torch.arange(min(len(samples), max(256, *sizes))))
    with err.status("measuring"):
        speeds = measure_speed(runner, batch, sizes, seconds)
    where = f"{describe_device(runner.device)}, {runner.precision}"
    table = Table(title=f"samples per second, {torch.get_num_threads()} threads, {where}")
    for heading in ("batch", "with exits", "without", "times faster", "mean cost"):
        table.add_column(heading, justify="right")
    for speed in speeds:
        cells = f"{speed.batch_size} {speed.with_exits:.0f} {speed.without_exits:.0f}"
        table.add_row(*cells.split(), f"{speed.speedup:.2f}", f"{speed.mean_cost:.3f}")
    out.print(table)


def _runner(
    network: EarlyExitNetwork,
    policy: Policy,
    device: str,
    precision: str,
    channels_last: bool = False,
) -> Runner:
    """A runner on a device, which is said first."""
    place = find_device(device)
    chosen = to_precision(precision, place)
    _note(f"running on {describe_device(place)}, {chosen}")
    return Runner(network, policy, device=place, precision=chosen, channels_last=channels_last)


def load_policy(folder: Path, budget: float | None) -> Policy:
    """A saved policy at the operating point for a budget, or at its own."""
    policy = Policy.load(folder)
    if budget is not None:
        return policy.at(budget=budget)
    if policy.is_tuned and policy.selected is None:
        raise ConfigError(f"the policy in {folder} has no operating point yet: give --budget")
    return policy


def _load_split(source: Source, split: str) -> Data:
    splits = source.load()
    if split not in splits:
        raise ConfigError(f"--split must be one of {', '.join(splits)}, got {split!r}")
    return splits[split]


@contextmanager
def _writer(target: Path | None) -> Iterator[Callable[[dict[str, Any]], object]]:
    """A function that writes one record, as CSV or as JSON lines."""
    if target is None:
        yield _csv_writer(sys.stdout)
        return
    if target.suffix not in (".csv", ".jsonl"):
        raise ConfigError(f"--out must end in .csv or .jsonl, got {target.name!r}")
    check_target(target.parent)
    with (
        atomic_path(target) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        if target.suffix == ".csv":
            yield _csv_writer(file)
        else:
            yield lambda record: file.write(json.dumps(record) + "\n")


def _csv_writer(file: IO[str]) -> Callable[[dict[str, Any]], object]:
    writer = csv.DictWriter(file, ("input", *RECORD_FIELDS), lineterminator="\n")
    writer.writeheader()
    return writer.writerow


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise ConfigError(f"--batch-sizes must be comma-separated numbers, got {text!r}")
    return sizes
