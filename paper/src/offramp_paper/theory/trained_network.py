"""A trained network on data with a known P(y|x), compared with the truth.

The test samples form a finite world of their own, so the same functions apply: the network's
excess risk, the true probability that stopping is right, and what a corrector, which sees the
network's probabilities but neither x nor the label, estimates it to be.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import nn

from offramp.arrays import softmax
from offramp.data import MixtureData, mixture
from offramp.errors import ConfigError
from offramp.ledger import Ledger
from offramp.networks import EarlyExitNetwork, LinearHead, Pool
from offramp.progress import Progress, showing
from offramp.record import record
from offramp.report import Cell, ResultTable
from offramp.scorers import Corrector, History
from offramp.targets import stop_target
from offramp.training import TrainConfig, train
from offramp_paper.theory.risks import excess_risk, stopping_probability
from offramp_paper.theory.worlds import World

Floats = npt.NDArray[np.float64]
WIDTHS = (4, 8, 32, 64)  # the first exits are deliberately too narrow for the data
HELD_OUT = 4_000  # more than usual: the corrector is what is examined
NEIGHBOURS = 50  # samples that look most alike to the corrector


@dataclass(frozen=True, eq=False)
class ExitTruth:
    """One exit on the test samples."""

    exit_index: int
    excess: float  # excess risk (log loss) from the known P(y|x)
    measured_excess: float  # the same from the labels alone, as it is measured in practice
    measured_error: float  # its standard error
    stop_frequency: float  # how often the stop target is true
    truth: Floats  # float64 `[N]`, P(stop | x) in the reading `argmax`
    # float64 `[N]`, its mean over the samples that look most alike to the corrector: the best
    # estimate possible from what it sees. NaN at the last exit.
    seen: Floats
    # float64 `[N]`, the corrector's estimate. NaN at the last exit, where none runs.
    estimate: Floats

    @property
    def avoidable(self) -> float:
        """Root mean square of estimate - seen: the error the corrector could avoid."""
        return _rms(self.estimate - self.seen)

    @property
    def unavoidable(self) -> float:
        """Root mean square of seen - truth: the error it cannot avoid."""
        return _rms(self.seen - self.truth)


def compare_with_truth(
    seed: int = 0,
    epochs: int = 40,
    test: int = 10_000,
    history: bool = False,
    progress: bool | Progress = False,
) -> list[ExitTruth]:
    """Train a small network on `mixture`, and compare its risk and its corrector with the truth.

    Args:
        seed: Of the world, the samples, the network and the corrector.
        epochs: Of training.
        test: Number of test samples.
        history: Whether the corrector also sees the earlier exits.
        progress: Whether to show it on stderr, or a display of your own.

    Raises:
        ConfigError: Fewer test samples than neighbours to average over.

    Example:
        >>> exits = compare_with_truth(epochs=1, test=200)
        >>> len(exits), round(exits[-1].truth.mean(), 6)
        (4, np.float64(1.0))
    """
    if test <= NEIGHBOURS:
        raise ConfigError(f"`test` must be above {NEIGHBOURS}, got {test}")
    splits = mixture(seed, sizes={"test": test, "held_out": HELD_OUT})
    train_data, test_data = splits.train, splits.test
    assert isinstance(train_data, MixtureData)
    assert isinstance(test_data, MixtureData)
    with showing(progress) as shown:
        shown.step(0, 3, "training the network")
        network = _trained(train_data, seed, epochs)
        shown.step(1, 3, "fitting the corrector")
        held_out, ledger = (
            record(network, splits[split], progress=False) for split in ("held_out", "test")
        )
        corrector = Corrector(history=history, seed=seed)
        corrector.fit(_history(held_out), held_out.labels, held_out.costs)
        shown.step(2, 3, "comparing with the truth")
        return _compared(ledger, test_data.probs.numpy(), corrector)


def _trained(data: MixtureData, seed: int, epochs: int) -> EarlyExitNetwork:
    torch.manual_seed(seed)
    widths = [data.inputs.shape[1], *WIDTHS]
    stages = [
        nn.Sequential(nn.Linear(before, after), nn.ReLU()) for before, after in pairwise(widths)
    ]
    heads = [LinearHead(Pool("flat"), width, data.num_classes) for width in WIDTHS]
    network = EarlyExitNetwork(stages, heads, num_classes=data.num_classes)
    config = TrainConfig(epochs=epochs, learning_rate=0.01, patience=None, seed=seed)
    train(network, data, config=config, progress=False)
    return network


def _history(ledger: Ledger) -> History:
    return History(ledger.logits, ledger.logits)


def _compared(ledger: Ledger, probs: Floats, corrector: Corrector) -> list[ExitTruth]:
    samples, exits = len(ledger), ledger.num_exits
    world = World(np.full(samples, 1 / samples), probs)
    predictors = softmax(ledger.logits.astype(np.float64)).swapaxes(0, 1)  # [M, N, K]
    labels = ledger.labels
    truth = stopping_probability(world, predictors, "argmax")  # [M, N]
    stops = stop_target(ledger.logits.argmax(axis=-1), labels).mean(axis=0)
    rows, nothing = np.arange(samples), np.full(samples, np.nan)
    found = []
    for exit_index in range(exits):
        history = _history(ledger).until(exit_index)
        last = exit_index == exits - 1
        # The mean of log P(y|x) - log f(y|x) is the excess risk.
        drawn = np.log(probs[rows, labels]) - np.log(predictors[exit_index, rows, labels])
        found.append(
            ExitTruth(
                exit_index=exit_index,
                excess=float(world.mean(excess_risk(world, predictors[exit_index]))),
                measured_excess=float(drawn.mean()),
                measured_error=float(drawn.std(ddof=1) / samples**0.5),
                stop_frequency=float(stops[exit_index]),
                truth=truth[exit_index],
                seen=nothing if last else _alike(history, corrector, truth[exit_index]),
                estimate=nothing if last else _estimate(history, corrector),
            )
        )
    return found


def _estimate(history: History, corrector: Corrector) -> Floats:
    return np.asarray(corrector.probability(corrector.score_at(history)), np.float64)


def _alike(history: History, corrector: Corrector, truth: Floats) -> Floats:
    """The mean truth of each sample's neighbours in what the corrector sees, `[N]`."""
    seen = _seen(history, corrector)
    _, nearest = scipy.spatial.cKDTree(seen).query(seen, k=NEIGHBOURS + 1)
    result: Floats = truth[nearest[:, 1:]].mean(1)  # without the sample itself
    return result


def _seen(history: History, corrector: Corrector) -> Floats:
    """Probabilities in the order of the current exit's, of the exits that the corrector sees."""
    order = (-history.log_probs[:, -1]).argsort(axis=-1, kind="stable")
    log_probs = history.log_probs if corrector.history else history.log_probs[:, -1:]
    sorted_probs = np.exp(np.take_along_axis(log_probs, order[:, None], axis=2))
    return np.asarray(sorted_probs.reshape(len(order), -1), np.float64)


def _rms(values: Floats) -> float:
    return float(np.sqrt(np.square(values).mean()))


def truth_table(exits: Sequence[ExitTruth]) -> ResultTable:
    """Excess risk and stopping probability per exit, true and measured."""
    columns = ["exit", "excess", "from labels", "stop true", "stop target", "corrector"]
    return ResultTable(
        "trained-network",
        f"A small network on `mixture`, {len(exits[0].truth):,} test samples",
        [*columns, "avoidable", "unavoidable"],
        [_row(each) for each in exits],
        "Excess: mean log-loss excess risk from the known P(y|x), and from labels alone with its "
        "standard error. Stop true: mean P(stop|x), reading argmax; stop target: how often "
        "stopping was right; corrector: its mean estimate. Avoidable: root mean square error of "
        "its estimate against the true probability averaged over the samples that look most alike "
        "to it; unavoidable: of that average against the truth, which cannot be known from what "
        "it sees.",
    )


def _row(each: ExitTruth) -> list[Cell]:
    numbers = [each.truth.mean(), each.stop_frequency, each.estimate.mean()]
    texts = [
        str(each.exit_index),
        f"{each.excess:.4f}",
        f"{each.measured_excess:.4f} ± {each.measured_error:.4f}",
        *(
            "-" if np.isnan(value) else f"{value:.4f}"
            for value in (*numbers, each.avoidable, each.unavoidable)
        ),
    ]
    return [Cell(text) for text in texts]
