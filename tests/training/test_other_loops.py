"""Training loops of other libraries, as docs/guides/trained-model.md has them.

The part on the Hugging Face `Trainer` runs with all other pages, in tests/test_docs.py.
"""

import importlib.util
import re
import sys
import types
from pathlib import Path

import torch
from torch import nn

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "trainer-and-lightning.md"


class LightningModule(nn.Module):
    """What the page uses of Lightning's class of this name."""

    def log(self, name, value):
        assert isinstance(name, str)
        assert torch.isfinite(value)


class Trainer:
    """What the page uses of Lightning's class of this name: two loops over batches."""

    def __init__(
        self, *, max_epochs, accelerator, logger, enable_checkpointing, enable_progress_bar
    ):
        self.max_epochs = max_epochs

    def fit(self, model, train_dataloaders):
        optimizer = model.configure_optimizers()
        model.train()
        for _ in range(self.max_epochs):
            for batch_idx, batch in enumerate(train_dataloaders):
                optimizer.zero_grad()
                model.training_step(batch, batch_idx).backward()
                optimizer.step()

    @torch.inference_mode()
    def predict(self, model, dataloaders):
        model.eval()
        return [model.predict_step(batch, number) for number, batch in enumerate(dataloaders)]


def test_lightning_trains_a_network_with_exits(monkeypatch, tmp_path):
    if not importlib.util.find_spec("lightning"):
        stand_in = types.ModuleType("lightning")
        stand_in.LightningModule, stand_in.Trainer = LightningModule, Trainer
        monkeypatch.setitem(sys.modules, "lightning", stand_in)
    (block,) = re.findall(r"```py\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "docs"}
    exec(compile(block, str(PAGE), "exec"), names)
    policy, test = names["policy"].at(budget=0.5), names["test"]
    replay = policy.replay(test)
    assert replay.right.mean() > 0.6
    assert replay.costs.mean() < 0.6
