import json
import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offramp import Costs, Ledger
from offramp.arrays import softmax
from offramp.errors import FileFormatError, LedgerError, OriginError, OriginWarning, SplitError
from offramp.files import read_folder, write_folder, write_sealed
from offramp.ledger import AnswerLedger, LogitLedger, load_ledgers
from offramp.ledger.chunks import cut, folds, stratified_cut
from offramp.ledger.ledger import ConfidenceLedger


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def small(samples=6, exits=3, classes=4, **changes):
    arguments = {
        "logits": normal(samples, exits, classes),
        "labels": np.arange(samples) % classes,
        "costs": [0.2, 0.5, 1.0][:exits],
        "split": "val",
    } | changes
    return Ledger(**arguments)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_arrays_and_tensors_are_taken_as_they_are(dtype):
    logits, labels = normal(5, 3, 4).astype(dtype), np.array([0, 1, 2, 3, 0])
    tensors = {"logits": torch.tensor(logits), "labels": torch.tensor(labels)}
    one, two = small(logits=logits, labels=labels), small(**tensors)
    three = small(logits=logits.tolist(), labels=labels.tolist())
    assert np.shares_memory(one.logits, logits)
    assert np.shares_memory(two.logits, tensors["logits"].numpy())
    assert one.dtype == two.dtype == np.dtype(dtype)
    assert three.dtype == np.float32  # lists have no precision of their own
    for other in (two, three):
        assert np.array_equal(one.logits, other.logits)
        assert np.array_equal(one.labels, other.labels)


def test_bfloat16_becomes_float32():
    logits = torch.tensor(normal(6, 3, 4)).bfloat16()
    ledger = small(logits=logits)
    assert ledger.dtype == np.float32
    assert np.array_equal(ledger.logits, logits.float().numpy())


def test_tensors_on_the_way_are_taken():
    names = torch.arange(6)
    lengths, costs = torch.tensor([3, 2, 3, 3, 1, 3]), torch.tensor([[0.2, 0.5, 1.0]] * 6)
    given = {"sample_ids": names, "groups": names % 3, "lengths": lengths, "costs": costs}
    ledger = small(**given).take(torch.tensor([0, 4]))
    assert (ledger.sample_ids, ledger.groups, ledger.lengths.tolist()) == ([0, 4], [0, 1], [3, 1])
    assert ledger.cumulative_costs[1].tolist() == pytest.approx([0.2, 0.2, 0.2])


def test_read_only_arrays_are_taken_without_a_warning(recwarn):
    logits = np.zeros((6, 3, 4), dtype=np.float32)
    logits.flags.writeable = False
    small(logits=logits)
    assert not recwarn.list


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_logit_is_named_by_sample_and_exit(bad):
    logits = np.zeros((6, 3, 4))
    logits[4, 1, 2] = bad
    with pytest.raises(LedgerError, match="sample 4, exit 1, class 2"):
        small(logits=logits)


def test_bad_logit_far_down_a_large_ledger_is_named():
    logits = np.zeros((9000, 3, 400))
    logits[8765, 2, 7] = np.nan
    with pytest.raises(LedgerError, match="sample 8765, exit 2"):
        small(logits=logits, labels=np.zeros(9000, dtype=int))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": [0, 1, 2, 3, 4, 0]}, r"0\.\.3, got 4 at sample 4"),
        ({"labels": [0, 1, -1, 3, 0, 0]}, "got -1 at sample 2"),
        ({"labels": np.zeros(5, dtype=int)}, r"shape \[6\] to match"),
        ({"labels": np.eye(4)[[0, 1, 2, 3, 0, 0]]}, r"one-hot, give labels\.argmax\(1\)"),
        ({"labels": np.zeros(6)}, "must be integers, got float64"),
        ({"labels": [True, False] * 3}, "must be integers, got bool"),
        ({"labels": ["a"] * 6}, r"`labels` are names, such as 'a', .*: give class_names=\[...\]"),
        (
            {"labels": ["a"] * 5 + ["x"], "class_names": list("abcd")},
            "the label 'x' is not among `class_names`: a, b, c, d$",
        ),
        ({"logits": []}, "`logits` has no exits"),
        ({"logits": {}}, "`logits` has no exits"),
        (
            {"logits": [normal(6, 4), normal(6, 4), normal(6, 3)]},
            r"one shape \[N, K\], one per exit, got \[6, 4\], \[6, 4\], \[6, 3\]$",
        ),
        (
            {"logits": {f"exit{m}": normal(6, 4) for m in (1, 10, 2)}},
            "names the exits exit1, exit10, exit2, in this order, and .* put the first exit first",
        ),
        ({"logits": np.zeros((6, 4))}, r"shape \[N, M, K\], got \[6, 4\]"),
        ({"logits": np.zeros((0, 3, 4))}, "no samples"),
        ({"logits": np.zeros((6, 1, 4)), "costs": [1.0]}, "at least two exits and two classes"),
        ({"logits": np.zeros((6, 3, 1))}, "at least two exits and two classes"),
        ({"logits": np.zeros((6, 3, 4), dtype=int)}, "floating-point"),
        ({"costs": [0.2, 0.2, 1.0]}, "increase from exit to exit, got 0.2 at exit 1 after 0.2"),
        ({"costs": [0.5, 0.2, 1.0]}, "got 0.2 at exit 1 after 0.5"),
        ({"costs": [0.0, 0.2, 1.0]}, "got 0 at exit 0 after 0"),
        ({"costs": []}, "are 3 exits, and 0 costs|no costs"),
        ({"logits": softmax(normal(6, 3, 4))}, "look like probabilities; pass their log"),
        ({"costs": [0.2, np.nan, 1.0]}, "finite, got nan at exit 1"),
        ({"costs": [0.2, 1.0]}, "are 3 exits, and 2 costs"),
        ({"costs": [[0.2, 1.0]]}, "one cost per exit"),
        ({"costs": "abc"}, "`costs` must be an array of numbers"),
        ({"costs": [[1, 2, 3], [1]]}, "`costs` must be an array of numbers"),
        ({"split": "validation"}, "one of train, held_out, val, test, all, got 'validation'"),
        (
            {"sample_ids": [1, 2, 3, 4, 5, 5]},
            "distinct, but 5 stands there twice; .* name it as their `groups` instead",
        ),
        ({"costs": [1.0, 1.0, 1.0]}, r"of each stage alone, give numpy\.cumsum\(costs\)"),
        ({"sample_ids": [1, 2]}, "name the 6 samples, got 2"),
        ({"sample_ids": [1, 2, 3, 4, 5, "x"]}, "all integers or all strings"),
        ({"class_names": ["a"]}, "name the 4 classes"),
    ],
)
def test_bad_input_is_refused_in_words(changes, message):
    with pytest.raises(LedgerError, match=message):
        small(**changes)


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy], ids=["arrays", "tensors"])
@pytest.mark.parametrize("form", [list, tuple, lambda parts: dict(enumerate(parts))])
def test_logits_may_come_exit_by_exit(kind, form):
    logits = normal(6, 3, 4)
    parts = form([kind(np.ascontiguousarray(logits[:, m])) for m in range(3)])
    assert np.array_equal(small(logits=parts).logits, logits)
    assert np.array_equal(Ledger(parts, None, [1, 2, 3], split="val").logits, logits)


def test_a_list_of_samples_is_still_a_list_of_samples():
    logits = normal(6, 3, 4)
    assert np.array_equal(small(logits=list(logits)).logits, logits)
    square = normal(3, 3, 4)  # as many samples as exits
    kept = Ledger(list(square), [0, 1, 2], [1, 2, 3], split="val")
    assert np.array_equal(kept.logits, square)


@pytest.mark.parametrize("kind", [list, np.array, lambda x: np.array(x, object), np.bytes_])
def test_labels_may_be_names_of_classes(kind):
    names = ["owl", "cat", "fox", "dog"]
    given = ["dog", "owl", "cat", "fox", "owl", "owl"]
    labels = np.array(given, "S") if kind is np.bytes_ else kind(given)
    assert small(labels=labels, class_names=names).labels.tolist() == [3, 0, 1, 2, 0, 0]


def test_labels_may_be_numbers_in_an_array_of_objects():
    labels = np.array([0, 1, 2, 3, 0, 0], dtype=object)
    assert small(labels=labels).labels.tolist() == labels.tolist()


def test_stage_and_head_costs_give_cumulative_costs():
    costs = Costs(stages=(10, 20, 30), heads=(1, 2, 3))
    assert costs.cumulative.tolist() == [11, 33, 66]
    assert costs.alone.tolist() == [11, 32, 63]
    assert costs.reference == 63
    assert small(costs=costs).unit == "macs"


def test_plain_costs_are_relative_to_the_last():
    ledger = small(costs=[3.0, 6.0, 12.0])
    assert ledger.unit == "relative"
    assert ledger.reference_cost == 12.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stages": (1, 2), "heads": (1,)}, "as many head costs as stage costs"),
        ({"stages": (1, 0), "heads": (1, 0)}, "exit 1 and the stage before it cost nothing"),
        ({"stages": (1, -1), "heads": (1, 2)}, "got -1 for the stage of exit 1"),
        ({"stages": (1, 2), "heads": (1, -1)}, "got -1 for the head of exit 1"),
        (
            {"stages": (1, 2), "heads": (0, 0), "unit": "flops"},
            "seconds, tokens, dollars",
        ),
        ({"stages": (1, 2), "heads": (0, 0), "reference": -1}, "`reference` must be above 0"),
    ],
)
def test_impossible_costs_are_refused(arguments, message):
    with pytest.raises(LedgerError, match=message):
        Costs(**arguments)


def test_keeping_exits_drops_heads_and_keeps_stages_and_reference():
    ledger = small(costs=Costs(stages=(10, 20, 30), heads=(1, 2, 3)))
    kept = ledger.keep_exits([1, 2])
    assert kept.costs.tolist() == [32, 65]
    assert kept.reference_cost == ledger.reference_cost
    assert np.array_equal(kept.logits, ledger.logits[:, 1:])
    assert kept.keep_exits([0, 1]).logits.shape == (6, 2, 4)


@pytest.mark.parametrize("exits", [[2, 1], [0, 3], [-1, 2], [1, 1], []])
def test_impossible_exits_are_refused(exits):
    with pytest.raises(LedgerError, match=r"ascending numbers in 0\.\.2"):
        small().keep_exits(exits)


def test_kept_exits_are_those_of_the_network(tmp_path):
    kept = small().keep_exits([1, 2])
    assert (kept.exits, kept.keep_exits([1]).exits) == ((1, 2), (2,))
    kept.save(tmp_path)
    assert Ledger.load(tmp_path).exits == (1, 2)
    with pytest.raises(LedgerError, match="these costs are of 2 exits, and the ledger has 3"):
        small().with_costs(Costs((1, 1), (0, 0)))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True), st.booleans())
def test_views_pick_what_indexing_picks(rows, keep):
    ledger = small(sample_ids=list("abcdef"))
    index = np.array(rows)
    view = ledger.take(index)
    view = view.keep_exits([0, 2]) if keep else view
    expected = ledger.logits[index][:, [0, 2] if keep else [0, 1, 2]]
    assert np.array_equal(view.logits, expected)
    assert np.array_equal(np.concatenate([chunk for _, chunk in view.chunks()]), expected)
    assert view.sample_ids == [list("abcdef")[i] for i in rows]


def test_a_mask_picks_the_same_as_its_numbers():
    ledger = small(sample_ids=list("abcdef"))
    mask = np.array([True, False, True, False, False, True])
    for index in (mask, [0, 2, 5], np.array([0, 2, 5])):
        part = ledger.take(index)
        assert part.sample_ids == ["a", "c", "f"]
        assert np.array_equal(part.logits, ledger.logits[mask])


@pytest.mark.parametrize("index", [[], [0.5], [[1]], [True, False]])
def test_an_impossible_pick_is_refused(index):
    with pytest.raises(LedgerError, match="sample numbers, or a mask of the 6 samples"):
        small().take(index)


def test_partition_is_disjoint_complete_and_stable():
    ledger = small(samples=100, split="all")
    parts = ledger.partition(seed=3)
    assert [len(part) for part in parts] == [30, 30, 40]
    ids = [set(part.sample_ids) for part in parts]
    assert set.union(*ids) == set(range(100))
    assert sum(map(len, ids)) == 100
    assert ledger.partition(seed=3).val.sample_ids == parts.val.sample_ids
    assert ledger.partition(seed=4).val.sample_ids != parts.val.sample_ids
    assert [part.split for part in parts] == ["held_out", "val", "test"]


def test_partition_needs_the_whole_or_permission():
    with pytest.raises(SplitError, match="allow_split='val'"):
        small(samples=100).partition()
    assert len(small(samples=100).partition(allow_split="val").test) == 40


@pytest.mark.parametrize("shares", [(0.5, 0.5, 0.5), (1.0, 0.0, 0.0)])
def test_partition_shares_must_make_sense(shares):
    with pytest.raises(LedgerError, match="positive and sum to one"):
        small(samples=100, split="all").partition(*shares)


def test_partition_of_too_few_samples_is_refused():
    with pytest.raises(LedgerError, match="too few"):
        small(samples=2, split="all").partition()


def test_saved_ledger_comes_back_the_same(tmp_path):
    ledger = small(
        sample_ids=["ä", "b\n", "c", "d", "e", "f"],
        network="n1",
        costs=Costs(stages=(10, 20, 30), heads=(1, 2, 3)),
        class_names=["cat", "dog", "</script>", "d"],
    )
    back = Ledger.load(ledger.save(tmp_path / "deep" / "ledger"))
    assert np.array_equal(back.logits, ledger.logits)
    assert np.array_equal(back.labels, ledger.labels)
    assert back.cost_model == ledger.cost_model
    for name in ("split", "sample_ids", "network", "class_names", "data_fingerprint"):
        assert getattr(back, name) == getattr(ledger, name)


def test_saving_again_replaces_and_leaves_nothing_behind(tmp_path):
    small().save(tmp_path)
    small(samples=4).save(tmp_path)
    assert len(Ledger.load(tmp_path)) == 4
    assert len(list(tmp_path.iterdir())) == 2


def test_a_save_that_is_cut_off_leaves_the_old_ledger(tmp_path, monkeypatch):
    small().save(tmp_path)

    def cut_off(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("offramp.files.write_sealed", cut_off)
    with pytest.raises(KeyboardInterrupt):
        small(samples=4).save(tmp_path)
    assert len(Ledger.load(tmp_path)) == 6
    assert len(list(tmp_path.iterdir())) == 2  # and none of the new tensors


def test_loaded_logits_are_memory_mapped(tmp_path):
    small(samples=3000, classes=100, labels=np.zeros(3000, dtype=int)).save(tmp_path)
    ledger = Ledger.load(tmp_path)
    start = ledger.logits.ctypes.data
    if not os.path.exists("/proc/self/maps"):  # noqa: PTH110 - not a file of ours
        pytest.skip("this system does not list its memory maps")
    with open("/proc/self/maps") as maps:  # noqa: PTH123
        for line in maps:
            ends = [int(end, 16) for end in line.split()[0].split("-")]
            if ends[0] <= start < ends[1]:
                assert ".safetensors" in line
                return
    pytest.fail("the logits lie in no memory map")


def write(path, **arrays):
    np.savez(path, **arrays)
    return path


GOOD = {"logits": np.zeros((6, 3, 4)), "labels": np.zeros(6, dtype=int)}


def test_plain_npz_is_read(tmp_path):
    path = write(tmp_path / "a.npz", **GOOD, costs=np.array([1.0, 2.0, 3.0]))
    ledger = Ledger.load(path, split="test", network="n")
    assert (ledger.split, ledger.network, ledger.unit) == ("test", "n", "relative")


def test_npz_with_costs_apart_is_read(tmp_path):
    path = write(
        tmp_path / "a.npz",
        **GOOD,
        stage_costs=np.array([1.0, 2.0, 3.0]),
        head_costs=np.ones(3),
        reference_cost=np.array(6.5),
        unit=np.array("seconds"),
        sample_ids=np.arange(6),
    )
    ledger = Ledger.load(path, split="test")
    assert ledger.costs.tolist() == [2, 5, 9]
    assert (ledger.unit, ledger.reference_cost) == ("seconds", 6.5)
    assert ledger.sample_ids == list(range(6))


def test_npz_may_say_the_unit_and_the_reference_of_plain_costs(tmp_path):
    extra = {"unit": np.array("macs"), "reference_cost": np.array([5.0])}
    path = write(tmp_path / "a.npz", **GOOD, costs=np.array([1.0, 2.0, 4.0]), **extra)
    ledger = Ledger.load(path, split="test")
    assert (ledger.unit, ledger.reference_cost) == ("macs", 5.0)
    assert ledger.costs.tolist() == [1, 2, 4]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"stage_costs": np.ones(3)}, "has both `costs` and `stage_costs`"),
        ({"reference_cost": np.ones(2)}, r"`reference_cost` must be a single value, got \[2\]"),
        ({"reference_cost": np.array("x")}, "`reference_cost` must be a number, got 'x'"),
    ],
)
def test_npz_with_muddled_costs_is_refused(tmp_path, extra, message):
    path = write(tmp_path / "a.npz", **GOOD, costs=np.array([1.0, 2.0, 3.0]), **extra)
    with pytest.raises(FileFormatError, match=message):
        Ledger.load(path, split="test")


def test_npz_needs_its_split_said(tmp_path):
    path = write(tmp_path / "a.npz", **GOOD, costs=np.array([1.0, 2.0, 3.0]))
    with pytest.raises(LedgerError, match="does not say which split"):
        Ledger.load(path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (("logits", "label", "costs"), r"look misspelt; rename `label` to `labels`\?"),
        (("Logit", "Labels"), r"rename `Logit` to `logits` and `Labels` to `labels`\?"),
        (("logits", "labels", "cost"), r"has no `costs` .*; rename `cost` to `costs`\?"),
        (
            ("logits", "y", "costs"),
            r"has no `labels`; it has logits, y, costs; rename `y` to `labels`, or leave",
        ),
    ],
)
def test_npz_with_a_near_name_is_told_the_right_one(tmp_path, arrays, message):
    values = (GOOD["logits"], GOOD["labels"], np.array([1.0, 2.0, 3.0]))
    path = write(tmp_path / "a.npz", **dict(zip(arrays, values, strict=False)))
    with pytest.raises(FileFormatError, match=message):
        Ledger.load(path, split="val")


@pytest.mark.parametrize("first", [0, 1])
def test_npz_with_an_array_per_exit_is_read_in_the_order_of_the_numbers(tmp_path, first):
    logits = normal(6, 12, 4)
    parts = {f"logits_{first + m}": logits[:, m] for m in reversed(range(12))}
    path = write(tmp_path / "a.npz", **parts, labels=GOOD["labels"], costs=np.arange(1, 13))
    assert np.array_equal(Ledger.load(path, split="test").logits, logits)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((0, 1, 3), "has `logits_3` and no `logits_2`$"),
        ((2, 3), "has `logits_3` and no `logits_0`$"),
    ],
)
def test_npz_that_lacks_an_exit_is_refused(tmp_path, numbers, message):
    parts = {f"logits_{m}": normal(6, 4) for m in numbers}
    path = write(tmp_path / "a.npz", **parts, labels=np.zeros(6, int), costs=np.arange(1, 4))
    with pytest.raises(FileFormatError, match=message):
        Ledger.load(path, split="test")


def test_npz_labels_may_be_names(tmp_path):
    names = ["owl", "cat", "fox", "dog"]
    arrays = {"logits": normal(4, 3, 4), "costs": np.arange(1, 4), "class_names": names}
    path = write(tmp_path / "a.npz", **arrays, labels=["dog", "owl", "cat", "fox"])
    ledger = Ledger.load(path, split="test")
    assert (ledger.labels.tolist(), ledger.class_names) == ([3, 0, 1, 2], names)


def test_npz_labels_that_are_objects_are_told_how_to_be_texts(tmp_path):
    labels = np.array(["a", "b", "c"], dtype=object)
    path = write(tmp_path / "a.npz", logits=normal(3, 3, 4), costs=np.arange(1, 4), labels=labels)
    with pytest.raises(FileFormatError, match=r"array `labels` holds Python objects, .*dtype=str"):
        Ledger.load(path, split="test")


def test_npz_without_what_is_needed_says_what_it_has(tmp_path):
    path = write(tmp_path / "a.npz", labels=GOOD["labels"])
    with pytest.raises(FileFormatError, match=r"no `logits` and no `costs` .*; it has labels$"):
        Ledger.load(path, split="test")
    path = write(tmp_path / "b.npz", **GOOD)
    with pytest.raises(FileFormatError, match="has no `costs`"):
        Ledger.load(path, split="test")


def test_labels_may_be_unknown_and_stay_unknown(tmp_path):
    path = write(tmp_path / "a.npz", logits=GOOD["logits"], costs=np.array([1.0, 2.0, 3.0]))
    bare = Ledger.load(path, split="all")
    back = Ledger.load(bare.save(tmp_path / "bare"))
    for ledger in (bare, back, back.partition().test, back.take([0, 2]).keep_exits([0, 2])):
        assert not ledger.has_labels
        assert "no labels" in repr(ledger)
        with pytest.raises(LedgerError, match=f"this {ledger.split} ledger has no labels"):
            _ = ledger.labels
    assert len(back.take([0, 2])) == 2


def test_a_sample_without_its_label_is_the_same_sample():
    ledger = small()
    bare = Ledger(ledger.logits, None, ledger.costs, split="val")
    assert np.array_equal(bare.sample_hashes(), small(sample_ids=None).sample_hashes())


def test_pickled_objects_are_never_read(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.system, ("touch " + str(tmp_path / "boom"),)

    path = write(tmp_path / "a.npz", **GOOD, costs=np.array([Bomb()], dtype=object))
    with pytest.raises(FileFormatError, match="`costs` holds Python objects, which are never"):
        Ledger.load(path, split="test")
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 but no more", b"hello"])
def test_foreign_and_truncated_npz_are_refused(tmp_path, content):
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=r"is not a complete \.npz"):
        Ledger.load(path, split="test")


def test_a_misspelt_array_is_not_ignored(tmp_path):
    arrays = {**GOOD, "costs": np.array([1.0, 2.0, 3.0])}
    path = write(tmp_path / "a.npz", **arrays, sample_id=np.arange(len(GOOD["labels"])))
    with pytest.raises(FileFormatError, match="misspelt; rename `sample_id` to `sample_ids`"):
        Ledger.load(path, split="test")
    path = write(tmp_path / "b.npz", **arrays, embeddings=np.zeros(3))
    assert len(Ledger.load(path, split="test")) == len(GOOD["labels"])


def test_an_npz_may_name_its_network(tmp_path):
    arrays = {**GOOD, "costs": np.array([1.0, 2.0, 3.0])}
    path = write(tmp_path / "a.npz", **arrays, network=np.array("resnet, 3rd run"))
    assert Ledger.load(path, split="test").network == "resnet, 3rd run"
    assert Ledger.load(path, split="test", network="other").network == "other"


def test_a_path_that_is_not_there_is_said(tmp_path):
    with pytest.raises(FileFormatError, match="no ledger at"):
        Ledger.load(tmp_path / "nothing")
    with pytest.raises(FileFormatError, match=r"ledger\.json is missing"):
        Ledger.load(tmp_path)


def change(folder, **entries):
    path = folder / "ledger.json"
    write_sealed(path, json.loads(path.read_text()) | entries)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"version": 99}, "format version 99, and this offramp reads version 1"),
        ({"format": "other"}, "not written by offramp as a ledger"),
        ({"tensors": {"file": "../x.safetensors", "bytes": 1}}, "names no tensor file of its own"),
        ({"tensors": None}, "names no tensor file"),
        ({"tensors": {"file": "gone.safetensors", "bytes": 1}}, "is missing, though"),
        ({"costs": {"stages": [1]}}, "not a complete ledger"),
    ],
)
def test_tampered_description_is_refused(tmp_path, entries, message):
    small().save(tmp_path)
    change(tmp_path, **entries)
    with pytest.raises(FileFormatError, match=message):
        Ledger.load(tmp_path)


def test_truncated_tensors_are_refused(tmp_path):
    small().save(tmp_path)
    (tensors,) = tmp_path.glob("*.safetensors")
    tensors.write_bytes(tensors.read_bytes()[:-8])
    with pytest.raises(FileFormatError, match="truncated or was replaced"):
        Ledger.load(tmp_path)


def test_broken_tensors_of_the_right_size_are_refused(tmp_path):
    small().save(tmp_path)
    (tensors,) = tmp_path.glob("*.safetensors")
    tensors.write_bytes(b"\xff" * tensors.stat().st_size)
    with pytest.raises(FileFormatError, match="is damaged"):
        Ledger.load(tmp_path)
    path = tmp_path / "ledger.json"  # as an older version wrote it
    meta = json.loads(path.read_text())
    del meta["tensors"]["sha256"]
    write_sealed(path, meta)
    with pytest.raises(FileFormatError, match="not a readable safetensors"):
        Ledger.load(tmp_path)


def test_broken_json_is_refused(tmp_path):
    small().save(tmp_path)
    (tmp_path / "ledger.json").write_text("{")
    with pytest.raises(FileFormatError, match="not valid JSON"):
        Ledger.load(tmp_path)


def test_loading_checks_the_split_that_is_asked_for(tmp_path):
    small().save(tmp_path)
    with pytest.raises(SplitError, match="needs the split 'test'"):
        Ledger.load(tmp_path, split="test")


def test_other_networks_are_refused_and_unknown_ones_warned_about():
    with pytest.raises(OriginError, match="from the network 'a', and its partner from 'b'"):
        small(network="a").require_network("b")
    with pytest.warns(OriginWarning, match="does not say which network"):
        small().require_network("b")


def test_a_folder_of_splits_is_read_by_name(tmp_path, splits):
    for name in ("held_out", "val"):
        splits[name].save(tmp_path / name)
    with pytest.raises(FileFormatError, match=r"lacks test/ or test\.npz"):
        load_ledgers(tmp_path)
    write(
        tmp_path / "test.npz",
        logits=splits["test"].logits,
        labels=splits["test"].labels,
        costs=splits["test"].costs,
    )
    found = load_ledgers(tmp_path)
    assert [ledger.split for ledger in found.values()] == ["held_out", "val", "test"]


def test_a_single_npz_is_partitioned(tmp_path, splits):
    ledger = splits["test"]
    arrays = {"logits": ledger.logits, "labels": ledger.labels, "costs": ledger.costs}
    path = write(tmp_path / "all.npz", **arrays)
    found = load_ledgers(path)
    assert sum(len(part) for part in found.values()) == len(ledger)
    assert len({part.network for part in found.values()}) == 1


def test_folds_are_as_equal_as_possible():
    assert [(len(rest), len(fold)) for rest, fold in folds(10, 3)] == [(6, 4), (7, 3), (7, 3)]


def test_samples_fall_into_the_pieces_that_torch_gave():
    pieces = cut(10, [0.3, 0.6], seed=3)
    assert [piece.tolist() for piece in pieces] == [[6, 0, 3], [7, 8, 5], [1, 9, 2, 4]]
    (order,) = cut(5000, [], seed=0)
    assert (order * np.arange(5000)).sum() == 31_132_747_140
    assert cut(12, [], seed=2**32 + 7)[0].tolist() == [3, 4, 0, 5, 7, 9, 11, 6, 8, 1, 10, 2]
    labels = np.array([0, 1, 2, 1, 0, 2, 1, 0, 1, 1, 2])
    pieces = stratified_cut(labels, [0.3, 0.6], seed=5)
    assert [piece.tolist() for piece in pieces] == [[7, 1, 8, 2], [4, 3, 5], [0, 6, 9, 10]]


def test_a_stratified_partition_has_its_share_of_every_class():
    labels = np.arange(300) % 4
    ledger = Ledger(normal(300, 3, 4), labels, [1.0, 2.0, 3.0], split="all")
    parts = ledger.partition(0.2, 0.3, 0.5, seed=1, stratify=True)
    ids = [each for part in parts for each in part.sample_ids]
    assert sorted(ids) == list(range(300))
    for part, share in zip(parts, (0.2, 0.3, 0.5), strict=True):
        counts = np.bincount(part.labels, minlength=4)
        assert np.abs(counts - 75 * share).max() <= 1
    grouped = Ledger(normal(6, 3, 4), [0] * 6, [1.0, 2.0, 3.0], split="all", groups=list("aabbcc"))
    with pytest.raises(LedgerError, match="groups stay whole"):
        grouped.partition(stratify=True)


def test_the_type_of_a_ledger_is_that_of_what_it_holds(tmp_path):
    logits = Ledger(normal(8, 3, 4), [0, 1, 2, 3] * 2, [1, 2, 3], split="test")
    known = {"confidence": [[0.6, 0.9]] * 8, "correct": [[False, True]] * 8, "costs": [1, 2]}
    answers = Ledger.from_answers([["a", "b"]] * 8, **known, split="test")
    confidences = Ledger.from_answers(**known, split="test")
    for ledger, wanted in (
        (logits, LogitLedger),
        (answers, AnswerLedger),
        (confidences, ConfidenceLedger),
    ):
        assert type(ledger) is wanted
        assert type(ledger.take([0, 1]).keep_exits([0])) is wanted
        assert type(Ledger.load(ledger.save(tmp_path / wanted.__name__))) is wanted
        assert type(ledger.history()) is ledger.history_type
    assert not isinstance(logits, AnswerLedger)


def test_folders_that_name_no_kind_hold_logits(tmp_path):
    meta, tensors = read_folder(small().save(tmp_path / "new"), "ledger", 1)
    plain = {key: value for key, value in meta.items() if key not in ("kind", "tensors")}
    older = write_folder(tmp_path / "older", "ledger", 1, plain, tensors)
    assert type(Ledger.load(older)) is LogitLedger
