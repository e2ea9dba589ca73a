"""A mistake in a study file is named with its place and the nearest valid key."""

import pytest

from offramp.errors import ConfigError, FileFormatError
from offramp.studies import read_study
from offramp.studies.toml import Mistakes


def refused(path, text, match, error=ConfigError, **options):
    path.write_text(text)
    with pytest.raises(error, match=match):
        read_study(path, **options)


MADE = '[data]\nname = "mixture"\n[network]\nname = "convnet"\n'
ZOO = '[ledgers]\nzoo = "cifar100"\n'


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (MADE + "[train]\nepoch = 3", r"\[train\] has no key `epoch`; did you mean `epochs`\?"),
        (MADE + "[trian]\nepochs = 3", r"study.toml has no key `trian`; did you mean `train`\?"),
        (MADE + "[train]\nstop = 3", r"has no key `stop`; did you mean `stopping_share`\?"),
        (MADE + "[train]\nzzz = 3", r"\[train\] has no key `zzz`; known are augment, averaging"),
        (MADE + '[train]\nepochs = "3"', r"\[train\] `epochs` must be a whole number, got '3'"),
        (MADE + "[train]\nepochs = true", r"\[train\] `epochs` must be a whole number, got True"),
        (MADE + "[train]\nepochs = 0", r"\[train\] `epochs` must be a whole number of at least 1"),
        (
            MADE + "[train]\nlearning_rate = 'high'",
            r"`learning_rate` must be a number, got 'high'",
        ),
        (
            MADE + "[train]\npatience = 1.5",
            r"\[train\] `patience` must be a whole number, got 1.5",
        ),
        (MADE + "[train]\naugment = 'lite'", r"`augment` must be .* did you mean `light`\?"),
        (MADE + "[train]\nobjective = 'joined'", r"`objective` must be .* did you mean `joint`\?"),
        (
            MADE + "[train]\nsettings = {colour = 1}",
            r"\[train\] `settings` do not fit 'joint'.*colour",
        ),
        (
            MADE + "[record]\ndtype = 'float64'",
            r"\[record\] `dtype` must be one of float16, float",
        ),
        (MADE + "[record]\nbatch_size = 0", r"\[record\] `batch_size` must be at least 1, got 0"),
        (MADE + "[compare]\nmethods = ['eef']", r"no method 'eef'; did you mean `eefp`\?"),
        (MADE + "[compare]\nmethods = ['eef:smooth']", r"no method 'eef'; did you mean `eefp`"),
        (MADE + "[compare]\nmethods = ['eefp:optimised']", r"did you mean `eefp:smooth`\?"),
        (
            MADE + "[compare]\nmethods = 'eefp'",
            r"\[compare\] `methods` must be a list, got 'eefp'",
        ),
        (MADE + "[compare]\nmethods = [1]", r"\[compare\] `methods`\[0\] must be a string, got 1"),
        (MADE + "[compare]\nbudgets = [2.0]", r"`budgets` must lie in \(0, 1\], got 2.0"),
        (MADE + "[compare]\nseeds = 0", r"`seeds` must be at least 1"),
        (MADE + "[compare]\nmethods = []", r"`methods` and `budgets` need at least one"),
        (MADE + "[corrector]\nhidden = 0", r"\[corrector\] `hidden` must be at least 1, got 0"),
        ('[data]\nname = "mixture"', r"\[network\] is missing: a study needs \[data\] and"),
        ('[network]\nname = "convnet"', r"\[data\] is missing"),
        ("[data]\nseed = 1\n[network]\nname = 'convnet'", r"\[data\] needs the key `name`"),
        (
            "[data]\nname = 'x'\nseed = -1\n[network]\nname = 'convnet'",
            r"\[data\] `seed` must be at least 0, got -1",
        ),
        (
            "[data]\nname = 'pacs'\ntargets = ['photo']\n[network]\nname = 'convnet'",
            r"\[data\] `targets` are domains, and go with a `source`",
        ),
        (
            "[data]\nname = 'cifar100'\nmean = [0.5]\n[network]\nname = 'convnet'",
            r"\[data\] `mean` and `std` go together",
        ),
        (
            "[data]\nname = 'mixture'\n[network]\nname = 'convnt'",
            r"\[network\] `name` must be a network .* did you mean `convnet`\?",
        ),
        (
            "[data]\nname = 'x'\n[network]\nname = 'timm/x'\nsettings = {depth = 2}",
            r"\[network\] `settings` are for networks that offramp builds, not for 'timm/x'",
        ),
        (
            "[data]\nname = 'x'\n[network]\nname = 'convnet'\nexits = 1.5",
            r"\[network\] `exits` must be a string or a whole number or a list, got 1.5",
        ),
        (ZOO + "[train]\nepochs = 3", r"\[ledgers\] exist already, and \[train\] would"),
        ("[ledgers]", r"\[ledgers\] needs either `folder` or `zoo`"),
        ("[ledgers]\nzoo = 'cifar10'", r"`zoo` must be one of cifar100.*did you mean `cifar100`"),
        ("ledgers = 3", r"\[ledgers\] must be a table, got 3"),
        ("title = 3\n" + ZOO, r"`title` must be a string, got 3"),
        ("networks = 3", r"\[networks\] must hold one table per network"),
        ("networks = {a = 3}", r"\[networks.a\] must be a table, got 3"),
        (
            "[networks.a]\nlegers = {zoo = 'cifar100'}",
            r"\[networks.a\] has no key `legers`; did you mean `ledgers`\?",
        ),
        (
            "[networks.a]\nledgers = {zoo = 'cifar100'}\npaper = 3",
            r"\[networks.a\] `paper` must be a heading",
        ),
        (
            MADE + "[networks.a.train]\nx = 1",
            r"\[networks.a.train\] has no key `x`",
        ),
        (
            MADE.replace("[network]", "[train]\nobjective = 'zero-time-waste'\n[network]")
            + "head = 'pooled-mlp'",
            r"\[train\] objective = \"zero-time-waste\" needs heads .* got 'pooled-mlp'",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path, text, match):
    refused(tmp_path / "study.toml", text, match)


def test_all_mistakes_are_named_at_once(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(
        "titel = 'x'\nabout = 3\n"
        "[data]\nseeds = 1\n[network]\nname = 'convnt'\n"
        "[train]\nepoch = 3\nbatch_size = 'large'\nlearning_rate = -1.0\npatience = 0\n"
        "[compare]\nseeds = 0\nbudgets = [2.0]\n"
    )
    with pytest.raises(ConfigError) as error:
        read_study(path)
    first, *lines = str(error.value).splitlines()
    assert first == "study.toml has 11 mistakes:"
    wanted = [
        "- study.toml has no key `titel`; did you mean `title`?",
        "- `about` must be a string, got 3",
        "- [data] has no key `seeds`; did you mean `seed`?",
        "- [data] needs the key `name`",
        "- [network] `name` must be a network",
        "- [train] has no key `epoch`; did you mean `epochs`?",
        "- [train] `batch_size` must be a whole number, got 'large'",
        "- [train] `patience`",
        "- [train] `learning_rate`",
        "- [compare] `budgets` must lie in (0, 1], got 2.0",
        "- [compare] `seeds` must be at least 1",
    ]
    for line, begin in zip(lines, wanted, strict=True):
        assert line.startswith(begin), line


def test_mistakes_of_several_networks_are_named_at_once(tmp_path):
    text = "[networks.a.train]\nepoch = 1\n[networks.b]\nledgers = {zoo = 'cifar10'}\n"
    text += "[networks.c]\nfrom = 'c'\nx = 1\n"
    match = (
        r"(?s)has 3 mistakes:\n- \[networks.a.train\] has no key `epoch`.*\n"
        r"- \[networks.b.ledgers\] `zoo`.*\n- \[networks.c\] has no key `x`"
    )
    refused(tmp_path / "study.toml", MADE + text, match)


def test_values_that_go_together_are_not_called_wrong_apart(tmp_path):
    text = "[data]\nname = 'x'\nmean = [0.5]\nstd = [0.5]\nval = 0\nlimit = 0\n"
    match = (
        r"study.toml has 2 mistakes:\n- \[data\] `val` must be at least 1, got 0\n"
        r"- \[data\] `limit` must be at least 1, got 0$"
    )
    refused(tmp_path / "study.toml", text + "[network]\nname = 'convnet'\n", match)


def test_a_file_that_is_missing_or_no_toml_is_named(tmp_path):
    with pytest.raises(FileFormatError, match="there is no study file"):
        read_study(tmp_path / "no.toml")
    refused(tmp_path / "a.toml", "= 3", "is not valid TOML", FileFormatError)


def test_a_scale_is_asked_for_where_there_are_several(tmp_path):
    path = tmp_path / "a.toml"
    text = "[scales.small]\nledgers = {zoo = 'cifar100'}\ncompare = {seeds = 1}\n[scales.paper]\n"
    refused(path, text, r"a.toml has the scales small, paper: choose one of them with --scale")
    refused(path, text, r"choose one of them with --scale, got 'smal'", scale="smal")
    assert read_study(path, "small").compare.seeds == 1
    refused(path, ZOO, r"a.toml has no \[scales\]", scale="small")
    refused(path, "scales = 3", r"\[scales\] must hold one table per scale")
    refused(path, "[scales.a]\nx = 1", r"\[scales.a\] has no key `x`", scale="a")


def test_changes_take_the_place_of_what_the_file_says(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(MADE)
    study = read_study(path, changes={"train.epochs": 7, "compare.methods": ["baseline"]})
    assert study.networks[0].train.epochs == 7
    assert study.compare.methods == ("baseline",)
    refused(path, MADE, r"\[train\] has no key `epoch`", changes={"train.epoch": 7})
    refused(path, MADE, "cannot set `data.name.x`: `name` is not", changes={"data.name.x": 1})


def test_none_stands_for_no_value(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(MADE + "[train]\npatience = 'none'\nclip_norm = 'none'")
    train = read_study(path).networks[0].train
    assert (train.patience, train.clip_norm) == (None, None)


def test_networks_share_what_stands_at_the_top(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(
        MADE
        + "[networks.a.train]\nepochs = 1\n[networks.b]\nledgers = {zoo = 'cifar100'}\n"
        + "[networks.c.train]\nobjective = 'zero-time-waste'\n"
    )
    a, b, c = read_study(path).networks
    assert (a.data.name, a.network.name, a.train.epochs) == ("mixture", "convnet", 1)
    assert b.data is None and b.ledgers.zoo == "cifar100"
    assert c.network.head == "cascade", "zero time waste gets the heads that it needs"
    assert a.network.head is None


def test_a_change_reaches_every_network_whatever_its_own_section_says(tmp_path):
    (tmp_path / "first.toml").write_text(MADE + "[networks.b.train]\nepochs = 5\n")
    path = tmp_path / "a.toml"
    path.write_text(
        MADE
        + "[networks.a.train]\nepochs = 1\n[networks.b]\nfrom = 'first'\n"
        + "[networks.c]\nledgers = {zoo = 'cifar100'}\n"
    )
    changes = {"train.epochs": 7, "networks.b.train.epochs": 9, "data.limit": 3}
    a, b, c = read_study(path, changes=changes).networks
    assert (a.train.epochs, b.train.epochs) == (7, 9)
    assert (a.data.limit, b.data.limit) == (3, 3)
    assert c.train is None and c.ledgers.zoo == "cifar100"


def test_a_change_without_effect_is_refused(tmp_path):
    text = "[networks.a]\nledgers = {zoo = 'cifar100'}\n"
    message = "`train.epochs` would change nothing: the networks of a.toml have existing ledgers"
    refused(tmp_path / "a.toml", text, message, changes={"train.epochs": 7})
    text = MADE + "[networks.a.train]\nepochs = 1\n"
    changes = {"ledgers.zoo": "cifar100"}
    refused(tmp_path / "a.toml", text, "`ledgers.zoo` would change nothing", changes=changes)


def test_a_network_can_come_from_another_study(tmp_path):
    (tmp_path / "first.toml").write_text(
        MADE + "[networks.a]\ntitle = 'The first'\ntrain = {epochs = 5}\n"
    )
    path = tmp_path / "second.toml"
    path.write_text("[networks.a]\nfrom = 'first'\ntitle = 'Again'\n")
    (entry,) = read_study(path).networks
    assert (entry.title, entry.train.epochs, entry.data.name) == ("Again", 5, "mixture")
    refused(path, "[networks.b]\nfrom = 'first'", "first.toml has no network `b`; known are a")
    refused(path, "[networks.b]\nfrom = 'no'", "there is no study file", FileFormatError)


def test_only_some_networks_can_be_asked_for(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("[ledgers]\nzoo='cifar100'\n[networks.one]\n[networks.two]\n")
    study = read_study(path)
    assert [each.name for each in study.only(["two"]).networks] == ["two"]
    with pytest.raises(ConfigError, match=r"a has no network `tow`; did you mean `two`\?"):
        study.only(["tow"])


def test_all_mistakes_are_collected():
    mistakes = Mistakes()
    for text in ("[train] has no key `epoch`", "[data] needs the key `name`"):
        with mistakes.noted():
            raise ConfigError(text)
    assert mistakes.texts == ["[train] has no key `epoch`", "[data] needs the key `name`"]
