"""Whole experiments: a study file -> data, networks, ledgers, methods, a report.

The paper's tables and figures are studies too, each a TOML file in this folder; `find_study` gives
its path.
"""

from offramp.studies.catalogue import NAMES, SCALES, find_study, list_studies
from offramp.studies.run import PlannedStep, RunResult, plan_run, run
from offramp.studies.study import Study, read_study

__all__ = [
    "NAMES",
    "SCALES",
    "PlannedStep",
    "RunResult",
    "Study",
    "find_study",
    "list_studies",
    "plan_run",
    "read_study",
    "run",
]
