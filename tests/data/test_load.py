"""Every loader on a small folder made here, and every message."""

import io
import pickle
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from offramp.data import catalog, load
from offramp.errors import ConfigError, CorruptImageError, DataError

from .conftest import count_letters, encoded, write_parquet

IMAGE_CELLS = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def all_ids(splits):
    return {sample for data in splits.values() for sample in data.sample_ids}


def test_parquet_in_the_hub_layout(cifar_like):
    splits = load("cifar10", held_out=5, val=6)
    assert {name: len(data) for name, data in splits.items()} == {
        "train": 29, "held_out": 5, "val": 6, "test": 10,
    }  # fmt: skip
    assert splits.test.sample_ids == [f"test/{row}" for row in range(10)]
    assert splits.val.class_names == [f"class {index}" for index in range(5)]
    assert all_ids(splits) >= {"train/0", "test/9"}


def test_pixels_are_those_of_the_file_normalised(cifar_like):
    data = load("cifar10", held_out=5, val=5).test
    expected = torch.from_numpy(np.array(Image.open(io.BytesIO(encoded(1003, (32, 32))))))
    inputs, labels = data.batch(torch.tensor([3, 3, 1]))
    norm = data.normalization
    pixels = inputs * torch.tensor(norm.std)[:, None, None]
    pixels = (pixels + torch.tensor(norm.mean)[:, None, None]) * 255
    torch.testing.assert_close(pixels[0], expected.permute(2, 0, 1).float(), atol=1e-3, rtol=0)
    assert labels.tolist() == [3, 3, 1]
    # The second time they come from memory
    assert torch.equal(data.batch(torch.tensor([3, 3, 1]))[0], inputs)


def test_pixels_that_do_not_fit_into_memory_are_decoded_again(cifar_like, monkeypatch):
    data = load("cifar10", held_out=5, val=5).train
    index = torch.tensor([7, 2, 7])
    expected = data.batch(index)[0]
    monkeypatch.setattr("offramp.data.images_and_texts.IN_MEMORY", 0)
    again = load("cifar10", held_out=5, val=5).train
    assert torch.equal(again.batch(index)[0], expected)
    assert torch.equal(again.batch(index)[0], expected)


def test_a_loader_process_can_be_sent_the_data(cifar_like, image_folder):
    for name in ("cifar10", str(image_folder)):
        data = load(name, held_out=5, val=5).train
        copy = pickle.loads(pickle.dumps(data))
        assert torch.equal(copy[1][0], data[1][0])


def test_image_folder_without_official_splits(image_folder):
    splits = load(str(image_folder))
    assert {name: len(data) for name, data in splits.items()} == {
        "train": 24, "held_out": 4, "val": 4, "test": 8,
    }  # fmt: skip
    assert "cat/00.png" in all_ids(splits) and len(all_ids(splits)) == 40
    assert splits.train.class_names == ["cat", "dog"]
    assert splits.train[0][0].shape == (3, 8, 8)
    for position, sample in enumerate(splits.train.sample_ids):
        assert splits.train.labels[position] == sample.startswith("dog")


def test_image_folder_with_official_splits(image_folder, tmp_path):
    folder = tmp_path / "official"
    folder.mkdir()
    image_folder.rename(folder / "train")
    (folder / "val" / "dog").mkdir(parents=True)
    (folder / "val" / "dog" / "rex.png").write_bytes(encoded(7))
    splits = load(str(folder))
    assert splits.test.sample_ids == ["val/dog/rex.png"]
    assert splits.test[0][1] == 1


def test_a_folder_below_the_root_is_found_by_its_name(image_folder, monkeypatch):
    monkeypatch.setenv("OFFRAMP_DATA", str(image_folder.parent))
    assert load("pets").train.num_classes == 2


def test_classes_that_train_lacks_are_refused(image_folder, tmp_path):
    folder = tmp_path / "official"
    folder.mkdir()
    image_folder.rename(folder / "train")
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "val" / "images" / "rex.png").write_bytes(encoded(7))
    with pytest.raises(DataError, match=r"set of .* has classes that train lacks: images"):
        load(str(folder))


def test_a_folder_without_images_is_refused(tmp_path):
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match="neither Parquet nor CSV files nor folders of images"):
        load(str(tmp_path / "nothing"))
    (tmp_path / "nothing" / "cat").mkdir()
    with pytest.raises(DataError, match="no images in folders named after their class"):
        load(str(tmp_path / "nothing"))


def test_images_of_different_sizes_need_a_size(image_folder):
    for index in range(20):
        (image_folder / "cat" / f"{index:02}.png").write_bytes(encoded(index, size=(9, 12)))
    data = load(str(image_folder)).train
    with pytest.raises(DataError, match="give `image_size=` to make them equal"):
        data.batch(torch.arange(len(data)))
    data = load(str(image_folder)).train
    with pytest.raises(DataError, match="pixels and others have"):
        for position in range(len(data)):
            data[position]
    data = load(str(image_folder), image_size=6).train
    assert data.batch(torch.arange(len(data)))[0].shape[1:] == (3, 6, 6)


def break_one(folder):
    path = folder / "dog" / "03.png"
    path.write_bytes(path.read_bytes()[:60])


def test_a_truncated_image_is_named(image_folder):
    break_one(image_folder)
    with pytest.raises(CorruptImageError, match=r"dog/03\.png cannot be decoded"):
        for data in load(str(image_folder)).values():
            data.batch(torch.arange(len(data)))


def test_truncated_images_are_skipped_and_counted(image_folder):
    whole = load(str(image_folder))
    break_one(image_folder)
    splits = load(str(image_folder), on_corrupt="skip")
    assert sum((data.skipped for data in splits.values()), ()) == ("dog/03.png",)
    assert "broken images skipped: 1" in repr(splits)
    assert all_ids(whole) - all_ids(splits) == {"dog/03.png"}
    for name, data in splits.items():
        assert set(data.sample_ids) <= set(whole[name].sample_ids)
        assert len(data.batch(torch.arange(len(data)))[0]) == len(data.sample_ids)


def test_a_truncated_row_is_named_with_its_file(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setenv("OFFRAMP_DATA", str(tmp_path))
    for part in range(2):
        rows = [
            {"image": {"bytes": encoded(row), "path": None}, "label": row % 2} for row in range(10)
        ]
        if part:
            rows[4]["image"]["bytes"] = rows[4]["image"]["bytes"][:50]
        path = tmp_path / "mine" / f"train-0000{part}-of-00002.parquet"
        write_parquet(path, rows, image=datasets.Image())
    with pytest.raises(CorruptImageError, match=r"train-00001-of-00002.parquet row 4 cannot"):
        for data in load("mine").values():
            data.batch(torch.arange(len(data)))


def test_a_row_without_an_image_is_skipped_like_a_broken_one(tmp_path):
    import datasets

    rows = [{"image": {"bytes": encoded(row), "path": None}, "label": 0} for row in range(10)]
    rows[3]["image"] = {"bytes": b"", "path": None}
    rows[5]["image"] = None
    write_parquet(tmp_path / "train.parquet", rows, image=datasets.Image())
    splits = load(str(tmp_path), on_corrupt="skip")
    assert sum(len(data) for data in splits.values()) == 8
    skipped = {sample for data in splits.values() for sample in data.skipped}
    assert skipped == {"train/3", "train/5"}


def test_rows_that_name_files_of_images_are_read_from_there(tmp_path):
    for row in range(10):
        (tmp_path / f"{row}.png").write_bytes(encoded(row))
    cells = [{"bytes": None, "path": str(tmp_path / f"{row}.png")} for row in range(10)]
    columns = {"image": pa.array(cells, IMAGE_CELLS), "label": [row % 2 for row in range(10)]}
    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    splits = load(str(tmp_path))
    for data in splits.values():
        pixels = data.pixels[torch.arange(len(data))]
        for sample, image in zip(data.sample_ids, pixels, strict=True):
            expected = Image.open(io.BytesIO(encoded(int(sample.split("/")[1]))))
            assert torch.equal(image, torch.from_numpy(np.array(expected)).permute(2, 0, 1))


def test_the_smallest_data_give_a_sample_to_every_split(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\na,0\nb,1\nc,0\nd,1\n")
    splits = load(str(tmp_path), tokenizer=count_letters)
    assert [len(data) for data in splits.values()] == [1, 1, 1, 1]


def test_an_empty_text_is_named(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\n" + "good,1\n" * 9 + ",0\n")
    with pytest.raises(DataError, match=r"the text .*train\.csv row 9 is empty"):
        load(str(tmp_path), tokenizer=count_letters)


def text_rows(count):
    return [{"text": "good " * (1 + row % 3), "label": row % 2} for row in range(count)]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_text_from_csv_and_parquet(tmp_path, kind):
    import datasets

    folder = tmp_path / kind
    folder.mkdir()
    for split, count in (("train", 30), ("test", 6)):
        table = datasets.Dataset.from_list(text_rows(count))
        getattr(table, f"to_{kind}")(folder / f"{split}.{kind}")
    splits = load(str(folder), tokenizer=count_letters)
    assert {name: len(data) for name, data in splits.items()} == {
        "train": 24, "held_out": 3, "val": 3, "test": 6,
    }  # fmt: skip
    inputs, labels = splits.test.batch(torch.tensor([0, 2]))
    assert inputs["input_ids"].shape == (2, 15) and inputs["input_ids"].dtype == torch.int64
    assert inputs["attention_mask"].sum(1).tolist() == [5, 15] and labels.tolist() == [0, 0]
    one, label = splits.test[1]
    assert one["input_ids"].shape == (128,) and label == 1


def test_text_labels_are_numbered_as_in_train(tmp_path):
    lines = ["text,label", *(f"t{row},{'no' if row % 2 else 'yes'}" for row in range(20))]
    (tmp_path / "train.csv").write_text("\n".join(lines))
    (tmp_path / "test.csv").write_text("text,label\nfine,yes\n")
    splits = load(str(tmp_path), tokenizer=count_letters)
    assert splits.test.class_names == ["no", "yes"] and splits.test.labels.tolist() == [1]
    (tmp_path / "test.csv").write_text("text,label\nfine,maybe\n")
    with pytest.raises(DataError, match=r"the test set of .* has classes that train lacks: maybe"):
        load(str(tmp_path), tokenizer=count_letters)


def test_hidden_test_labels_make_validation_the_test_set(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\n" + "good,1\nbad,0\n" * 10)
    (tmp_path / "validation.csv").write_text("text,label\nbad,0\n")
    (tmp_path / "test.csv").write_text("text,label\nunknown,-1\n")
    splits = load(str(tmp_path), tokenizer=count_letters)
    assert splits.test.sample_ids == ["validation/0"]
    (tmp_path / "train.csv").write_text("text,label\nunknown,-1\n")
    with pytest.raises(DataError, match="has no labelled train set; found: "):
        load(str(tmp_path), tokenizer=count_letters)


def test_text_needs_a_tokenizer(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\n" + "good,1\nbad,0\n" * 10)
    with pytest.raises(ConfigError, match="these data are text: give `tokenizer=`"):
        load(str(tmp_path))


def test_a_tokenizer_by_the_folder_that_holds_it(tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"<pad>": 0, "<unk>": 1, "good": 2, "film": 3}, "<unk>"))
    words.pre_tokenizer = Whitespace()
    made = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", unk_token="<unk>")
    made.save_pretrained(tmp_path / "words")
    (tmp_path / "train.csv").write_text("text,label\n" + "good film,1\nbad,0\n" * 10)
    splits = load(str(tmp_path), tokenizer=str(tmp_path / "words"))
    inputs, labels = splits.train.batch(torch.arange(len(splits.train)))
    rows = {tuple(row) for row in inputs["input_ids"].tolist()}
    assert rows == {(2, 3), (1, 0)} and set(labels.tolist()) == {0, 1}
    with pytest.raises(DataError, match=r"there is no tokenizer '.*wrods': .*name a folder"):
        load(str(tmp_path), tokenizer=str(tmp_path / "wrods"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("words,label\na,1\n", r"no column of inputs \(image, img, sentence, text\) among words"),
        ("text,mark\na,1\n", "no column of labels .* among text, mark"),
        ("text,label\na,0.5\nb,1\n", "must be all text or all whole numbers"),
        ("", "cannot read the csv files"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path, content, message):
    (tmp_path / "train.csv").write_text(content)
    with pytest.raises(DataError, match=message):
        load(str(tmp_path), tokenizer=count_letters)


def test_a_label_beyond_the_named_classes_is_refused(cifar_like, monkeypatch):
    entry, official = catalog.find_official("cifar10")
    official["test"] = replace(official["test"], labels=official["test"].labels + 3)
    # By its full name: the package holds the function under the module's name
    loading = sys.modules["offramp.data.load"]
    monkeypatch.setattr(loading, "find_official", lambda name: (entry, official))
    with pytest.raises(DataError, match="`cifar10` has 5 classes and a label 7"):
        load("cifar10", held_out=5, val=5)


@pytest.fixture
def pacs_like(tmp_path, monkeypatch):
    import datasets

    rows = [
        {"image": {"bytes": encoded(row), "path": None}, "domain": domain, "label": row % 3}
        for domain in ("photo", "sketch", "cartoon")
        for row in range(30)
    ]
    write_parquet(tmp_path / "pacs" / "train.parquet", rows, image=datasets.Image())
    monkeypatch.setenv("OFFRAMP_DATA", str(tmp_path))


def rows_of(data):
    return {int(sample.split("/")[1]) for sample in data.sample_ids}


def test_everything_but_test_comes_from_the_source_domain(pacs_like):
    here, there = load("pacs"), load("pacs", domain="sketch")
    for split in ("train", "held_out", "val"):
        assert here[split].sample_ids == there[split].sample_ids
        assert rows_of(here[split]) <= set(range(30))
    assert rows_of(here.test) <= set(range(30)) and len(here.test) == 6
    assert rows_of(there.test) == set(range(30, 60))


def test_source_and_test_domain_can_both_be_chosen(pacs_like):
    splits = load("pacs", domain=("cartoon", "photo"))
    assert rows_of(splits.train) <= set(range(60, 90))
    assert rows_of(splits.test) == set(range(30))


def test_domains_that_do_not_exist(pacs_like, image_folder, tmp_path):
    with pytest.raises(ConfigError, match="has the domains cartoon, photo, sketch, got 'art'"):
        load("pacs", domain="art")
    with pytest.raises(ConfigError, match="has no domains; leave `domain=` out"):
        load(str(image_folder), domain="photo")
    with pytest.raises(ConfigError, match="has no domains; leave `domain=` out"):
        load("mixture", domain="photo")
    folder = str(tmp_path / "pacs")
    with pytest.raises(ConfigError, match=r"no usual source domain: give `domain=\(source, test"):
        load(folder, domain="photo")
    assert len(all_ids(load(folder))) == 90


def test_a_missing_data_set_says_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.delenv("OFFRAMP_DATA", raising=False)
    with pytest.raises(
        DataError, match=r"`cifar100`: OFFRAMP_DATA is not set, and the hub was not"
    ):
        load("cifar100")
    monkeypatch.setenv("OFFRAMP_DATA", str(tmp_path))
    with pytest.raises(DataError, match=f"{tmp_path}/cifar100 is not there"):
        load("cifar100")
    with pytest.raises(DataError, match="hf download uoft-cs/cifar100 --repo-type dataset"):
        load("cifar100")


def test_a_hub_that_does_not_answer(monkeypatch):
    import datasets

    def fail(*args, **kwargs):
        raise ConnectionError("no route")

    monkeypatch.delenv("OFFRAMP_DATA", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(datasets, "load_dataset", fail)
    monkeypatch.setattr("offramp.data.catalog.why_unreachable", lambda: None)
    with pytest.raises(DataError, match=r"the hub did not give uoft-cs/cifar10: .*no route"):
        load("cifar10")


def test_the_hub_gives_what_a_folder_gives(cifar_like, monkeypatch):
    import datasets

    local = load("cifar10", held_out=5, val=5)
    found = datasets.load_dataset(str(cifar_like))
    offline = []

    def given(name):
        offline.append(datasets.config.HF_HUB_OFFLINE)
        return found

    monkeypatch.delenv("OFFRAMP_DATA")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets, "load_dataset", given)
    monkeypatch.setattr("offramp.data.catalog.why_unreachable", lambda: None)
    online = load("cifar10", held_out=5, val=5)
    assert offline == [False], "a hub that can be reached is asked"
    assert online.fingerprint == local.fingerprint
    assert torch.equal(online.train[0][0], local.train[0][0])


def test_the_hubs_own_names_of_splits_are_understood(cifar_like, monkeypatch):
    import datasets

    # Tiny ImageNet's are called train and valid there
    found = datasets.load_dataset(str(cifar_like))
    found["valid"] = found.pop("test")
    monkeypatch.delenv("OFFRAMP_DATA")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(datasets, "load_dataset", lambda name: found)
    monkeypatch.setattr("offramp.data.catalog.why_unreachable", lambda: None)
    splits = load("cifar10", held_out=5, val=5)
    assert len(splits.test) == len(found["valid"])
    assert splits.test.sample_ids[0] == "validation/0"


def test_an_unknown_name_is_refused_with_a_guess(monkeypatch):
    with pytest.raises(DataError, match=r"no data set `cifar-100`; did you mean `cifar100`\?"):
        load("cifar-100")


def test_a_size_of_no_pixels_is_refused(image_folder):
    with pytest.raises(
        ConfigError, match="`image_size` must be a whole number of at least 1, got 0"
    ):
        load(str(image_folder), image_size=0)


# name: columns of images and labels, official splits with their labels' sign, the test set
LAYOUTS = {
    "cifar100": ("img", "fine_label", {"train": 1, "test": 1}, "test"),
    "tiny-imagenet": ("image", "label", {"train": 1, "valid": 1}, "validation"),
    "imagenet-1k": ("image", "label", {"train": 1, "validation": 1, "test": -1}, "validation"),
    "domainnet": ("image", "label", {"train": 1, "test": 1}, "test"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_named_data_in_the_layout_of_the_hub(name, tmp_path, monkeypatch):
    import datasets

    image, label, official, test = LAYOUTS[name]
    domains = datasets.ClassLabel(names=["clipart", "real"])
    for split, sign in official.items():
        rows = [
            {
                image: {"bytes": encoded(row, (40, 36), "JPEG"), "path": None},
                label: row % 4 if sign > 0 else -1,
                "domain": row // 20,
            }
            for row in range(40)
        ]
        features = {image: datasets.Image(), "domain": domains}
        write_parquet(tmp_path / name / "data" / f"{split}-0-of-1.parquet", rows, **features)
    monkeypatch.setenv("OFFRAMP_DATA", str(tmp_path))
    domain = "clipart" if name == "domainnet" else ("real", "clipart")
    splits = load(name, held_out=3, val=3, domain=domain)
    assert {name: len(data) for name, data in splits.items()} == {
        "train": 14, "held_out": 3, "val": 3, "test": 20,
    }  # fmt: skip
    assert splits.test.sample_ids == [f"{test}/{row}" for row in range(20)]
    assert rows_of(splits.train) <= set(range(20, 40))
    size = {"cifar100": 32, "tiny-imagenet": 64}.get(name, 224)
    assert splits.test[0][0].shape == (3, size, size)


def test_images_are_cut_to_their_middle():
    from offramp.data.decoding import Decoder

    picture = torch.zeros(20, 40, 3, dtype=torch.uint8)
    picture[:, 10:30] = 200
    file = io.BytesIO()
    Image.fromarray(picture.numpy()).save(file, "PNG")
    # The outermost columns are interpolated with what is beyond the cut
    assert (Decoder(10)(file.getvalue())[:, :, 1:-1] == 200).all()
    assert Decoder()(file.getvalue()).shape == (3, 20, 40)


def test_an_unknown_way_with_broken_images_is_refused():
    with pytest.raises(ConfigError, match="`on_corrupt` must be one of raise, skip, got 'ignore'"):
        load("mixture", on_corrupt="ignore")


def test_positions_beyond_the_end_are_refused(image_folder):
    data = load(str(image_folder)).train
    assert torch.equal(data[-1][0], data[len(data) - 1][0])
    assert torch.equal(data[-24][0], data[0][0])
    with pytest.raises(IndexError, match="there are 24 samples, got position 24"):
        data[24]
