"""The command `train`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offramp import check
from offramp.cli.console import note, out
from offramp.cli.options import DataOptions, network_in, option_of, there
from offramp.cli.settings import Given, completing, split_names
from offramp.errors import ConfigError
from offramp.files import kind_of
from offramp.registry import (
    ARCHITECTURES,
    AUGMENTATIONS,
    BUILDERS,
    HEADS,
    OBJECTIVES,
    RECIPES,
    did_you_mean,
)
from offramp.run_folder import RunFolder
from offramp.training.config import Recipe, TrainConfig

if TYPE_CHECKING:
    from offramp.data.source import Source
    from offramp.ledger import Ledger
    from offramp.networks import EarlyExitNetwork
    from offramp.training import Objective, Teacher, TrainHistory

_CASCADE = "zero-time-waste"  # needs heads that read logits


def _differences(recipe: Recipe) -> str:
    """What a recipe has other defaults for, in words."""
    plain = asdict(TrainConfig())
    changed = {k: v for k, v in asdict(recipe.config).items() if v != plain[k]}
    changed |= {"objective": recipe.objective, "augment": recipe.augment}
    return ", ".join(f"{name} {value}" for name, value in changed.items())


_RECIPES = "; ".join(f"{name} ({_differences(each)})" for name, each in RECIPES.items())


@dataclass(frozen=True)
class TeacherOptions:
    """A stronger network to learn from, if any.

    Args:
        teacher: Run of a stronger network, or a ledger of that network, whose answers become part
            of each target. Record the training data first: offramp record RUN --splits train.
        teacher_share: Share of the teacher's answer in each target. Default: 0.5.
        teacher_temperature: Divisor of the teacher's logits; above 1, targets contain more of the
            classes that are not the teacher's answer. Default: 1.
    """

    teacher: Annotated[Path | None, typer.Option(callback=there)] = None
    teacher_share: float | None = None
    teacher_temperature: float | None = None

    def __post_init__(self) -> None:
        for name in ("teacher_share", "teacher_temperature"):
            if self.teacher is None and getattr(self, name) is not None:
                raise ConfigError(f"--{name.replace('_', '-')} needs --teacher")
        if self.teacher_share is not None:
            check.within("--teacher-share", self.teacher_share, 0, 1)
        if self.teacher_temperature is not None:
            check.positive("--teacher-temperature", self.teacher_temperature)

    def find(self, samples: Any, network: "EarlyExitNetwork") -> "Teacher | None":  # noqa: ANN401
        """The teacher for these samples and for a network of these classes."""
        if self.teacher is None:
            return None
        from offramp.record import as_teacher

        given = {"share": self.teacher_share, "temperature": self.teacher_temperature}
        settings = {name: value for name, value in given.items() if value is not None}
        found = as_teacher(_training_ledger(self.teacher), samples, **settings)
        found.check(len(samples), network.num_classes)
        note(f"learning from {self.teacher}, too: {found.share:.0%} of each target")
        return found


@dataclass(frozen=True)
class NetworkOptions:
    """The network to train, and where its exits go.

    Args:
        exits: Place of the exits: every-block, a number, auto for a few by the seconds that blocks
            take, or comma-separated names of modules.
        head: Head of each exit. Default: what fits the network.
    """

    network: Annotated[
        str,
        typer.Option(
            autocompletion=completing(ARCHITECTURES),
            help=f"One of {', '.join(ARCHITECTURES)}; efficientnet-lite0, with ImageNet weights; "
            "another pretrained model, as attach takes it; or the folder of a run or of a saved "
            "network, which is trained further.",
        ),
    ]
    exits: str = "every-block"
    head: Annotated[str | None, option_of(HEADS)] = None

    def __post_init__(self) -> None:
        if self.is_saved and (self.exits != "every-block" or self.head is not None):
            raise ConfigError("a saved network has its exits: leave --exits and --head out")
        # Asking the hub for a misspelt name would take long.
        if self.is_pretrained and not Path(self.network).exists():
            hint = did_you_mean(self.network, ARCHITECTURES, cutoff=0.8)
            if hint:
                raise ConfigError(f"there is no network `{self.network}`{hint}")

    @property
    def is_saved(self) -> bool:
        """Whether it is the folder of a run or of a saved network."""
        return RunFolder(self.network).has_network

    @property
    def is_pretrained(self) -> bool:
        """Whether it is a model of the hub or of a folder, as `attach` takes it."""
        return not self.is_saved and self.network not in BUILDERS

    def source(self, given: DataOptions, sizes: tuple[int, ...]) -> "Source":
        """The data to train on, in the last of these sizes."""
        from offramp.data.source import Source

        if self.is_saved:
            found = given.source(Path(self.network))
        elif given.data is not None:
            own = self.network if self.is_pretrained else None  # the tokenizer of the model
            found = Source(given.data, given.domain, given.tokenizer or own)
        else:
            found = None
        if found is None:
            raise ConfigError("give --data: what is the network to be trained on?")
        return replace(found, image_size=sizes[-1]) if sizes else found

    def loaded(self, is_resized: bool) -> "EarlyExitNetwork":
        """The saved network; where images are resized, it takes the size that they will have."""
        from offramp.networks import ImageInput

        made = network_in(Path(self.network))
        if is_resized and isinstance(made.inputs, ImageInput) and not made.inputs.fixed:
            made.inputs = replace(made.inputs, assumed=True)
        return made

    def built(self, samples: Any, seed: int, head: str | None) -> "EarlyExitNetwork":  # noqa: ANN401
        """A new network for samples; `head` is the kind of heads where none is asked for."""
        from offramp.networks import build_for_data

        where: str | int | list[str] = self.exits
        if self.exits not in ("every-block", "auto"):
            where = int(self.exits) if self.exits.isdigit() else split_names(self.exits)
        return build_for_data(self.network, samples, seed, where, self.head or head)


def train_command(
    data: DataOptions,
    network: NetworkOptions,
    folder: Annotated[Path, typer.Option("--out")],
    teacher: TeacherOptions,
    settings: Annotated[Given, TrainConfig],
    recipe: Annotated[
        str, option_of(RECIPES, f"Differences from the plain defaults: {_RECIPES}.")
    ] = "paper",
    objective: Annotated[str | None, option_of(OBJECTIVES)] = None,
    exit_weights: Sequence[float] | None = None,
    freeze_backbone: Annotated[bool, typer.Option("--freeze-backbone")] = False,
    augment: Annotated[str | None, option_of(AUGMENTATIONS)] = None,
) -> None:
    """Train a network with exits; the same command resumes an interrupted run.

    The checkpoint, the history and the trained network (OUT/network) are written to the folder.
    Several --image-sizes are trained on in turn, and the network is built for the last one; a
    saved convolutional network is trained on for the new size. Under torchrun or accelerate
    launch, the processes share the work.

    Args:
        folder: Folder of the run. An existing run is resumed.
        recipe: Defaults, which other options override. paper is for new networks, and finetune for
            pretrained ones.
        objective: Training objective. Default: the objective of the recipe.
        exit_weights: Comma-separated weights of the exits' losses. Default: all 1.
        freeze_backbone: Train the heads only.
        augment: Augmentation of images: light is shifts and flips, for small networks; paper is
            all that the paper does, including Mixup and CutMix. Default: the augmentation of the
            recipe.
    """
    chosen = RECIPES[recipe]
    config = replace(chosen.config, **settings)  # checks all settings before data are read
    sizes = config.image_sizes
    source = network.source(data, sizes)
    from torch import Tensor

    from offramp.machine import find_device
    from offramp.training import train
    from offramp.training.processes import Processes

    goal = _objective(objective or chosen.objective, exit_weights)
    processes = Processes.here(find_device(config.device))
    samples = source.load().train
    if network.is_saved:
        made = network.loaded(is_resized=bool(sizes))
    else:
        made = network.built(samples, config.seed, "cascade" if goal.name == _CASCADE else None)
    is_image = isinstance(samples[0][0], Tensor)
    run = RunFolder(folder)
    processes.first(lambda: source.of_samples(samples).save(folder))
    history = train(
        made,
        samples,
        goal,
        replace(config, image_sizes=sizes if len(sizes) > 1 else ()),
        augment=AUGMENTATIONS[augment or (chosen.augment if is_image else "none")],
        folder=folder,
        freeze_backbone=freeze_backbone,
        teacher=teacher.find(samples, made),
    )
    processes.first(lambda: str(made.save(run.trained)))
    if processes.is_main:
        _show_end(history, run)


def _training_ledger(teacher: Path) -> "Ledger":
    """The ledger of the training data in the folder of a run; or a ledger itself."""
    from offramp.ledger import Ledger
    from offramp.networks.network import fingerprint

    is_run = RunFolder(teacher).has_network
    for place in (teacher, teacher / "train", RunFolder(teacher).ledger("train")):
        if kind_of(place) == "ledger" or place.suffix in (".npz", ".parquet"):
            ledger = Ledger.load(place)
            if is_run and ledger.network != fingerprint(network_in(teacher)):
                raise ConfigError(
                    f"--teacher: {place} was not recorded with the weights in {teacher}; "
                    f"record it again: offramp record {teacher} --splits train"
                )
            return ledger
    how = f"; make one with offramp record {teacher} --splits train"
    raise ConfigError(
        f"--teacher: {teacher} has no ledger of the training data"
        f"{how if is_run else ': give the run of a network, or its ledger'}"
    )


def _show_end(history: "TrainHistory", run: RunFolder) -> None:
    taken = history.chosen
    accuracy = taken.get("accuracy", taken["train_accuracy"])
    shown = " ".join(f"{100 * share:.1f}" for share in accuracy)
    note(f"weights of epoch {taken['epoch'] + 1}, accuracy at the exits: {shown} %")
    out.give(folder=run.path, epoch=taken["epoch"] + 1, accuracy=accuracy)
    names = ", ".join(path.name for path in (run.trained, run.history, run.settings))
    note(f"written to {run.path}/: {names}")


def _objective(name: str, weights: Sequence[float] | None) -> "Objective":
    from offramp.training.objectives import Joint, find_objective

    found = find_objective(name)
    if weights is None:
        return found
    if not isinstance(found, Joint):
        raise ConfigError(f"--exit-weights do not go with the objective {name}, which has none")
    return replace(found, weights=weights)
