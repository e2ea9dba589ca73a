"""Another kind of model, all methods, and a new one: a forest evaluated tree by tree.

A scikit-learn forest can be evaluated after 1, 2, 4, ... of its trees; each tree that is not
evaluated is compute saved. It has exits, then, although it is not a neural network. Its logits go
into three `.npz` files, which is all that the comparison sees:

    pip install 'offramp[report]'
    python examples/story_researcher.py
    offramp compare runs/story-researcher/logits      # from the shell, with a page

`--quick` uses fewer images and three methods.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.linear_model import LogisticRegression

import offramp
from offramp.arrays import AnyArray, Array, float32, namespace
from offramp.report import comparison_tables, plot_gains

EXITS = (1, 2, 4, 8, 16, 32, 64)  # trees evaluated so far, which is also the cost
BUDGETS = (0.1, 0.25, 0.5)  # half of the trees are nearly as good as all of them
METHODS = (
    *("baseline", "temperature", "vector", "matrix", "entropy", "margin", "patience", "product"),
    *("ensemble", "eefp", "eefp-no-history", "ccct", "pcee", "gates"),
)


@dataclass
class Momentum(offramp.Scorer):
    """Stop when the leading class is ahead, has been, and no longer pulls away."""

    learned = ("weights_",)

    def fit(self, history: offramp.scorers.History, labels: Array, costs: Array) -> Self:
        """One logistic regression per exit but the last, on held_out."""
        targets = offramp.targets.stop_target(history.predictions, labels)  # [N, M]
        fits = [
            LogisticRegression().fit(self._features(history.until(index)), targets[:, index])
            for index in range(history.exit_index)
        ]
        weights = [np.append(fit.coef_, fit.intercept_) for fit in fits]
        self.weights_ = np.array(weights, np.float32)
        return self

    def score_at(self, history: offramp.scorers.History) -> AnyArray:
        """Log-odds of the stop target, `[n]`."""
        weights = self.weights_[history.exit_index]
        return self._features(history) @ weights[:-1] + weights[-1]

    def _features(self, history: offramp.scorers.History) -> AnyArray:
        xp = namespace(history.log_probs)  # NumPy, or torch for a batch on a GPU
        ordered = xp.sort(history.log_probs, axis=-1)
        lead = ordered[..., -1] - ordered[..., -2]  # [n, m+1]
        stays = float32(history.predictions == history.predictions[:, -1:]).mean(axis=1)
        before = lead[:, max(history.exit_index - 1, 0)]
        return xp.stack([lead[:, -1], lead[:, -1] - before, stays], axis=1)  # [n, 3]


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/story-researcher"))
    parser.add_argument("--picture", type=Path, help="default: gains.svg in the folder --out")
    parser.add_argument("--quick", action="store_true", help="less of everything")
    chosen = parser.parse_args()
    chosen.out = chosen.out / "quick" if chosen.quick else chosen.out
    return chosen


def pixels(data: offramp.data.Data) -> tuple[np.ndarray, np.ndarray]:
    """Images as rows `[n, 1200]`, and their labels `[n]`."""
    images, labels = data.batch(torch.arange(len(data)))
    return images.flatten(1).numpy(), labels.numpy()


def staged_logits(forest: ExtraTreesClassifier, images: np.ndarray) -> np.ndarray:
    """`[N, M, K]`: the logarithm of the mean vote of the first 1, 2, 4, ... trees."""
    votes = np.stack([tree.predict_proba(images) for tree in forest.estimators_], axis=1)
    trees = np.array(EXITS)[:, None]
    # One more vote, shared by all classes, avoids the logarithm of zero.
    smooth = (votes.cumsum(1)[:, trees[:, 0] - 1] + 1 / votes.shape[2]) / (trees + 1)
    return np.log(smooth).astype(np.float32)


def write_logits(folder: Path, quick: bool) -> None:
    """Fit the forest on train, and write the logits of every exit on the three other splits."""
    few = {"train": 1000, "held_out": 500, "val": 500, "test": 500}
    splits = offramp.data.cluttered_digits(seed=0, sizes=few if quick else None)
    forest = ExtraTreesClassifier(EXITS[-1], min_samples_leaf=2, random_state=0)
    forest.fit(*pixels(splits.train))
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("held_out", "val", "test"):
        images, labels = pixels(splits[name])
        arrays = {"logits": staged_logits(forest, images), "labels": labels, "costs": EXITS}
        # Few leaves make many samples look alike; the ids show that the splits are disjoint.
        np.savez(folder / f"{name}.npz", sample_ids=splits[name].sample_ids, **arrays)


def main() -> None:
    """From a forest to a table."""
    chosen = options()
    logits = chosen.out / "logits"
    if not (logits / "test.npz").is_file():
        write_logits(logits, chosen.quick)
    ledgers = [
        offramp.Ledger.load(logits / f"{name}.npz", name, network="forest")
        for name in ("held_out", "val", "test")
    ]
    mine = offramp.Method("momentum", "Momentum (new)", Momentum())
    names = METHODS[:2] if chosen.quick else METHODS
    comparison = offramp.compare(
        *ledgers, methods=[*names, mine], budgets=BUDGETS, seeds=1 if chosen.quick else 3
    )
    print("\n\n".join(table.markdown() for table in comparison_tables(comparison)))
    print("written:", plot_gains(comparison, chosen.picture or chosen.out / "gains.svg"))


if __name__ == "__main__":
    main()
