"""Accuracy over milliseconds: a trained network with exits beside itself, cut short.

Takes the folder of a run of `offramp train`. It records what is missing, measures a profile, lets
`auto` choose exits and thresholds for budgets in *seconds*, and times them on real test inputs
beside the network without exits, the network cut after each exit and, with `--rival`, another one
that was recorded on the same data. Accuracies are those of all test samples, and gains have 95 %
intervals over them.

    pip install 'offramp[train,report,onnx]'
    python examples/story_clock.py runs/lite0 --runtimes onnx,torch --batches 1,32

If killed, the same command resumes. `--quick` trains a small network on digits first.
"""

import argparse
import warnings
from dataclasses import replace
from pathlib import Path

import torch

import offramp
from offramp.bench import WITHOUT, BenchConfig, BenchRow, bench
from offramp.data import Splits, cluttered_digits
from offramp.data.source import Source
from offramp.machine import keep_memory
from offramp.networks import EarlyExitNetwork
from offramp.report import plot_bench

SPLITS = ("held_out", "val", "test")


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, nargs="?", default=Path("runs/story-clock"))
    parser.add_argument("--runtimes", default="onnx,torch")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--budgets", default="0.3,0.4,0.5,0.6,0.7,0.8,0.9")
    parser.add_argument("--rival", type=Path, help="run of a smaller network, with its ledgers")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--samples", type=int, default=512, help="test samples to time on")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each thing measured")
    parser.add_argument("--picture", type=Path, help="default: clock.svg in the folder of the run")
    parser.add_argument("--quick", action="store_true", help="a small network, less of everything")
    chosen = parser.parse_args()
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
        raise SystemExit(f"{chosen.run} is no run of `offramp train`: its data.json is missing")
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


def accuracies(ledger: offramp.Ledger) -> list[float]:
    """Of every exit alone."""
    return (ledger.logits.argmax(2) == ledger.labels[:, None]).double().mean(0).tolist()


def measured(
    network: EarlyExitNetwork,
    parts: tuple[offramp.Ledger, ...],
    inputs: object,
    place: tuple[str, int],
    chosen: argparse.Namespace,
) -> list[BenchRow]:
    """Rows of one runtime and batch size; gains are printed as they are found."""
    runtime, batch = place
    profile = offramp.profile(
        network, None, runtime, batch, chosen.threads, inputs, chosen.seconds
    )
    held_out, val, test = (profile.timed(part, batch) for part in parts)
    budgets = [float(text) for text in chosen.budgets.split(",")]
    advice = offramp.advise(held_out, val, test, budgets)
    found = {f"at {row.budget:.0%}": row for row in advice.budgets}
    config = BenchConfig([runtime], [batch], threads=chosen.threads, seconds=chosen.seconds)
    rivals = {}
    if chosen.rival is not None:
        rivals[chosen.rival.name] = EarlyExitNetwork.load(chosen.rival / "network").eval()
    rows = bench(network, advice.plan, inputs, None, config, rivals, {runtime: profile})
    others = {
        name: accuracies(offramp.Ledger.load(chosen.rival / "ledgers" / "test"))[-1]
        for name in rivals
    }
    exits_alone = accuracies(test)
    print(f"\n{runtime}, batch {batch}: {advice.text}\n")
    print("| | ms | share of the time | promised | accuracy (%) | over fixed exits | over full |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    shown = []
    for row in rows:
        gains = ["", ""]
        if row.name in found:
            one = found[row.name]
            accuracy = one.accuracy
            gains = [
                f"{100 * gap.value:+.2f} [{100 * gap.low:+.2f}, {100 * gap.high:+.2f}]"
                for gap in (one.over_mix, one.over_full)
            ]
        elif row.name in others:
            accuracy = others[row.name]
        else:
            accuracy = exits_alone[-1 if row.name == WITHOUT else int(row.name.split()[1])]
        promised = "" if row.promised is None else f"{row.promised:.1%}"
        print(
            f"| {row.name} | {1e3 * row.seconds:.3f} | {row.share:.1%} | {promised} | "
            f"{100 * accuracy:.2f} | {' | '.join(gains)} |",
            flush=True,
        )
        shown.append(replace(row, accuracy=accuracy))
    return shown


def main() -> None:
    """From a trained network to a figure."""
    chosen = options()
    warnings.filterwarnings("ignore", category=UserWarning)
    torch.set_num_threads(chosen.threads)
    keep_memory()
    network, splits = prepared(chosen)
    parts = ledgers(network, splits, chosen.run / "ledgers")
    drawn = torch.randperm(len(splits.test), generator=torch.Generator().manual_seed(0))
    inputs = splits.test.batch(drawn[: chosen.samples])[0]
    rows: list[BenchRow] = []
    for runtime in chosen.runtimes.split(","):
        for batch in map(int, chosen.batches.split(",")):
            rows += measured(network, parts, inputs, (runtime, batch), chosen)
    print(f"\nwritten to {plot_bench(rows, chosen.picture or chosen.run / 'clock.svg')}")


if __name__ == "__main__":
    main()
