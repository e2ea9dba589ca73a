"""The whole flow in one call: a study file -> data, networks, ledgers, methods, a report."""

from offramp.flow.running import PlannedStep, RunResult, plan_run, run
from offramp.flow.study import Study, read_study

__all__ = ["PlannedStep", "RunResult", "Study", "plan_run", "read_study", "run"]
