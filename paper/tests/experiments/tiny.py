"""A tiny experiment; as a script, run below the folder that is named."""

import sys
from pathlib import Path

from offramp import TrainConfig
from offramp_paper.experiments.network import Network
from offramp_paper.experiments.page import report
from offramp_paper.experiments.run import Options, Run

METHODS = ("baseline", "temperature", "eefp")
TINY = Network(
    "tiny",
    "Tiny convnet",
    data="cluttered-digits",
    build="convnet",
    settings={"width": 4, "depth": 3},
    config=TrainConfig(
        epochs=2, batch_size=50, patience=None, tensorboard=False, checkpoint_seconds=0
    ),
    heading="MSDNet - CIFAR-100",
)
NETWORKS = {"small": [TINY]}


def tiny_run(folder, title="Tiny", out="out", methods=METHODS, **options):
    """Run it, and return what it said that it did."""
    usual = {"out": folder / out, "networks": folder / "networks", "limit": 150}
    chosen = Options(**{**usual, "seeds": 1, "resamples": 20, **options})
    with Noted("tiny", chosen, "offramp x") as run:
        results = [run.compare(run.record(each), methods) for each in run.networks(NETWORKS)]
        report(run, title, "A study.\n\nOf no use.", results, "tab:additional_results_with_stds")
    return run.done


class Noted(Run):
    """A run that notes what it does."""

    def say(self, text):
        vars(self).setdefault("done", [])
        steps = ("training", "recording", "comparing", "analysing")
        self.done += [step for step in steps if f": {step}" in text]
        super().say(text)


if __name__ == "__main__":
    tiny_run(Path(sys.argv[1]))
