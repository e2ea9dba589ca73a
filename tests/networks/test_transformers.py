"""Models of transformers: pretrained weights, text with padding, and nothing that runs code."""

import json

import pytest
import torch

from offramp.errors import FileFormatError, NetworkError
from offramp.files import write_sealed
from offramp.networks import EarlyExitNetwork, attach, count_macs, take

transformers = pytest.importorskip("transformers")


IMAGE_KINDS = [
    "ResNetForImageClassification",
    "ViTForImageClassification",
    "DeiTForImageClassification",
    "ConvNextForImageClassification",
    "SwinForImageClassification",
    "EfficientNetForImageClassification",
]


def test_padding_and_neighbours_do_not_change_the_logits(text_case):
    network, batch = text_case.network, text_case.batch
    with torch.no_grad():
        together = network(batch)
        for row, length in enumerate(batch["attention_mask"].sum(1).tolist()):
            alone = {key: value[row : row + 1, :length] for key, value in batch.items()}
            torch.testing.assert_close(network(alone)[0], together[row], rtol=1e-5, atol=1e-5)


def test_a_batch_may_be_given_by_name_and_with_narrow_ids(text_case):
    network, batch = text_case.network, text_case.batch
    with torch.no_grad():
        wanted = network(batch)
        assert torch.equal(network(**batch), wanted)
        narrow = {key: value.int() for key, value in batch.items()}
        assert torch.equal(network(narrow), wanted)
    state = network.inputs.begin({key: value.numpy() for key, value in narrow.items()})
    assert {str(leaf.dtype) for leaf in state.values()} == {"int64"}  # as graphs take them
    with pytest.raises(NetworkError, match="its parts by name, and not both: got attention_mask"):
        network(batch, attention_mask=batch["attention_mask"])


def test_networks_are_saved_by_the_name_that_transformers_has_for_it(make, tmp_path):
    network = attach(make("BertForSequenceClassification").backbone).eval()
    loaded = EarlyExitNetwork.from_pretrained(network.save_pretrained(tmp_path / "saved"))
    assert loaded.fingerprint() == network.fingerprint()


def test_mean_of_tokens_does_not_see_padding(make):
    case = make("BertForSequenceClassification")
    network = attach(case.backbone, head="mean-token").eval()
    with torch.no_grad():
        together = network(case.batch)
        alone = network({key: value[1:2, :5] for key, value in case.batch.items()})
    torch.testing.assert_close(alone[0], together[1], rtol=1e-5, atol=1e-5)


def test_padding_of_all_who_stay_can_be_cut(text_case):
    network, batch = text_case.network, text_case.batch
    with torch.no_grad():
        state = network.advance(0, network.begin(batch))
        short = network.trim(take(state, torch.tensor([1, 3])))
    assert short["hidden"].shape[1] == 5
    assert short["mask"].shape == (2, 5)
    assert network.trim(state) is state


@pytest.mark.parametrize(("stated", "meant"), [(0.99, 0.01), (0.1, 0.1)])
def test_batch_norms_of_efficientnet_keep_their_statistics(stated, meant, make):
    config = make("EfficientNetForImageClassification").backbone.config
    config.batch_norm_momentum = stated  # TensorFlow's convention, above one half
    network = attach(transformers.EfficientNetForImageClassification(config))
    momenta = {m.momentum for m in network.modules() if isinstance(m, torch.nn.BatchNorm2d)}
    assert list(momenta) == pytest.approx([meant])


def test_mask_may_be_left_out(make):
    case = make("BertForSequenceClassification")
    whole = {key: value[:1] for key, value in case.batch.items()}
    with torch.no_grad():
        without = case.network({"input_ids": whole["input_ids"]})
        assert torch.equal(without, case.network(whole))


def test_segments_reach_the_embeddings(make):
    case = make("BertForSequenceClassification")
    batch = {**case.batch, "token_type_ids": torch.ones_like(case.batch["input_ids"])}
    with torch.no_grad():
        ours, own = case.network(batch)[:, -1], case.backbone(**batch).logits
    assert torch.equal(ours, own)
    assert not torch.equal(ours, case.network(case.batch)[:, -1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b["input_ids"], "text must be a mapping with `input_ids`"),
        (lambda b: {"input_ids": b["input_ids"].float()}, "whole numbers"),
        (lambda b: {"input_ids": torch.ones(1, 30).long()}, "may have 20 tokens, got 30.*truncat"),
        (lambda b: {**b, "attention_mask": b["attention_mask"][:, 1:]}, r"`mask` must have the"),
    ],
)
def test_wrong_text_says_what_to_do(make, change, message):
    case = make("BertForSequenceClassification")
    with pytest.raises(NetworkError, match=message):
        case.network(change(case.batch))


def test_longer_text_costs_more(make):
    network = make("BertForSequenceClassification").network
    short, long = (
        count_macs(network, {"input_ids": torch.ones(1, length).long()}).reference
        for length in (5, 10)
    )
    assert long > 2 * short


def test_base_model_needs_a_number_of_classes(make):
    model = make("ViTForImageClassification").backbone.vit
    with pytest.raises(NetworkError, match="pass `num_classes=`"):
        attach(model)
    assert attach(model, num_classes=7)(torch.rand(2, 3, 32, 32)).shape == (2, 3, 7)


@pytest.mark.parametrize("kind", IMAGE_KINDS)
def test_new_classes_keep_the_backbone_and_its_last_norm(make, kind):
    backbone = make(kind).backbone
    network = attach(backbone, num_classes=7)
    assert network(torch.rand(2, 3, 32, 32)).shape == (2, network.num_exits, 7)
    ours = {id(parameter) for parameter in network.parameters()}
    left_out = [name for name, p in backbone.named_parameters() if id(p) not in ours]
    assert all("classifier" in name for name in left_out)


def test_pretrained_weights_are_kept(make, tmp_path):
    case = make("ViTForImageClassification")
    case.backbone.save_pretrained(tmp_path)
    network = attach(str(tmp_path)).eval()
    with torch.no_grad():
        assert torch.equal(network(case.batch)[:, -1], case.backbone_logits())


def test_weights_of_another_task_give_the_model_without_a_classifier(make, tmp_path):
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2
    )
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path)
    network = attach(str(tmp_path), num_classes=3)
    assert network(make("BertForSequenceClassification").batch).shape == (4, 2, 3)


def test_pickled_weights_are_refused(make, tmp_path):
    backbone = make("ViTForImageClassification").backbone
    backbone.config.save_pretrained(tmp_path)
    torch.save(backbone.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(NetworkError, match=r"cannot load .*pickled weights and remote code are"):
        attach(str(tmp_path))


def test_remote_code_is_refused(make, tmp_path):
    make("ViTForImageClassification").backbone.save_pretrained(tmp_path)
    (tmp_path / "evil.py").write_text("raise SystemExit('this was run')\n")
    config = json.loads((tmp_path / "config.json").read_text())
    config.update(model_type="evil", auto_map={"AutoConfig": "evil.EvilConfig"})
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(NetworkError, match="cannot load"):
        attach(str(tmp_path))


def test_family_without_adapter_is_refused(tmp_path):
    config = transformers.RegNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1])
    model = transformers.RegNetForImageClassification(config)
    with pytest.raises(NetworkError, match="no adapter for RegNetForImageClassification"):
        attach(model)
    model.save_pretrained(tmp_path)
    with pytest.raises(NetworkError, match="is a RegNetForImageClassification, and there are"):
        attach(str(tmp_path))


def test_decoder_is_refused(make):
    backbone = make("BertForSequenceClassification").backbone
    backbone.config.is_decoder = True
    with pytest.raises(NetworkError, match="decoders are not supported"):
        attach(backbone)


def test_missing_model_is_refused(tmp_path):
    with pytest.raises(
        NetworkError, match="no folder of that name and nothing in the hub's cache"
    ):
        attach(str(tmp_path / "nothing"))


def test_attention_of_the_model_is_kept(make, tmp_path):
    case = make("ViTForImageClassification")
    case.backbone.set_attn_implementation("eager")
    network = attach(case.backbone).eval()
    network.save(tmp_path)
    meta = json.loads((tmp_path / "network.json").read_text())
    assert meta["backbone"]["settings"]["attention"] == "eager"
    loaded = EarlyExitNetwork.load(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(loaded(case.batch), network(case.batch))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.update(model="AutoModel"), "unknown transformers model 'AutoModel'"),
        (lambda s: s.update(attention="owner/kernel"), r"asks for foreign code \(owner/kernel\)"),
        (lambda s: s["config"].update(auto_map={}), "asks for foreign code"),
        (lambda s: s["config"].update(_attn_implementation="a/b"), "asks for foreign code"),
    ],
)
def test_file_that_asks_for_foreign_code_is_refused(make, tmp_path, change, message):
    make("ViTForImageClassification").network.save(tmp_path)
    path = tmp_path / "network.json"
    meta = json.loads(path.read_text())
    change(meta["backbone"]["settings"])
    write_sealed(path, meta)
    with pytest.raises(FileFormatError, match=message):
        EarlyExitNetwork.load(tmp_path)
