"""Draw an easy and a hopeless sample: what max probability and the paper's corrector see in them.

Uses the ledgers that ship with the library, so it needs no data. Both policies may spend half of
the compute. Of the hopeless samples, the one is drawn on which the corrector saves the most; the
printed means are over all of them.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import offramp
from offramp.arrays import sigmoid
from offramp.metrics import eefp
from offramp.replay import Replay
from offramp.report import save_figure
from offramp.report.figures import PALETTE

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--picture", type=Path, default=Path("hopeless.svg"))
chosen = parser.parse_args()

shipped = offramp.zoo.cifar100()


def replayed(scorer: offramp.Scorer) -> Replay:
    """The scorer with half of the compute, replayed on test."""
    policy = offramp.Policy(scorer).fit(shipped["held_out"]).tune(shipped["val"])
    return policy.at(budget=0.5).replay(shipped["test"])


certainty = replayed(offramp.MaxProbability())
corrector = replayed(offramp.Corrector(history=False))
looks = {
    "max probability": (certainty, certainty.confidences, PALETTE[2][0], "s--"),
    "corrector": (corrector, sigmoid(corrector.scores), PALETTE[1][0], "o-"),
}

hopeless = corrector.hopeless  # [N]
saved = certainty.exits - corrector.exits  # [N]
hard = int(np.where(hopeless, saved, -1).argmax())
all_right = corrector.correct.all(axis=1)  # [N]
easy = int(np.where(all_right, certainty.confidences[:, 0], 0).argmax())


def draw_sample(axes: Axes, sample: int, title: str) -> None:
    """Scores of one sample over exits, with a ring where each policy stops."""
    for label, (replay, scores, colour, line) in looks.items():
        axes.plot(scores[sample, :-1], line, color=colour, label=label, linewidth=1.5)
        stop = int(replay.exits[sample])
        ring = {"markersize": 14, "fillstyle": "none", "markeredgewidth": 1.5}
        axes.plot(stop, scores[sample, stop], "o", color=colour, **ring)
    axes.set(title=title, xlabel="exit", ylim=(-0.05, 1.08))


figure = Figure(figsize=(11, 3.6), layout="constrained")
easy_axes, hard_axes, metric_axes = figure.subplots(1, 3)
draw_sample(easy_axes, easy, "An easy sample: every exit is right")
draw_sample(hard_axes, hard, "A hopeless sample: no exit is right")
print("| half of the compute | accuracy | EEFP | cost, hopeless samples | cost, others |")
print("|---|---:|---:|---:|---:|")
for label, (replay, _, colour, line) in looks.items():
    scores = eefp(replay.scores[:, :-1], replay.stop_targets[:, :-1])
    metric_axes.plot(scores, line, color=colour, linewidth=1.5)
    cost = replay.costs
    costs_of = f"{cost[hopeless].mean():.1%} | {cost[~hopeless].mean():.1%}"
    print(f"| {label} | {replay.right.mean():.2%} | {scores.mean():.3f} | {costs_of} |")
print(f"{hopeless.mean():.0%} of the samples are hopeless; drawn: {easy} and {hard}")
easy_axes.set_ylabel("score; a ring where it stops")
easy_axes.legend(loc="lower right")
metric_axes.set(title="EEFP score (higher = better)", xlabel="exit", ylabel="AUROC")
for axes in (easy_axes, hard_axes, metric_axes):
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.title.set_fontsize(10)
print("written:", save_figure(figure, chosen.picture))
