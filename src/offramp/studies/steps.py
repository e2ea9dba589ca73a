"""The steps of a study: each knows its inputs, its fingerprint, and what it writes."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from torch.utils.data import DataLoader

from offramp.errors import ConfigError
from offramp.evaluation import Comparison, compare
from offramp.files import write_text
from offramp.ledger import Ledger
from offramp.methods import Method, find_methods
from offramp.networks import EarlyExitNetwork
from offramp.plan import Plan
from offramp.record import record
from offramp.registry import AUGMENTATIONS, OBJECTIVES
from offramp.report import read_comparison
from offramp.scorers import Corrector
from offramp.studies.cache import Cache, digest, is_whole
from offramp.studies.context import Context, make_network
from offramp.studies.settings import (
    CompareSettings,
    CorrectorSettings,
    DataSettings,
    NetworkSettings,
    RecordSettings,
    TrainSettings,
)
from offramp.training import train


class Step(ABC):
    """One piece of work, whose result is a folder of the cache."""

    kind: ClassVar[str]  # shown in plans, and the name of the folder in the cache
    # raised whenever the same settings give a different result than before
    version: ClassVar[int] = 1
    # whether all processes run the step; else the first one does, and the others wait for it
    is_shared: ClassVar[bool] = False

    @property
    @abstractmethod
    def title(self) -> str:
        """What the step works on, in a few words."""

    @property
    @abstractmethod
    def writes(self) -> str:
        """What the folder holds when the step is done."""

    @property
    def inputs(self) -> Sequence["Step | StoredLedger"]:
        """What the step needs."""
        return ()

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Everything beside the inputs that determines the result, as JSON values."""

    @abstractmethod
    def run(self, context: Context, place: Path) -> list[Path]:
        """Do the work, or resume it after a kill; return the files that make up the result."""

    def check(self, context: Context) -> None:
        """Raise if something is known beforehand to be missing or impossible."""
        del context  # nothing is, unless a subclass knows better

    @cached_property
    def fingerprint(self) -> str:
        """The same if and only if settings and inputs are the same."""
        content = {"kind": self.kind, "version": self.version, "settings": self.settings()}
        return digest({**content, "inputs": [each.fingerprint for each in self.inputs]})

    def place(self, cache: Cache) -> Path:
        """The folder of the result."""
        return cache.folder / self.kind / self.fingerprint

    def is_done(self, cache: Cache) -> bool:
        """Whether the result is there and complete."""
        return is_whole(self.place(cache))


@dataclass(frozen=True)
class TrainStep(Step):
    """Data and a network -> a trained network."""

    data: DataSettings
    identity: str
    network: NetworkSettings
    train: TrainSettings
    kind = "network"
    is_shared = True
    writes = "network/, history.jsonl, train.json"

    @property
    def title(self) -> str:
        """Network, data and objective."""
        return f"{self.network.name} on {data_title(self.data)}, {self.train.objective}"

    def settings(self) -> dict[str, Any]:
        """Without the test domains, which share one training."""
        data = asdict(replace(self.data, targets=()))
        return {
            "data": {**data, "name": self.identity},
            "network": asdict(self.network),
            "train": self.train.decisive(),
        }

    def check(self, context: Context) -> None:
        """Open the data and build the network."""
        make_network(self.network, context.splits(self.data).train, self.train.seed)

    def run(self, context: Context, place: Path) -> list[Path]:
        """Train, or resume training."""
        samples = context.splits(self.data).train
        network = make_network(self.network, samples, self.train.seed)
        train(
            network,
            samples,
            OBJECTIVES[self.train.objective](**self.train.settings),
            replace(self.train, device=context.device_for(self.train)),
            augment=AUGMENTATIONS[self.train.augment],
            folder=place,
            freeze_backbone=self.train.freeze_backbone,
            progress=context.shown,
        )
        context.processes.first(lambda: str(network.save(place / "network")))
        return [place / name for name in ("network", "history.jsonl", "train.json")]


@dataclass(frozen=True)
class RecordStep(Step):
    """A trained network and one split -> a ledger."""

    trained: TrainStep
    split: str
    target: str | None
    record: RecordSettings
    kind = "ledger"
    is_shared = True
    writes = "ledger/"

    @property
    def title(self) -> str:
        """Split and network."""
        domain = f" of {self.target}" if self.target and self.split == "test" else ""
        return f"{self.split}{domain}: {self.trained.title}"

    @property
    def inputs(self) -> Sequence[Step]:
        """The network."""
        return (self.trained,)

    def settings(self) -> dict[str, Any]:
        """The target domain matters for test only."""
        target = self.target if self.split == "test" else None
        return {"split": self.split, "target": target, **asdict(self.record)}

    def check(self, context: Context) -> None:
        """Open the data."""
        context.splits(self.trained.data, self.target)

    def run(self, context: Context, place: Path) -> list[Path]:
        """Record one split."""
        network = EarlyExitNetwork.load(self.trained.place(context.cache) / "network")
        samples: Any = context.splits(self.trained.data, self.target)[self.split]
        ledger = record(
            network,
            DataLoader(samples, num_workers=self.trained.train.workers),
            self.split,
            dtype=self.record.dtype,
            device=context.device_for(self.trained.train),
            precision=self.record.precision,
            batch_size=self.record.batch_size,
            progress=context.shown,
        )
        context.processes.first(lambda: str(ledger.save(place / "ledger")))
        return [place / "ledger"]

    def load(self, context: Context) -> Ledger:
        """The ledger, memory-mapped."""
        return Ledger.load(self.place(context.cache) / "ledger", self.split)


@dataclass(frozen=True)
class StoredLedger:
    """A ledger that exists already."""

    ledger: Ledger = field(repr=False)

    @cached_property
    def fingerprint(self) -> str:
        """The same if and only if logits, labels, costs and origin are the same."""
        found = hashlib.sha256()
        for _, logits in self.ledger.chunks():
            found.update(logits.contiguous().numpy().data)
        found.update(self.ledger.labels.numpy().data)
        costs = self.ledger.cost_model.to_json()
        ids = self.ledger.data_fingerprint
        return digest([found.hexdigest(), costs, ids, self.ledger.network, self.ledger.split])

    def load(self, context: Context) -> Ledger:
        """The ledger."""
        del context  # it is in memory
        return self.ledger


@dataclass(frozen=True)
class CompareStep(Step):
    """Three ledgers -> fitted, tuned and measured methods."""

    name: str
    ledgers: tuple[RecordStep | StoredLedger, ...]  # held_out, val, test
    compare: CompareSettings
    corrector: CorrectorSettings
    kind = "comparison"
    writes = "comparison.json"

    @property
    def title(self) -> str:
        """The experiment and its methods."""
        return f"{self.name}: {', '.join(self.compare.methods)}"

    @property
    def inputs(self) -> Sequence[Step | StoredLedger]:
        """The ledgers."""
        return self.ledgers

    def settings(self) -> dict[str, Any]:
        """The methods with all their settings, rather than their names."""
        chosen = chosen_methods(self.compare, self.corrector, num_classes=None)
        described = [[each.name, each.label, each.describe()] for each in chosen]
        return {**asdict(self.compare), "methods": [self.compare.methods, described]}

    def check(self, context: Context) -> None:
        """Raise if a method looks at more classes than there are."""
        classes = self._num_classes(context)
        for name in self.compare.methods:
            for method in find_methods([name], classes):
                k = getattr(method.scorer, "k", None)
                if isinstance(k, int) and k > classes:
                    raise ConfigError(
                        f"[compare] `methods`: {name!r} looks at {k} classes, and {self.name} "
                        f"has {classes}"
                    )

    def _num_classes(self, context: Context) -> int:
        first = self.ledgers[0]
        if isinstance(first, StoredLedger):
            return first.ledger.num_classes
        return context.splits(first.trained.data).train.num_classes

    def run(self, context: Context, place: Path) -> list[Path]:
        """Compare; seconds go into a file of their own."""
        held_out, val, test = (each.load(context) for each in self.ledgers)
        methods = chosen_methods(self.compare, self.corrector, held_out.num_classes)
        result = compare(
            held_out,
            val,
            test,
            methods,
            self.compare.budgets,
            self.compare.seeds,
            self.compare.resamples,
            context.shown,
        )
        seconds = {method.name: method.seconds for method in result.methods}
        for method in result.methods:
            method.seconds = float("nan")
        write_text(place / "seconds.json", json.dumps(seconds, indent=1) + "\n")
        # Analyses look into the policies that were compared, instead of fitting them again.
        for number, plans in enumerate(result.plans.values()):
            for seed, plan in enumerate(plans):
                plan.save(place / "plans" / f"{number}-{seed}")
        text = json.dumps(result.to_json()) + "\n"
        return [write_text(place / "comparison.json", text), place / "plans"]

    def load(self, context: Context) -> Comparison:
        """Read the comparison back."""
        place = self.place(context.cache)
        found, _ = read_comparison(place)
        for number, method in enumerate(found.methods):
            folders = [place / "plans" / f"{number}-{seed}" for seed in range(len(method.curves))]
            found.plans[method.name] = [Plan.load(folder) for folder in folders]
        return found


def chosen_methods(
    settings: CompareSettings, corrector: CorrectorSettings, num_classes: int | None
) -> list[Method]:
    """The methods of a study, with the study's settings for correctors.

    `num_classes` None keeps methods that look at more classes than there may be.
    """
    enough = 10**9 if num_classes is None else num_classes
    found = []
    for method in find_methods(settings.methods, enough):
        if isinstance(method.scorer, Corrector):
            method = replace(method, scorer=method.scorer.clone(**asdict(corrector)))
        found.append(method)
    return found


def data_title(data: DataSettings) -> str:
    """A data set in a few words."""
    domain = "" if data.source is None else f" ({data.source})"
    return f"{Path(data.name).name}{domain}"
