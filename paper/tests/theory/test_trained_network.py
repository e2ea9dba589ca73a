"""A trained network, compared with the known truth."""

import numpy as np
import pytest

from offramp.errors import ConfigError
from offramp_paper.theory.plots import draw_figures, truth_figure
from offramp_paper.theory.trained_network import NEIGHBOURS, compare_with_truth, truth_table


@pytest.fixture(scope="module")
def exits():
    return compare_with_truth(epochs=8, test=2000)


def test_risk_measured_from_labels_agrees_with_the_known_one(exits):
    for each in exits:
        assert abs(each.measured_excess - each.excess) < 4 * each.measured_error
        assert each.excess > 0


def test_deeper_exits_have_less_excess_risk_here(exits):
    excess = [each.excess for each in exits]
    assert excess == sorted(excess, reverse=True)


def test_the_true_stopping_probability_is_how_often_stopping_is_right(exits):
    for each in exits:
        error = np.sqrt((each.truth * (1 - each.truth)).mean() / len(each.truth))
        assert abs(each.truth.mean() - each.stop_frequency) <= 4 * error + 1e-9


def test_the_corrector_is_right_on_average_and_knows_less_than_x(exits):
    for each in exits[:-1]:
        assert abs(each.estimate.mean() - each.truth.mean()) < 0.05
        assert ((each.estimate >= 0) & (each.estimate <= 1)).all()
        # It is better than a constant and worse than the truth.
        total = np.square(each.estimate - each.truth).mean()
        assert 0 < total < each.truth.var()
        assert each.unavoidable > 0
    assert np.isnan(exits[-1].estimate).all()


def test_history_shows_the_corrector_more(exits):
    """With the earlier exits, fewer samples look alike, and less of the truth is hidden."""
    more = compare_with_truth(epochs=8, test=2000, history=True)
    assert more[1].unavoidable < exits[1].unavoidable
    np.testing.assert_array_equal(more[1].truth, exits[1].truth)


def test_too_few_samples_to_average_over_are_refused():
    with pytest.raises(ConfigError, match=f"`test` must be above {NEIGHBOURS}, got 50"):
        compare_with_truth(test=50)


def test_the_table_and_the_figures_show_every_exit(exits, tmp_path):
    table = truth_table(exits)
    assert [row[0].text for row in table.rows] == ["0", "1", "2", "3"]
    assert table.rows[-1][-1].text == "-"
    path = truth_figure(exits, tmp_path / "new" / "truth.svg")
    text = path.read_text()
    for exit_index in range(3):
        assert f">exit {exit_index}<" in text
    assert truth_figure(exits, tmp_path / "again.svg").read_text() == text
    assert [p.name for p in draw_figures(tmp_path)] == ["theory-floor.svg", "theory-worse.svg"]
