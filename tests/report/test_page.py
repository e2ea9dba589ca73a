"""The page as a file: complete, harmless whatever users call their things, and from one JSON."""

import json
import re
from base64 import b64decode, b64encode
from hashlib import sha256
from html.parser import HTMLParser
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from offramp import Ledger, Method, compare
from offramp.cli.app import app
from offramp.errors import ConfigError, FileFormatError
from offramp.registry import METHODS
from offramp.report import ResultTable, SampleStrip, Section, write_comparison, write_page
from offramp.report.page import embedded_json, groups_of, page_data
from offramp.report.tables import Cell

NASTY = "</script><b>&amp; <!-- \u2028 $x$ {{ 7 * 7 }}"


class Elements(HTMLParser):
    """All tags, attributes and texts of a page."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.texts = [""], [], {}
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.texts.setdefault(self.tags[-1], []).append(data)


@pytest.fixture(scope="module")
def table(splits):
    odd = Method("odd", NASTY, METHODS["entropy"].scorer)
    ledgers = (splits[name] for name in ("held_out", "val", "test"))
    return compare(*ledgers, methods=["baseline", odd], resamples=20)


@pytest.fixture(scope="module")
def html(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    (folder / "a.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg"><script>1</script></svg>'
    )
    strip = SampleStrip(np.full((2, 4, 4, 1), 9, np.uint8), [NASTY, "owl"], NASTY)
    sections = [
        Section(NASTY, table, NASTY, [ResultTable("t", NASTY, [NASTY], [[Cell(NASTY)]], NASTY)]),
        Section("Others", figures=[folder / "a.svg"], samples=strip),
    ]
    page = write_page(folder / "new" / "report.html", NASTY, sections, {NASTY: {NASTY: [NASTY]}})
    return page.read_text(encoding="utf-8")


def test_names_from_users_stay_text(html):
    found = Elements(html)
    assert "b" not in found.tags
    assert found.tags.count("script") == 3  # the data, the library, the page's own code
    assert NASTY in found.texts["h1"]
    assert NASTY in found.texts["dt"]
    assert NASTY in found.texts["figcaption"]


def test_the_embedded_data_are_the_comparisons_own(html, table):
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html)
    data = json.loads(text)
    assert data["0"]["methods"][1]["label"] == NASTY
    saved = json.loads(json.dumps(table.to_json()))
    for shown, method in zip(data["0"]["methods"], saved["methods"], strict=True):
        assert shown["points"] == method["diagnostics"]["points"]
        assert shown["reliability"] == method["diagnostics"]["reliability"]
        assert shown["histograms"] == method["diagnostics"]["histograms"]
        assert shown["exits"] == method["exits"][0]
    assert data["0"]["references"] == saved["references"]


def test_six_methods_are_drawn_at_first_against_the_baseline_and_no_two_look_alike(splits):
    ledgers = (splits[name] for name in ("held_out", "val", "test"))
    many = [Method(f"m{n}", f"Number {n}") for n in range(9)]
    data = page_data(compare(*ledgers, methods=[*many, "baseline"], resamples=2))
    methods = {method["name"]: method for method in data["methods"]}
    shown = [method for name, method in methods.items() if name not in data["hidden"]]
    assert len(shown) == 6
    assert "baseline" not in data["hidden"]
    assert data["methods"][data["reference"]]["name"] == "baseline"
    assert len({method["colour"] for method in shown}) == 6
    assert len({method["marker"] for method in shown}) == 6
    looks = {(m["colour"], m["dash"], m["marker"]) for m in methods.values()}
    assert len(looks) == len(methods)


@pytest.mark.parametrize("text", [NASTY, "<!--<script>", "\u2028\u2029", "]]>"])
def test_embedded_json_holds_no_character_that_html_reads(text):
    embedded = embedded_json({text: text})
    assert not set("<>&\u2028\u2029") & set(embedded)
    assert json.loads(embedded) == {text: text}


def test_nothing_is_fetched_and_only_the_pages_own_scripts_may_run(html):
    found = Elements(html)
    named = [value for name, value in found.attributes if name in ("src", "href", "srcset")]
    assert all(value.startswith(("#", "data:")) for value in named)
    (policy,) = [v for n, v in found.attributes if n == "content" and "script-src" in v]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy
    for script in re.findall(r"<script>(.*?)</script>", html, flags=re.DOTALL):
        digest = b64encode(sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_pictures_are_inside_the_page(html):
    images = [v for n, v in Elements(html).attributes if n == "src"]
    assert [image.split(",")[0] for image in images] == [
        "data:image/svg+xml;base64",
        "data:image/png;base64",
        "data:image/png;base64",
    ]
    picture = Image.open(BytesIO(b64decode(images[1].split(",")[1])))
    assert picture.size == (4, 4)
    assert picture.getpixel((0, 0)) == 9


def test_where_nobody_is_hopeless_the_page_says_so(tmp_path):
    labels, logits = np.arange(60) % 3, np.zeros((60, 2, 3))
    logits[np.arange(60), 1, labels] = 9.0  # the last exit is always right
    logits[:, 0] = np.random.default_rng(0).normal(size=(60, 3))
    ledgers = [
        Ledger(
            logits, labels, costs=[1, 2], split=split, network="n", sample_ids=np.arange(60) + n
        )
        for split, n in (("held_out", 0), ("val", 100), ("test", 200))
    ]
    table = compare(*ledgers, methods=["baseline"], resamples=5)
    assert np.isnan(table["baseline"].diagnostics.points.hopeless_costs).all()
    page = write_page(tmp_path / "page.html", "T", [Section("A", table)], {}).read_text()
    assert "Each of the 60 test samples is answered correctly at some exit." in page


def test_a_page_without_comparisons_carries_no_plotting_library(tmp_path):
    page = write_page(tmp_path / "p.html", "T", [Section("A", note="One.\n\nTwo.")], {})
    assert page.stat().st_size < 100_000
    assert any("script-src 'none'" in (v or "") for _, v in Elements(page.read_text()).attributes)


def test_tables_hold_the_same_figures_as_in_markdown(html, table, tmp_path):
    write_comparison(table, tmp_path, page=False)
    markdown = (tmp_path / "comparison.md").read_text()
    cells = [text for text in Elements(html).texts["td"] if text.strip() and text != NASTY]
    assert len(cells) > 20
    assert all(text in markdown for text in cells)


def test_every_asset_is_in_the_package():
    import tomllib
    from pathlib import Path

    root = Path(__file__).parents[2]
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["offramp"]
    package = root / "src" / "offramp"
    packed = {path for pattern in patterns for path in package.glob(pattern)}
    assert {path for path in (package / "report").glob("page_*/*")} <= packed


def test_pictures_that_cannot_be_shown_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"uint8 \[n, H, W, C\].* got float64 \[2, 4\]"):
        SampleStrip(np.zeros((2, 4)), ["a", "b"])
    with pytest.raises(ConfigError, match="`captions` must have 2 entries, one per image, got 1"):
        SampleStrip(np.zeros((2, 4, 4, 3), np.uint8), ["a"])
    with pytest.raises(FileFormatError, match="there is no figure at"):
        write_page(tmp_path / "p.html", "T", [Section("A", figures=[tmp_path / "x.svg"])], {})
    (tmp_path / "x.png").write_bytes(b"PNG")
    with pytest.raises(FileFormatError, match="is not an SVG file"):
        write_page(tmp_path / "p.html", "T", [Section("A", figures=[tmp_path / "x.png"])], {})
    assert not (tmp_path / "p.html").exists()


def test_what_was_run_is_flattened_for_reading():
    groups = groups_of({"seeds": [0, 1], "data": {"cuts": {"val": 0.25}, "unset": None}, "e": {}})
    assert groups == [
        ("", [("seeds", "0, 1"), ("e", "none")]),
        ("data", [("cuts.val", "0.25")]),
    ]


def test_the_command_makes_one_page_of_many_comparisons(table, tmp_path):
    for name in ("one-comparison", "two"):
        write_comparison(table, tmp_path / name, {"command": f"made {name}"}, page=False)
    folders = [str(tmp_path / "one-comparison"), str(tmp_path / "two" / "comparison.json")]
    done = CliRunner().invoke(app, ["report", *folders, "--out", str(tmp_path / "all.html")])
    assert done.exit_code == 0, done.output
    html = (tmp_path / "all.html").read_text()
    assert re.findall(r"<h2 id=\"title-\d\">(.*?)</h2>", html) == ["one", "two"]
    assert "made one-comparison" in html
    assert html.count("plotly.js v") == 1
    data = page_data(table)
    assert embedded_json(data["methods"][0]["points"]["accuracies"]) in html
