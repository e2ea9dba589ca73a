"""Two shipped networks as a cascade, on real CIFAR-100 images and on the clock.

The thin ResNet-20 looks first, at 32 pixels; EfficientNet-Lite0 looks at larger images where that
pays. Seconds per image are measured on this machine; policies are fitted and tuned on images that
neither network was trained on, and test is timed beside either network alone.

    python examples/cascade_cifar100.py            # data: a folder cifar100 below OFFRAMP_DATA
    python examples/cascade_cifar100.py --quick    # untrained networks: only shows that it runs
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

import offramp
from offramp.networks import EarlyExitNetwork
from offramp.runtime import CascadeAnswer, Member

BATCH = 64


def networks(quick: bool) -> tuple[EarlyExitNetwork, EarlyExitNetwork]:
    """A small and a large network with their last exits only."""
    if quick:
        made = [offramp.build("convnet", num_classes=4, image_size=size) for size in (8, 16)]
    else:
        made = [offramp.zoo.cifar100_thin(), offramp.zoo.cifar100()["network"]]
    small, large = (network.keep_exits([network.num_exits - 1]) for network in made)
    return small.eval(), large.eval()


def images(quick: bool, counts: dict[str, int]) -> dict[str, tuple[Tensor, Tensor]]:
    """Images and labels of each split."""
    if quick:
        classes = torch.arange(40) % 4
        return {name: (torch.rand(40, 3, 8, 8), classes) for name in counts}
    splits = offramp.data.load("cifar100")
    found = {}
    for name, count in counts.items():
        data = getattr(splits, name)
        chosen = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:count]
        pairs = [data[number] for number in chosen.tolist()]
        found[name] = torch.stack([x for x, _ in pairs]), torch.tensor([int(y) for _, y in pairs])
    return found


def larger(size: int) -> Callable[[Tensor], Tensor]:
    """Images resized as the large network takes them."""
    return lambda batch: interpolate(batch, size=size, mode="bilinear", align_corners=False)


def seconds_per_image(run: Callable[[Tensor], object], inputs: Tensor) -> float:
    """Time of the one thread over all batches, by image: other programs do not count."""
    start = time.process_time()
    for batch in inputs.split(BATCH):
        run(batch)
    return (time.process_time() - start) / len(inputs)


def main() -> None:
    """Measure, record, fit, and race."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="untrained networks, random images")
    parser.add_argument("--rounds", type=int, default=3, help="of which the fastest counts (3)")
    parser.add_argument("--fit", type=int, default=2000, help="images to fit, and to tune (2000)")
    parser.add_argument("--images", type=int, default=2000, help="images to test (2000)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    small, large = networks(given.quick)
    data = images(given.quick, {"held_out": given.fit, "val": given.fit, "test": given.images})
    members = [
        Member(small, name="small"),
        Member(large, name="large", prepare=larger(large.example().shape[-1])),
    ]
    cascade = offramp.Cascade(members)
    cascade.measure(data["test"][0][:BATCH], clock=time.process_time)  # as the race is timed
    parts = [offramp.record(cascade, data[name], name) for name in ("held_out", "val", "test")]
    held_out, val, test = parts
    budgets = (0.5, 0.75)
    names = ["baseline", "baseline:smooth", "eefp-logistic", "eefp", "auto"]
    table = offramp.compare(held_out, val, test, names, budgets)
    print(table)
    for name in ("eefp", "eefp-logistic"):
        print(name, "over baseline:", table[name].differences["baseline"])
    print("alone:", [(row.cost, row.accuracy) for row in table.references.fixed], "\n")
    inputs, labels = data["test"][0], test.labels

    def alone(network: EarlyExitNetwork, prepare: Callable[[Tensor], Tensor]) -> float:
        with torch.inference_mode():
            return seconds_per_image(lambda batch: network(prepare(batch)), inputs)

    assert members[1].prepare is not None
    took = {
        "small alone": min(alone(small, lambda batch: batch) for _ in range(given.rounds)),
        "large alone": min(alone(large, members[1].prepare) for _ in range(given.rounds)),
    }
    right = {"small alone": test.logits[:, 0], "large alone": test.logits[:, 1]}
    hits = {name: float((x.argmax(axis=1) == labels).mean()) for name, x in right.items()}
    predicted = {}
    for budget in budgets:
        policy, name = table.plans["auto"][0][budget], f"cascade at {budget:.0%}"
        found: list[CascadeAnswer] = []
        took[name] = min(
            seconds_per_image(lambda x, p=policy, f=found: f.extend(cascade.run(x, p)), inputs)
            for _ in range(given.rounds)
        )
        answers = np.array([answer.answer for answer in found[: len(labels)]])
        hits[name] = float((answers == labels).mean())
        predicted[name] = float(policy.replay(test).costs.mean())
    for name, seconds in took.items():
        share = seconds / took["large alone"]
        more = f", predicted {predicted[name]:.0%}" if name in predicted else ""
        print(f"{name}: {1000 * seconds:.2f} ms per image ({share:.0%}{more}), {hits[name]:.2%}")


if __name__ == "__main__":
    main()
