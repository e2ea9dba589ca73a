"""What methods gain over max probability with geometric thresholds, from few samples.

held_out and val of a network are pooled and split anew, with as many samples in each; figures
come from test. Networks: the shipped one, folders with ledgers under OFFRAMP_DATA/ledgers, and
those that are named. Intervals (95 %) of a mean gain count the test samples and the resplits.

Run: python benchmarks/small_data.py --resplits 4 --out paper/docs/small-data.md [LEDGERS ...]
A change is checked in a minute by: python benchmarks/small_data.py --quick
"""

import argparse
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from offramp import Ledger, metrics, zoo
from offramp.advice.rating import hits_at, pool
from offramp.errors import FewSamplesWarning
from offramp.evaluation.references import reachable_accuracies
from offramp.ledger import load_ledgers
from offramp.methods import Method, find_methods

Floats = npt.NDArray[np.float64]
BUDGETS = (0.25, 0.5, 0.75)
SURE = 1.96  # standard errors to each side
METHODS = (
    *("baseline", "baseline:smooth", "eefp", "eefp:smooth"),
    *("eefp-logistic", "break-even-no-ensemble", "break-even", "auto"),
)


def networks(folders: Sequence[Path] = ()) -> Iterator[tuple[str, Mapping[str, Ledger]]]:
    """Ledgers by name of their network; the shipped one's, unless a folder has more of it."""
    root = Path(os.environ.get("OFFRAMP_DATA", "")) / "ledgers"
    given = sorted(root.iterdir()) if root.is_dir() else []
    named = {
        folder.parent.name if folder.name == "ledgers" else folder.name: folder
        for folder in [*given, *folders]
    }
    found = {name: load_ledgers(folder, network=name) for name, folder in named.items()}
    shipped = {name: zoo.cifar100()[name] for name in ("held_out", "val", "test")}
    if all(each["test"].network != shipped["test"].network for each in found.values()):
        yield "shipped", shipped
    yield from found.items()


def resplit(both: Ledger, size: int, seed: int, labelled: bool) -> tuple[Ledger, Ledger]:
    """Held_out and val of a size, drawn from the samples of both."""
    order = np.random.default_rng(seed).permutation(len(both))
    first, second = (
        Ledger(
            both.logits[rows],
            both.labels[rows] if labelled else None,
            both.cost_model,
            split=split,
            sample_ids=[f"pool-{row}" for row in rows.tolist()],
            network=both.network,
        )
        for split, rows in (("held_out", order[:size]), ("val", order[size : 2 * size]))
    )
    return first, second


@dataclass
class Run:
    """One method on one resplit.

    Attributes:
        hits: `[N, B]`: whether test samples are answered rightly at the budgets.
        eefp: Mean over the exits.
        seconds: Of one core, to fit and tune.
    """

    hits: Floats
    eefp: float
    seconds: float


def measure(method: Method, held_out: Ledger, val: Ledger, test: Ledger) -> Run:
    """Fit and tune a method, and replay it on test."""
    start = time.process_time()
    (plan,) = method.plans(held_out, val, BUDGETS, seeds=1)
    seconds = time.process_time() - start
    # Points of one policy share its scores; what `auto` chooses may differ by budget.
    distinct = {plan.methods[budget]: plan[budget] for budget in BUDGETS}
    replays = {name: policy.replay(plan.view(test)) for name, policy in distinct.items()}
    hits = [hits_at(replays[plan.methods[budget]], [budget]) for budget in BUDGETS]
    middle = replays[plan.methods[BUDGETS[1]]]
    scores, targets = middle.scores[:, :-1], middle.stop_targets[:, :-1]
    eefp = float(np.nanmean(metrics.eefp(scores, targets)))
    return Run(np.concatenate(hits, axis=1), eefp, seconds)


@dataclass
class Gain:
    """What a method gains over the first one, in points.

    Attributes:
        values: `[B]`, mean over the resplits.
        errors: `[B]`, standard errors of these; of the test samples and of the resplits.
        mean: Over the budgets.
        error: Of the mean.
    """

    values: Floats
    errors: Floats
    mean: float
    error: float

    @classmethod
    def of(cls, runs: Sequence[Run], base: Sequence[Run]) -> "Gain":
        """Of runs on the same resplits and test samples."""
        gaps = 100 * np.stack([a.hits - b.hits for a, b in zip(runs, base, strict=True)])
        both = np.concatenate([gaps, gaps.mean(axis=2, keepdims=True)], axis=2)  # [R, N, B+1]
        by_sample = both.mean(axis=0).var(axis=0) / both.shape[1]
        by_resplit = both.mean(axis=1).var(axis=0) / max(len(both) - 1, 1)
        values, errors = both.mean(axis=(0, 1)), np.sqrt(by_sample + by_resplit)
        return cls(values[:-1], errors[:-1], float(values[-1]), float(errors[-1]))

    def cells(self) -> list[str]:
        """By budget, and the mean with its interval; bold where that leaves zero out."""
        each = [
            f"**{value:+.2f}**" if abs(value) > SURE * error else f"{value:+.2f}"
            for value, error in zip(self.values, self.errors, strict=True)
        ]
        low, high = self.mean - SURE * self.error, self.mean + SURE * self.error
        return [*each, f"{self.mean:+.2f} [{low:+.2f}, {high:+.2f}]"]


def table(runs: Mapping[str, Sequence[Run]], reachable: Floats) -> Iterator[str]:
    """Lines of the table of one network and size; the first method is the yardstick.

    Args:
        runs: By method.
        reachable: `[B]`, accuracies of a rule that sees all exits, but no label.
    """
    base = next(iter(runs.values()))
    shares = " | ".join(f"{budget:.0%}" for budget in BUDGETS)
    yield f"| method | {shares} | mean | EEFP | seconds |"
    yield "|---|" + "---:|" * (len(BUDGETS) + 3)
    for name, found in runs.items():
        eefp, seconds = (
            np.mean([getattr(run, key) for run in found]) for key in ("eefp", "seconds")
        )
        cells = Gain.of(found, base).cells() if found is not base else ["0"] * (len(BUDGETS) + 1)
        yield f"| `{name}` | {' | '.join(cells)} | {eefp:.3f} | {seconds:.2f} |"
    gaps = 100 * (reachable - np.mean([run.hits.mean(axis=0) for run in base], axis=0))
    cells = [f"{gap:+.2f}" for gap in (*gaps, gaps.mean())]
    yield f"| reachable | {' | '.join(cells)} | | |"


Results = dict[tuple[str, int], dict[str, list[Run]]]
"""By network and size, the runs of every method."""


def summary(results: Results, methods: Sequence[str]) -> Iterator[str]:
    """Lines of the table of mean gains over networks and budgets."""
    sizes = sorted({size for _, size in results})
    yield "| method | " + " | ".join(f"{size:,} + {size:,}" for size in sizes) + " |"
    yield "|---|" + "---:|" * len(sizes)
    for name in methods[1:]:
        cells = []
        for size in sizes:
            found = [runs for (_, at), runs in results.items() if at == size]
            gains = [Gain.of(runs[name], runs[methods[0]]) for runs in found]
            values = np.concatenate([gain.values for gain in gains])
            errors = np.concatenate([gain.errors for gain in gains])
            below = int((values < -SURE * errors).sum())
            above = int((values > SURE * errors).sum())
            cells.append(f"{values.mean():+.2f} ({above} / {below} of {len(values)})")
        yield f"| `{name}` | {' | '.join(cells)} |"


def described(name: str, ledgers: Mapping[str, Ledger]) -> str:
    """A network in a line of a list."""
    samples, test = len(ledgers["held_out"]) + len(ledgers["val"]), ledgers["test"]
    return (
        f"- {name}: {test.num_exits} exits, {test.num_classes} classes; {samples:,} samples to "
        f"draw held_out and val from, {len(test):,} of test"
    )


def page(
    results: Results,
    methods: Sequence[str],
    known: Mapping[str, str],
    reachable: Mapping[str, Floats],
    command: str,
) -> str:
    """Everything as Markdown; `known` are the networks, described."""
    resplits = max(len(runs[methods[0]]) for runs in results.values())
    parts = [
        "# Few samples",
        "What methods gain over max probability with geometric thresholds (`baseline`), in points "
        "on test, with as many held_out as val samples: those of both splits are drawn anew for "
        f"each of {resplits} resplits. EEFP is the mean over exits; seconds are those of one core "
        "to fit and tune. Intervals (95 %) count the test samples and the resplits; bold gains "
        "leave zero out. `reachable` is what a rule gains that sees all exits of a sample before "
        "it chooses one, but no label; no stop rule can be expected to do better.",
        "\n".join(known.values()),
        f"```sh\n{command}\n```",
        "## Over all networks",
        "Mean gain over networks and budgets, and how many of them are clearly above / below the "
        "baseline. Not every network has enough samples for the last columns:",
        "\n".join(summary(results, methods)),
    ]
    for (name, size), runs in results.items():
        parts += [f"## {name}, {size:,} + {size:,}", "\n".join(table(runs, reachable[name]))]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Measure, print as it goes, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="LEDGERS")
    parser.add_argument("--sizes", default="150,300,1000,3000")
    parser.add_argument("--resplits", type=int, default=4)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--no-labels", action="store_true", help="of held_out and val")
    parser.add_argument("--out", type=Path, help="Markdown file to write")
    parser.add_argument("--quick", action="store_true", help="one resplit of 300 + 300")
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.resplits = "300", 1
    warnings.simplefilter("ignore", FewSamplesWarning)  # it is what is measured here
    results: Results = {}
    names, known, reachable = options.methods.split(","), {}, {}
    for name, ledgers in networks(options.folders):
        known[name] = described(name, ledgers)
        reached = reachable_accuracies(ledgers["test"], BUDGETS)
        reachable[name] = np.array([point.accuracy for point in reached])
        both = pool(ledgers["held_out"], ledgers["val"])
        methods = find_methods(names, both.num_classes)
        for size in map(int, options.sizes.split(",")):
            if 2 * size > len(both):
                print(f"\n{name}, {size} + {size}: there are only {len(both)} samples")
                continue
            runs: dict[str, list[Run]] = {method.name: [] for method in methods}
            for seed in range(options.resplits):
                held_out, val = resplit(both, size, seed, not options.no_labels)
                for method in methods:
                    runs[method.name].append(measure(method, held_out, val, ledgers["test"]))
            results[name, size] = runs
            lines = table(runs, reachable[name])
            print(f"\n{name}, {size} + {size}", *lines, sep="\n", flush=True)
    command = f"python benchmarks/small_data.py {' '.join(sys.argv[1:])}".strip()
    found = [method.name for method in methods]
    text = page(results, found, known, reachable, command)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
    print("", *summary(results, names), sep="\n")


if __name__ == "__main__":
    main()
