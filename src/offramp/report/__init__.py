"""Comparisons -> tables, sentences, figures, and one self-contained page."""

from offramp.report.clock import (
    bench_section,
    bench_table,
    plot_bench,
    profile_table,
    write_bench,
)
from offramp.report.figures import plot_comparison, plot_gains
from offramp.report.files import read_comparison, write_comparison
from offramp.report.inspect import inspect
from offramp.report.page import write_page
from offramp.report.pictures import hopeless_strip, sample_strip
from offramp.report.sections import SampleStrip, Section
from offramp.report.tables import ResultTable, comparison_tables, verdicts

__all__ = [
    "ResultTable",
    "SampleStrip",
    "Section",
    "bench_section",
    "bench_table",
    "comparison_tables",
    "hopeless_strip",
    "inspect",
    "plot_bench",
    "plot_comparison",
    "plot_gains",
    "profile_table",
    "read_comparison",
    "sample_strip",
    "verdicts",
    "write_bench",
    "write_comparison",
    "write_page",
]
