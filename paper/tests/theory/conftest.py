"""Sums written out as loops, to check what the package computes with arrays."""

import itertools
import math
import sys

import pytest


@pytest.fixture(scope="session")
def by_hand():
    """The functions of this file."""
    return sys.modules[__name__]


def first_largest(row):
    return max(range(len(row)), key=lambda y: (row[y], -y))


def log_excess(probs, predicted):
    """KL(P || f) at one point."""
    return sum(
        float(p) * (math.log(p) - math.log(f))
        for p, f in zip(probs, predicted, strict=True)
        if p > 0
    )


def zero_one_excess(probs, predicted):
    return max(probs) - probs[first_largest(predicted)]


def stop_by_outcomes(world, predictors, m, x, reading):
    """P(stop at m | x), by going through every label and every prediction of every exit."""
    exits, _, classes = predictors.shape
    total = 0
    for label in range(classes):
        for predicted in itertools.product(range(classes), repeat=exits):
            weight = world.p_y_given_x[x, label]
            for e, y in enumerate(predicted):
                row = predictors[e, x]
                weight = weight * (int(first_largest(row) == y) if reading == "argmax" else row[y])
            right = predicted[m] == label
            hopeless = all(predicted[e] != label for e in range(m, exits))
            total += weight if right or hopeless else 0
    return total


def product_formula(world, predictors, m, x):
    """As the paper writes it."""
    right = [
        sum(p * f for p, f in zip(world.p_y_given_x[x], predictors[e, x], strict=True))
        for e in range(len(predictors))
    ]
    return right[m] + math.prod(1 - value for value in right[m:])


def stop(world, predictors, m, x, reading):
    if reading == "product":
        return product_formula(world, predictors, m, x)
    return stop_by_outcomes(world, predictors, m, x, reading)


def group_average(world, group, values):
    weight = sum(world.p_x[x] for x in group)
    return sum(world.p_x[x] * values[x] for x in group) / weight


def exit_groups(exits, m):
    return exits.grouping.exit(m).groups


def class_shares(world, group):
    """P(y | group)."""
    return [
        group_average(world, group, [row[y] for row in world.p_y_given_x])
        for y in range(world.num_classes)
    ]


def information(world, group, parts):
    """I[y, part | group], for parts that the group falls into."""
    whole = class_shares(world, group)
    weight = sum(world.p_x[x] for x in group)
    total = 0.0
    for part in parts:
        share = float(sum(world.p_x[x] for x in part) / weight)
        total += share * log_excess(class_shares(world, part), whole)
    return total


def violation(exits, m, definition):
    """How far one exit is from being calibrated."""
    world, predicted = exits.world, exits.predictors[m]
    if definition == "confidence":
        levels = {}
        for x in range(world.num_points):
            levels.setdefault(max(predicted[x]), []).append(x)
        return max(
            abs(
                c
                - group_average(
                    world, xs, [p[first_largest(f)] for p, f in _rows(world, predicted)]
                )
            )
            for c, xs in levels.items()
        )
    worst = 0
    for group in exit_groups(exits, m):
        for y, share in enumerate(class_shares(world, group)):
            column = [row[y] for row in predicted]
            mean = [group_average(world, group, column)]
            values = mean if definition == "mean" else [column[x] for x in group]
            worst = max([worst, *(abs(value - share) for value in values)])
    return worst


def refines(exits, late, early):
    """Whether every group of the later exit lies in one group of the earlier one."""
    return all(
        any(set(fine) <= set(coarse) for coarse in exit_groups(exits, early))
        for fine in exit_groups(exits, late)
    )


def is_chain(exits, count=None):
    return all(refines(exits, m + 1, m) for m in range((count or exits.num_exits) - 1))


def excesses(exits, m, loss):
    """Excess risk of one exit at every point."""
    rule = log_excess if loss == "log" else zero_one_excess
    return [rule(p, f) for p, f in _rows(exits.world, exits.predictors[m])]


def stops(exits, m, reading):
    points = range(exits.world.num_points)
    return [stop(exits.world, exits.predictors, m, x, reading) for x in points]


def _rows(world, predicted):
    return list(zip(world.p_y_given_x, predicted, strict=True))
