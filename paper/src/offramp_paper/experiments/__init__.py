"""The paper's experiments, a script for each: `offramp study NAME` runs it.

A script says which networks it takes at both scales, and has a function `main` that trains and
records them, compares methods on them and writes a page. What all of them share is in `run`.
"""

NAMES = (  # in the order of the paper; the last three go beyond it
    "resnet34-tinyimagenet",
    "vit-tiny-tinyimagenet",
    "msdnet-cifar100",
    "vit-small-imagenet",
    "efficientnet-b2-imagenet",
    "topk-ablation",
    "history-ablation",
    "calibration-methods",
    "decalibration",
    "domain-shift",
    "other-methods",
    "corrector-cost",
    "metric-validity",
    "futile-sample",
    "beyond",
    "strong-networks",
    "beyond-strong-networks",
)
SCALES = ("small", "paper")
