"""The step that runs one analysis over all cases of a study."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from offramp.flow.analyses import ANALYSES
from offramp.flow.case import Case, CaseResult
from offramp.flow.findings import Findings
from offramp.flow.settings import CompareSettings, CorrectorSettings
from offramp.flow.steps import Step, chosen_methods
from offramp.flow.workshop import Workshop

__all__ = ["AnalysisStep"]


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
