"""What correctors cost: multiply-accumulates with and without them."""

from collections.abc import Sequence

from offramp.errors import ConfigError
from offramp.ledger import Ledger
from offramp.methods import Method
from offramp.networks import build, count_macs
from offramp.report import Table
from offramp.scorers import Corrector
from offramp.studies.paper import paper_group
from offramp.studies.results import CaseResult, Findings, cells

CLASSES, SIZE = 200, 64  # Tiny-ImageNet


def corrector_cost(results: Sequence[CaseResult]) -> Findings:
    """MACs of the network up to each exit, and of the correctors that run on the way."""
    return Findings(
        "What the correctors cost",
        "Multiply-accumulates are counted by running the stages; a corrector is two matrix "
        "products, and none runs at the last exit. (The paper counts FLOPs of the whole network.)",
        [*(table for result in results for table in _tables(result)), _paper()],
    )


def _paper() -> Table:
    """The paper's network, counted here untrained, beside what the paper prints."""
    network = build("resnet34", num_classes=CLASSES, image_size=SIZE)
    bare, corrector = int(count_macs(network).cumulative[-1]), Corrector()
    extra = sum(corrector.macs(m, CLASSES) for m in range(network.num_exits - 1))
    printed = paper_group("tab:flops_comparison", "ResNet34 - TinyImageNet") or {}
    plain, ours = (int(printed[name][0].replace(" ", "")) for name in ("baseline", "eefp"))
    rows = [
        cells("paper (FLOPs)", f"{plain:,}", f"{ours:,}", f"{(ours - plain) / plain:.4%}"),
        cells("here (MACs)", f"{bare:,}", f"{bare + extra:,}", f"{extra / bare:.4%}"),
    ]
    return Table(
        "cost-paper",
        f"ResNet-34 for {CLASSES} classes at {SIZE} px: the paper and here",
        ["", "network", "with correctors", "increase"],
        rows,
        f"Here with an exit after each of {network.num_exits} blocks; the paper does not say "
        f"where its exits are. Its number is {plain / bare:.3f} times the MACs counted here, so "
        "that what it calls FLOPs seem to be multiply-accumulates.",
    )


def _tables(result: CaseResult) -> list[Table]:
    test = result.ledgers["test"]
    if test.unit != "macs":
        raise ConfigError(
            f"corrector-cost needs costs in MACs, and those of {result.case.name} are {test.unit}"
        )
    correctors = [m for m in result.methods if isinstance(m.scorer, Corrector)]
    return [_totals(result, correctors), *(_per_exit(result, method) for method in correctors[:1])]


def _totals(result: CaseResult, correctors: Sequence[Method]) -> Table:
    test = result.ledgers["test"]
    bare = int(test.costs[-1])
    rows = [cells("No correctors", f"{bare:,}", "", "")]
    for method in result.methods:
        if method in correctors:
            extra = sum(_corrector_macs(method, test))
            row = (method.label, f"{bare + extra:,}", f"{extra:,}", f"{extra / bare:.4%}")
            rows.append(cells(*row))
    return Table(
        f"{result.case.name}-cost",
        f"{result.case.title}: the whole network with all exits",
        ["correctors", "MACs", "of these correctors", "increase"],
        rows,
    )


def _corrector_macs(method: Method, test: Ledger) -> list[int]:
    scorer, exits, classes = method.scorer, test.num_exits, test.num_classes
    return [scorer.macs(m, classes) for m in range(exits - 1)]


def _per_exit(result: CaseResult, method: Method) -> Table:
    test = result.ledgers["test"]
    spent = [*_corrector_macs(method, test), 0]
    rows = []
    for number, (cost, own) in enumerate(zip(test.costs.tolist(), spent, strict=True)):
        so_far = sum(spent[: number + 1])
        share = f"{so_far / cost:.4%}"
        rows.append(cells(number, f"{int(cost):,}", f"{own:,}", f"{so_far:,}", share))
    return Table(
        f"{result.case.name}-cost-exits",
        f"{result.case.title}: {method.label}, exit by exit",
        ["exit", "network so far", "its corrector", "correctors so far", "share"],
        rows,
    )
