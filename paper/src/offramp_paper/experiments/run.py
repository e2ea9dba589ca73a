"""What the experiments share: networks that are trained and recorded once, and comparisons.

`train` resumes by itself, and `once` knows all else that was made: a second run does nothing, a
killed one goes on where it was, and a changed option repeats what depends on it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import msgspec
import torch
from torch.utils.data import DataLoader

from offramp import Corrector, Ledger, Method, compare, train
from offramp.cli.console import err
from offramp.data import Data, ImageData, Splits, load
from offramp.errors import ConfigError, DataError, OfframpError
from offramp.evaluation import Comparison
from offramp.machine import describe_device, find_device
from offramp.made import fingerprint, is_whole, once
from offramp.methods import find_methods
from offramp.networks import EarlyExitNetwork, build_for_data
from offramp.plan import Plan
from offramp.record import record
from offramp.registry import AUGMENTATIONS, or_known
from offramp.report import ResultTable, read_comparison, write_comparison
from offramp.training import Processes
from offramp_paper.experiments.network import First, Network, existing

BUDGETS = (0.25, 0.5, 0.75)
SPLITS = ("held_out", "val", "test")


@dataclass(frozen=True)
class Options:
    """Options of `offramp study`; see `offramp study --help`."""

    scale: str = "small"
    out: Path | None = None
    networks: Path = Path("runs/networks")
    device: str = "auto"
    only: tuple[str, ...] = ()
    epochs: int | None = None
    limit: int | None = None
    seed: int = 0
    split_seed: int = 0
    seeds: int = 3
    resamples: int = 1000
    log_odds: bool = True

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("limit", 1), ("seeds", 1), ("resamples", 2)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"--{name} must be at least {least}, got {value}")


@dataclass(frozen=True)
class Recorded:
    """What the exits of a network say on held_out, val and test."""

    network: Network
    ledgers: dict[str, Ledger]
    origin: Any  # what `once` compares
    target: str | None = None  # the domain of test

    @property
    def name(self) -> str:
        """For folders and messages."""
        return (
            self.network.name if self.target is None else f"{self.network.name}-to-{self.target}"
        )

    @property
    def title(self) -> str:
        """For tables and pages."""
        to = "" if self.target is None else f" → {self.target}"
        return f"{self.network.title}{to}"


@dataclass(frozen=True)
class Result:
    """The comparison of methods on one network."""

    recorded: Recorded
    comparison: Comparison
    place: Path

    @property
    def title(self) -> str:
        """Of the network, and of the domain that it is tested on."""
        return self.recorded.title

    def plans(self, name: str) -> list[Plan]:
        """The policies of a method that were compared, a plan per seed."""
        number = [method.name for method in self.comparison.methods].index(name)
        seeds = range(len(self.comparison[name].curves))
        return [Plan.load(self.place / "plans" / f"{number}-{seed}") for seed in seeds]


@dataclass(frozen=True)
class Analysis:
    """What an experiment reports beyond its comparisons."""

    title: str
    note: str
    tables: list[ResultTable]
    rows: list[int] = field(default_factory=list)  # of the first network's test: to be pictured


class Run:
    """One experiment with its options; under `torchrun`, one of the processes that share it.

    Args:
        name: Of the experiment.
        options: As given.
        command: That does it again, for the page.
    """

    def __init__(self, name: str, options: Options, command: str = "") -> None:
        device = find_device(options.device)
        self.name, self.options, self.command = name, options, command
        self.processes = Processes.here(device)
        self.folder = options.out or Path("runs") / f"{name}-{options.scale}"
        self.missing = ""  # a stand-in, see `networks`
        self._open: dict[str, Splits] = {}
        self.say(f"running {name} on {describe_device(self.processes.device)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Leave the other processes when all are done: one that ends early ends the others."""
        if kind is None:
            self.processes.wait()
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()

    @property
    def is_small(self) -> bool:
        """Whether stand-ins are run that a laptop can train."""
        return self.options.scale == "small"

    def say(self, text: str) -> None:
        """Print a line on stderr."""
        if self.processes.is_main:
            err.print(text, soft_wrap=True)

    def networks(
        self, at_scale: Mapping[str, Sequence[Network]], missing: str = ""
    ) -> list[Network]:
        """The networks that are asked for, as the options have them.

        Args:
            at_scale: The networks of the experiment.
            missing: A stand-in that this scale lacks; said at once, and on the page.

        Raises:
            DataError: Data or packages are missing; the message names all of them.
        """
        self.missing = missing
        if missing:
            self.say(missing)
        options = self.options
        if options.scale not in at_scale:
            raise ConfigError(f"{self.name} has the scale {', '.join(at_scale)} alone")
        known = at_scale[options.scale]
        names = [network.name for network in known]
        for name in options.only:
            if name not in names:
                raise ConfigError(f"{self.name} has no network `{name}`{or_known(name, names)}")
        chosen = [each for each in known if not options.only or each.name in options.only]
        changes: dict[str, Any] = {"seed": options.seed, "device": options.device}
        changes |= {} if options.epochs is None else {"epochs": options.epochs}
        if all(each.ledgers for each in chosen) and (options.epochs or options.limit):
            raise ConfigError(
                f"--epochs and --limit would change nothing: the ledgers of {self.name} at the "
                f"scale {options.scale} exist already"
            )
        found = [replace(each, config=replace(each.config, **changes)) for each in chosen]
        absent: dict[str, None] = {}
        for network in found:
            try:
                if not network.ledgers and not is_whole(*self._place(network)):
                    self._build(network)  # to see whether it can be
            except OfframpError as error:
                absent.setdefault(str(error))
        if absent:
            raise DataError(
                f"{self.name} cannot run, and nothing was started: {'; '.join(absent)}"
            )
        return found

    def splits(self, network: Network, target: str | None = None) -> Splits:
        """The data of a network; with domains, test comes from the target."""
        given = dict(network.splits)
        if network.source is not None:
            given["domain"] = (network.source, target or network.source)
        key = repr((network.data, given, network.normalization))
        if key not in self._open:
            loaded = load(network.data, self.options.split_seed, **given)
            adapted = {name: self._adapted(data, network) for name, data in loaded.items()}
            self._open[key] = Splits(loaded.name, loaded.seed, **adapted)
        return self._open[key]

    def _adapted(self, data: Data, network: Network) -> Data:
        if network.normalization is not None:
            assert isinstance(data, ImageData)
            data = replace(data, normalization=network.normalization)
        return data if self.options.limit is None else First.of(data, self.options.limit)

    def train(self, network: Network) -> Path:
        """Train a network, which all experiments share; its folder is that of a run."""

        def make(place: Path) -> None:
            self.say(f"{network.title}: training in {place}")
            built = self._build(network)
            train(
                built,
                self.splits(network).train,
                network.objective,
                network.config,
                augment=AUGMENTATIONS[network.augment],
                folder=place,
                freeze_backbone=network.freeze_backbone,
                progress=self.processes.is_main,
            )
            self.processes.first(lambda: str(built.save(place / "network")))

        place, inputs = self._place(network)
        return once(place, inputs, make, self.processes)

    def _place(self, network: Network) -> tuple[Path, dict[str, Any]]:
        """Where a network is trained, and all that its weights depend on."""
        inputs = network.inputs(self.splits(network).fingerprint)
        return self.options.networks / f"{network.name}-{fingerprint(inputs)[:8]}", inputs

    def _build(self, network: Network) -> EarlyExitNetwork:
        """The network with its first weights."""
        samples, seed, at = self.splits(network).train, network.config.seed, network.exits
        return build_for_data(network.build, samples, seed, at, network.head, **network.settings)

    def record(self, network: Network, target: str | None = None) -> Recorded:
        """Train a network and record it, or find its ledgers."""
        if network.ledgers:
            return Recorded(network, *existing(network))
        trained, splits = self.train(network), self.splits(network, target)
        places = {}
        for split in SPLITS:
            domain = target if split == "test" else None

            def make(place: Path, split: str = split) -> None:
                self.say(f"{network.title}: recording {split}")
                samples: Any = splits[split]
                ledger = record(
                    EarlyExitNetwork.load(trained / "network"),
                    DataLoader(samples, num_workers=network.config.workers),
                    split,
                    dtype="float16",
                    device=self.options.device,
                    progress=self.processes.is_main,
                )
                self.processes.first(lambda: str(ledger.save(place)))

            place = trained / "ledgers" / (split if domain is None else f"{split}-{domain}")
            places[split] = once(place, [trained, split, domain], make, self.processes)
        ledgers = {split: Ledger.load(place, split) for split, place in places.items()}
        return Recorded(network, ledgers, list(places.values()), target)

    def compare(self, recorded: Recorded, methods: Sequence[str]) -> Result:
        """Fit, tune and measure methods, with tables and figures in a folder of the experiment."""
        ledgers, options = recorded.ledgers, self.options
        chosen = self._methods(methods, ledgers["test"].num_classes)
        described = [[each.name, each.label, each.describe()] for each in chosen]

        def make(place: Path) -> None:
            self.say(f"{recorded.title}: comparing {', '.join(methods)}")
            found = compare(
                **ledgers,
                methods=chosen,
                budgets=BUDGETS,
                seeds=options.seeds,
                resamples=options.resamples,
                progress=self.processes.is_main,
            )
            write_comparison(found, place, page=False)
            # Analyses look into the policies that were compared, instead of fitting them again.
            for number, plans in enumerate(found.plans.values()):
                for seed, plan in enumerate(plans):
                    plan.save(place / "plans" / f"{number}-{seed}")

        inputs = [recorded.origin, described, BUDGETS, options.seeds, options.resamples]
        place = self.made(self.folder / recorded.name, inputs, make)
        return Result(recorded, read_comparison(place)[0], place)

    def _methods(self, names: Sequence[str], num_classes: int) -> list[Method]:
        found = find_methods(names, num_classes)
        if self.options.log_odds:
            return found
        return [
            replace(each, scorer=each.scorer.clone(log_odds=False))
            if isinstance(each.scorer, Corrector)
            else each
            for each in found
        ]

    def analyse(
        self, results: Sequence[Result], analysis: Callable[[Sequence[Result]], Analysis]
    ) -> Analysis:
        """What an analysis finds in the results, from a file if it is there."""
        name = analysis.__name__.replace("_", "-")

        def make(place: Path) -> None:
            self.say(f"analysing: {name}")
            found = analysis(results)
            (place / "analysis.json").write_bytes(msgspec.json.encode(found))
            write_tables(found.tables, place, name)

        inputs = [name, [[each.place, each.title] for each in results]]
        place = self.made(self.folder / name, inputs, make)
        return msgspec.json.decode((place / "analysis.json").read_bytes(), type=Analysis)

    def made(self, folder: Path, inputs: object, make: Callable[[Path], object]) -> Path:
        """Make a result in the first process, while the others wait."""

        def alone(place: Path) -> None:
            self.processes.first(lambda: (make(place), None)[1])

        return once(folder, inputs, alone, self.processes)


def write_tables(tables: Sequence[ResultTable], folder: Path, stem: str) -> None:
    """Tables as Markdown and CSV."""
    if tables:
        texts = ("\n\n".join(table.markdown() for table in tables), ".md")
        values = ("\n".join(table.csv() for table in tables), ".csv")
        for text, kind in (texts, values):
            (folder / f"{stem}{kind}").write_text(text + "\n", encoding="utf-8")
