"""Comparisons -> tables, sentences, figures, and one self-contained page."""

from offramp.report.figures import plot_comparison, plot_gains
from offramp.report.files import read_comparison, write_comparison
from offramp.report.inspect import inspect
from offramp.report.page import write_page
from offramp.report.sections import SampleStrip, Section
from offramp.report.tables import ResultTable, comparison_tables, verdicts

__all__ = [
    "ResultTable",
    "SampleStrip",
    "Section",
    "comparison_tables",
    "inspect",
    "plot_comparison",
    "plot_gains",
    "read_comparison",
    "verdicts",
    "write_comparison",
    "write_page",
]
