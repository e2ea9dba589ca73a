"""Many batches: order, memory, merging."""

import pytest
import torch

import offramp
from offramp.errors import ConfigError
from offramp.networks import Shared
from offramp.networks.inputs import TextInput
from offramp.networks.state import join, join_key, take
from offramp.runtime import Runner


def watch_stages(network):
    """Sizes of the batches that each stage sees."""
    sizes = [[] for _ in network.stages]
    for stage, seen in zip(network.stages, sizes, strict=True):
        stage.register_forward_hook(lambda module, x, out, seen=seen: seen.append(len(out)))
    return sizes


def test_outputs_come_in_order_one_per_batch_of_any_size(world):
    batches = list(world.inputs(60).split([7, 1, 20, 0, 12, 20]))
    runner = Runner(world.network, world.policy)
    outputs = list(runner.stream(iter(batches), window=3))
    assert [len(output) for output in outputs] == [7, 1, 20, 0, 12, 20]
    whole = Runner(world.network, world.policy)(world.inputs(60))
    assert torch.equal(torch.cat([output.exits for output in outputs]), whole.exits)
    torch.testing.assert_close(torch.cat([output.logits for output in outputs]), whole.logits)
    assert runner.stats.samples == 60


def test_what_stays_of_several_batches_runs_together(make):
    world = make("conv")
    sizes = watch_stages(world.network)
    runner = Runner(world.network, world.policy)
    list(runner.stream(world.inputs(160).split(10), window=16))
    staying = [sum(seen) for seen in sizes]
    assert staying[0] == 160 and sizes[0] == [10] * 16
    assert len(sizes[-1]) < 16  # fewer and fuller than one per input batch
    assert sum(sizes[-1]) / len(sizes[-1]) > 1.5 * staying[-1] / 16


def test_no_stage_sees_more_than_two_batches_at_once(make):
    world = make("conv")
    sizes = watch_stages(world.network)
    list(Runner(world.network, world.policy).stream(world.inputs(200).split(10), window=20))
    assert max(max(seen) for seen in sizes) < 20


@pytest.mark.parametrize("window", [1, 2, 5])
def test_batches_are_read_only_when_there_is_room(world, window):
    read, answered = 0, 0

    def batches():
        nonlocal read
        for batch in world.inputs(120).split(6):
            read += 1
            assert read - answered <= window
            yield batch

    for _ in Runner(world.network, world.policy).stream(batches(), window=window):
        answered += 1
    assert read == answered == 20


def test_a_window_of_one_is_the_same_as_calling(world):
    runner = Runner(world.network, world.policy)
    batches = world.inputs(30).split(10)
    for streamed, batch in zip(runner.stream(batches, window=1), batches, strict=True):
        assert torch.equal(streamed.logits, runner(batch).logits)


def test_the_consumer_is_not_in_inference_mode(world):
    for _ in Runner(world.network, world.policy).stream(world.inputs(10).split(5)):
        assert not torch.is_inference_mode_enabled()
        weight = torch.ones(1, requires_grad=True)
        (2 * weight).backward()


def test_broken_samples_do_not_hold_up_a_stream(world):
    inputs = world.inputs(30)
    inputs[11] = torch.nan
    inputs[20:] = torch.inf
    outputs = list(Runner(world.network, world.policy).stream(inputs.split(10)))
    assert [int(output.failed.sum()) for output in outputs] == [0, 1, 10]


def test_an_empty_stream_is_empty(world):
    assert list(Runner(world.network, world.policy).stream([])) == []


def test_images_of_different_sizes_run_apart(make):
    world = make("conv")
    batches = [torch.randn(9, 3, size, size) for size in (8, 12, 8, 12)]
    runner = Runner(world.network, world.policy)
    for output, batch in zip(runner.stream(batches), batches, strict=True):
        torch.testing.assert_close(output.logits, runner(batch).logits)


def test_a_window_must_be_positive(world):
    with pytest.raises(ConfigError, match="`window` must be a whole number of at least 1, got 0"):
        list(Runner(world.network, world.policy).stream([], window=0))


def test_joining_is_the_reverse_of_taking():
    state = {"maps": [torch.rand(4, 2, 3, 3), torch.rand(4, 5)], "size": Shared((3, 3))}
    parts = [take(state, torch.tensor([0])), take(state, torch.tensor([1, 2, 3]))]
    whole = join(parts)
    assert torch.equal(whole["maps"][0], state["maps"][0])
    assert torch.equal(whole["maps"][1], state["maps"][1])
    assert whole["size"] == state["size"]


def test_joining_keeps_channels_last():
    state = torch.rand(4, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    whole = join([state[:1], state[1:]])
    assert whole.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("other", [(1, 2), torch.zeros(2), torch.ones(3)], ids=str)
def test_states_with_other_shared_values_have_another_layout(other):
    def layout(value):
        return join_key([torch.zeros(2, 2), Shared(value)])

    assert repr(layout(torch.zeros(3))) == repr(layout(torch.zeros(3)))
    assert repr(layout(torch.zeros(3))) != repr(layout(other))


def test_texts_are_padded_to_the_longest_with_columns_that_the_mask_leaves_out():
    inputs = TextInput(20, 50)
    states = [inputs.begin({"input_ids": torch.ones(2, n, dtype=torch.long)}) for n in (3, 5)]
    short, long = inputs.align(states)
    assert short["mask"].tolist() == [[1, 1, 1, 0, 0]] * 2
    assert torch.equal(long["mask"], states[1]["mask"])
    assert join_key(short) == join_key(long)


def test_a_stream_keeps_the_budget_that_it_began_with(world):
    runner = Runner(world.network, world.policy.at(budget=0.4))
    inputs = world.inputs(60)
    expected = runner(inputs).exits
    exits = []
    for output in runner.stream(inputs.split(10), window=1):
        exits.append(output.exits)
        if len(exits) == 2:
            runner.set_budget(0.9)
    assert torch.equal(torch.cat(exits), expected)
    assert runner.stats.samples == 0  # nothing was run at the new budget yet
    assert isinstance(output, offramp.runtime.RunOutput)
