"""Writing a comparison to a folder, in every form."""

import json
import platform
from importlib.metadata import version
from pathlib import Path

from offramp.errors import MissingExtraError
from offramp.evaluation.comparison import Comparison
from offramp.report.figures import gains, three_panels
from offramp.report.tables import tables
from offramp.report.tidy import tidy_csv
from offramp.storage import write_text

__all__ = ["write_comparison"]


def write_comparison(comparison: Comparison, folder: str | Path) -> tuple[list[Path], str | None]:
    """Write tables as Markdown, CSV and LaTeX, everything as JSON, and figures as SVG.

    Args:
        comparison: From `compare`.
        folder: Created if needed.

    Returns:
        The paths, and a sentence on what could not be drawn, if anything.
    """
    folder = Path(folder)
    found = tables(comparison)
    everything = {"versions": _versions(), **comparison.to_json()}
    paths = [
        write_text(folder / "comparison.md", "\n\n".join(t.markdown() for t in found) + "\n"),
        write_text(folder / "comparison.tex", "\n\n".join(t.latex() for t in found) + "\n"),
        write_text(folder / "comparison.csv", tidy_csv(comparison)),
        write_text(folder / "comparison.json", json.dumps(everything) + "\n"),
    ]
    try:
        paths.append(three_panels(comparison, folder / "comparison.svg"))
        if any("baseline" in method.differences for method in comparison.methods):
            paths.append(gains(comparison, folder / "gains.svg"))
        return paths, None
    except MissingExtraError as error:
        return paths, f"no figure was drawn: {error}"


def _versions() -> dict[str, str]:
    packages = ("offramp", "torch", "numpy", "scikit-learn")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}
