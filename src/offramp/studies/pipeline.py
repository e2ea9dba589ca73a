"""The pipeline of a study: its experiments and analyses, and their steps in order."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from offramp import zoo
from offramp.data.catalog import VARIABLE
from offramp.errors import ConfigError, DataError, FileFormatError
from offramp.files import plain, read_json, restore, write_text
from offramp.ledger import Partition
from offramp.ledger.files import load_ledgers
from offramp.registry import or_known
from offramp.report import ResultTable, SampleStrip, Section
from offramp.studies.analyses import ANALYSES
from offramp.studies.cache import digest
from offramp.studies.context import Context
from offramp.studies.results import Experiment, ExperimentResult
from offramp.studies.settings import CompareSettings, CorrectorSettings, LedgerSettings
from offramp.studies.steps import (
    CompareStep,
    RecordStep,
    Step,
    StoredLedger,
    TrainStep,
    chosen_methods,
)
from offramp.studies.study import NetworkEntry, Study

REPORT_VERSION = 2


class _Analysis(TypedDict):
    """What `AnalysisStep` writes."""

    title: str
    note: str
    tables: list[ResultTable]
    samples: SampleStrip | None


@dataclass(frozen=True)
class AnalysisStep(Step):
    """The results of all experiments -> a section of the report."""

    name: str
    experiments: tuple[Experiment, ...]
    compare: CompareSettings
    corrector: CorrectorSettings
    kind = "analysis"
    version = 2
    writes = "analysis.json"

    @property
    def title(self) -> str:
        """Its name, and the number of experiments."""
        count = len(self.experiments)
        return f"{self.name} of {count} experiment{'s' * (count > 1)}"

    @property
    def inputs(self) -> Sequence[Step]:
        """The comparisons, whose inputs are the ledgers."""
        return tuple(experiment.comparison for experiment in self.experiments)

    def settings(self) -> dict[str, Any]:
        """Which analysis, and the names of the experiments."""
        titles = [[each.name, each.title, each.target] for each in self.experiments]
        return {"name": self.name, "experiments": titles, "compare": asdict(self.compare)}

    def run(self, context: Context, place: Path) -> list[Path]:
        """Write the section as JSON."""
        results = [self._result(experiment, context) for experiment in self.experiments]
        section = ANALYSES[self.name](results)
        content = {
            "title": section.title,
            "note": section.note,
            "tables": [asdict(table) for table in section.tables],
            "samples": None if section.samples is None else asdict(section.samples),
        }
        return [write_text(place / "analysis.json", json.dumps(plain(content)) + "\n")]

    def _result(self, experiment: Experiment, context: Context) -> ExperimentResult:
        ledgers = experiment.ledgers(context)
        methods = chosen_methods(self.compare, self.corrector, ledgers["test"].num_classes)
        comparison = experiment.comparison.load(context)
        return ExperimentResult(experiment, ledgers, comparison, methods, context)

    def load(self, context: Context) -> Section:
        """Read the section back."""
        file = self.place(context.cache) / "analysis.json"
        content: _Analysis = restore(_Analysis, read_json(file), str(file))
        strip = content["samples"]
        if strip is not None:
            strip = replace(strip, images=strip.images.astype(np.uint8))
        tables, note = content["tables"], content["note"]
        return Section(content["title"], note=note, tables=tables, samples=strip)


@dataclass(frozen=True)
class Pipeline:
    """The steps of a study."""

    study: Study
    # one per network and test domain, each with its comparison
    experiments: tuple[Experiment, ...]
    analyses: tuple[AnalysisStep, ...]  # of all experiments together

    @property
    def steps(self) -> list[Step]:
        """Every step once, inputs first, without the report."""
        found: dict[str, Step] = {}
        for last in (*(each.comparison for each in self.experiments), *self.analyses):
            for step in _inputs_first(last):
                found.setdefault(step.fingerprint, step)
        order = ("network", "ledger", "comparison", "analysis")
        return sorted(found.values(), key=lambda step: order.index(step.kind))

    @property
    def fingerprint(self) -> str:
        """The same if and only if the report shows the same."""
        texts = [[each.name, each.title, each.paper, each.note] for each in self.experiments]
        return digest(
            {
                "version": REPORT_VERSION,
                "study": [self.study.name, self.study.title, self.study.about, self.study.scale],
                "report": asdict(self.study.report),
                "experiments": texts,
                "steps": [step.fingerprint for step in self.steps],
            }
        )

    def check(self, context: Context) -> None:
        """Raise if anything is missing or impossible, before the first step runs."""
        missing: dict[str, None] = {}
        for step in self.steps:
            if not step.is_done(context.cache):
                try:
                    step.check(context)
                except DataError as error:
                    missing.setdefault(str(error))
        if missing:
            raise DataError(
                f"{self.study.name} cannot run, and nothing was started: {'; '.join(missing)}"
            )


def _inputs_first(step: Step | StoredLedger) -> Iterator[Step]:
    if isinstance(step, Step):
        for each in step.inputs:
            yield from _inputs_first(each)
        yield step


def make_pipeline(study: Study, context: Context) -> Pipeline:
    """Lay out the steps of a study without running any."""
    experiments = tuple(
        experiment
        for entry in study.networks
        for experiment in _experiments(study, entry, context)
    )
    analyses = []
    for name in study.report.analyses:
        if name not in ANALYSES:
            raise ConfigError(f"[report] `analyses` has no {name!r}{or_known(name, ANALYSES)}")
        analyses.append(AnalysisStep(name, experiments, study.compare, study.corrector))
    return Pipeline(study, experiments, tuple(analyses))


def _experiments(study: Study, entry: NetworkEntry, context: Context) -> Iterator[Experiment]:
    if entry.ledgers is not None:
        yield _experiment(study, entry, None, stored_ledgers(entry.ledgers, study.folder))
        return
    data, network, train, record = entry.data, entry.network, entry.train, entry.record
    assert data is not None and network is not None and train is not None and record is not None
    trained = TrainStep(data, context.identity(data), network, train)
    for target in data.targets or (None,):
        recorded = tuple(RecordStep(trained, split, target, record) for split in Partition._fields)
        yield _experiment(study, entry, target, recorded)


def _experiment(
    study: Study,
    entry: NetworkEntry,
    target: str | None,
    ledgers: tuple[RecordStep, ...] | tuple[StoredLedger, ...],
) -> Experiment:
    name = entry.name if target is None else f"{entry.name}-to-{target}"
    title = entry.title if target is None else f"{entry.title} → {target}"
    paper = entry.paper.get(target or "")
    comparison = CompareStep(name, ledgers, study.compare, study.corrector)
    return Experiment(name, title, paper, entry.note, entry, target, comparison)


def stored_ledgers(settings: LedgerSettings, beside: Path) -> tuple[StoredLedger, ...]:
    """Ledgers from the zoo or from a folder, perhaps `beside` the study file."""
    if settings.zoo is not None:
        shipped = zoo.cifar100()
        return tuple(StoredLedger(shipped[s]) for s in ("held_out", "val", "test"))
    assert settings.folder is not None
    root = os.environ.get(VARIABLE)
    places = [beside / settings.folder, *([Path(root) / settings.folder] if root else [])]
    for place in places:
        if place.exists():
            # a plain .npz does not name its network; the folder's name has to do.
            loaded = load_ledgers(place, network=place.resolve().name)
            return tuple(StoredLedger(ledger) for ledger in loaded.values())
    looked = " nor ".join(map(str, places))
    raise FileFormatError(
        f"there are no ledgers at {looked}: write them with `offramp record`, or set "
        f"{VARIABLE} to the folder that holds {settings.folder}"
    )
