"""Outcomes -> tables, sentences, figures, and one self-contained page."""

from offramp.report.figures import three_panels
from offramp.report.inspection import inspect
from offramp.report.page import write_page
from offramp.report.pictures import SampleStrip
from offramp.report.sections import Section
from offramp.report.tables import Table, tables
from offramp.report.verdicts import verdicts
from offramp.report.writing import read_comparison, write_comparison

__all__ = [
    "SampleStrip",
    "Section",
    "Table",
    "inspect",
    "read_comparison",
    "tables",
    "three_panels",
    "verdicts",
    "write_comparison",
    "write_page",
]
