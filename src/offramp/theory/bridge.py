"""The bridge to practice: a trained network on data whose P(y|x) is known.

The test samples are a finite world of their own, so that the same functions apply: what the
network's excess risk is, how probable it really is that stopping is right, and what a corrector,
which sees the network's probabilities and neither x nor the label, makes of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import nn

from offramp.data import MixtureData, mixture
from offramp.errors import ConfigError
from offramp.ledger import Ledger
from offramp.networks import EarlyExitNetwork
from offramp.networks.heads import LinearHead, Pool
from offramp.record import record
from offramp.scorers import Corrector, History
from offramp.targets import stop_target
from offramp.theory.exits import stopping_probability
from offramp.theory.risks import excess_risk
from offramp.theory.worlds import World
from offramp.training import TrainConfig, train

Floats = npt.NDArray[np.float64]
Progress = Callable[[int, int, str], None]
WIDTHS = (4, 8, 32, 64)  # the first exits are too narrow for the data on purpose
HELD_OUT = 4_000  # more than usual: the corrector is what is looked at
NEIGHBOURS = 50  # samples that look most alike to the corrector


@dataclass(frozen=True, eq=False)
class BridgeExit:
    """One exit, on the test samples.

    Attributes:
        exit_index: m.
        excess: Excess risk (log loss), from the known P(y|x).
        measured_excess: The same from the labels alone, as one would measure it.
        measured_error: Its standard error.
        stop_frequency: How often the stop target is true.
        truth: float64 `[N]`, P(stop | x) in the reading `argmax`.
        seen: float64 `[N]`, its mean over the samples that look most alike to the corrector: the
            best that anybody could say who sees what it sees. NaN at the last exit.
        estimate: float64 `[N]`, the corrector's. NaN at the last exit, where none runs.
    """

    exit_index: int
    excess: float
    measured_excess: float
    measured_error: float
    stop_frequency: float
    truth: Floats
    seen: Floats
    estimate: Floats

    @property
    def missed(self) -> float:
        """Root mean square of estimate - seen: what the corrector could do better."""
        return _rms(self.estimate - self.seen)

    @property
    def unseen(self) -> float:
        """Root mean square of seen - truth: what cannot be known from what it sees."""
        return _rms(self.seen - self.truth)


@dataclass(frozen=True, eq=False)
class Bridge:
    """All exits, and how many samples they were measured on."""

    exits: list[BridgeExit]
    samples: int


def small_network(features: int, classes: int) -> EarlyExitNetwork:
    """Four exits after layers of 4, 8, 32 and 64 units."""
    widths = [features, *WIDTHS]
    stages = [
        nn.Sequential(nn.Linear(before, after), nn.ReLU()) for before, after in pairwise(widths)
    ]
    heads = [LinearHead(Pool("flat"), width, classes) for width in WIDTHS]
    return EarlyExitNetwork(stages, heads, num_classes=classes)


def bridge(
    seed: int = 0,
    epochs: int = 40,
    test: int = 10_000,
    history: bool = False,
    progress: Progress | None = None,
) -> Bridge:
    """Train a small network on `mixture` and compare what it does with what is true.

    Args:
        seed: Of the world, the samples, the network and the corrector.
        epochs: Of training.
        test: Test samples.
        history: Whether the corrector sees the exits before, too.
        progress: Called with done, total and a text.

    Raises:
        ConfigError: Fewer test samples than neighbours to average over.

    Example:
        >>> result = bridge(epochs=1, test=200)
        >>> len(result.exits), round(result.exits[-1].truth.mean(), 6)
        (4, np.float64(1.0))
    """
    if test <= NEIGHBOURS:
        raise ConfigError(f"`test` must be above {NEIGHBOURS}, got {test}")
    say = progress or (lambda done, total, text: None)
    splits = mixture(seed, sizes={"test": test, "held_out": HELD_OUT})
    say(0, 3, "training the network")
    train_data, test_data = splits.train, splits.test
    assert isinstance(train_data, MixtureData)
    assert isinstance(test_data, MixtureData)
    network = _trained(train_data, seed, epochs)
    say(1, 3, "fitting the corrector")
    held_out, ledger = (
        record(network, getattr(splits, split), progress=False) for split in ("held_out", "test")
    )
    corrector = Corrector(history=history, seed=seed)
    corrector.fit(_history(held_out), held_out.labels, held_out.costs)
    say(2, 3, "comparing with the truth")
    return _compared(ledger, test_data.probs.numpy(), corrector)


def _trained(data: MixtureData, seed: int, epochs: int) -> EarlyExitNetwork:
    torch.manual_seed(seed)
    network = small_network(data.inputs.shape[1], data.num_classes)
    config = TrainConfig(
        epochs=epochs, learning_rate=0.01, patience=None, seed=seed, progress=False
    )
    train(network, data, config=config)
    return network


def _history(ledger: Ledger) -> History:
    return History(ledger.logits, ledger.logits)


def _compared(ledger: Ledger, probs: Floats, corrector: Corrector) -> Bridge:
    samples, exits = len(ledger), ledger.num_exits
    world = World(np.full(samples, 1 / samples), probs)
    predictors = ledger.logits.double().softmax(-1).numpy().transpose(1, 0, 2)  # [M, N, K]
    labels = ledger.labels.numpy()
    truth = stopping_probability(world, predictors, "argmax")  # [M, N]
    stops = stop_target(ledger.logits.argmax(-1), ledger.labels).double().mean(0)
    rows = np.arange(samples)
    made = []
    for m in range(exits):
        history = _history(ledger).until(m)
        last = m == exits - 1
        # log P(y|x) - log f(y|x) has the excess risk for its mean.
        drawn = np.log(probs[rows, labels]) - np.log(predictors[m, rows, labels])
        made.append(
            BridgeExit(
                exit_index=m,
                excess=float(world.mean(excess_risk(world, predictors[m]))),
                measured_excess=float(drawn.mean()),
                measured_error=float(drawn.std(ddof=1) / samples**0.5),
                stop_frequency=float(stops[m]),
                truth=truth[m],
                seen=np.full(samples, np.nan) if last else _alike(history, corrector, truth[m]),
                estimate=np.full(samples, np.nan) if last else _estimate(history, corrector),
            )
        )
    return Bridge(made, samples)


def _estimate(history: History, corrector: Corrector) -> Floats:
    with torch.inference_mode():
        return corrector.probability(corrector.score_at(history)).double().numpy()


def _alike(history: History, corrector: Corrector, truth: Floats) -> Floats:
    """The mean truth of each sample's neighbours in what the corrector sees, `[N]`."""
    seen = _seen(history, corrector)
    _, nearest = scipy.spatial.cKDTree(seen).query(seen, k=NEIGHBOURS + 1)
    result: Floats = truth[nearest[:, 1:]].mean(1)  # without the sample itself
    return result


def _seen(history: History, corrector: Corrector) -> Floats:
    """Probabilities in the order of the current exit's, of the exits that the corrector sees."""
    order = history.log_probs[:, -1].argsort(-1, descending=True)
    log_probs = history.log_probs if corrector.history else history.log_probs[:, -1:]
    sorted_probs = log_probs.gather(2, order[:, None].expand_as(log_probs)).exp()
    return sorted_probs.flatten(1).double().numpy()


def _rms(values: Floats) -> float:
    return float(np.sqrt(np.square(values).mean()))
