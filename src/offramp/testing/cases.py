"""The ledgers and scores that classes are examined on: small, but with all that occurs."""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from offramp import synthetic
from offramp.costs import Costs
from offramp.ledger import Ledger

__all__ = ["ordinary", "smallest", "threshold_cases"]

SAMPLES = 240
EXITS = 4


def ordinary() -> dict[str, Ledger]:
    """Three splits of a made-up network of four exits and eight classes, in float32."""
    return synthetic.ledgers(seed=0, samples=SAMPLES, exits=EXITS, classes=8)


def smallest() -> dict[str, Ledger]:
    """Three splits with two exits and two classes, stored in float16."""
    made = {}
    for number, split in enumerate(("held_out", "val", "test")):
        generator = torch.Generator().manual_seed(number)
        labels = torch.randint(2, (SAMPLES // 2,), generator=generator)
        logits = torch.randn(len(labels), 2, 2, generator=generator)
        logits += one_hot(labels, 2)[:, None] * torch.tensor([0.5, 1.5])[:, None]
        made[split] = Ledger(
            logits.half(),
            labels,
            Costs(stages=(1e6, 1e6), heads=(1e4, 1e4)),
            split=split,
            sample_ids=[f"{split}-{index}" for index in range(len(labels))],
            network="two exits, two classes",
        )
    return made


def threshold_cases() -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Scores `[N, M]`, correct `[N, M]` and costs `[M]`, by what is special about them.

    As in use, the scores of the last exit are `+inf`.
    """
    generator = torch.Generator().manual_seed(0)
    made = {}
    for name, exits, score in (
        ("scores that all differ", 4, lambda x: x),
        ("two exits", 2, lambda x: x),
        ("many tied scores", 4, lambda x: x.round()),
        ("one score for all", 3, torch.zeros_like),
    ):
        scores = score(torch.randn(200, exits, generator=generator))
        odds = scores + torch.linspace(0, 2, exits)
        correct = torch.rand(200, exits, generator=generator) < odds.sigmoid()
        scores[:, -1] = torch.inf
        made[name] = scores, correct, torch.linspace(0.2, 1.0, exits, dtype=torch.float64)
    return made
