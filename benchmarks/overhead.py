"""What a decision costs: microseconds per exit, beside what runs without any decision.

    python benchmarks/overhead.py [--rounds 15]
    python benchmarks/overhead.py --run runs/lite0-64 [--exports exports/]

Everything is measured in one process on one thread, best of several rounds. `Runner` and
`OnnxRunner` are charged for what they take beyond the bare stages, heads and graphs, on a network
of four tiny stages and samples that go to the deepest exit.

With a run of `offramp train` that is recorded, single test images go through its export in ONNX
Runtime, at the cheapest operating point that loses nothing on val, and through the export of the
network without exits. Policies are tuned for MACs, or for the seconds of a profile that is
measured before. Images take turns, so that each finds caches as others leave them; seconds are
of the processor, which other programs disturb little.
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import offramp
from offramp import Ledger, Policy, Scorer, synthetic
from offramp.answers import GeometricEnsemble
from offramp.arrays import Array
from offramp.networks import EarlyExitNetwork
from offramp.networks.heads import LinearHead, Pool
from offramp.onnx.runner import Graph
from offramp.replay import replay
from offramp.runtime import Member
from offramp.scorers import BreakEven, Corrector, LogisticCorrector, MaxProbability
from offramp.thresholds.rule import exits_taken

SCORERS = {
    "max probability": MaxProbability(),
    "ridge logistic": LogisticCorrector(),
    "break-even": BreakEven(),
    "corrector": Corrector(epochs=1),
}
SIZES = ((4, 10), (10, 100))  # exits, classes
ITEMS, WIDTH, CLASSES, STAGES = 1000, 32, 10, 4


def best(call: Callable[[], object], rounds: int, calls: int = 100) -> float:
    """Microseconds of the processor for a call, best of several rounds."""
    found = []
    for _ in range(rounds):
        start = time.thread_time()
        for _ in range(calls):
            call()
        found.append((time.thread_time() - start) / calls)
    return min(found) * 1e6


def deep(scorer: Scorer, splits: dict[str, Ledger]) -> Policy:
    """A policy that sends nearly all samples to the last exit, with every exit open."""
    policy = Policy(scorer.clone()).fit(splits["held_out"]).tune(splits["val"], "shared")
    open_everywhere = np.isfinite(policy.points.thresholds[:, :-1]).all(axis=1)
    return policy.at_point(int(np.flatnonzero(open_everywhere)[-1]))


def sessions(rounds: int) -> None:
    """One item, and a thousand in step."""
    print("| exits x classes | scorer | start | observe | of 1,000 items, per item and stage |")
    print("| --- | --- | ---: | ---: | ---: |")
    for exits, classes in SIZES:
        splits = synthetic.ledgers(seed=0, samples=ITEMS, exits=exits, classes=classes)
        for name, scorer in SCORERS.items():
            policy, test = deep(scorer, splits), splits["test"]
            taken = policy.decide(test)
            rows = list(test.logits[int(np.argmax(taken))])

            start = best(policy.start, rounds)
            one = best(partial(observe_one, policy, rows), rounds)
            observe = (one - start) / (int(taken.max()) + 1)
            each = best(partial(observe_many, policy, test.logits), rounds, 3) / (taken + 1).sum()
            print(f"| {exits} x {classes} | {name} | {start:.1f} | {observe:.1f} | {each:.2f} |")


def observe_one(policy: Policy, rows: list[Array]) -> None:
    """One item, until it stops."""
    session = policy.start()
    for row in rows:
        if session.observe(row):
            break


def observe_many(policy: Policy, logits: Array) -> None:
    """Many items in step, until all have stopped."""
    session = policy.start(len(logits))
    for stage in range(logits.shape[1]):
        if len(session.left):
            session.observe(logits[session.left, stage])


def tiny_network() -> EarlyExitNetwork:
    """Four stages of one small layer each."""
    torch.manual_seed(0)
    stages = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(STAGES)]
    heads = [LinearHead(Pool("flat"), WIDTH, CLASSES) for _ in range(STAGES)]
    return EarlyExitNetwork(stages, heads, CLASSES).eval()


def recorded(network: EarlyExitNetwork) -> dict[str, Ledger]:
    """Splits of made-up samples, labelled by the last exit but for a fifth."""
    splits = {}
    for split in ("held_out", "val", "test"):
        inputs = torch.randn(ITEMS, WIDTH)
        with torch.inference_mode():
            labels = network(inputs)[:, -1].argmax(1)
        labels = torch.where(torch.rand(ITEMS) < 0.2, torch.randint(CLASSES, (ITEMS,)), labels)
        costs = offramp.Costs(stages=(1e5,) * STAGES, heads=(5e3,) * STAGES)
        data = TensorDataset(inputs, labels)
        splits[split] = offramp.record(network, data, split, costs=costs, progress=False)
    return splits


def runners(rounds: int) -> None:
    """What runners add to the bare modules and to the graphs, per exit."""
    network = tiny_network()
    splits = recorded(network)
    x = torch.randn(1, WIDTH)

    print("\n| runner | scorer | all | bare | added per exit |")
    print("| --- | --- | ---: | ---: | ---: |")
    for name, scorer in SCORERS.items():
        policy = deep(scorer, splits)
        runner = offramp.Runner(network, policy, compile=False)
        last = int(runner(x).exits[0])
        assert last == STAGES - 1, f"{name} stops at exit {last}"
        whole, alone = best(partial(runner, x), rounds), best(partial(bare, network, x), rounds)
        print(f"| Runner | {name} | {whole:.0f} | {alone:.0f} | {(whole - alone) / STAGES:.1f} |")
        with tempfile.TemporaryDirectory() as folder:
            export = offramp.export(
                network, policy, Path(folder) / "export", torch.randn(3, WIDTH), progress=False
            )
            onnx, array = offramp.OnnxRunner(export, threads=1), x.numpy()
            runs = graph_runs([opened.graph for opened in onnx._segments.values()], array)
            whole, alone = best(partial(onnx, array), rounds), best(partial(in_turn, runs), rounds)
        added = (whole - alone) / STAGES
        print(f"| OnnxRunner | {name} | {whole:.0f} | {alone:.0f} | {added:.1f} |")


def bare(network: EarlyExitNetwork, x: Tensor) -> None:
    """All stages and heads, and no decision."""
    with torch.inference_mode():
        state = x
        for stage, head in zip(network.stages, network.heads, strict=True):
            state = stage(state)
            head(state, None)


def graph_runs(graphs: list[Graph], x: Array) -> list[Callable[[], object]]:
    """The bare runs of graphs, each on what the one before puts out."""
    runs: list[Callable[[], object]] = []
    for graph in graphs:
        runs.append(partial(graph._session.run, graph.outputs, {graph.inputs[0]: x}))
        x = graph.run([x])[0]
    return runs


def in_turn(runs: list[Callable[[], object]]) -> None:
    """One after the other."""
    for run in runs:
        run()


def single_images(run: Path, exports: Path, rounds: int) -> None:
    """How many times faster than the network without exits, image by image."""
    ledgers = {name: Ledger.load(run / "ledgers" / name) for name in ("held_out", "val", "test")}
    labels, last = ledgers["test"].labels, ledgers["test"].logits[:, -1].argmax(axis=1)
    images = images_of(run)
    print("\n| policy | tuned for | open | MACs | test, % | full, % | us | full, us | times |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, parts in SINGLE.items():
        for unit in ("MACs", "seconds"):
            folder = exports / f"{name}-{unit}".replace(" ", "-")
            if not folder.exists():
                export_at_no_loss(run, ledgers, Policy(*parts), unit, folder)
            runner = offramp.OnnxRunner(folder, threads=1)
            own, full = in_turns([runner, runner.full], images, rounds)
            replayed = replay(runner.policy.answer, runner.policy.scorer, ledgers["test"])
            exits = exits_taken(replayed.scores, runner.thresholds)
            found = replayed.predictions[np.arange(len(exits)), exits]
            macs = float((ledgers["test"].costs / ledgers["test"].costs[-1])[exits].mean())
            shares = [100 * (answers == labels).mean() for answers in (found, last)]
            opened = np.isfinite(runner.thresholds[:-1]).sum()
            print(
                f"| {name} | {unit} | {opened} | {macs:.0%} | {shares[0]:.2f} | {shares[1]:.2f} | "
                f"{own:.0f} | {full:.0f} | {full / own:.2f} |"
            )


SINGLE = {
    "max probability": (MaxProbability(), None),
    "break-even": (BreakEven(), None),
    "break-even, ensemble": (BreakEven(), GeometricEnsemble()),
}
IMAGES = 200


def images_of(run: Path) -> list[Array]:
    """Test images, one by one, as the network takes them."""
    network = EarlyExitNetwork.load(run / "network")
    test = offramp.data.load("cifar100", image_size=network.example(1).shape[-1]).test
    every = len(test) // IMAGES
    return [np.asarray(test[number * every][0])[None] for number in range(IMAGES)]


def export_at_no_loss(
    run: Path, ledgers: dict[str, Ledger], policy: Policy, unit: str, folder: Path
) -> None:
    """Export the network at the cheapest point that is as accurate on val as the last exit."""
    network, val = EarlyExitNetwork.load(run / "network"), ledgers["val"]
    policy = policy.fit(ledgers["held_out"])
    if unit == "seconds":
        profile = offramp.profile(
            network, policy, "onnx", 1, threads=1, seconds=SECONDS, clock=time.process_time
        )
        times = profile.at(batch_size=1)
        val = val.with_costs(times)
        policy = policy.fit(ledgers["held_out"].with_costs(times))
    policy = policy.tune(val)
    accuracy = (val.logits[:, -1].argmax(axis=1) == val.labels).mean()
    fine = np.flatnonzero(policy.points.accuracies >= accuracy)
    best_point = fine[np.argmin(policy.points.budgets[fine])]
    offramp.export(network, policy.at_point(int(best_point)), folder, progress=False)


SECONDS = 20.0  # of a profile


def in_turns(
    runs: list[Callable[[Array], object]], images: list[Array], rounds: int
) -> list[float]:
    """Mean microseconds per image of each, of the best turn with every image."""
    fastest = np.full((len(runs), len(images)), np.inf)
    for _ in range(rounds):
        for row, call in enumerate(runs):
            for column, image in enumerate(images):
                start = time.thread_time()
                call(image)
                fastest[row, column] = min(fastest[row, column], time.thread_time() - start)
    means: list[float] = (1e6 * fastest.mean(axis=1)).tolist()
    return means


def cascades(rounds: int) -> None:
    """What a cascade of three synchronous models adds for a single item, in all."""
    print("\n| scorer | models asked | added |")
    print("| --- | ---: | ---: |")
    texts = [f"{answer}{depth}" for answer in "abc" for depth in range(3)] * 40

    def model(number: int) -> Member:
        def answers(batch: list[str]) -> list[tuple[str, float]]:
            return [(t[0], 0.95) if int(t[1]) <= number else ("?", 0.3) for t in batch]

        return Member(answers, cost=4.0**number, name=f"model {number}")

    cascade = offramp.Cascade([model(number) for number in range(3)])
    ledger = cascade.record((texts, [text[0] for text in texts]), split="all")
    held_out, val, _ = ledger.partition()
    for name, scorer in SCORERS.items():
        if name == "corrector":
            continue  # too few samples
        policy = Policy(scorer).fit(held_out).tune(val, "shared").at(max_drop=0.0)
        for depth in range(3):
            text = [f"a{depth}"]
            (found,) = cascade.run(text, policy)
            assert found.stage == depth, f"{name} stops at {found.stage}"
            whole = best(partial(cascade.run, text, policy), rounds)
            asked = cascade.members[: depth + 1]
            calls: list[Callable[[], object]] = [partial(each.model, text) for each in asked]
            print(
                f"| {name} | {depth + 1} | {whole - best(partial(in_turn, calls), rounds):.0f} |"
            )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="Rounds; the best one counts.")
    parser.add_argument("--run", type=Path, help="A recorded run of CIFAR-100.")
    parser.add_argument("--exports", type=Path, default=Path("exports"), help="Folder for them.")
    asked = parser.parse_args()
    rounds = asked.rounds
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if asked.run is not None:
        single_images(asked.run, asked.exports, rounds)
        return
    print("Microseconds.\n")
    sessions(rounds)
    runners(rounds)
    cascades(rounds)


if __name__ == "__main__":
    main()
