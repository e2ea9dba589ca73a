"""The sub-commands `predict` and `bench`: parse, and one public call."""

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import torch
import typer
from rich.table import Table

from offramp.cli.console import err, out
from offramp.cli.train_record import Domain, TokenizerName, load_network
from offramp.data import Data
from offramp.data.load import Source
from offramp.errors import ConfigError
from offramp.machine import to_precision
from offramp.policy import Policy
from offramp.runtime import Runner, RunOutput, measure_speed
from offramp.serving.images import ImageReader, find_images
from offramp.storage import atomic_path, check_target

SHOWN = 3  # failed inputs that are named
COLUMNS = ("input", "class", "name", "confidence", "likely_wrong", "exit", "cost")

NetworkPath = Annotated[
    Path, typer.Argument(metavar="NETWORK", help="Folder of a saved network, or of a run.")
]
PolicyPath = Annotated[
    Path, typer.Argument(metavar="POLICY", help="Folder of a policy that was fitted for it.")
]
Budget = Annotated[
    float | None,
    typer.Option(help="Mean cost, as a share of the full network. Default: the policy's own."),
]
Precision = Annotated[str, typer.Option(help="float32, bfloat16 or auto.")]
ChannelsLast = Annotated[
    bool, typer.Option(help="Lay out images with the channels last: faster for convolutions.")
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
            help="Without INPUT: the data set to predict. With it: the one that the network was "
            "trained on, whose normalisation and class names are used. Default: the run's.",
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="Of the data set.")] = "test",
    limit: Annotated[int | None, typer.Option(help="At most so many samples.")] = None,
    target: Annotated[
        Path | None,
        typer.Option("--out", help="A .csv or .jsonl file. Default: CSV on the screen."),
    ] = None,
    budget: Budget = None,
    domain: Domain = None,
    tokenizer: TokenizerName = None,
    batch_size: Annotated[int, typer.Option(help="Samples read at a time.")] = 32,
    precision: Precision = "float32",
) -> None:
    """Answer images, each at the exit where it may stop: class, confidence, exit and cost.

    The confidence is the calibrated probability that the class is right. A sample that was
    stopped although it is below 0.5 is marked likely_wrong. Costs are shares of the network
    without exits.

    An image that cannot be decoded has an empty class; all others are answered.
    """
    if batch_size < 1:
        raise ConfigError(f"--batch-size must be at least 1, got {batch_size}")
    made = load_network(network)
    runner = Runner(made, load_policy(policy, budget), precision=to_precision(precision))
    told = Source.find(network, data, domain, tokenizer)
    source = None if told is None else _split(told, split)
    read: Iterable[Any]
    if inputs:
        files = find_images(inputs)[:limit]
        names = [str(file) for file in files]
        note_normalization(told)
        read = ImageReader.as_trained(made.inputs, told, source).batches(files, batch_size)
    elif source is not None:
        names = source.sample_ids[:limit]
        read = _data_batches(source, len(names), batch_size)
    else:
        raise ConfigError("give image files, a folder of images, or --data")
    classes = None if source is None else source.class_names
    failed = []
    with _writer(target) as write:
        for row in _rows(runner.stream(read), names, classes):
            write(row)
            if row["class"] is None:
                failed.append(row["input"])
    err.print(str(runner.stats), markup=False, highlight=False)
    if failed:
        shown = ", ".join(map(str, failed[:SHOWN])) + (", ..." if len(failed) > SHOWN else "")
        err.print(
            f"note: no answer for {len(failed)} of {len(names)}, which cannot be decoded or hold "
            f"numbers that are none: {shown}",
            markup=False,
            highlight=False,
        )
    if failed and len(failed) == len(names):
        raise typer.Exit(1)


def bench_command(
    network: NetworkPath,
    policy: PolicyPath,
    data: Annotated[
        str | None,
        typer.Option("--data", help="Data set to run on. Default: the run's, or else noise."),
    ] = None,
    split: Annotated[str, typer.Option(help="Of the data set.")] = "test",
    batch_sizes: Annotated[str, typer.Option(help="Comma-separated.")] = "1,32,256",
    seconds: Annotated[float, typer.Option(help="For each batch size.")] = 5.0,
    budget: Budget = None,
    domain: Domain = None,
    tokenizer: TokenizerName = None,
    precision: Precision = "float32",
    channels_last: ChannelsLast = False,
    threads: Annotated[int | None, typer.Option(help="Of torch. Default: its own choice.")] = None,
) -> None:
    """Measure samples per second with and without exits, at several batch sizes.

    Both are run in turn in one process, and the best round of each counts.
    """
    sizes = _sizes(batch_sizes)
    if threads is not None:
        torch.set_num_threads(threads)
    made = load_network(network)
    chosen = load_policy(policy, budget)
    runner = Runner(made, chosen, precision=to_precision(precision), channels_last=channels_last)
    told = Source.find(network, data, domain, tokenizer)
    if told is None:
        err.print("note: noise as input; give --data for the exits of real samples")
        batch = made.example(max(sizes))
    else:
        source = _split(told, split)
        batch, _ = source.batch(torch.arange(min(len(source), max(256, *sizes))))
    with err.status("measuring"):
        speeds = measure_speed(runner, batch, sizes, seconds)
    table = Table(title=f"samples per second, {torch.get_num_threads()} threads, {precision}")
    for heading in ("batch", "with exits", "without", "times faster", "mean cost"):
        table.add_column(heading, justify="right")
    for speed in speeds:
        cells = f"{speed.batch_size} {speed.with_exits:.0f} {speed.without_exits:.0f}"
        table.add_row(*cells.split(), f"{speed.speedup:.2f}", f"{speed.mean_cost:.3f}")
    out.print(table)


def load_policy(folder: Path, budget: float | None) -> Policy:
    """A saved policy at the point for a budget, or at its own."""
    policy = Policy.load(folder)
    if budget is not None:
        return policy.at(budget=budget)
    if policy.is_tuned and policy.selected is None:
        raise ConfigError(f"the policy in {folder} has no operating point yet: give --budget")
    return policy


def _split(source: Source, split: str) -> Data:
    splits = source.load()
    if split not in splits:
        raise ConfigError(f"--split must be one of {', '.join(splits)}, got {split!r}")
    return splits[split]


def note_normalization(told: Source | None) -> None:
    """Say so where it is not known what a network was trained on."""
    if told is None:
        err.print(
            "note: pixels are normalised as ImageNet's; --data names the data set of the training"
        )


def _data_batches(data: Data, count: int, batch_size: int) -> Iterator[Any]:
    for rows in torch.arange(count).split(batch_size):
        yield data.batch(rows)[0]


def _rows(
    outputs: Iterable[RunOutput], names: Sequence[str], classes: Sequence[str] | None
) -> Iterator[dict[str, Any]]:
    remaining = iter(names)
    for output in outputs:
        for at in range(len(output)):
            failed, predicted = bool(output.failed[at]), int(output.predictions[at])
            yield {
                "input": next(remaining),
                "class": None if failed else predicted,
                "name": None if failed or classes is None else classes[predicted],
                "confidence": _number(output.confidence[at].item()),
                "likely_wrong": None if failed else bool(output.likely_wrong[at]),
                "exit": None if failed else int(output.exits[at]),
                "cost": _number(output.costs[at].item()),
            }


def _number(value: float) -> float | None:
    return None if value != value else round(value, 4)


@contextmanager
def _writer(target: Path | None) -> Iterator[Any]:
    """A function that writes one row, as CSV or as JSON lines."""
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
            yield lambda row: file.write(json.dumps(row) + "\n")


def _csv_writer(file: IO[str]) -> Any:  # noqa: ANN401
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
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
