"""Put exits on a text encoder; the attention mask is part of the state.

The encoder has a small configuration and random weights, so this runs offline within seconds. With
a folder or a hub id instead, as in `attach("distilbert-base-uncased", num_classes=2)`, pretrained
weights are kept and the exits get new heads.
"""

import torch
from transformers import BertConfig, BertForSequenceClassification

from offramp.networks import attach, count_macs, take

torch.manual_seed(0)
config = BertConfig(
    vocab_size=100,
    hidden_size=32,
    num_hidden_layers=6,
    num_attention_heads=4,
    intermediate_size=64,
)
backbone = BertForSequenceClassification(config).eval()
network = attach(backbone, at=3).eval()

# Two sentences, the second one padded, as a tokenizer returns them.
batch = {
    "input_ids": torch.tensor([[2, 17, 23, 5, 9, 41, 3], [2, 17, 8, 3, 0, 0, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]]),
}
with torch.no_grad():
    logits = network(batch)
    assert torch.equal(logits[:, -1], backbone(**batch).logits)

    # The short sentence alone: its padding does not matter and can be trimmed.
    state = network.advance(0, network.begin(batch))
    short = network.trim(take(state, torch.tensor([1])))
    print("state of both sentences:", tuple(state["hidden"].shape))
    print("state of the short one:", tuple(short["hidden"].shape))
    for exit_index in (1, 2):
        short = network.advance(exit_index, short)
    torch.testing.assert_close(network.head(2, short), logits[1:, -1], rtol=1e-5, atol=1e-5)

for name, cost in zip(network.exit_names, count_macs(network, batch).cumulative, strict=True):
    print(f"exit after {name:24} {int(cost):10,} MACs per sentence of seven tokens")
