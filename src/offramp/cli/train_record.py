"""The sub-commands `train` and `record`: parse, and one public call."""

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from offramp.cli.console import err
from offramp.data import Augmentation
from offramp.data.load import Source
from offramp.errors import ConfigError
from offramp.hints import did_you_mean
from offramp.machine import to_precision
from offramp.networks import ARCHITECTURES, EarlyExitNetwork, build_for_data
from offramp.networks.backbones import BUILDERS
from offramp.record import record
from offramp.serving.answers import network_folder
from offramp.training import OBJECTIVES, TrainConfig, train

Domain = Annotated[
    str | None, typer.Option(help="The domain of test, for data sets with several domains.")
]
TokenizerName = Annotated[
    str | None,
    typer.Option("--tokenizer", help="For text: a folder or a hub id. Default: the network's."),
]
Precision = Annotated[
    str, typer.Option(help="float32, bfloat16, or auto: bfloat16 where the machine is fast at it.")
]


def train_command(
    data: Annotated[
        str, typer.Option("--data", help="Name of a data set, or a folder; see offramp.data.")
    ],
    network: Annotated[
        str,
        typer.Option(
            help=f"One of {', '.join(ARCHITECTURES)}; or a pretrained model, as attach takes it."
        ),
    ],
    folder: Annotated[
        Path,
        typer.Option(
            "--out", help="Folder of the run; if it has one already, that run is resumed."
        ),
    ],
    objective: Annotated[str, typer.Option(help=f"One of {', '.join(OBJECTIVES)}.")] = "joint",
    epochs: Annotated[int, typer.Option(help="The most epochs in each phase.")] = 1000,
    batch_size: Annotated[int, typer.Option(help="Over all processes together.")] = 128,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help="At the top of the schedule. Default: 0.01 for convolutional networks trained "
            "from scratch, 0.001 for all others."
        ),
    ] = None,
    patience: Annotated[
        int, typer.Option(help="Epochs without progress before stopping; 0: never stop early.")
    ] = 30,
    freeze_backbone: Annotated[bool, typer.Option(help="Train the heads only.")] = False,
    augment: Annotated[
        str,
        typer.Option(
            help="Of images: none; light, which is shifts and flips, for small networks; or "
            "paper, all that the paper does, including Mixup and CutMix."
        ),
    ] = "none",
    domain: Domain = None,
    tokenizer: TokenizerName = None,
    precision: Precision = "auto",
    workers: Annotated[int, typer.Option(help="Processes that read the data.")] = 0,
    seed: Annotated[
        int, typer.Option(help="Of the weights, the order and all other randomness.")
    ] = 0,
) -> None:
    """Train a network with exits; the same command resumes an interrupted run.

    The checkpoint, the history and the trained network (OUT/network) are written to the folder.
    Under torchrun or accelerate launch, the processes share the work.
    """
    config = TrainConfig(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate or _learning_rate(network),
        patience=patience or None,
        precision=to_precision(precision),
        channels_last=True,
        workers=workers,
        seed=seed,
    )
    if network not in BUILDERS:
        _check_name(network)
        tokenizer = tokenizer or network
    source = Source(data, domain, tokenizer)
    samples = source.load().train
    head = "cascade" if objective == "zero-time-waste" else None
    made = build_for_data(network, samples, seed, head=head)
    with _explaining_how_to_resume(folder):
        source.save(folder)
        history = train(
            made,
            samples,
            objective,
            config,
            augment=_augmentation(augment),
            folder=folder,
            freeze_backbone=freeze_backbone,
        )
    made.save(folder / "network")
    chosen = history.chosen
    accuracy = chosen.get("accuracy", chosen["train_accuracy"])
    shown = " ".join(f"{100 * share:.1f}" for share in accuracy)
    text = f"weights of epoch {chosen['epoch'] + 1}, accuracy at the exits: {shown} %"
    err.print(text, highlight=False)
    err.print(f"written to {folder}/: network, history.jsonl, train.json", highlight=False)


def record_command(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run, or of a saved network.")
    ],
    data: Annotated[
        str | None, typer.Option("--data", help="Default: what RUN was trained on.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Where to write. Default: RUN/ledgers.")
    ] = None,
    splits: Annotated[str, typer.Option(help="Comma-separated.")] = "held_out,val,test",
    dtype: Annotated[str, typer.Option(help="float16 or float32.")] = "float16",
    domain: Domain = None,
    tokenizer: TokenizerName = None,
    precision: Precision = "float32",
    batch_size: Annotated[int, typer.Option(help="Of each process.")] = 256,
) -> None:
    """Run a trained network over held_out, val and test, and save a ledger of each."""
    network = load_network(run)
    source = Source.find(run, data, domain, tokenizer)
    if source is None:
        raise ConfigError(f"{run} does not say what it was trained on: give --data")
    loaded = source.load()
    target = folder or run / "ledgers"
    for split in (part.strip() for part in splits.split(",")):
        if not hasattr(loaded, split):
            raise ConfigError(f"--splits must name splits of the data, got {split!r}")
        ledger = record(
            network,
            getattr(loaded, split),
            split,
            dtype=_dtype(dtype),
            precision=to_precision(precision),
            batch_size=batch_size,
        )
        ledger.save(target / split)
        err.print(f"{target / split}: {ledger}", markup=False, highlight=False)


def load_network(run: Path) -> EarlyExitNetwork:
    """The network in its own folder, or in that of a run."""
    return EarlyExitNetwork.load(network_folder(run))


def _check_name(network: str) -> None:
    """Refuse a misspelt name at once: asking the hub for it would take long."""
    hint = "" if Path(network).exists() else did_you_mean(network, ARCHITECTURES, cutoff=0.8)
    if hint:
        raise ConfigError(f"there is no network `{network}`{hint}")


def _augmentation(name: str) -> Augmentation | None:
    known = {"none": None, "light": Augmentation.light(), "paper": Augmentation()}
    if name not in known:
        raise ConfigError(f"--augment must be none, light or paper, got {name!r}")
    return known[name]


def _learning_rate(network: str) -> float:
    """Networks with batch norm take, and short runs need, a higher rate than others."""
    return 0.01 if network in ARCHITECTURES and not network.startswith("vit") else 0.001


def _dtype(name: str) -> Literal["float16", "float32"]:
    if name not in ("float16", "float32"):
        raise ConfigError(f"--dtype must be float16 or float32, got {name!r}")
    return "float16" if name == "float16" else "float32"


@contextmanager
def _explaining_how_to_resume(folder: Path) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        command = shlex.join(["offramp", *sys.argv[1:]])
        err.print(
            f"interrupted; the run is in {folder}, and the same command resumes it:\n  {command}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGINT, before)
