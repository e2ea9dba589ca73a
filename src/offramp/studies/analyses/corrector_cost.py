"""The cost of correctors: multiply-accumulates with and without them."""

from collections.abc import Sequence

from offramp.errors import ConfigError
from offramp.ledger import Ledger
from offramp.methods import Method
from offramp.networks import build, count_macs
from offramp.report import ResultTable, Section
from offramp.report.tables import cells
from offramp.scorers import Corrector
from offramp.studies.paper import paper_group
from offramp.studies.results import ExperimentResult

CLASSES, SIZE = 200, 64  # Tiny-ImageNet


def corrector_cost(results: Sequence[ExperimentResult]) -> Section:
    """MACs of the network up to each exit, and of the correctors that run on the way."""
    return Section(
        "What the correctors cost",
        note="Multiply-accumulates are counted by running the stages; a corrector is two matrix "
        "products, and there is none at the last exit. (The paper counts FLOPs of the whole "
        "network.)",
        tables=[*(table for result in results for table in _tables(result)), _paper()],
    )


def _paper() -> ResultTable:
    """MACs of the paper's network, beside the number that the paper prints."""
    network = build("resnet34", num_classes=CLASSES, image_size=SIZE)
    bare, corrector = int(count_macs(network).cumulative[-1]), Corrector()
    extra = sum(corrector.macs(each, CLASSES) for each in range(network.num_exits - 1))
    printed = paper_group("tab:flops_comparison", "ResNet34 - TinyImageNet") or {}
    plain, corrected = (int(printed[name][0].replace(" ", "")) for name in ("baseline", "eefp"))
    rows = [
        cells("paper (FLOPs)", f"{plain:,}", f"{corrected:,}", f"{corrected / plain - 1:.4%}"),
        cells("here (MACs)", f"{bare:,}", f"{bare + extra:,}", f"{extra / bare:.4%}"),
    ]
    return ResultTable(
        "cost-paper",
        f"ResNet-34 for {CLASSES} classes at {SIZE} px: the paper and here",
        ["", "network", "with correctors", "increase"],
        rows,
        f"Here with an exit after each of {network.num_exits} blocks; the paper does not say "
        f"where its exits are. Its number is {plain / bare:.3f} times the MACs counted here: what "
        "it calls FLOPs seem to be multiply-accumulates.",
    )


def _tables(result: ExperimentResult) -> list[ResultTable]:
    test = result.ledgers["test"]
    if test.unit != "macs":
        raise ConfigError(
            f"corrector-cost needs costs in MACs, and {result.experiment.name} has costs in "
            f"{test.unit}"
        )
    correctors = [m for m in result.methods if isinstance(m.scorer, Corrector)]
    return [_totals(result, correctors), *(_per_exit(result, method) for method in correctors[:1])]


def _totals(result: ExperimentResult, correctors: Sequence[Method]) -> ResultTable:
    test = result.ledgers["test"]
    bare = int(test.costs[-1])
    rows = [cells("No correctors", f"{bare:,}", "", "")]
    for method in correctors:
        extra = sum(_corrector_macs(method, test))
        row = (method.label, f"{bare + extra:,}", f"{extra:,}", f"{extra / bare:.4%}")
        rows.append(cells(*row))
    return ResultTable(
        f"{result.experiment.name}-cost",
        f"{result.experiment.title}: the whole network with all exits",
        ["correctors", "MACs", "correctors alone", "increase"],
        rows,
    )


def _corrector_macs(method: Method, test: Ledger) -> list[int]:
    classes = test.num_classes
    return [method.scorer.macs(exit_index, classes) for exit_index in range(test.num_exits - 1)]


def _per_exit(result: ExperimentResult, method: Method) -> ResultTable:
    test = result.ledgers["test"]
    spent = [*_corrector_macs(method, test), 0]
    rows = []
    for number, (cost, own) in enumerate(zip(test.costs.tolist(), spent, strict=True)):
        total = sum(spent[: number + 1])
        share = f"{total / cost:.4%}"
        rows.append(cells(number, f"{int(cost):,}", f"{own:,}", f"{total:,}", share))
    return ResultTable(
        f"{result.experiment.name}-cost-exits",
        f"{result.experiment.title}: {method.label}, exit by exit",
        ["exit", "network up to here", "its corrector", "correctors up to here", "share"],
        rows,
    )
