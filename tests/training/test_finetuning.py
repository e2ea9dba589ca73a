"""Fine-tuning: rates of heads, averaged weights, soft targets, sizes of images, recipes."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.data import DataLoader, TensorDataset

from offramp.errors import ConfigError, LedgerError, SplitError
from offramp.ledger import Ledger
from offramp.networks import build
from offramp.networks.architectures.vit import TransformerBlock
from offramp.record import as_teacher
from offramp.registry import RECIPES
from offramp.training import Distillation, Teacher, TrainConfig, train
from offramp.training.batches import grouped_by_length
from offramp.training.loop import smoothed
from offramp.training.step import WeightAverage, make_optimizer, training_autocast


def test_the_average_is_that_of_the_weights_after_each_step():
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    average = WeightAverage(network, decay=0.5)
    expected = network[0].weight.detach().clone()
    for step in range(1, 30):
        nn.init.normal_(network[0].weight)
        network(torch.rand(4, 2))
        average.update(step)
        decay = min(0.5, step / (step + 9))
        expected = decay * expected + (1 - decay) * network[0].weight.detach()
    torch.testing.assert_close(average.tensors["average.0.weight"], expected)
    assert average.tensors["average.1.num_batches_tracked"] == 29


def test_what_is_left_in_the_end_is_the_average(data, quick):
    def trained(averaging):
        torch.manual_seed(3)
        network = build("convnet", num_classes=3, image_size=8, width=4)
        train(network, data, config=replace(quick, patience=None, averaging=averaging))
        return network.state_dict()["heads.0.linear.weight"]

    plain, short, long = trained(0.0), trained(1e-9), trained(0.999)
    torch.testing.assert_close(short, plain)  # an average that remembers nothing
    assert not torch.allclose(long, plain)


def test_stopping_looks_at_the_average_and_training_goes_on_without_it(convnet, data, quick):
    config = replace(quick, averaging=0.9, epochs=4)
    history = train(convnet, data, config=config)
    torch.manual_seed(3)
    plain = build("convnet", num_classes=3, image_size=8, width=4)
    other = train(plain, data, config=replace(config, averaging=0.0))
    assert [r["loss"] for r in history] == [r["loss"] for r in other]
    assert [r["exit_losses"] for r in history] != [r["exit_losses"] for r in other]


def test_heads_learn_at_their_own_rate(convnet):
    groups = make_optimizer(convnet, TrainConfig(head_rate=4.0)).param_groups
    times = {id(p): group["times"] for group in groups for p in group["params"]}
    assert {times[id(p)] for head in convnet.heads[:-1] for p in head.parameters()} == {4.0}
    # The last head is the backbone's own classifier.
    others = [*convnet.stages.parameters(), *convnet.heads[-1].parameters()]
    assert {times[id(p)] for p in others} == {1.0}
    assert len(times) == len(list(convnet.parameters()))


def test_smoothed_targets_sum_to_one_and_keep_their_order():
    targets = smoothed(torch.tensor([2, 0]), 4, 0.2)
    torch.testing.assert_close(
        targets, torch.tensor([[0.05, 0.05, 0.85, 0.05], [0.85, 0.05, 0.05, 0.05]])
    )
    torch.testing.assert_close(smoothed(targets, 4, 0.2).sum(1), torch.ones(2))
    labels = torch.tensor([2, 0])
    assert smoothed(labels, 4, 0.0) is labels


def test_a_network_learns_what_its_teacher_says_and_not_the_labels(convnet, data):
    images, labels = data.tensors
    nonsense = TensorDataset(images, labels.roll(1))
    teacher = Teacher(9 * nn.functional.one_hot(labels, 3), nonsense.tensors[1], share=1.0)
    config = TrainConfig(epochs=15, batch_size=8, learning_rate=0.05, patience=None)
    train(convnet, nonsense, config=config, teacher=teacher)
    convnet.eval()
    assert (convnet(images)[:, -1].argmax(1) == labels).float().mean() >= 0.9


def recorded(ids=None, split="train"):
    logits = torch.tensor([[[0, 0, 9.0], [4, 0, 0]], [[0, 0, 9], [0, 2, 0]]])
    return Ledger(logits, torch.tensor([0, 2]), [1, 2], split=split, sample_ids=ids)


class Named(TensorDataset):
    sample_ids = ("b", "a")


def test_a_recorded_teacher_is_found_by_sample_and_takes_its_share():
    data = Named(torch.zeros(2, 3), torch.tensor([2, 0]))
    teacher = as_teacher(recorded(["a", "b"]), DataLoader(data), share=0.75, temperature=2.0)
    targets = teacher.targets(torch.tensor([0]), torch.tensor([2], dtype=torch.int32))
    soft = torch.tensor([0, 1.0, 0]).softmax(0)
    torch.testing.assert_close(targets[0], 0.75 * soft + 0.25 * torch.tensor([0, 0, 1.0]))
    with pytest.raises(LedgerError, match=r"1 of the 2 training samples .* such as 'a'"):
        as_teacher(recorded(["c", "b"]), data)
    with pytest.raises(LedgerError, match="has 2 samples and the data 5"):
        as_teacher(recorded(), TensorDataset(torch.zeros(5, 3), torch.zeros(5)))
    with pytest.raises(SplitError, match="on the split 'train', and this ledger is 'val'"):
        as_teacher(recorded(split="val"), data)
    with pytest.raises(LedgerError, match="must be a Ledger, got str"):
        as_teacher("runs/teacher", data)


def test_a_teacher_of_other_samples_is_noticed(convnet, data, quick):
    labels = data.tensors[1]
    teacher = Teacher(torch.zeros(64, 3), labels)
    shuffled = torch.utils.data.Subset(data, torch.randperm(64).tolist())
    with pytest.raises(ConfigError, match="other labels than these data"):
        train(convnet, shuffled, config=quick, teacher=teacher)
    with pytest.raises(ConfigError, match="knows 4 classes, and the network 3"):
        train(convnet, data, config=quick, teacher=Teacher(torch.zeros(64, 4), labels))
    with pytest.raises(ConfigError, match="answered 63 samples, and there are 64"):
        train(convnet, data, config=quick, teacher=Teacher(torch.zeros(63, 3), labels[1:]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": 2}, r"`share` must lie in \[0, 1\], got 2"),
        ({"temperature": 0}, "`temperature` must be above 0, got 0"),
        ({"logits": torch.zeros(2, 2, 3)}, r"logits of the shape \[N, K\]"),
        ({"logits": torch.full((2, 3), torch.nan)}, "must be finite"),
    ],
)
def test_impossible_teachers_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Teacher(**{"logits": torch.zeros(2, 3), "labels": [0, 1], **settings})


def test_a_run_goes_on_only_with_the_same_teacher(convnet, data, quick, tmp_path):
    teacher = Teacher(torch.zeros(64, 3), data.tensors[1], name="large")
    train(convnet, data, config=quick, teacher=teacher, folder=tmp_path)
    other = replace(teacher, share=0.9)
    with pytest.raises(ConfigError, match=r"epochs: 3 there, 4 here; teacher: .*'share': 0.9"):
        train(convnet, data, config=replace(quick, epochs=4), teacher=other, folder=tmp_path)


@pytest.mark.parametrize("freeze", [False, True])
def test_images_grow_while_training_and_are_evaluated_as_they_are(data, quick, freeze):
    seen = []
    network = build("convnet", num_classes=3, image_size=8, width=4)
    network.inputs = replace(network.inputs, fixed=False)
    network.stages[0].register_forward_pre_hook(
        lambda module, args: seen.append((network.stages[0].training, args[0].shape[2]))
    )
    config = replace(quick, epochs=4, batch_size=58, image_sizes=(4, 6))
    train(network, data, config=config, freeze_backbone=freeze)
    sizes = [size for _, size in seen]
    assert sizes == [4, 8, 4, 8, 6, 8, 6, 8]  # one step and one look at the stopping slice each


def test_a_batch_has_samples_of_similar_length_and_every_sample_comes_once():
    lengths = torch.randint(1, 100, (640,), generator=torch.Generator().manual_seed(0))
    order = torch.randperm(640, generator=torch.Generator().manual_seed(1))
    found = grouped_by_length(order, lengths, 16, torch.Generator().manual_seed(2))
    assert found.sort().values.tolist() == list(range(640))

    def padded(numbers):
        return int(lengths[numbers].view(-1, 16).amax(1).sum()) * 16

    assert padded(found) < 1.1 * int(lengths.sum()) < padded(order)
    firsts = lengths[found].view(-1, 16)[:, 0]
    assert not torch.equal(firsts, firsts.sort().values)  # short ones do not all come first


def test_weights_scale_the_exits_of_distillation():
    logits, labels = torch.randn(8, 3, 5), torch.arange(8) % 5
    first, last, both = (
        Distillation(weights=weights)(logits, labels)
        for weights in ([1, 1, 0], [0, 0, 1], [0.5, 0.5, 2])
    )
    torch.testing.assert_close(both, 0.5 * first + 2 * last)
    with pytest.raises(ConfigError, match="`weights` must have 3 entries, one per exit, got 2"):
        Distillation(weights=[1, 1])(logits, labels)


def test_convolutions_with_groups_train_in_float32_and_others_in_bfloat16():
    plain, grouped = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3, groups=4)
    x = torch.rand(2, 4, 6, 6)
    with training_autocast(torch.device("cpu"), "bfloat16"):
        assert plain(x).dtype == torch.bfloat16
        out = grouped(plain(x))
    assert out.dtype == torch.float32
    out.sum().backward()
    assert plain.weight.grad is not None
    with torch.no_grad(), training_autocast(torch.device("cpu"), "bfloat16"):
        assert grouped(x).dtype == torch.bfloat16


def test_attention_trains_in_float32_and_what_is_around_it_in_bfloat16():
    network = build("vit-mini", num_classes=3, image_size=16, depth=2)
    seen = {}
    block = next(each for each in network.modules() if isinstance(each, TransformerBlock))
    block.projection.register_forward_pre_hook(lambda _, args: seen.update(after=args[0].dtype))
    block.qkv.register_forward_hook(lambda _, args, out: seen.update(before=out.dtype))
    with training_autocast(torch.device("cpu"), "bfloat16"):
        logits = network(torch.rand(2, 3, 16, 16))
    assert seen == {"before": torch.bfloat16, "after": torch.float32}
    logits.float().sum().backward()
    assert block.qkv.weight.grad is not None
    query, mask = torch.rand(1, 2, 4, 8).bfloat16(), torch.zeros(4, 4).bfloat16()
    with training_autocast(torch.device("cpu"), "bfloat16"):
        out = scaled_dot_product_attention(query, query, value=query, attn_mask=mask)
    assert out.dtype == torch.float32


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_learns(name, convnet, data):
    recipe = RECIPES[name]
    config = replace(recipe.config, epochs=15, batch_size=8, learning_rate=0.02)
    history = train(convnet, data, recipe.objective, config)
    assert history.last["train_accuracy"][-1] >= 0.8
