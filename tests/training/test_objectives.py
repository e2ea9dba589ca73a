"""Each objective against a hand calculation on two linear stages with linear heads."""

import pytest
import torch
from torch.nn.functional import one_hot

from offramp.errors import ConfigError
from offramp.networks import build
from offramp.registry import OBJECTIVES
from offramp.training import (
    Distillation,
    GradientEquilibrium,
    Joint,
    LastExit,
    ZeroTimeWaste,
    exit_losses,
)

INPUTS = torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.3, -0.7]], dtype=torch.float64)
LABELS = torch.tensor([2, 0])


class Hand:
    """Forward and backward of the two-stage network, written out as matrix products."""

    def __init__(self, network):
        self.w1, self.w2 = (stage.weight.detach() for stage in network.stages)
        self.v1, self.v2 = (head.linear.weight.detach() for head in network.heads)
        b1, b2 = (head.linear.bias.detach() for head in network.heads)
        self.h1 = INPUTS @ self.w1.T
        self.h2 = self.h1 @ self.w2.T
        self.z1, self.z2 = self.h1 @ self.v1.T + b1, self.h2 @ self.v2.T + b2
        self.targets = one_hot(LABELS, 3).double()

    def error(self, logits, targets=None):
        """Gradient of the mean cross-entropy with respect to logits."""
        targets = self.targets if targets is None else targets
        return (logits.softmax(1) - targets) / len(INPUTS)

    def gradients(self, error1, error2, from_head=1.0, from_deeper=1.0):
        """Of both stages and both heads, the gradient into the first features scaled."""
        at_h2 = error2 @ self.v2
        at_h1 = from_head * (error1 @ self.v1) + from_deeper * (at_h2 @ self.w2)
        return at_h1.T @ INPUTS, at_h2.T @ self.h1, error1.T @ self.h1, error2.T @ self.h2


def found_gradients(network, objective, targets=LABELS):
    loss = objective(objective.logits(network, INPUTS), targets)
    loss.backward()
    stages = [stage.weight.grad for stage in network.stages]
    return [*stages, *(head.linear.weight.grad for head in network.heads)]


def assert_same(found, expected):
    # exit_losses computes in float32, whatever comes in.
    for each, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(each, wanted, atol=1e-6, rtol=1e-5)


def test_joint_gradient_is_the_sum_over_exits(linear_network):
    hand = Hand(linear_network)
    expected = hand.gradients(hand.error(hand.z1), hand.error(hand.z2))
    assert_same(found_gradients(linear_network, Joint()), expected)


def test_joint_weights_scale_each_exit(linear_network):
    hand = Hand(linear_network)
    expected = hand.gradients(0.25 * hand.error(hand.z1), 2 * hand.error(hand.z2))
    assert_same(found_gradients(linear_network, Joint(weights=[0.25, 2])), expected)


def test_gradient_equilibrium_halves_both_shares_at_the_first_of_two_exits(linear_network):
    hand = Hand(linear_network)
    # n = 2, i = 0: (head's + 1 x deeper's) / 2 into the first stage; the second gets all its own.
    expected = hand.gradients(hand.error(hand.z1), hand.error(hand.z2), 0.5, 0.5)
    assert_same(found_gradients(linear_network, GradientEquilibrium()), expected)


def test_gradient_equilibrium_leaves_outputs_alone_in_every_state(convnet):
    for network, size in ((convnet, 8), (build("msdnet", 3, 32, blocks=3), 32)):
        network.eval()
        x = torch.rand(2, 3, size, size)
        torch.testing.assert_close(GradientEquilibrium().logits(network, x), network(x))


def test_distillation_gradient_pulls_the_first_exit_to_the_detached_last(linear_network):
    hand = Hand(linear_network)
    objective = Distillation(share=0.3, temperature=2.0, growth=1.0)
    soft = (hand.z2 / 2).softmax(1)
    # d/dz of T² CE(teacher / T, z / T) is T (softmax(z / T) - teacher)
    pull = 2.0 * hand.error(hand.z1 / 2, soft)
    expected = hand.gradients(0.7 * hand.error(hand.z1) + 0.3 * pull, hand.error(hand.z2))
    assert_same(found_gradients(linear_network, objective), expected)


def test_zero_time_waste_first_phase_trains_only_through_the_last_exit(linear_network):
    hand = Hand(linear_network)
    expected = hand.gradients(torch.zeros_like(hand.z1), hand.error(hand.z2))
    found = found_gradients(linear_network, LastExit())
    assert found.pop(2) is None  # the first head is not even run
    assert_same(found, [expected[0], expected[1], expected[3]])


def test_zero_time_waste_heads_do_not_train_each_other(cascade):
    x, objective = torch.rand(4, 3, 8, 8), ZeroTimeWaste()
    logits = objective.logits(cascade, x)
    exit_losses(logits[:, 1:2], torch.tensor([0, 1, 2, 0])).sum().backward()
    assert not cascade.heads[0].linear.weight.grad.any()
    width = cascade.heads[1].settings["width"]
    gradient = cascade.heads[1].linear.weight.grad[:, width:]
    # By hand: error' x the logits of the head before.
    error = (logits[:, 1].softmax(1) - one_hot(torch.tensor([0, 1, 2, 0]), 3)) / 4
    torch.testing.assert_close(gradient, (error.T @ logits[:, 0]).detach())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_hard_labels_are_the_same_as_their_one_hot_targets(name):
    logits = torch.randn(8, 4, 5)
    labels = torch.arange(8) % 5
    soft = one_hot(labels, 5).float()
    torch.testing.assert_close(
        OBJECTIVES[name]()(logits, labels), OBJECTIVES[name]()(logits, soft)
    )


def test_mixed_targets_are_the_mixture_of_losses_at_every_exit():
    logits, share = torch.randn(8, 4, 5), 0.3
    first, second = torch.randint(5, (2, 8))
    mixed = share * one_hot(first, 5) + (1 - share) * one_hot(second, 5)
    expected = share * exit_losses(logits, first) + (1 - share) * exit_losses(logits, second)
    torch.testing.assert_close(exit_losses(logits, mixed), expected)


def test_temperature_grows_only_while_the_teacher_is_confident_and_learning():
    objective = Distillation(confidence=0.6, growth=2.0)
    sure, unsure = torch.zeros(1, 2, 10), torch.zeros(1, 2, 10)
    sure[..., 0] = 9.0
    target = torch.tensor([0])
    objective(unsure, target)
    assert objective.temperature_ == 1.0
    with torch.no_grad():
        objective(sure, target)
    assert objective.temperature_ == 1.0
    for _ in range(5):
        objective(sure, target)
    # softmax of 9 / 4 against nine zeros is 0.51, below 0.6
    assert objective.temperature_ == 4.0
    other = Distillation()
    other.load_state(objective.state())
    assert other.temperature_ == 4.0


def test_temperature_stays_finite_for_two_classes():
    objective = Distillation()
    for _ in range(2000):
        objective(torch.tensor([[[3.0, 0.0], [5.0, 0.0]]]), torch.tensor([0]))
    assert objective.temperature_ < 20


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Joint(weights=[1, -1]), "`weights` must be at least 0, got -1"),
        (lambda: Joint(weights=["a"]), "`weights` must be at least 0, got 'a'"),
        (lambda: Joint(weights=[0, 0]), r"`sum\(weights\)` must be above 0, got 0"),
        (lambda: Distillation(share=2), r"`share` must lie in \[0, 1\], got 2"),
        (lambda: Distillation(confidence=0), "`confidence` must lie in"),
        (lambda: Distillation(growth=0.5), "`growth` must be at least 1"),
        (lambda: Distillation(temperature=0), "`temperature` must be above 0"),
        (
            lambda: Joint([1, 1])(torch.zeros(2, 3, 4), torch.tensor([0, 1])),
            "`weights` must have 3 entries, one per exit, got 2",
        ),
        (
            lambda: exit_losses(torch.zeros(2, 3, 4), torch.zeros(2, 5)),
            r"probabilities of the shape \[N, K\], here \[2\] or \[2, 4\]",
        ),
    ],
)
def test_impossible_settings_are_named(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_zero_time_waste_asks_for_cascade_heads(convnet):
    with pytest.raises(ConfigError, match='make the network with head="cascade"'):
        ZeroTimeWaste().phases(convnet)
