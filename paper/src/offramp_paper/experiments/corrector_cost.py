"""Multiply-accumulates of a network with exits, with and without correctors.

The paper's own count is derived, too, from which follows where its exits are. At small scale, the
shipped EfficientNet-Lite0 stands for ResNet-34 on Tiny-ImageNet.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from offramp import Corrector, Ledger, Method, build
from offramp.errors import ConfigError
from offramp.methods import find_methods
from offramp.networks import EarlyExitNetwork
from offramp.report import Cell, ResultTable
from offramp_paper.experiments.efficientnet_b2_imagenet import LITE0
from offramp_paper.experiments.page import report
from offramp_paper.experiments.printed import printed_rows
from offramp_paper.experiments.resnet34_tinyimagenet import RESNET34
from offramp_paper.experiments.run import Analysis, Result, Run

TABLE = "tab:flops_comparison"
METHODS = ("baseline", "eefp", "eefp-no-history")
NETWORKS = {"small": [replace(LITE0, heading=RESNET34.heading)], "paper": [RESNET34]}

CLASSES, SIZE = 200, 64  # Tiny-ImageNet
DERIVATION = (
    "The paper states neither where its exits are nor what its heads do. Its number is met to the "
    "last digit by a 3 x 3 stem without max-pool, one head in the first group of blocks, three in "
    "the second, three in the third, none in the fourth, and the usual last exit; each head pools "
    "to 4 x 4 cells by maxima and by means, mixes both with one learned number w, and applies a "
    "linear layer. What the paper calls FLOPs are multiply-accumulates of convolutions and linear "
    "layers, plus single operations of the rest. Mixing takes three operations per pooled "
    "element, and one per head for 1 - w. Where in its group a head is does not change the count: "
    "the blocks nearest to equal shares of the cost are taken. Heads and conventions are those of "
    "earlier public code from the same group (github.com/gmum/Zero-Time-Waste)."
)


def main(run: Run) -> None:
    """Record, compare, and count."""
    results = [run.compare(run.record(each), METHODS) for each in run.networks(NETWORKS)]
    analysis = run.analyse(results, corrector_cost)
    report(run, "What correctors cost", __doc__, results, TABLE, analysis)


def corrector_cost(results: Sequence[Result]) -> Analysis:
    """MACs of the network up to each exit, and of the correctors that run on the way."""
    tables = [table for result in results for table in _tables(result)]
    return Analysis(
        "What the correctors cost",
        "Multiply-accumulates are counted by running the stages; a corrector is two matrix "
        "products, and there is none at the last exit.",
        [*tables, *_paper()],
    )


def _tables(result: Result) -> list[ResultTable]:
    test = result.recorded.ledgers["test"]
    if test.unit != "macs":
        raise ConfigError(
            f"corrector-cost needs costs in MACs, and {result.recorded.name} has costs in "
            f"{test.unit}"
        )
    methods = find_methods(METHODS[1:], test.num_classes)
    return [_totals(result, test, methods), _per_exit(result, test, methods[0])]


def _totals(result: Result, test: Ledger, methods: Sequence[Method]) -> ResultTable:
    bare = int(test.costs[-1])
    rows = [_row("No correctors", f"{bare:,}", "", "")]
    for method in methods:
        extra = sum(_corrector_macs(method, test))
        rows.append(_row(method.label, f"{bare + extra:,}", f"{extra:,}", f"{extra / bare:.4%}"))
    return ResultTable(
        f"{result.recorded.name}-cost",
        f"{result.title}: the whole network with all exits",
        ["correctors", "MACs", "correctors alone", "increase"],
        rows,
    )


def _per_exit(result: Result, test: Ledger, method: Method) -> ResultTable:
    spent, total, rows = [*_corrector_macs(method, test), 0], 0, []
    for exit_index, (cost, own) in enumerate(zip(test.costs.tolist(), spent, strict=True)):
        total += own
        counts = (f"{int(cost):,}", f"{own:,}", f"{total:,}")
        rows.append(_row(str(exit_index), *counts, f"{total / cost:.4%}"))
    return ResultTable(
        f"{result.recorded.name}-cost-exits",
        f"{result.title}: {method.label}, exit by exit",
        ["exit", "network up to here", "its corrector", "correctors up to here", "share"],
        rows,
    )


def _corrector_macs(method: Method, test: Ledger) -> list[int]:
    exits = range(test.num_exits - 1)
    return [method.scorer.macs(exit_index, test.num_classes) for exit_index in exits]


def _row(*texts: str) -> list[Cell]:
    return [Cell(text) for text in texts]


def _paper() -> list[ResultTable]:
    """The paper's count, operation by operation, and what it adds for correctors."""
    network, corrector = paper_network(), Corrector()
    counted = paper_count(network)
    total = sum(counted.values())
    printed = printed_rows(TABLE, RESNET34.heading) or {}
    plain, corrected = (int(printed[name][0].replace(" ", "")) for name in ("baseline", "eefp"))
    used, all_exits = (
        sum(corrector.macs(each, CLASSES) for each in range(network.num_exits - left_out))
        for left_out in (1, 0)
    )
    exits = network.num_exits
    title = f"ResNet-34 for {CLASSES} classes at {SIZE} px"
    added = corrected - plain
    return [
        ResultTable(
            "cost-paper",
            f"{title}: the paper's FLOPs, counted here",
            ["", "operations"],
            [
                *(_row(name, f"{count:,}") for name, count in counted.items()),
                _row("sum", f"{total:,}"),
                _row("the paper", f"{plain:,}"),
            ],
            DERIVATION,
        ),
        ResultTable(
            "cost-paper-correctors",
            f"{title}: correctors",
            ["", "operations", "increase"],
            [
                _row("the paper", f"{added:,}", f"{added / plain:.4%}"),
                _row(f"{exits} correctors", f"{all_exits:,}", f"{all_exits / total:.4%}"),
                _row(
                    f"{exits - 1} correctors, none at the last exit",
                    f"{used:,}",
                    f"{used / total:.4%}",
                ),
            ],
            f"Of the paper's {added:,} operations, {added - all_exits:,} remain unexplained: its "
            f"formula, 640 n + 128 for the n-th corrector, gives {all_exits:,} for {exits} exits.",
        ),
    ]


def paper_network() -> EarlyExitNetwork:
    """The ResNet-34 of the paper, whose form is inferred from the paper's count."""
    return build(RESNET34.build, CLASSES, SIZE, RESNET34.exits, RESNET34.head)


def _per_input(times: int, shape: Sequence[int], *_: Any, **__: Any) -> int:  # noqa: ANN401
    return times * prod(shape)


def _per_output(*_: Any, out_shape: Sequence[int], **__: Any) -> int:  # noqa: ANN401
    return prod(out_shape)


_aten = torch.ops.aten
_POOLS = (_aten.adaptive_max_pool2d, _aten._adaptive_avg_pool2d, _aten.mean)
_NORMS = (_aten.native_batch_norm, _aten._native_batch_norm_legit_no_training)
_PER_OUTPUT = (_aten.add, _aten.mul, _aten.rsub)
# What the paper counts beside convolutions and linear layers.
_OTHER_OPERATIONS: dict[Any, Callable[..., int]] = {
    **dict.fromkeys(_POOLS, partial(_per_input, 1)),
    **dict.fromkeys(_NORMS, partial(_per_input, 2)),
    **dict.fromkeys(_PER_OUTPUT, _per_output),
}


def paper_count(network: EarlyExitNetwork) -> dict[str, int]:
    """Operations per image of a whole network with all exits, as the paper counts them.

    A multiply-accumulate of a convolution or a linear layer is one operation; two operations per
    element of a batch norm, one per element that is pooled, added or multiplied.
    """
    stages, heads = Counter[Any](), Counter[Any]()
    network.eval()
    with torch.no_grad():
        state = network.begin(network.example(1))
        for exit_index in range(network.num_exits):
            with FlopCounterMode(display=False, custom_mapping=_OTHER_OPERATIONS) as counter:
                state = network.advance(exit_index, state)
            stages.update(counter.get_flop_counts()["Global"])
            with FlopCounterMode(display=False, custom_mapping=_OTHER_OPERATIONS) as counter:
                network.head(exit_index, state, torch.zeros(1, exit_index, network.num_classes))
            heads.update(counter.get_flop_counts()["Global"])
    both = stages + heads
    products = sum(count for op, count in both.items() if op not in _OTHER_OPERATIONS)
    return {
        "convolutions and linear layers": products // 2,
        "batch norm, two per element": sum(both[op] for op in _NORMS),
        "residual additions": stages[_aten.add],
        "pooling before the last exit": heads[_aten.mean],
        "pooling and mixing in the other heads": sum(
            heads[op] for op in (*_POOLS[:2], *_PER_OUTPUT)
        ),
    }
