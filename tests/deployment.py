"""Small networks with a policy each: made, recorded, fitted and tuned in a moment."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import offramp
from offramp.arrays import Array, as_numpy, top_indices
from offramp.networks import EarlyExitNetwork, ImageInput, Shared, chain
from offramp.networks.heads import CascadeHead, LinearHead, Pool
from offramp.replay import replay
from offramp.runtime import near_threshold
from offramp.runtime.output import Taken
from offramp.thresholds.rule import exits_taken

SAMPLES = 90


class Batches(Dataset):
    """Any inputs with labels."""

    def __init__(self, inputs: Any, labels: Tensor) -> None:
        self.inputs, self.labels = inputs, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, position):
        return pick(self.inputs, position), self.labels[position]


def pick(inputs, rows):
    if isinstance(inputs, dict):
        return {key: value[rows] for key, value in inputs.items()}
    return inputs[rows]


class ConvStage(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, 3, stride, padding=1)
        self.norm = nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)).relu()


class NestedStage(nn.Module):
    """Carries two tensors and a shared one, in a nesting."""

    def __init__(self, width: int, first: bool) -> None:
        super().__init__()
        self.linear, self.first = nn.Linear(width, width), first

    def forward(self, state: Any) -> Any:
        if self.first:
            state = {"pair": (state, state.clone()), "scale": Shared(torch.tensor(1.5))}
        one, two = state["pair"]
        new = self.linear(one).tanh() * state["scale"].value + two
        return {"pair": (new, one), "scale": state["scale"]}


def flat_network(exits: int, classes: int, cascade: bool = False) -> EarlyExitNetwork:
    stages = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(exits)]
    make = CascadeHead if cascade else LinearHead
    heads = [
        make(Pool("flat"), 6, classes, **({"first": exit_index == 0} if cascade else {}))
        for exit_index in range(exits)
    ]
    return EarlyExitNetwork(stages, heads, classes)


def nested_network(exits: int, classes: int) -> EarlyExitNetwork:
    stages = [NestedStage(6, exit_index == 0) for exit_index in range(exits)]
    heads = [LinearHead(Pool("flat", leaf=("pair", 0)), 6, classes) for _ in range(exits)]
    return EarlyExitNetwork(stages, heads, classes)


def conv_network(exits: int, classes: int, inputs: Any = None) -> EarlyExitNetwork:
    widths = range(4, 4 + 2 * exits, 2)
    stages = [
        ConvStage(before, after, 1 + exit_index % 2)
        for exit_index, (before, after) in enumerate(zip((3, *widths), widths, strict=False))
    ]
    heads = [LinearHead(Pool("map"), width, classes) for width in widths]
    return EarlyExitNetwork(stages, heads, classes, inputs)


def chained_network(exits: int, classes: int) -> EarlyExitNetwork:
    """A network for images of half the size, and one for whole images."""
    parts = ((exits // 2, 4), (exits - exits // 2, 8))
    return chain([conv_network(n, classes, ImageInput(size, size)) for n, size in parts])


def text_network(exits: int, classes: int) -> EarlyExitNetwork:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=exits,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=20,
        pad_token_id=1,
        num_labels=classes,
    )
    return offramp.attach(transformers.BertForSequenceClassification(config))


class Lookup(nn.Module):
    """The head of an exit whose logits are the input, `[n, M, K]`."""

    reads_logits = False

    def __init__(self, exit_index: int) -> None:
        super().__init__()
        self.exit_index = exit_index

    def forward(self, logits: Tensor, _: Any = None) -> Tensor:
        return logits[:, self.exit_index]


def stored_network(exits: int, classes: int) -> EarlyExitNetwork:
    """A network that takes logits `[n, M, K]` and puts them out again."""
    heads = [Lookup(exit_index) for exit_index in range(exits)]
    return EarlyExitNetwork([nn.Identity() for _ in heads], heads, classes)


NETWORKS = {
    "flat": flat_network,
    "cascade": lambda exits, classes: flat_network(exits, classes, cascade=True),
    "nested": nested_network,
    "conv": conv_network,
    "chain": chained_network,
    "text": text_network,
}


def inputs_for(kind: str, samples: int, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    if kind in ("conv", "chain"):
        return torch.randn(samples, 3, 8, 8, generator=generator)
    if kind == "text":
        ids = torch.randint(3, 50, (samples, 12), generator=generator)
        lengths = torch.randint(2, 13, (samples, 1), generator=generator)
        mask = (torch.arange(12) < lengths).long()
        return {"input_ids": ids.masked_fill(mask == 0, 1), "attention_mask": mask}
    return torch.randn(samples, 6, generator=generator)


def split_batch(inputs: Any, size: int) -> Any:
    """The same samples in batches of `size`."""
    if isinstance(inputs, dict):
        columns = [value.split(size) for value in inputs.values()]
        return [dict(zip(inputs, each, strict=True)) for each in zip(*columns, strict=True)]
    return inputs.split(size)


def joined_outputs(outputs: Any) -> offramp.runtime.RunOutput:
    """One output, of arrays, for several batches of arrays or of tensors."""
    parts = [(*each.taken, each.logits, each.confidence) for each in outputs]
    columns = zip(*parts, strict=True)
    *taken, logits, confidence = (np.concatenate(list(map(as_numpy, each))) for each in columns)
    return offramp.runtime.RunOutput(logits, Taken(*taken), confidence)


class Clock:
    """Every reading takes a second."""

    def __init__(self):
        self.now = -1.0

    def __call__(self):
        self.now += 1.0
        return self.now


@dataclass
class World:
    """A network, the data that a policy was made from, and the policy."""

    network: EarlyExitNetwork
    kind: str
    policy: offramp.Policy
    held_out: offramp.Ledger | None = None
    val: offramp.Ledger | None = None

    def inputs(self, samples: int, seed: int = 7) -> Any:
        return inputs_for(self.kind, samples, seed)

    def ledger(self, inputs: Any) -> offramp.Ledger:
        """What the simulation sees of the same samples."""
        count = len(inputs["input_ids"] if isinstance(inputs, dict) else inputs)
        data = Batches(inputs, torch.zeros(count, dtype=torch.long))
        return offramp.record(self.network, data, "test", costs=self.costs, progress=False)

    @property
    def costs(self) -> offramp.Costs:
        exits = self.network.num_exits
        return offramp.Costs(stages=(1e5,) * exits, heads=(5e3,) * exits)


@dataclass
class Simulated:
    """Exits and answers by a replay of the saved logits of all exits."""

    exits: Array
    logits: Array  # the answers at these exits
    near: Array  # samples that rounding may send to another exit

    @classmethod
    def of(cls, world: World, policy: offramp.Policy, inputs: Any, tolerance: float):
        ledger = world.ledger(inputs)
        scores = replay(policy.answer, policy.scorer, ledger).scores
        exits = exits_taken(scores, policy.thresholds).astype(np.int64)
        answers = policy.answer.answers(ledger.logits)
        near = near_threshold(scores, policy.thresholds, tolerance)
        if isinstance(policy.scorer, offramp.scorers.Patience):
            # It compares predictions, and two classes may be equal but for rounding.
            top = np.take_along_axis(answers, top_indices(answers, 2), axis=2)
            near |= ((top[..., 0] - top[..., 1]) < tolerance).any(axis=1)
        return cls(exits, answers[np.arange(len(exits)), exits], near)


@torch.no_grad()
def mostly_right(network: EarlyExitNetwork, inputs: Any, classes: int) -> Tensor:
    """Labels that the last exit knows, but for a fifth: fits on noise come to nothing."""
    labels = network(inputs)[:, -1].argmax(1)
    return torch.where(torch.rand(len(labels)) < 0.2, torch.randint_like(labels, classes), labels)


def make_world(
    kind: str = "flat",
    scorer: offramp.Scorer | None = None,
    answer: offramp.Answer | None = None,
    exits: int = 4,
    classes: int = 3,
    seed: int = 0,
) -> World:
    torch.manual_seed(seed)
    network = NETWORKS[kind](exits, classes)
    with torch.no_grad():
        for head in network.heads:  # sure enough that scores lie apart
            for weight in head.parameters():
                weight.mul_(4)
        network.train()(inputs_for(kind, 30, 1))
    policy = offramp.Policy(scorer or offramp.MaxProbability(), answer)
    world = World(network.eval(), kind, policy)
    for split, number in (("held_out", 2), ("val", 3)):
        inputs = inputs_for(kind, SAMPLES, 100 * seed + number)
        data = Batches(inputs, mostly_right(network, inputs, classes))
        ledger = offramp.record(network, data, split, costs=world.costs, progress=False)
        setattr(world, split, ledger)
    policy.fit(world.held_out).tune(world.val, "geometric")
    # Of all points, also where later exits are worse: tests need samples at every exit.
    points = policy.replay(world.val, "val").operating_points("geometric", unseen=False)
    world.policy = policy.with_points(points).at(budget=0.6)
    return world


@pytest.fixture
def make():
    return make_world


@pytest.fixture(scope="module")
def world():
    return make_world("conv")


@pytest.fixture(scope="session")
def make_once():
    """For worlds that several tests share."""
    return make_world


EXPORTED = {
    "conv": (3, offramp.Corrector(hidden=8, epochs=200)),
    "nested": (2, offramp.MaxProbability()),
    "chain": (3, offramp.MaxProbability()),
    "cascade": (3, offramp.scorers.Patience()),
    "text": (2, offramp.MaxProbability()),
}
"""Exits, few since exporting takes its time, and a scorer for each kind of network."""


class Exported:
    """A world and its export."""

    def __init__(self, world, folder):
        self.world, self.folder = world, folder
        self.runner = self.fresh()

    def fresh(self, **options):
        return offramp.OnnxRunner(self.folder, threads=1, **options)


@pytest.fixture(scope="session")
def exported(make_once, tmp_path_factory):
    pytest.importorskip("onnxruntime")
    from offramp.onnx import export

    made = {}

    def of(kind):
        if kind not in made:
            exits, scorer = EXPORTED[kind]
            world = make_once(kind, scorer, exits=exits)
            example = None if kind == "text" else world.inputs(3)
            folder = tmp_path_factory.mktemp(kind) / "export"
            made[kind] = Exported(
                world, export(world.network, world.policy, folder, example, points="all")
            )
        return made[kind]

    return of


def without_torch(folder: Path) -> dict[str, str]:
    """An environment whose processes, and theirs, cannot import torch."""
    missing = "raise ModuleNotFoundError('torch is not to be imported here', name='torch')\n"
    (folder / "torch.py").write_text(missing)
    source = Path(offramp.__file__).parents[1]
    path = os.pathsep.join([str(folder), str(source), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}
