"""Cutting any module that `torch.fx` can trace into stages: its layout.

What skips over a cut, such as a long residual connection, is carried in the state.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from offramp.errors import NetworkError
from offramp.networks.fx.cuts import Cuts
from offramp.networks.fx.stages import split
from offramp.networks.fx.trace import block_names, trace_module
from offramp.networks.inputs import inputs_like
from offramp.networks.layout import Layout, Unit, module_names, no_such_module
from offramp.networks.state import Path


def traced_layout(
    backbone: nn.Module,
    names: Sequence[str] | None,
    example: Any = None,  # noqa: ANN401
) -> Layout:
    """The layout of any module that `torch.fx` can trace, cut after `names` or the blocks found.

    What skips over a cut is carried in the state, and running the module on batches of two sizes,
    made from the example, shows what belongs to samples.
    """
    example = _default_example(backbone) if example is None else example
    if not isinstance(example, Tensor):
        raise NetworkError(
            f"{type(backbone).__name__} is cut by tracing, which needs a batch: pass `example=`, "
            "a tensor such as torch.zeros(2, 3, 32, 32)"
        )
    traced = trace_module(backbone, training=False)
    modules = module_names(backbone)
    for name in names or ():
        if name not in modules:
            raise NetworkError(no_such_module(name, modules))
    cuts = Cuts(traced)
    wanted = cuts.clean(block_names(traced)) if names is None else cuts.ordered(list(names))
    layout = _layout(cuts, wanted, example, modules)
    if names is None and len(layout.blocks) < 2:
        raise NetworkError(
            f"no block of {type(backbone).__name__} was found that an exit could come after; "
            "name some with at=[...]"
        )
    return layout


def _default_example(backbone: nn.Module) -> Tensor | None:
    """What models of timm say that they take; the classifiers of torchvision take 224 px."""
    config = getattr(backbone, "default_cfg", None) or {}
    if "input_size" in config:
        return torch.rand(2, *config["input_size"])
    if type(backbone).__module__.startswith("torchvision.models"):
        return torch.rand(2, 3, 224, 224)
    return None


def _layout(cuts: Cuts, names: Sequence[str], example: Tensor, modules: list[str]) -> Layout:
    """Cut after the named submodules (checked, in order) and before the classifier."""
    at_end = [name for name in names if not cuts.is_early(name)]
    names = [name for name in names if name not in at_end]
    classifier = cuts.classifier()
    stages = split(cuts.traced, names, classifier, example)
    rest: nn.Module = stages.pop() if classifier is not None else nn.Identity()
    labels = [*names, "last"]
    linear = cuts.traced.root.get_submodule(str(classifier.target)) if classifier else None
    carrying = [stage.in_eval.carries_several for stage in stages[: len(names)]]
    leaves: dict[str, Path] = {name: (0,) for name, c in zip(names, carrying, strict=True) if c}
    known = {name: cuts.channels(cuts.node_after(name)) for name in names}
    return Layout(
        units=[Unit(name, stage) for name, stage in zip(labels, stages, strict=True)],
        blocks=labels,
        classifier=rest,
        num_classes=linear.out_features if isinstance(linear, nn.Linear) else None,
        inputs=inputs_like(example),
        leaves=leaves,
        channels={name: channels for name, channels in known.items() if channels},
        at_end=at_end,
        modules=modules,
    )
