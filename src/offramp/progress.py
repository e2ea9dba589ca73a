"""Progress of a long task: `train`, `record`, `profile`, `compare` and `export` take `progress=`.

`True` shows it on stderr: a bar on a terminal, otherwise a line per step. `False` shows nothing.
A subclass of `Progress` is a display of one's own.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from rich.progress import TaskID

logger = logging.getLogger("offramp")

WIDTH = 160  # of what goes to a file or a pipe, which need not fold to the width of a terminal
# Names and paths come from users: brackets in them are no markup.
PLAIN: dict[str, Any] = {"markup": False, "highlight": False}
console = Console(stderr=True, width=None if sys.stderr.isatty() else WIDTH, **PLAIN)


class Progress:
    """Shows nothing, and logs what would be printed; a subclass overrides what it shows.

    Example:
        >>> class Printed(Progress):
        ...     def step(self, done, total, text):
        ...         print(f"{done} of {total} done, next: {text}")
        >>> with showing(Printed()) as progress:
        ...     progress.step(0, 2, "baseline")
        0 of 2 done, next: baseline
    """

    def start(self, text: str, total: int, done: int = 0) -> None:
        """A part of `total` small steps begins, some of which may be done already."""

    def advance(self, steps: int = 1) -> None:
        """Some of the small steps are done."""

    def step(self, done: int, total: int, text: str) -> None:
        """`done` of `total` large steps are done; `text` names the next one."""

    def epoch(self, record: dict[str, Any], epochs: int) -> None:
        """An epoch of training has ended, see `TrainHistory` for its record."""

    def say(self, text: str) -> None:
        """A line of text about the task."""
        logger.info(text.strip())


@contextmanager
def showing(progress: bool | Progress) -> Iterator[Progress]:
    """The progress that an argument `progress=` asks for.

    Example:
        >>> with showing(False) as progress:
        ...     progress.start("recording", total=10)
    """
    if progress is True:
        shown = ConsoleProgress()
        with shown.bar:
            yield shown
    else:
        yield progress or Progress()


class ConsoleProgress(Progress):
    """Progress on stderr: a bar on a terminal, otherwise a line per step."""

    def __init__(self) -> None:
        from rich.progress import (  # most commands show none
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._task: TaskID | None = None
        self.bar = Progress(
            TextColumn("{task.description:24}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def start(self, text: str, total: int, done: int = 0) -> None:
        """Start a new bar."""
        if self._task is not None:
            self.bar.remove_task(self._task)
        self._task = self.bar.add_task(text, total=total, completed=done, note="")

    def advance(self, steps: int = 1) -> None:
        """Move the bar on."""
        if self._task is not None:
            self.bar.advance(self._task, steps)

    def step(self, done: int, total: int, text: str) -> None:
        """Move the bar to `done` of `total`, and show what the next step is."""
        if self._task is None:
            self.start(text, total)
        else:
            self.bar.update(self._task, completed=done, total=total, description=text)
        if done < total:
            self._line(f"  {done + 1} of {total}: {text}")

    def epoch(self, record: dict[str, Any], epochs: int) -> None:
        """Show the loss and the accuracies of an epoch."""
        shares = record.get("accuracy", record["train_accuracy"])
        accuracies = " ".join(f"{100 * share:.1f}" for share in shares)
        note = f"loss {record['loss']:.3f}, accuracy per exit {accuracies} %"
        done = f"{record['phase']}: epoch {record['epoch'] + 1} of {epochs}"
        if self._task is not None:
            self.bar.update(self._task, description=done, note=note)
        self._line(f"{done}, {note}, {record['seconds']:.1f} s")

    def say(self, text: str) -> None:
        """Print a line."""
        console.print(text, soft_wrap=True)

    def _line(self, text: str) -> None:
        """A line for a step, where no bar shows it."""
        if not console.is_terminal:
            self.say(text)
