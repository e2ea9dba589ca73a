"""What a run says while it works: on stderr, a line per step, and a bar within long ones."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from offramp.evaluation.comparison import Progress as Report

__all__ = ["Narrator"]


class Narrator:
    """Tells the user how far a run is.

    Args:
        shown: False says nothing at all.
    """

    def __init__(self, shown: bool = True) -> None:
        self.shown = shown
        self.console = Console(stderr=True, quiet=not shown, soft_wrap=True)

    def say(self, text: str) -> None:
        """One line."""
        self.console.print(text, markup=False, highlight=False)

    @contextmanager
    def methods(self) -> Iterator[Report]:
        """For `compare`: a bar over the methods on a terminal, else a line for each."""
        columns = (TextColumn("  {task.description:24}"), BarColumn(), MofNCompleteColumn())
        hidden = not (self.shown and self.console.is_terminal)
        with Progress(
            *columns, TimeElapsedColumn(), console=self.console, transient=True, disable=hidden
        ) as bar:
            task = bar.add_task("starting", total=None)

            def update(done: int, total: int, text: str) -> None:
                bar.update(task, completed=done, total=total, description=text)
                if hidden and done < total:
                    self.say(f"  {done + 1} of {total}: {text}")

            yield update
