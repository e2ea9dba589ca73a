"""Exits at equal shares of the cost."""

from itertools import accumulate, combinations

from hypothesis import given
from hypothesis import strategies as st

from offramp.networks.attach import evenly_in_cost


@st.composite
def requests(draw):
    costs = draw(st.lists(st.integers(1, 20), min_size=1, max_size=7))
    return costs, draw(st.integers(1, len(costs)))


def distance(costs, chosen):
    ends = list(accumulate(costs))
    return sum(
        abs(ends[block] - ends[-1] * (index + 1) / len(chosen))
        for index, block in enumerate(chosen)
    )


@given(requests())
def test_choice_grows_to_the_last_block_and_is_the_best_of_all_choices(request):
    costs, count = request
    chosen = evenly_in_cost(costs, count)
    assert len(chosen) == count
    assert chosen == sorted(set(chosen))
    assert chosen[-1] == len(costs) - 1
    others = combinations(range(len(costs) - 1), count - 1)
    best = min(distance(costs, [*other, len(costs) - 1]) for other in others)
    assert abs(distance(costs, chosen) - best) < 1e-9
