"""The sub-commands `predict`, `profile` and `bench`: parse, and one public call."""

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from offramp.cli.console import note, out
from offramp.cli.options import (
    Budget,
    DataOptions,
    Device,
    NetworkPath,
    PolicyPath,
    Precision,
    Split,
    check_fresh,
    load_policy,
    network_in,
    there,
)
from offramp.errors import ConfigError
from offramp.files import atomic_path, check_target
from offramp.timing.config import CLOCKS, BenchConfig, Clock, check_runs

if TYPE_CHECKING:
    import torch

    from offramp.data import Data
    from offramp.data.source import Source
    from offramp.networks import EarlyExitNetwork

DISTURBED = 0.25  # how much longer than the best the median turn of a profile may take
NOISE = 512  # samples of noise to time on; larger batches repeat them
SAMPLES = 1000  # of a data set, drawn at random; more where a batch is larger
SHOWN = 3  # failed inputs that are named


def predict_command(
    network: NetworkPath,
    policy: PolicyPath,
    data: DataOptions,
    inputs: Annotated[list[Path] | None, typer.Argument(metavar="INPUT")] = None,
    split: Split = "test",
    limit: int | None = None,
    target: Annotated[Path | None, typer.Option("--out")] = None,
    budget: Budget = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 32,
    device: Device = "auto",
    precision: Precision = "float32",
) -> None:
    """Predict class, confidence, exit and cost of images; each image stops at its own exit.

    The confidence is the calibrated probability that the class is right. A sample that was
    stopped with a confidence below 0.5 is marked likely_wrong. Costs are shares of the network
    without exits.

    Without INPUT, the samples of a data set are predicted. An image that cannot be decoded has an
    empty class; all others are answered.

    Args:
        inputs: Image files, or folders of them.
        limit: Largest number of samples.
        target: File to write, .csv or .jsonl. Default: CSV on the screen.
        batch_size: Samples read at a time.
    """
    import torch

    from offramp.runtime import Runner
    from offramp.serving.images import Reading, find_images

    made = _placed(network, device)
    runner = Runner(made, load_policy(policy, budget), precision=precision)
    batches: Iterable[Any]
    class_names: Sequence[str] | None
    if inputs:
        files = find_images(inputs)[:limit]
        names = [str(file) for file in files]
        reading = Reading.of_run(made.inputs, network, data.data, data.domain)
        batches = reading.reader_for(made.inputs, network).batches(files, batch_size)
        class_names = reading.class_names
    else:
        source = data.source(network)
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
    note(str(runner.stats))
    if failed:
        shown = ", ".join(failed[:SHOWN]) + (", ..." if len(failed) > SHOWN else "")
        note(
            f"note: no answer for {len(failed)} of {len(names)}, which cannot be decoded or have "
            f"NaN or infinite values: {shown}"
        )
    if failed and len(failed) == len(names):
        raise typer.Exit(1)


def profile_command(
    network: NetworkPath,
    data: DataOptions,
    policy: Annotated[Path | None, typer.Argument(metavar="POLICY", callback=there)] = None,
    runtimes: Sequence[str] = ("torch",),
    batch_sizes: Sequence[int] = (1, 32, 256),
    threads: int | None = None,
    seconds: float = 20.0,
    split: Split = "val",
    clock: Clock = "wall",
    folder: Annotated[Path, typer.Option("--out")] = Path("profile"),
    device: Device = "auto",
) -> None:
    """Measure the seconds of every stage and every exit, for the option --profile elsewhere.

    A real runner is timed, in batches that shrink, on samples of the run's data, or on noise if
    the data are unknown. With several runtimes there is a folder for each runtime.

    Args:
        policy: Policy whose decisions are timed.
        runtimes: Runtimes: torch, onnx, or torch,onnx.
        batch_sizes: Comma-separated numbers of samples per batch.
        threads: Threads of the runtimes. Default: as many as they use now.
        seconds: Approximate time per runtime.
        clock: Clock to time by; process counts the processor's seconds of this process, for
            machines that others use: give --threads 1 with it.
        folder: Folder of the profile.
    """
    check_runs(runtimes, batch_sizes, seconds)
    check_fresh(folder, "profile")
    from offramp.policy import Policy
    from offramp.report import profile_table
    from offramp.timing.profile import profile

    made = _placed(network, device)
    chosen = None if policy is None else Policy.load(policy)
    inputs, _ = _samples(made, data.source(network), split, batch_sizes)
    for name in runtimes:
        found = profile(made, chosen, name, batch_sizes, threads, inputs, seconds, CLOCKS[clock])
        place = found.save(folder / name if len(runtimes) > 1 else folder)
        out.show(profile_table(found))
        if max(found.spread) > DISTURBED:
            note(
                f"note: turns differ by {max(found.spread):.0%}, so other work disturbs this "
                "machine, and predictions may be wrong: measure again when it is idle, with more "
                "--seconds, or with --clock process --threads 1"
            )
        note(f"saved in {place}/")


def bench_command(
    network: NetworkPath,
    policy: PolicyPath,
    data: DataOptions,
    config: BenchConfig,
    split: Split = "test",
    rival: list[Path] | None = None,
    clock: Clock = "wall",
    folder: Annotated[Path | None, typer.Option("--out")] = None,
    device: Device = "auto",
) -> None:
    """Time a policy, its network without exits and cut at one exit, and smaller networks.

    The table has milliseconds per sample, and shares of the time that the network without exits
    takes in the same runtime: as predicted by a profile, which is measured first, and as
    measured. All take turns in one process on the same samples of the run's data, or on noise if
    the data are unknown, and the best of three turns counts.

    Args:
        rival: Folder of another network to time without exits, such as a smaller network, or a
            network for smaller images.
        clock: Clock to time by; process counts the processor's seconds of this process, for
            machines that others use: give --threads 1 with it.
        folder: Folder for the table, the figure and JSON.
    """
    from offramp.report import bench_table, write_bench
    from offramp.timing.bench import bench

    if folder is not None:
        check_target(folder)
    made = _placed(network, device)
    chosen = load_policy(policy, config.budgets[0] if config.budgets else None, "--budgets")
    inputs, labels = _samples(made, data.source(network), split, config.batch_sizes)
    rivals = {each.name: network_in(each) for each in rival or ()}
    rows = bench(made, chosen, inputs, labels, config, rivals, clock=CLOCKS[clock])
    out.show(bench_table(rows))
    if folder is not None:
        paths, missing = write_bench(rows, folder)
        note(f"written to {folder}/: {', '.join(path.name for path in paths)}")
        if missing is not None:
            note(f"note: {missing}")


def _placed(network: Path, device: str) -> "EarlyExitNetwork":
    """A network on a device; a note names the device."""
    from offramp.machine import describe_device, find_device, keep_memory

    keep_memory()
    place = find_device(device)
    note(f"running on {describe_device(place)}")
    return network_in(network).to(place)


def _samples(
    made: "EarlyExitNetwork",
    source: "Source | None",
    split: str,
    sizes: Sequence[int],
) -> "tuple[Any, torch.Tensor | None]":
    """Samples to time on, and their labels: of the data set, or noise."""
    import torch

    if source is None:
        note("note: noise as input; give --data for the exits of real samples")
        return made.example(min(max(sizes), NOISE)), None
    samples = _load_split(source, split)
    drawn = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))
    return samples.batch(drawn[: max(SAMPLES, *sizes)])


def _load_split(source: "Source", split: str) -> "Data":
    splits = source.load()
    if split not in splits:
        raise ConfigError(f"--split must be one of {', '.join(splits)}, got {split!r}")
    return splits[split]


@contextmanager
def _writer(target: Path | None) -> Iterator[Callable[[dict[str, Any]], object]]:
    """A function that writes one record, as CSV or as JSON lines."""
    if target is None:
        if out.gathered is None:
            yield _csv_writer(sys.stdout)
        else:
            answers: list[dict[str, Any]] = []
            yield answers.append
            out.give(answers=answers)
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
    from offramp.runtime.output import RECORD_FIELDS

    writer = csv.DictWriter(file, ("input", *RECORD_FIELDS), lineterminator="\n")
    writer.writeheader()
    return writer.writerow
