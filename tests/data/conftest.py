import io

import pytest
import torch
from PIL import Image


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """Caches of the `datasets` library go with the tests, and the hub is never asked."""
    datasets = pytest.importorskip("datasets")
    patch = pytest.MonkeyPatch()
    patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    patch.setenv("HF_HUB_OFFLINE", "1")
    yield
    patch.undo()


def encoded(seed, size=(8, 8), kind="PNG"):
    """A random image as the bytes of a file."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (size[1], size[0], 3), generator=generator, dtype=torch.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(file, kind)
    return file.getvalue()


def write_parquet(path, rows, **features):
    """Rows as a Parquet file, as the `datasets` library writes it."""
    import datasets

    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    table = datasets.Dataset.from_dict(columns)
    for name, feature in features.items():
        table = table.cast_column(name, feature)
    table.to_parquet(path)


@pytest.fixture
def cifar_like(tmp_path, monkeypatch):
    """Two Parquet files in the hub's layout below OFFRAMP_DATA: 40 train and 10 test images."""
    import datasets

    names = datasets.ClassLabel(names=[f"class {index}" for index in range(5)])
    for split, count, start in (("train", 40, 0), ("test", 10, 1000)):
        rows = [
            {"img": {"bytes": encoded(start + row, (32, 32)), "path": None}, "label": row % 5}
            for row in range(count)
        ]
        path = tmp_path / "cifar10" / "plain_text" / f"{split}-00000-of-00001.parquet"
        write_parquet(path, rows, img=datasets.Image(), label=names)
    monkeypatch.setenv("OFFRAMP_DATA", str(tmp_path))
    return tmp_path / "cifar10"


@pytest.fixture
def image_folder(tmp_path):
    """One folder per class: 20 cats and 20 dogs."""
    folder = tmp_path / "pets"
    for label, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        for index in range(20):
            (folder / name / f"{index:02}.png").write_bytes(encoded(100 * label + index))
    return folder


def count_letters(texts, padding, max_length, **_):
    """A tokenizer: the letters' codes, padded with 0."""
    codes = [[ord(letter) for letter in text][:max_length] for text in texts]
    length = max_length if padding == "max_length" else max(map(len, codes))
    return {
        "input_ids": torch.tensor([row + [0] * (length - len(row)) for row in codes]),
        "attention_mask": torch.tensor([[1] * len(r) + [0] * (length - len(r)) for r in codes]),
    }
