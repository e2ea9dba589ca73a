"""Training loops of other libraries, as docs/guides/trained-model.md has them.

The part on the Hugging Face `Trainer` runs with all other pages, in tests/test_docs.py.
"""

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import offramp
from offramp.training import Joint

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "trained-model.md"


class LightningModule(nn.Module):
    """What the page uses of Lightning's class of this name."""


class Trainer:
    """What the test uses of Lightning's class of this name."""

    def __init__(self, *, max_epochs, **_):
        self.max_epochs = max_epochs

    def fit(self, model, train_dataloaders):
        optimizer = model.configure_optimizers()
        model.train()
        for _ in range(self.max_epochs):
            for batch_idx, batch in enumerate(train_dataloaders):
                optimizer.zero_grad()
                model.training_step(batch, batch_idx).backward()
                optimizer.step()


def test_lightning_trains_a_network_with_exits(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lightning = SimpleNamespace(LightningModule=LightningModule, Trainer=Trainer)
    if importlib.util.find_spec("lightning"):
        import lightning
    (block,) = re.findall(r"```py\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    names = {"__name__": "docs", "lightning": lightning, "torch": torch, "Joint": Joint}
    exec(compile(block, str(PAGE), "exec"), names)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1).repeat(1, 3, 1, 1) / 16
    data = TensorDataset(images, torch.tensor(digits.target))
    train, *rest = random_split(data, [797, 300, 300, 400])
    module = names["WithExits"](offramp.build("convnet", num_classes=10, image_size=8))
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=3, accelerator="cpu", **quiet)
    trainer.fit(module, DataLoader(train, batch_size=64, shuffle=True))
    held_out, val, test = (
        offramp.record(module.network, part, split, progress=False)
        for part, split in zip(rest, ("held_out", "val", "test"), strict=True)
    )
    policy = offramp.Policy(offramp.MaxProbability()).fit(held_out).tune(val)
    replay = policy.at(budget=0.5).replay(test)
    assert replay.right.mean() > 0.6
    assert replay.costs.mean() < 0.6
