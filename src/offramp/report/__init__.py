"""Outcomes -> tables, sentences and figures."""

from offramp.report.figures import three_panels
from offramp.report.inspection import inspect
from offramp.report.tables import Table, tables
from offramp.report.verdicts import verdicts
from offramp.report.writing import write_comparison

__all__ = ["Table", "inspect", "tables", "three_panels", "verdicts", "write_comparison"]
