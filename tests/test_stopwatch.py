"""The stopwatch: whatever is timed takes turns, and its best turn counts."""

import pytest

from offramp.stopwatch import Stopwatch, Timed, take_turns


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def spend(self, seconds):
        self.now += seconds


def test_stages_begin_where_the_clock_is_called_and_a_plain_run_is_one_stage():
    clock = Clock()
    watch = Stopwatch(clock)

    def run():
        clock.spend(1)  # before the first stage: part of it
        for seconds in (2, 4):
            watch()
            clock.spend(seconds)
        return "done"

    seconds, result = watch.timed(run)
    assert (seconds.tolist(), result) == ([3, 4], "done")
    assert watch.timed(lambda: clock.spend(5))[0].tolist() == [5]


def test_the_best_turn_counts_and_the_best_of_each_stage_share_it():
    timed = Timed(run=lambda batch: None, batches=["a", "b"])
    timed.turns = [[[9.0, 9.0], [1.0, 4.0], [3.0, 2.0]], [[1.0, 1.0]] * 3]
    # Of the first batch: best stages 1 and 2, best turn 5.
    assert timed.by_batch.tolist() == [pytest.approx([5 / 3, 10 / 3]), [1, 1]]
    assert timed.best.tolist() == pytest.approx([8 / 6, 13 / 6])
    assert timed.spread == 0  # both turns after the first one took 5


def test_the_fastest_tenth_of_runs_that_are_alike_counts():
    """A machine at other work disturbs most runs, each in another stage."""
    timed = Timed(run=lambda batch: None, batches=range(4), alike=True)
    undisturbed, disturbed = [1.0, 2.0], [[1.0, 9.0], [9.0, 2.0], [5.0, 5.0]]
    timed.turns = [[undisturbed, *disturbed * 3][: 5 + batch] for batch in range(4)]
    assert timed.best.tolist() == undisturbed
    timed.alike = False  # then each batch has its own best turn
    assert timed.best.tolist() == undisturbed
    timed.turns[0] = disturbed
    assert timed.best.sum() > 3


def test_a_turn_is_prepared_and_warmed_up_before_every_batch_is_timed():
    done = []
    timed = Timed(done.append, ["a", "b"], warm=2, prepare=lambda: done.append("ready"))
    timed.turn(Stopwatch())
    assert done == ["ready", "a", "a", "a", "b"]
    assert [len(turns) for turns in timed.turns] == [1, 1]


@pytest.mark.parametrize(("seconds", "turns"), [(0, 2), (1e-9, 2), (0.1, 3)])
def test_everything_has_its_least_turns_and_one_more_if_that_is_short(seconds, turns):
    groups = [[Timed(lambda batch: None, [0]) for _ in range(2)] for _ in range(2)]
    take_turns(groups, Stopwatch(), seconds=seconds)
    taken = [len(each.turns[0]) for group in groups for each in group]
    assert min(taken) >= turns
    if seconds < 0.1:
        assert set(taken) == {turns}


def test_the_group_with_the_least_time_has_the_next_turn():
    import time

    slow = Timed(lambda batch: time.sleep(0.02), [0], warm=0)
    quick = Timed(lambda batch: time.sleep(0.001), [0], warm=0)
    passed = []
    take_turns([[slow], [quick]], Stopwatch(), seconds=0.3, advance=passed.append)
    assert len(quick.turns[0]) > 2 * len(slow.turns[0]) >= 4
    assert sum(passed) == 0  # no whole second has passed
