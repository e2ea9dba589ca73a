"""Speed of everything that starts from saved logits, each against a stated reference.

Run: python benchmarks/posthoc.py
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from offramp import Corrector, Ledger, MaxProbability, Policy, auto, compare, synthetic
from offramp.arrays import Array, as_tensor, softplus
from offramp.ledger.history import log_odds
from offramp.scorers import History
from offramp.scorers.network_training import BATCH, LEARNING_RATE, LOG_ODDS_WEIGHT, WEIGHT_DECAY
from offramp.targets import stop_target

Result = TypeVar("Result")
EPOCHS = 30
SEEDS = (0, 1, 2)


def timed(job: Callable[[], Result], runs: int = 1) -> tuple[float, Result]:
    """Shortest time of several runs, and the last result."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        result = job()
        times.append(time.perf_counter() - start)
    return min(times), result


def made_up(samples: dict[str, int]) -> dict[str, Ledger]:
    """Ledgers of ten exits and 100 classes with so many samples in each split."""
    whole = synthetic.ledgers(seed=0, samples=max(samples.values()), exits=10, classes=100)
    return {split: whole[split].take(range(n)) for split, n in samples.items()}


def fit_in_a_loop(ledger: Ledger, epochs: int) -> list[nn.Module]:
    """The reference: the same correctors, one exit and one seed after another."""
    history = History(ledger.logits, ledger.logits)
    logits = as_tensor(ledger.logits)
    probs = logits.softmax(dim=2)
    targets = torch.tensor(stop_target(history.predictions, ledger.labels)).float()
    networks: list[nn.Module] = []
    for exit_index in range(ledger.num_exits - 1):
        top = probs[:, exit_index].topk(5).indices[:, None].expand(-1, exit_index + 1, -1)
        inputs = probs[:, : exit_index + 1].gather(2, top).flatten(1)
        odds = log_odds(logits[:, exit_index])
        for seed in SEEDS:
            torch.manual_seed(seed)
            network = PlainCorrector(inputs.shape[1])
            train_one(network, inputs, odds, targets[:, exit_index], epochs)
            networks.append(network)
    return networks


class PlainCorrector(nn.Module):
    """One exit's corrector, as anyone would write it."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 1))
        self.log_odds_weight = nn.Parameter(torch.tensor(LOG_ODDS_WEIGHT))

    def forward(self, inputs: Tensor, odds: Tensor) -> Tensor:
        """Scores `[n]`."""
        scores: Tensor = self.layers(inputs).squeeze(1) + self.log_odds_weight * odds
        return scores


def train_one(
    network: nn.Module, inputs: Tensor, odds: Tensor, targets: Tensor, epochs: int
) -> None:
    """A plain training loop with the settings of `Corrector`."""
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY
    )
    steps = epochs * -(-len(inputs) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.1
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs), generator=generator).split(BATCH):
            logits = network(inputs[rows], odds[rows])
            loss = binary_cross_entropy_with_logits(logits, targets[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


def final_loss(score_at: Callable[[int, int, History], Array], ledger: Ledger) -> float:
    """Mean binary cross-entropy over exits and seeds on the training samples."""
    history = History(ledger.logits, ledger.logits)
    signs = np.where(stop_target(history.predictions, ledger.labels), -1, 1)
    losses = [
        softplus(signs[:, m] * score_at(m, index, history.until(m))).mean()
        for m in range(ledger.num_exits - 1)
        for index in range(len(SEEDS))
    ]
    return float(np.mean(losses))


def correctors() -> None:
    """All exits and seeds as one batched product, against a loop over them."""
    ledger = made_up({"held_out": 5000})["held_out"]
    settings = Corrector(epochs=EPOCHS)
    history = History(ledger.logits, ledger.logits)
    fast, fitted = timed(
        lambda: settings.fit_seeds(history, ledger.labels, ledger.costs, SEEDS), runs=3
    )
    slow, networks = timed(lambda: fit_in_a_loop(ledger, EPOCHS))

    @torch.no_grad()
    def loop_score(m: int, index: int, until: History) -> Array:
        inputs, odds = as_tensor(settings.view.inputs(until)), as_tensor(until.log_odds)
        scores: Array = networks[m * len(SEEDS) + index](inputs, odds).numpy()
        return scores

    ours = final_loss(lambda m, index, until: fitted[index].score_at(until), ledger)
    reference = final_loss(loop_score, ledger)
    print(
        f"correctors, 10 exits x 3 seeds, 5,000 x 100: {fast:.2f} s, loop {slow:.2f} s, "
        f"{slow / fast:.1f}x faster; final loss {ours:.4f}, loop {reference:.4f} "
        f"({ours / reference - 1:+.2%})"
    )


def curve() -> None:
    """A budget curve of 201 points, against a Python loop over points and samples."""
    splits = made_up({"held_out": 100, "val": 5000, "test": 10_000})
    policy = Policy(MaxProbability()).fit(splits["held_out"]).tune(splits["val"], "geometric")
    replay = policy.replay(splits["test"])
    thresholds, costs = policy.points.thresholds, replay.cost_shares
    # A copy each time, since a replay keeps its curve.
    fast, result = timed(lambda: replace(replay).curve, runs=10)
    arrays = replay.scores, replay.correct
    slow, looped = timed(lambda: curve_in_a_loop(*arrays, thresholds, costs))
    lists = replay.scores.tolist(), replay.correct.tolist()
    quicker, _ = timed(lambda: curve_in_a_loop(*lists, thresholds, costs))
    expected = sorted(zip(result.costs.tolist(), result.accuracies.tolist(), strict=True))
    gap = max(
        abs(a - b)
        for one, two in zip(expected, sorted(looped), strict=True)
        for a, b in zip(one, two, strict=True)
    )
    print(
        f"budget curve, 201 points, 10,000 x 10: {fast * 1000:.0f} ms, loop {slow:.2f} s, "
        f"{slow / fast:.0f}x faster (a loop over lists {quicker:.2f} s, {quicker / fast:.0f}x); "
        f"largest difference {gap:.1e}"
    )


def curve_in_a_loop(
    scores: Any,  # noqa: ANN401 - arrays or lists
    correct: Any,  # noqa: ANN401
    thresholds: Array,
    costs: Array,
) -> list[tuple[float, float]]:
    """The reference: a per-sample loop, as research code has it."""
    prices = costs.tolist()
    points = []
    for point in thresholds.tolist():
        spent, right = 0.0, 0
        for sample in range(len(scores)):
            for exit_index, threshold in enumerate(point):
                if scores[sample][exit_index] >= threshold or exit_index == len(point) - 1:
                    spent += prices[exit_index]
                    right += correct[sample][exit_index]
                    break
        points.append((spent / len(scores), right / len(scores)))
    return points


def table() -> None:
    """The paper's extended comparison: 15 methods with 3 seeds."""
    splits = made_up({"held_out": 5000, "val": 5000, "test": 10_000})
    seconds, result = timed(
        lambda: compare(splits["held_out"], splits["val"], splits["test"], ["extended"])
    )
    slowest = sorted(result.methods, key=lambda method: -method.seconds)[:3]
    named = ", ".join(f"{method.label} {method.seconds:.0f} s" for method in slowest)
    print(
        f"table of {len(result.methods)} methods x 3 seeds, 5,000 + 5,000 + 10,000 x 10 x 100: "
        f"{seconds:.0f} s (limit 120 s); slowest: {named}"
    )


def choice() -> None:
    """`auto` on 3,000 + 3,000 samples, in seconds of one core; against the paper's corrector."""
    splits = made_up({"held_out": 3000, "val": 3000})
    seconds = {}
    for name, job in (
        ("auto", lambda: auto(splits["held_out"], splits["val"])),
        ("corrector", lambda: Policy(Corrector()).fit_seeds(splits["held_out"], [0])),
    ):
        job()  # the first time, libraries are loaded
        start = time.process_time()
        job()
        seconds[name] = time.process_time() - start
    print(
        f"auto, 3,000 + 3,000 x 10 x 100: {seconds['auto']:.1f} s of one core (limit 5 s), "
        f"{seconds['auto'] / seconds['corrector']:.1f}x the fit of one corrector with history"
    )


if __name__ == "__main__":
    correctors()
    curve()
    table()
    choice()
