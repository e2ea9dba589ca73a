"""The sub-commands `train`, `chain` and `record`: parse, and one public call."""

import inspect
import os
import shlex
import signal
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from offramp import check
from offramp.cli.console import err, out
from offramp.cli.options import (
    Device,
    Domain,
    Precision,
    TokenizerName,
    complete_data,
    completing,
    numbers,
    there,
)
from offramp.errors import ConfigError
from offramp.files import kind_of
from offramp.registry import (
    ARCHITECTURES,
    AUGMENTATIONS,
    DATA_SETS,
    HEADS,
    OBJECTIVES,
    RECIPES,
    did_you_mean,
    or_known,
)

if TYPE_CHECKING:
    from offramp.ledger import Ledger
    from offramp.networks import EarlyExitNetwork, Inputs
    from offramp.training import Objective, Teacher, TrainHistory

_BY_RECIPE = "Default: as the recipe says."
_CASCADE = "zero-time-waste"  # needs heads that read logits

Workers = Annotated[
    int, typer.Option(min=0, help="Processes that read the data ahead; 0 reads them in this one.")
]


def train_command(
    data: Annotated[
        str,
        typer.Option(
            "--data",
            autocompletion=complete_data,
            help=f"One of {', '.join(DATA_SETS)}; or a folder, see docs/data.md.",
        ),
    ],
    network: Annotated[
        str,
        typer.Option(
            autocompletion=completing(ARCHITECTURES),
            help=f"One of {', '.join(ARCHITECTURES)}; a pretrained model, as attach takes it; or "
            "the folder of a run or of a saved network, which is trained further.",
        ),
    ],
    folder: Annotated[
        Path,
        typer.Option(
            "--out", help="Folder of the run; if it has one already, that run is resumed."
        ),
    ],
    recipe: Annotated[
        str,
        typer.Option(
            autocompletion=completing(RECIPES),
            help=f"A set of defaults, one of {', '.join(RECIPES)}; other options override it. "
            "finetune is for pretrained networks: few epochs, a higher learning rate for the "
            "heads, averaged weights, distillation from the last exit.",
        ),
    ] = "paper",
    objective: Annotated[
        str | None,
        typer.Option(
            autocompletion=completing(OBJECTIVES),
            help=f"One of {', '.join(OBJECTIVES)}. {_BY_RECIPE}",
        ),
    ] = None,
    exit_weights: Annotated[
        str | None,
        typer.Option(help="Weight of each exit's loss, comma-separated. Default: all 1."),
    ] = None,
    exits: Annotated[
        str,
        typer.Option(
            help="Where the exits go: every-block, a number, auto for a few by the seconds that "
            "blocks take, or comma-separated names of modules."
        ),
    ] = "every-block",
    head: Annotated[
        str | None,
        typer.Option(
            autocompletion=completing(HEADS),
            help=f"One of {', '.join(HEADS)}. Default: what fits the network.",
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help=f"The most epochs in each phase. {_BY_RECIPE}")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help=f"Over all processes together. {_BY_RECIPE}")
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help="At the top of the schedule. Default: 0.01 for convolutional networks trained "
            "from scratch, 0.0001 for text encoders, 0.0005 with a rate of their own for the "
            "heads, as in the recipe finetune, 0.001 for all others."
        ),
    ] = None,
    head_rate: Annotated[
        float | None, typer.Option(help=f"Factor on it for the heads. {_BY_RECIPE}")
    ] = None,
    averaging: Annotated[
        float | None,
        typer.Option(help=f"Decay of the moving average of the weights; 0: none. {_BY_RECIPE}"),
    ] = None,
    label_smoothing: Annotated[
        float | None, typer.Option(help="Share of a target that is spread over all classes.")
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            help=f"Epochs without progress before stopping; 0: never stop early. {_BY_RECIPE}"
        ),
    ] = None,
    freeze_backbone: Annotated[bool, typer.Option(help="Train the heads only.")] = False,
    teacher: Annotated[
        Path | None,
        typer.Option(
            callback=there,
            help="Run of a stronger network, or a ledger of it, whose answers become part of each "
            "target. Record it on the training data before: offramp record RUN --splits train.",
        ),
    ] = None,
    teacher_share: Annotated[
        float | None,
        typer.Option(help="How much of each target is the teacher's answer. Default: 0.5."),
    ] = None,
    teacher_temperature: Annotated[
        float | None,
        typer.Option(
            help="By which the teacher's logits are divided; above 1, it says more about the "
            "classes that it does not choose. Default: 1."
        ),
    ] = None,
    augment: Annotated[
        str | None,
        typer.Option(
            autocompletion=completing(AUGMENTATIONS),
            help="Of images: none; light, which is shifts and flips, for small networks; or "
            f"paper, all that the paper does, including Mixup and CutMix. {_BY_RECIPE}",
        ),
    ] = None,
    image_size: Annotated[
        str | None,
        typer.Option(
            help="Size of the images in pixels. Several, comma-separated: in turn, each for an "
            "equal share of the epochs; the network is built for the last. A saved convolutional "
            "network is trained on for the new size."
        ),
    ] = None,
    domain: Domain = None,
    tokenizer: TokenizerName = None,
    device: Device = "auto",
    precision: Precision = "auto",
    workers: Workers = 0,
    seed: Annotated[
        int, typer.Option(help="Of the weights, the order and all other randomness.")
    ] = 0,
) -> None:
    """Train a network with exits; the same command resumes an interrupted run.

    The checkpoint, the history and the trained network (OUT/network) are written to the folder.
    Under torchrun or accelerate launch, the processes share the work.
    """
    _check_names(recipe=(recipe, RECIPES), objective=(objective, OBJECTIVES), head=(head, HEADS))
    _check_names(augment=(augment, AUGMENTATIONS))
    _check_data(data)
    from torch import Tensor

    from offramp.data.source import Source
    from offramp.machine import find_device, to_precision
    from offramp.networks import build_for_data
    from offramp.registry import BUILDERS
    from offramp.training import train
    from offramp.training.config import find_recipe
    from offramp.training.processes import Processes

    taught_how = _teaching(teacher, teacher_share, teacher_temperature)
    chosen = find_recipe(recipe)
    goal = _objective(objective or chosen.objective, exit_weights)
    sizes = _sizes(image_size)
    saved = _is_saved(network)
    if network not in BUILDERS and not saved:
        _check_name(network)
        tokenizer = tokenizer or network
    source = Source.find(Path(network), data, domain, tokenizer) if saved else None
    source = source or Source(data, domain, tokenizer)
    source = replace(source, image_size=sizes[-1] if sizes else source.image_size)
    config = replace(  # which checks all settings, before data are read
        chosen.config_with(
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            head_rate=head_rate,
            averaging=averaging,
            label_smoothing=label_smoothing,
        ),
        image_sizes=sizes if len(sizes) > 1 else (),
        patience=chosen.config.patience if patience is None else patience or None,
        device=device,
        precision=to_precision(precision, find_device(device)),
        workers=workers,
        seed=seed,
    )
    samples = source.load().train
    is_image = isinstance(samples[0][0], Tensor)
    if saved:
        _check_unchanged(exits, head)
        made = load_network(Path(network))
        if sizes:
            made.inputs = _of_another_size(made.inputs)
    else:
        head = head or ("cascade" if goal.name == _CASCADE else None)
        made = build_for_data(network, samples, seed, _where(exits), head)
    augment = augment or (chosen.augment if is_image else "none")
    taught = None if teacher is None else _taught(teacher, taught_how, samples, made)
    processes = Processes.here(find_device(device))
    with _explaining_how_to_resume(folder):
        processes.first(lambda: source.save(folder))
        history = train(
            made,
            samples,
            goal,
            config,
            augment=AUGMENTATIONS[augment],
            folder=folder,
            freeze_backbone=freeze_backbone,
            teacher=taught,
        )
        processes.first(lambda: str(made.save(folder / "network")))
    if processes.is_main:
        _show_end(history, folder)


def _teaching(
    teacher: Path | None, share: float | None, temperature: float | None
) -> dict[str, float]:
    """The settings of a teacher that were given."""
    given = {"share": share, "temperature": temperature}
    found = {name: value for name, value in given.items() if value is not None}
    if teacher is None and found:
        raise ConfigError(f"--teacher-{next(iter(found))} needs --teacher")
    if share is not None:
        check.within("--teacher-share", share, 0, 1)
    if temperature is not None:
        check.positive("--teacher-temperature", temperature)
    return found


def _taught(
    run: Path,
    how: dict[str, float],
    samples: Any,  # noqa: ANN401 - a data set
    network: "EarlyExitNetwork",
) -> "Teacher":
    from offramp.record import as_teacher

    teacher = as_teacher(_training_ledger(run), samples, **how)
    teacher.check(len(samples), network.num_classes)
    err.print(f"learning from {run}, too: {teacher.share:.0%} of each target", highlight=False)
    return teacher


def _training_ledger(teacher: Path) -> "Ledger":
    """What a run's network said of the training data; or a ledger itself."""
    from offramp.ledger import Ledger
    from offramp.networks.weights import fingerprint

    for place in (teacher, teacher / "train", teacher / "ledgers" / "train"):
        if kind_of(place) == "ledger" or place.suffix in (".npz", ".parquet"):
            ledger = Ledger.load(place)
            if _is_saved(str(teacher)) and ledger.network != fingerprint(load_network(teacher)):
                raise ConfigError(
                    f"--teacher: {place} was recorded with other weights than those of {teacher}; "
                    f"record it again: offramp record {teacher} --splits train"
                )
            return ledger
    how = f"; make one with offramp record {teacher} --splits train"
    raise ConfigError(
        f"--teacher: {teacher} has no ledger of the training data"
        f"{how if _is_saved(str(teacher)) else ': give the run of a network, or its ledger'}"
    )


def _check_names(**given: tuple[str | None, Collection[str]]) -> None:
    """Refuse a misspelt option before anything is imported."""
    for option, (name, known) in given.items():
        if name is not None and name not in known:
            raise ConfigError(f"--{option}: there is no {name!r}{or_known(name, known)}")


def _check_data(name: str) -> None:
    """Refuse a data set that is neither known nor a folder before anything is imported."""
    root = os.environ.get("OFFRAMP_DATA")
    places = [Path(name), *([Path(root) / name] if root else [])]
    if name not in DATA_SETS and not any(place.is_dir() for place in places):
        raise ConfigError(
            f"--data: there is no data set {name!r}{or_known(name, DATA_SETS)}; it is no folder "
            f"either (looked at {' and '.join(map(str, places))})"
        )


def _show_end(history: "TrainHistory", folder: Path) -> None:
    taken = history.chosen
    accuracy = taken.get("accuracy", taken["train_accuracy"])
    shown = " ".join(f"{100 * share:.1f}" for share in accuracy)
    text = f"weights of epoch {taken['epoch'] + 1}, accuracy at the exits: {shown} %"
    err.print(text, highlight=False)
    out.give(folder=folder, epoch=taken["epoch"] + 1, accuracy=accuracy)
    err.print(f"written to {folder}/: network, history.jsonl, train.json", highlight=False)


def record_command(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", callback=there, help="Folder of a run, or of a saved network."
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            "--data", autocompletion=complete_data, help="Default: what RUN was trained on."
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Where to write. Default: RUN/ledgers.")
    ] = None,
    splits: Annotated[str, typer.Option(help="Comma-separated.")] = "held_out,val,test",
    dtype: Annotated[str, typer.Option(help="float16 or float32.")] = "float32",
    domain: Domain = None,
    tokenizer: TokenizerName = None,
    device: Device = "auto",
    precision: Precision = "float32",
    batch_size: Annotated[int, typer.Option(help="Of each process.")] = 256,
    workers: Workers = 0,
) -> None:
    """Run a trained network over held_out, val and test, and save a ledger of each."""
    from torch.utils.data import DataLoader

    from offramp.data.source import Source
    from offramp.machine import find_device, keep_memory, to_precision
    from offramp.record import record
    from offramp.serving.model import network_folder
    from offramp.training.processes import Processes

    keep_memory()
    network = load_network(run)
    source = Source.find(run, data, domain, tokenizer)
    if source is None:
        raise ConfigError(f"{run} does not say what it was trained on: give --data")
    loaded = source.load()
    target = folder or run / "ledgers"
    before = network.inputs
    processes = Processes.here(find_device(device))
    found = {}
    for split in (part.strip() for part in splits.split(",")):
        if not hasattr(loaded, split):
            raise ConfigError(f"--splits must name splits of the data, got {split!r}")
        ledger = record(
            network,
            DataLoader(getattr(loaded, split), num_workers=workers),
            split,
            dtype=_dtype(dtype),
            device=device,
            precision=to_precision(precision, find_device(device)),
            batch_size=batch_size,
        )
        processes.first(partial(_save, ledger, target / split))
        if processes.is_main:
            right = ledger.logits.argmax(2) == ledger.labels[:, None]
            found[split] = {"samples": len(ledger), "accuracy": right.double().mean(0).tolist()}
            err.print(f"{target / split}: {ledger}", markup=False, highlight=False)
    out.give(folder=target, splits=found)
    if network.inputs != before:  # from now on it knows the size of its images
        processes.first(lambda: str(network.save(network_folder(run))))


def _save(ledger: "Ledger", folder: Path) -> None:
    ledger.save(folder)


def chain_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN RUN...",
            help="Runs of networks for the same images, from the cheapest to the best; or saved "
            "networks.",
        ),
    ],
    folder: Annotated[Path, typer.Option("--out", help="Folder of the new run.")],
) -> None:
    """Make one network of several: what the first does not settle goes on to the next.

    A network for small images answers what is easy, and one for large images the rest. OUT is a
    run like any other: offramp record OUT comes next.
    """
    from offramp.data.source import Source
    from offramp.networks import ImageInput, chain, count_macs

    for run in runs:
        there(run)
    if len({run.resolve() for run in runs}) < len(runs):
        raise ConfigError("a chain takes every run once: give two different ones or more")
    if _is_saved(str(folder)):
        raise ConfigError(f"--out: there is a network in {folder} already; give another folder")
    networks = [load_network(run) for run in runs]
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
        err.print(f"note: the runs were trained on different data: {names}", highlight=False)
    made.save(folder / "network")
    if sources:
        assert isinstance(made.inputs, ImageInput), "a chain takes images"
        replace(sources[-1], image_size=made.inputs.height).save(folder)
    out.give(folder=folder, exits=made.num_exits, starts=made.starts, macs=whole)
    err.print(f"written to {folder}/: network, with {made.num_exits} exits", highlight=False)


def load_network(run: Path) -> "EarlyExitNetwork":
    """The network in its own folder, or in that of a run."""
    from offramp.networks import EarlyExitNetwork
    from offramp.serving.model import network_folder

    return EarlyExitNetwork.load(network_folder(run))


def _is_saved(network: str) -> bool:
    """Whether it is the folder of a run or of a saved network, not of a pretrained model."""
    from offramp.serving.model import network_folder

    return (network_folder(Path(network)) / "network.json").is_file()


def _of_another_size(inputs: "Inputs") -> "Inputs":
    """The same inputs, of the size that the data will have; `fixed` ones have only theirs."""
    from offramp.networks import ImageInput

    if isinstance(inputs, ImageInput) and not inputs.fixed:
        return replace(inputs, assumed=True)
    return inputs


def _check_unchanged(exits: str, head: str | None) -> None:
    if exits != "every-block" or head is not None:
        raise ConfigError("a saved network has its exits: leave --exits and --head out")


def _check_name(network: str) -> None:
    """Refuse a misspelt name at once: asking the hub for it would take long."""
    hint = "" if Path(network).exists() else did_you_mean(network, ARCHITECTURES, cutoff=0.8)
    if hint:
        raise ConfigError(f"there is no network `{network}`{hint}")


def _objective(name: str, weights: str | None) -> "Objective":
    from offramp.training.objectives import find_objective

    if weights is None:
        return find_objective(name)
    maker: Any = type(find_objective(name))
    if "weights" not in inspect.signature(maker).parameters:
        raise ConfigError(f"--exit-weights do not go with the objective {name}, which has none")
    made: Objective = maker(weights=numbers("--exit-weights", weights))
    return made


def _sizes(text: str | None) -> tuple[int, ...]:
    parts = [] if text is None else [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        raise ConfigError(f"--image-size must be whole numbers of pixels, got {text!r}")
    return tuple(int(part) for part in parts)


def _where(exits: str) -> str | int | list[str]:
    """Where exits go, as `attach` takes it."""
    if exits in ("every-block", "auto"):
        return exits
    return int(exits) if exits.isdigit() else [name.strip() for name in exits.split(",")]


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
