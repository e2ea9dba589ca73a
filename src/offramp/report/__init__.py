"""Comparisons -> tables, sentences, figures, and one self-contained page."""

from offramp.report.clock import (
    bench_section,
    bench_table,
    plot_bench,
    profile_table,
    write_bench,
)
from offramp.report.figures import plot_comparison, plot_gains, save_figure
from offramp.report.files import read_comparison, write_comparison
from offramp.report.inspect import inspect
from offramp.report.page import Section, write_page
from offramp.report.pictures import SampleStrip, hopeless_strip, sample_strip
from offramp.report.tables import (
    Cell,
    ResultTable,
    advice_table,
    cells,
    comparison_tables,
    verdicts,
)

__all__ = [
    "Cell",
    "ResultTable",
    "SampleStrip",
    "Section",
    "advice_table",
    "bench_section",
    "bench_table",
    "cells",
    "comparison_tables",
    "hopeless_strip",
    "inspect",
    "plot_bench",
    "plot_comparison",
    "plot_gains",
    "profile_table",
    "read_comparison",
    "sample_strip",
    "save_figure",
    "verdicts",
    "write_bench",
    "write_comparison",
    "write_page",
]
