"""Outcomes -> tables, sentences and figures."""

from offramp.report.figures import gains, three_panels
from offramp.report.inspection import inspect
from offramp.report.tables import Table, tables
from offramp.report.verdicts import verdicts
from offramp.report.writing import write_comparison

__all__ = ["Table", "gains", "inspect", "tables", "three_panels", "verdicts", "write_comparison"]
