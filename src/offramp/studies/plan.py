"""From a study to its steps, in the order in which they are done."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from offramp import zoo
from offramp.errors import ConfigError, DataError, FileFormatError
from offramp.hints import or_known
from offramp.ledger import Partition
from offramp.ledger.files import load_ledgers
from offramp.studies.analyses import ANALYSES
from offramp.studies.cache import digest
from offramp.studies.context import Workshop
from offramp.studies.results import Case, CaseResult, Findings
from offramp.studies.settings import CompareSettings, CorrectorSettings, LedgerSettings
from offramp.studies.steps import (
    CompareStep,
    RecordStep,
    Step,
    StoredLedger,
    TrainStep,
    chosen_methods,
)
from offramp.studies.study import Study, Subject


@dataclass(frozen=True)
class AnalysisStep(Step):
    """Cases -> findings."""

    name: str
    cases: tuple[Case, ...]
    compare: CompareSettings
    corrector: CorrectorSettings
    kind = "analysis"
    writes = "findings.json"

    @property
    def title(self) -> str:
        """Its name, and of how much."""
        return f"{self.name} of {len(self.cases)} case{'s' * (len(self.cases) > 1)}"

    @property
    def inputs(self) -> Sequence[Step]:
        """The comparisons, which depend on the ledgers."""
        return tuple(case.comparison for case in self.cases)

    def settings(self) -> dict[str, Any]:
        """Which analysis, and how the cases are called."""
        titles = [[case.name, case.title, case.target] for case in self.cases]
        return {"name": self.name, "cases": titles, "compare": asdict(self.compare)}

    def run(self, workshop: Workshop, place: Path) -> list[Path]:
        """Analyse."""
        results = [self._result(case, workshop) for case in self.cases]
        return ANALYSES[self.name](results).save(place)

    def _result(self, case: Case, workshop: Workshop) -> CaseResult:
        ledgers = case.ledgers(workshop)
        classes = ledgers["test"].num_classes
        methods = chosen_methods(self.compare, self.corrector, classes)
        return CaseResult(case, ledgers, case.comparison.load(workshop), methods, workshop)

    def load(self, workshop: Workshop) -> Findings:
        """What was found."""
        return Findings.load(self.place(workshop.cache))


REPORT_VERSION = 1
DATA_VARIABLE = "OFFRAMP_DATA"


@dataclass(frozen=True)
class Plan:
    """The steps of a study.

    Args:
        study: Whose plan it is.
        cases: One per network and test domain, each with its comparison.
        analyses: Results of their own.
    """

    study: Study
    cases: tuple[Case, ...]
    analyses: tuple[AnalysisStep, ...]

    @property
    def steps(self) -> list[Step]:
        """Every step once, inputs first; the report is not among them."""
        found: dict[str, Step] = {}
        for last in (*(case.comparison for case in self.cases), *self.analyses):
            for step in _inputs_first(last):
                found.setdefault(step.fingerprint, step)
        order = ("network", "ledger", "comparison", "analysis")
        return sorted(found.values(), key=lambda step: order.index(step.kind))

    @property
    def fingerprint(self) -> str:
        """Of everything that the report shows."""
        words = [[case.name, case.title, case.paper, case.note] for case in self.cases]
        return digest(
            {
                "version": REPORT_VERSION,
                "study": [self.study.name, self.study.title, self.study.about, self.study.scale],
                "report": asdict(self.study.report),
                "cases": words,
                "steps": [step.fingerprint for step in self.steps],
            }
        )

    def check(self, workshop: Workshop) -> None:
        """Raise for everything that is missing or impossible, before anything is done.

        Raises:
            DataError: Data are missing; all that are, with where to put them.
            OfframpError: A network or a method that cannot be.
        """
        missing: dict[str, None] = {}
        for step in self.steps:
            if not step.is_done(workshop.cache):
                try:
                    step.check(workshop)
                except DataError as error:
                    missing.setdefault(str(error))
        if missing:
            raise DataError(
                f"{self.study.name} cannot be run, and nothing was begun: {'; '.join(missing)}"
            )


def _inputs_first(step: Step | StoredLedger) -> Iterator[Step]:
    if isinstance(step, Step):
        for each in step.inputs:
            yield from _inputs_first(each)
        yield step


def make_plan(study: Study, workshop: Workshop) -> Plan:
    """Lay out the steps; nothing is run.

    Raises:
        OfframpError: Stored ledgers that are not there, or an unknown analysis.
    """
    cases = [case for subject in study.subjects for case in _cases(study, subject, workshop)]
    analyses = []
    for name in study.report.analyses:
        if name not in ANALYSES:
            raise ConfigError(f"[report] `analyses` has no {name!r}{or_known(name, ANALYSES)}")
        analyses.append(AnalysisStep(name, tuple(cases), study.compare, study.corrector))
    return Plan(study, tuple(cases), tuple(analyses))


def _cases(study: Study, subject: Subject, workshop: Workshop) -> Iterator[Case]:
    if subject.ledgers is not None:
        ledgers = stored_ledgers(subject.ledgers, study.folder)
        yield _case(study, subject, None, ledgers)
        return
    data, network, train, record = subject.data, subject.network, subject.train, subject.record
    assert data is not None and network is not None and train is not None and record is not None
    trained = TrainStep(data, workshop.identity(data), network, train)
    for target in data.targets or (None,):
        recorded = tuple(RecordStep(trained, split, target, record) for split in Partition._fields)
        yield _case(study, subject, target, recorded)


def _case(study: Study, subject: Subject, target: str | None, ledgers: Any) -> Case:  # noqa: ANN401
    name = subject.name if target is None else f"{subject.name}-to-{target}"
    title = subject.title if target is None else f"{subject.title} → {target}"
    paper = subject.paper.get(target or "")
    comparison = CompareStep(name, ledgers, study.compare, study.corrector)
    return Case(name, title, paper, subject.note, subject, target, comparison)


def stored_ledgers(settings: LedgerSettings, beside: Path) -> tuple[StoredLedger, ...]:
    """Ledgers from the zoo or from a folder.

    Args:
        settings: Which.
        beside: Folder of the study file.

    Raises:
        FileFormatError: They are not there; the message says where they were looked for.
    """
    if settings.zoo is not None:
        found = zoo.cifar100()
        ledgers = found["held_out"], found["val"], found["test"]
        return tuple(StoredLedger(ledger) for ledger in ledgers)
    assert settings.folder is not None
    root = os.environ.get(DATA_VARIABLE)
    places = [beside / settings.folder, *([Path(root) / settings.folder] if root else [])]
    for place in places:
        if place.exists():
            # A plain .npz does not say which network made it; the folder's name has to do.
            loaded = load_ledgers(place, network=place.resolve().name)
            return tuple(StoredLedger(ledger) for ledger in loaded.values())
    looked = " nor ".join(map(str, places))
    raise FileFormatError(
        f"there are no ledgers at {looked}: make them with `offramp record`, or set "
        f"{DATA_VARIABLE} to the folder that holds {settings.folder}"
    )
