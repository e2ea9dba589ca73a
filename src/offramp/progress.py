"""Progress on stderr: a bar on a terminal, otherwise a line per step."""

import logging
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console

if TYPE_CHECKING:
    from rich.progress import TaskID

logger = logging.getLogger("offramp")

WIDTH = 160  # of what goes to a file or a pipe, which need not fold to the width of a terminal
# Names and paths come from users: brackets in them are no markup.
PLAIN: dict[str, Any] = {"markup": False, "highlight": False}
console = Console(stderr=True, width=None if sys.stderr.isatty() else WIDTH, **PLAIN)


class RunProgress:
    """Shows how far a run is, unless `shown` is false."""

    def __init__(self, shown: bool = True) -> None:
        from rich.progress import (  # most commands show none
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self.shown = shown
        self._task: TaskID | None = None
        self._bar = Progress(
            TextColumn("{task.description:24}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
            disable=not (shown and console.is_terminal),
        )

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.__exit__(kind, error, trace)

    def start(self, text: str, total: int, done: int = 0) -> None:
        """Start a new bar of `total` steps, some of which may be done already."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(text, total=total, completed=done, note="")

    def advance(self, steps: int = 1) -> None:
        """Move the bar on."""
        if self._task is not None:
            self._bar.advance(self._task, steps)

    def step(self, done: int, total: int, text: str) -> None:
        """Show that `done` of `total` steps are done, and what the next one is."""
        if self._task is None:
            self.start(text, total)
        else:
            self._bar.update(self._task, completed=done, total=total, description=text)
        if done < total:
            self._line(f"  {done + 1} of {total}: {text}")

    def epoch(self, record: dict[str, Any], epochs: int) -> None:
        """Show the accuracies of an epoch that has ended."""
        shares = record.get("accuracy", record["train_accuracy"])
        accuracies = " ".join(f"{100 * share:.1f}" for share in shares)
        note = f"loss {record['loss']:.3f}, accuracy per exit {accuracies} %"
        done = f"{record['phase']}: epoch {record['epoch'] + 1} of {epochs}"
        if self._task is not None:
            self._bar.update(self._task, description=done, note=note)
        self._line(f"{done}, {note}, {record['seconds']:.1f} s")

    def say(self, text: str) -> None:
        """Print one line, or log it where nothing is shown."""
        if self.shown:
            console.print(text, soft_wrap=True)
        else:
            logger.info(text.strip())

    def _line(self, text: str) -> None:
        """One line for a step, where no bar shows it."""
        if not console.is_terminal:
            self.say(text)
