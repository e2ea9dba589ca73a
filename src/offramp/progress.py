"""Progress of a run on stderr: a bar with the time left on a terminal, else a line per epoch."""

from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class RunProgress:
    """Shows how far a run is.

    Args:
        shown: False shows nothing at all.

    Example:
        >>> with RunProgress(shown=False) as progress:
        ...     progress.start("epoch 1/8", total=10)
        ...     progress.advance()
    """

    def __init__(self, shown: bool) -> None:
        self.shown = shown
        self.console = Console(stderr=True)
        self._task: TaskID | None = None
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            transient=True,
            disable=not (shown and self.console.is_terminal),
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
        """Begin something new of `total` steps, of which some may be done."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(text, total=total, completed=done, note="")

    def advance(self, steps: int = 1) -> None:
        """Some more steps are done."""
        if self._task is not None:
            self._bar.advance(self._task, steps)

    def epoch(self, record: dict[str, Any], epochs: int) -> None:
        """An epoch has ended: show its accuracies."""
        shares = record.get("accuracy", record["train_accuracy"])
        note = f"loss {record['loss']:.3f}, right at the exits " + _percent(shares)
        done = f"{record['phase']}: epoch {record['epoch'] + 1} of {epochs}"
        if self._task is not None:
            self._bar.update(self._task, description=done, note=note)
        if self.shown and not self.console.is_terminal:
            text = f"{done}, {note}, {record['seconds']:.1f} s"
            self.console.print(text, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """One line."""
        if self.shown:
            self.console.print(text, highlight=False, soft_wrap=True)


def _percent(shares: list[float]) -> str:
    return " ".join(f"{100 * share:.1f}" for share in shares) + " %"
