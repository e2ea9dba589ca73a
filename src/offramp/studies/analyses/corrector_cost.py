"""The cost of correctors: multiply-accumulates with and without them."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from importlib.resources import files
from math import prod
from pathlib import Path
from typing import Any

import torch

from offramp.errors import ConfigError
from offramp.ledger import Ledger
from offramp.methods import Method
from offramp.networks import EarlyExitNetwork, build
from offramp.networks.macs import counting, first_state
from offramp.networks.state import evaluating
from offramp.report import ResultTable, Section
from offramp.report.tables import cells
from offramp.scorers import Corrector
from offramp.studies.paper import paper_group
from offramp.studies.results import ExperimentResult
from offramp.studies.study import read_study

CLASSES, SIZE = 200, 64  # Tiny-ImageNet

_DERIVATION = (
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


def corrector_cost(results: Sequence[ExperimentResult]) -> Section:
    """MACs of the network up to each exit, and of the correctors that run on the way."""
    return Section(
        "What the correctors cost",
        note="Multiply-accumulates are counted by running the stages; a corrector is two matrix "
        "products, and there is none at the last exit.",
        tables=[*(table for result in results for table in _tables(result)), *_paper()],
    )


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


def paper_network() -> EarlyExitNetwork:
    """The ResNet-34 of the paper-scale studies, whose form is inferred from the paper's count."""
    path = Path(str(files("offramp.studies"))) / "resnet34-tinyimagenet.toml"
    settings = read_study(path, "paper").networks[0].network
    assert settings is not None
    return build(settings.name, CLASSES, SIZE, settings.exits, settings.head)


def paper_count(network: EarlyExitNetwork) -> dict[str, int]:
    """Operations per image of a whole network with all exits, as the paper counts them.

    A multiply-accumulate of a convolution or a linear layer is one operation; two operations per
    element of a batch norm, one per element that is pooled, added or multiplied.
    """
    stages, heads = Counter[Any](), Counter[Any]()
    with torch.no_grad(), evaluating(network):
        state = first_state(network, network.example(1))
        for exit_index in range(network.num_exits):
            with counting(_OTHER_OPERATIONS) as counter:
                state = network.advance(exit_index, state)
            stages.update(counter.get_flop_counts()["Global"])
            with counting(_OTHER_OPERATIONS) as counter:
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


def _paper() -> list[ResultTable]:
    """The paper's count, operation by operation, and what it adds for correctors."""
    network, corrector = paper_network(), Corrector()
    counted = paper_count(network)
    total = sum(counted.values())
    printed = paper_group("tab:flops_comparison", "ResNet34 - TinyImageNet") or {}
    plain, corrected = (int(printed[name][0].replace(" ", "")) for name in ("baseline", "eefp"))
    used, all_exits = (
        sum(corrector.macs(each, CLASSES) for each in range(network.num_exits - left_out))
        for left_out in (1, 0)
    )
    title = f"ResNet-34 for {CLASSES} classes at {SIZE} px"
    return [
        ResultTable(
            "cost-paper",
            f"{title}: the paper's FLOPs, counted here",
            ["", "operations"],
            [
                *(cells(name, f"{count:,}") for name, count in counted.items()),
                cells("sum", f"{total:,}"),
                cells("the paper", f"{plain:,}"),
            ],
            _DERIVATION,
        ),
        ResultTable(
            "cost-paper-correctors",
            f"{title}: correctors",
            ["", "operations", "increase"],
            [
                cells("the paper", f"{corrected - plain:,}", f"{corrected / plain - 1:.4%}"),
                cells(
                    f"{network.num_exits} correctors", f"{all_exits:,}", f"{all_exits / total:.4%}"
                ),
                cells(
                    f"{network.num_exits - 1} correctors, none at the last exit",
                    f"{used:,}",
                    f"{used / total:.4%}",
                ),
            ],
            f"Of the paper's {corrected - plain:,} operations, {corrected - plain - all_exits:,} "
            "remain unexplained: its formula, 640 n + 128 for the n-th corrector, gives "
            f"{all_exits:,} for {network.num_exits} exits.",
        ),
    ]


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
