"""Outcomes -> tables, sentences, figures, and one self-contained page."""

from offramp.report.figures import gains, three_panels
from offramp.report.files import read_comparison, write_comparison
from offramp.report.inspect import inspect
from offramp.report.page import write_page
from offramp.report.sections import SampleStrip, Section
from offramp.report.tables import Table, tables, verdicts

__all__ = [
    "SampleStrip",
    "Section",
    "Table",
    "gains",
    "inspect",
    "read_comparison",
    "tables",
    "three_panels",
    "verdicts",
    "write_comparison",
    "write_page",
]
