"""Progress is a bar on a terminal, a line per step elsewhere, and nothing where it is off."""

import io
import logging

import pytest
from rich.console import Console

from offramp import progress
from offramp.progress import Progress, showing

RECORD = {
    "phase": "heads",
    "epoch": 1,
    "loss": 0.5,
    "train_accuracy": [0.1, 0.2],
    "seconds": 1.26,
}


@pytest.fixture
def printed(monkeypatch):
    """A function that runs a task, and returns what it shows on a terminal or in a file."""

    def run(task, is_terminal):
        file = io.StringIO()
        settings = {"force_terminal": is_terminal, "width": 160, **progress.PLAIN}
        monkeypatch.setattr(progress, "console", Console(file=file, **settings))
        with showing(True) as shown:
            task(shown)
        return file.getvalue()

    return run


def large_steps(shown):
    shown.step(0, 2, "baseline")
    shown.step(1, 2, "[b]eefp")
    shown.step(2, 2, "")


def training(shown):
    shown.say("on [cpu]")
    shown.start("heads: starting", total=8, done=2)
    shown.advance()
    shown.advance(3)
    shown.epoch(RECORD, epochs=4)
    shown.epoch({**RECORD, "accuracy": [0.3, 0.4567]}, epochs=4)


def test_a_file_has_a_line_per_step_and_brackets_are_no_markup(printed):
    assert printed(large_steps, False).splitlines() == ["  1 of 2: baseline", "  2 of 2: [b]eefp"]
    start = "heads: epoch 2 of 4, loss 0.500, accuracy per exit"
    assert printed(training, False).splitlines() == [
        "on [cpu]",
        f"{start} 10.0 20.0 %, 1.3 s",
        f"{start} 30.0 45.7 %, 1.3 s",
    ]


def test_a_terminal_has_a_bar_that_moves_and_no_lines(printed):
    shown = printed(training, True)
    assert "on [cpu]" in shown
    assert "6/8" in shown and "heads: epoch 2 of 4" in shown
    assert "loss 0.500, accuracy per exit 30.0 45.7 %" in shown
    assert "1.3 s" not in shown
    shown = printed(large_steps, True)
    assert "2/2" in shown and "1 of 2" not in shown


def test_a_new_part_replaces_the_bar_of_the_part_before(printed):
    def two_parts(shown):
        shown.start("features", total=3)
        shown.start("heads", total=5)
        shown.advance(5)

    frames = printed(two_parts, True).split("\r")
    (last,) = (frame for frame in frames if "5/5" in frame)
    assert "heads" in last and "features" not in last


def test_without_progress_texts_are_logged_and_nothing_is_printed(capsys, caplog):
    with caplog.at_level(logging.INFO, "offramp"), showing(False) as shown:
        large_steps(shown)
        training(shown)
    assert caplog.messages == ["on [cpu]"]
    assert capsys.readouterr() == ("", "")


def test_a_display_of_ones_own_is_used_as_it_is():
    own = Progress()
    with showing(own) as shown:
        assert shown is own
