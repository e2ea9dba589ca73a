"""Accuracy over milliseconds: a trained network with exits beside itself, cut short.

Takes the folder of a run of `offramp train` or `offramp chain`. It records what is missing,
measures a profile, lets `auto` choose exits and thresholds for budgets in *seconds*, and times
them on real test inputs beside the network without exits, the network cut after each exit and,
with `--rival`, others that were recorded on the same data. Accuracies are those of all test
samples, and gains have 95 % intervals over them.

    pip install 'offramp[train,report,onnx]'
    python examples/story_clock.py runs/lite0 --runtimes onnx,torch --batches 1,32

If killed, the same command resumes. `--quick` trains a small network on digits first.
"""

import argparse
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import offramp
from offramp.advice.rating import gain_of
from offramp.data import Splits, cluttered_digits
from offramp.data.source import Source
from offramp.evaluation.bootstrap import Interval
from offramp.evaluation.references import best_mix
from offramp.machine import keep_memory
from offramp.networks import EarlyExitNetwork
from offramp.report import plot_bench
from offramp.timing import BenchConfig, BenchRow, Profile, bench
from offramp.timing.results import WITHOUT
from offramp.timing.runners import plain_policy

SPLITS = ("held_out", "val", "test")
DAY = 86_400.0  # as many seconds as all samples may take


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, nargs="?", default=Path("runs/story-clock"))
    parser.add_argument("--runtimes", default="onnx,torch")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--budgets", default="0.3,0.4,0.5,0.6,0.7,0.8,0.9")
    parser.add_argument("--exits", help="to choose from, such as 2,5,6, the last one among them")
    parser.add_argument(
        "--rival",
        type=Path,
        action="append",
        default=[],
        help="run of a smaller network, with its ledgers; may be given several times",
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--samples", type=int, default=512, help="test samples to time on")
    parser.add_argument("--seconds", type=float, default=10.0, help="to measure a profile")
    parser.add_argument("--picture", type=Path, help="default: clock.svg in the folder of the run")
    parser.add_argument("--quick", action="store_true", help="a small network, less of everything")
    chosen = parser.parse_args()
    for rival in chosen.rival:
        if not all((rival / part).is_dir() for part in ("network", "ledgers/val", "ledgers/test")):
            parser.error(f"--rival: {rival} is no run with ledgers: offramp record {rival} first")
    if chosen.quick:
        chosen.runtimes, chosen.batches, chosen.budgets = "torch", "8", "0.6,0.9"
        chosen.samples, chosen.seconds = 16, 0.1
    return chosen


def prepared(chosen: argparse.Namespace) -> tuple[EarlyExitNetwork, Splits]:
    """The network of the run, and its data."""
    if chosen.quick:
        torch.manual_seed(0)
        few = dict.fromkeys(("train", *SPLITS), 200)
        splits = cluttered_digits(0, few, 16)
        network = offramp.build("convnet", splits.train.num_classes, image_size=16)
        offramp.train(network, splits.train, config=offramp.TrainConfig(epochs=2))
        return network.eval(), splits
    source = Source.find(chosen.run)
    if source is None:
        raise SystemExit(
            f"{chosen.run} is no run (there is no data.json): name the folder of `offramp train "
            "--out` or of `offramp chain --out`"
        )
    return EarlyExitNetwork.load(chosen.run / "network").eval(), source.load()


def ledgers(
    network: EarlyExitNetwork, splits: Splits, folder: Path
) -> tuple[offramp.Ledger, offramp.Ledger, offramp.Ledger]:
    """Every exit's logits on three splits, loaded if they have been recorded before."""
    for name in SPLITS:
        if not (folder / name).is_dir():
            offramp.record(network, splits[name], name, dtype="float16").save(folder / name)
    held_out, val, test = (offramp.Ledger.load(folder / name) for name in SPLITS)
    return held_out, val, test


def measured(
    network: EarlyExitNetwork,
    parts: tuple[offramp.Ledger, ...],
    inputs: object,
    place: tuple[Profile, int],
    chosen: argparse.Namespace,
) -> list[BenchRow]:
    """Rows of one profile and batch size; gains are printed as they are found."""
    profile, batch = place
    runtime = profile.runtime
    held_out, val, test = (profile.timed(part, batch) for part in parts)
    budgets = [float(text) for text in chosen.budgets.split(",")]
    advice = offramp.advise(held_out, val, test, budgets)
    # On all samples, however long it takes: a few would leave earlier or later than others do.
    config = BenchConfig([runtime], [batch], threads=chosen.threads, seconds=DAY)
    rivals = {run.name: EarlyExitNetwork.load(run / "network").eval() for run in chosen.rival}
    rows = bench(network, advice.plan, inputs, None, config, rivals, {runtime: profile})
    others = Others(rows, *parts[1:], chosen.rival)
    print(f"\n{runtime}, batch {batch}: {advice.text}\n")
    print(
        "| | ms | share of the time | predicted | for these exits | accuracy (%) "
        "| over fixed exits | over full | over others in its time |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    advised = {f"at {row.budget:.0%}": row for row in advice.budgets}
    shown = []
    for row in rows:
        gains = ["", "", ""]
        if row.name in advised:
            one = advised[row.name]
            right = advice.plan[one.budget].replay(test).right
            gains = [*map(words, (one.over_mix, one.over_full)), words(others.gain(right, row))]
        else:
            right = others.right(row.name, others.test)
        predicted, expected = (
            "" if share is None else f"{share:.1%}" for share in (row.predicted, row.expected)
        )
        print(
            f"| {row.name} | {1e3 * row.seconds:.3f} | {row.share:.1%} | {predicted} | {expected} "
            f"| {100 * right.mean():.2f} | {' | '.join(gains)} |",
            flush=True,
        )
        shown.append(replace(row, accuracy=float(right.mean())))
    return shown


class Others:
    """What else was timed: the network without exits, cut after each of them, and rivals."""

    def __init__(
        self,
        rows: list[BenchRow],
        val: offramp.Ledger,
        test: offramp.Ledger,
        rivals: list[Path],
    ) -> None:
        self.rows = [row for row in rows if row.predicted is None]
        self.val, self.test = val, test
        self.rivals = {run.name: run for run in rivals}

    def right(self, name: str, ledger: offramp.Ledger) -> np.ndarray:
        """Which samples of a split it gets right, `[N]`."""
        exit_index = -1
        if name in self.rivals:
            ledger = offramp.Ledger.load(self.rivals[name] / "ledgers" / ledger.split)
        elif name != WITHOUT:
            exit_index = int(name.split()[1])
        right: np.ndarray = ledger.logits[:, exit_index].argmax(axis=1) == ledger.labels
        return right

    def gain(self, right: np.ndarray, row: BenchRow) -> Interval:
        """What a policy gains over the best mix of two others that takes as long as it does.

        The mix is chosen on val; both are compared on test, and by what was measured.
        """
        known = [self.right(other.name, self.val).mean() for other in self.rows]
        times = [other.seconds for other in self.rows]
        first, second, share = best_mix(times, known, row.seconds)
        one, other = (self.right(self.rows[n].name, self.test) for n in (first, second))
        return gain_of(right.astype(float), (1 - share) * one + share * other)


def words(gap: Interval) -> str:
    """A difference in points, with its interval."""
    return f"{100 * gap.value:+.2f} [{100 * gap.low:+.2f}, {100 * gap.high:+.2f}]"


def main() -> None:
    """From a trained network to a figure."""
    chosen = options()
    warnings.filterwarnings("ignore", category=UserWarning)
    torch.set_num_threads(chosen.threads)
    keep_memory()
    network, splits = prepared(chosen)
    parts = ledgers(network, splits, chosen.run / ("quick" if chosen.quick else "ledgers"))
    drawn = torch.randperm(len(splits.test), generator=torch.Generator().manual_seed(0))
    inputs = splits.test.batch(drawn[: chosen.samples])[0]
    exits = [int(text) for text in chosen.exits.split(",")] if chosen.exits else None
    last = network.num_exits - 1
    if exits and (exits != sorted(set(exits)) or exits[0] < 0 or exits[-1] != last):
        raise SystemExit(f"--exits must ascend from 0 or more to the last one, {last}")
    looks = plain_policy(network, exits)
    rows: list[BenchRow] = []
    for runtime in chosen.runtimes.split(","):
        batches = [int(text) for text in chosen.batches.split(",")]
        profile = offramp.profile(
            network, looks, runtime, batches, chosen.threads, inputs, chosen.seconds
        )
        for batch in batches:
            rows += measured(network, parts, inputs, (profile, batch), chosen)
    print(f"\nwritten to {plot_bench(rows, chosen.picture or chosen.run / 'clock.svg')}")


if __name__ == "__main__":
    main()
