"""The page in headless Chromium, opened from disk: what is seen is what was measured."""

import json
from dataclasses import replace

import numpy as np
import pytest

from offramp import Corrector, Ledger, Method, compare
from offramp.report import SampleStrip, Section, write_comparison, write_page

pytestmark = pytest.mark.browser

NASTY = "</script><b>bold</b> %{x} & co"


@pytest.fixture(scope="module")
def written(splits, tmp_path_factory):
    """The page's path and comparison.json, of a deterministic and two random methods."""
    folder = tmp_path_factory.mktemp("page")
    methods = [
        "baseline",
        Method("odd", NASTY, Corrector(k=3, epochs=2)),
        Method("patient", "Corrected", Corrector(k=3, epochs=2, history=False)),
    ]
    ledgers = (splits[name] for name in ("held_out", "val", "test"))
    table = compare(*ledgers, methods=methods, seeds=2, resamples=20)
    write_comparison(table, folder, page=False)
    strip = SampleStrip(np.zeros((9, 8, 8, 3), np.uint8), [NASTY] * 9)
    wide = "a-name-without-any-place-to-break-" * 4
    path = write_page(
        folder / "report.html",
        "A report",
        [Section("One", table, samples=strip), Section("Two", table, note="Far below.")],
        {"path": wide, "nested": {wide: [1, 2]}},
    )
    return path, json.loads((folder / "comparison.json").read_text())


@pytest.fixture(scope="module")
def visit(chromium, written):
    """Opens the page in a window of its own; nothing may be requested or complained about."""
    trouble, contexts = [], []

    def go(**options):
        context = chromium.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: trouble.append(m.text) if m.type != "log" else None)
        page.on("pageerror", lambda error: trouble.append(str(error)))
        address = written[0].as_uri()
        page.on("request", lambda r: trouble.append(r.url) if r.url != address else None)
        page.goto(address)
        if options.get("java_script_enabled", True):
            page.wait_for_selector('[data-chart="hopeless"] .main-svg')
        return page

    go.trouble = trouble
    yield go
    for context in contexts:
        context.close()
    assert trouble == []


@pytest.fixture(scope="module")
def page(visit):
    """One window for all that only asks the page something: opening it takes longest."""
    return visit()


def wait_until(page, expression):
    """Playwright's own waiting evaluates text inside the page, which the page's policy forbids."""
    for _ in range(200):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never became true: {expression}")


def set_slider(page, value):
    page.locator('[data-control="budget"]').first.evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')) }",
        value,
    )


def text(page, selector):
    return page.locator(selector).first.inner_text().replace("\u202f", " ")


def plotted(page, chart, trace, axis="y"):
    """Values that the chart was drawn from."""
    return page.locator(f'[data-chart="{chart}"]').first.evaluate(
        """async (chart, [trace, axis]) => {
            await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
            return Array.from(chart.data[trace][axis]);
        }""",
        [trace, axis],
    )


def test_the_page_opens_from_disk_without_a_request_or_a_complaint(visit, page):
    assert page.url.startswith("file://")
    assert page.title() == "A report"
    assert visit.trouble == []


@pytest.mark.parametrize("budget", [35, 60, 100])
def test_the_slider_changes_every_figure_to_that_in_the_json(page, written, budget):
    _, saved = written
    set_slider(page, budget)
    assert text(page, '[data-value="budget"]') == f"{budget} %"
    for side, name in (("left", 0), ("right", 1)):
        page.locator(f'[data-control="{side}"]').first.select_option(str(name))
        points = saved["methods"][name]["diagnostics"]["points"]
        at = points["budgets"].index(budget / 100)
        root = f'[data-side="{side}"]'
        shown = text(page, f'{root} [data-value="accuracy"]')
        assert shown == f"{100 * points['accuracies'][at]:.2f} %"
        assert text(page, f'{root} [data-value="cost"]') == f"{100 * points['costs'][at]:.1f} %"
        assert plotted(page, "shares", name) == pytest.approx(
            [100 * share for share in points["shares"][at]]
        )
        rows = page.locator('[data-table="points"]').first.locator("tbody tr")
        shares = [
            rows.nth(m).locator('[data-value="share"]').nth(name).inner_text()
            for m in range(rows.count())
        ]
        assert [float(share.split("\u202f")[0]) for share in shares] == pytest.approx(
            [100 * share for share in points["shares"][at]], abs=0.051
        )
        limit = points["thresholds"][at][0]
        shown = rows.nth(0).locator('[data-value="threshold"]').nth(name).inner_text()
        if isinstance(limit, str):
            assert shown == {"inf": "closed", "-inf": "all"}[limit]
        else:
            assert float(shown.split()[0].replace("−", "-")) == pytest.approx(limit, abs=0.0051)


def test_the_difference_of_the_two_methods_is_stated_as_measured(page, written):
    _, saved = written
    set_slider(page, 60)
    page.locator('[data-control="left"]').first.select_option("0")
    page.locator('[data-control="right"]').first.select_option("2")
    one, other = (saved["methods"][n]["diagnostics"]["points"] for n in (0, 2))
    gap = 100 * (other["accuracies"][59] - one["accuracies"][59])
    stated = text(page, '[data-value="finding"]').replace("−", "-")
    assert stated.startswith(f"Corrected against Baseline: {gap:+.2f} points of accuracy")


def test_the_hopeless_table_follows_the_slider(page, written):
    _, saved = written
    set_slider(page, 40)
    cells = page.locator('[data-table="hopeless"]').first.locator("tbody tr").nth(0).locator("td")
    points = saved["methods"][0]["diagnostics"]["points"]
    assert cells.nth(1).inner_text() == f"{100 * points['hopeless_costs'][39]:.1f}\u202f%"
    count = saved["methods"][0]["diagnostics"]["hopeless_count"]
    assert f"{count:,} of the" in page.locator("main").inner_text()


def test_the_slider_obeys_the_keyboard_and_says_its_value(page):
    slider = page.get_by_label("Budget").first
    set_slider(page, 50)
    slider.focus()
    slider.press("ArrowRight")
    assert text(page, '[data-value="budget"]') == "51 %"
    assert slider.get_attribute("aria-valuetext").startswith("51 per cent")
    before = text(page, '[data-side="left"] [data-value="accuracy"]')
    slider.press("Home")
    assert text(page, '[data-side="left"] [data-value="accuracy"]') != before


def test_curves_are_those_of_the_json_with_bands_over_seeds(page, written):
    _, saved = written
    curve = saved["methods"][0]["curves"][0]
    x, y = (np.array(plotted(page, "tradeoff", 0, axis)) for axis in "xy")
    expected = np.interp(x / 100, curve["costs"], curve["accuracies"])
    assert y / 100 == pytest.approx(expected)
    kinds = page.locator('[data-chart="tradeoff"]').first.evaluate(
        "chart => chart.data.map(trace => trace.fill ?? trace.name)"
    )
    assert kinds.count("toself") == 2  # of the two random methods
    assert {"Oracle", "Full network", "Exit alone"} <= set(kinds)


def test_an_exit_of_a_method_is_shown_with_its_own_figures(page, written):
    _, saved = written
    page.locator('[data-control="method"]').first.select_option("1")
    page.locator('[data-control="exit"] label').nth(2).click()
    method = saved["methods"][1]
    for figure in ("ece", "eefp", "augrc"):
        shown = text(page, f'[data-value="exit-{figure}"]')
        assert shown == f"{method['exits'][0][figure][2]:.3f}"
    bins = method["diagnostics"]["reliability"]
    assert plotted(page, "reliability", 1) == pytest.approx([100 * v for v in bins["right"][2]])
    histograms = method["diagnostics"]["histograms"]
    assert plotted(page, "histogram", 0) == histograms["stop"][2]
    assert plotted(page, "histogram", 1) == histograms["go"][2]


def test_at_the_last_exit_the_page_says_that_no_scorer_runs(page):
    page.locator('[data-control="exit"] label').nth(4).click()
    chart = page.locator('[data-chart="histogram"]').first
    assert "No scorer runs at the last exit" in chart.inner_text()
    assert text(page, '[data-value="exit-eefp"]') == "–"


def test_a_label_with_tags_stays_text_everywhere(page):
    assert page.locator("b").count() == 0
    assert page.locator(".chip").nth(1).inner_text() == NASTY
    assert NASTY in page.locator('[data-control="left"] option').all_inner_texts()
    page.locator('[data-chart="tradeoff"] .nsewdrag').first.hover()
    page.wait_for_selector('[data-chart="tradeoff"] .hoverlayer text')
    hover = page.locator('[data-chart="tradeoff"] .hoverlayer').first.text_content()
    assert NASTY in hover


def test_a_method_can_be_hidden_in_all_charts(page):
    before = page.locator('[data-chart="eefp"]').first.evaluate("chart => chart.data.length")
    page.locator(".chip").first.click()
    assert page.locator(".chip").first.get_attribute("aria-pressed") == "false"
    after = page.locator('[data-chart="eefp"]').first.evaluate("chart => chart.data.length")
    assert after == before - 1
    page.locator(".chip").first.click()


def test_methods_that_are_not_drawn_at_first_come_with_a_click(chromium, splits, tmp_path):
    ledgers = (splits[name] for name in ("held_out", "val", "test"))
    many = [Method(f"m{n}", f"Number {n}") for n in range(7)]
    table = compare(*ledgers, methods=["baseline", *many], resamples=2)
    path = write_page(tmp_path / "report.html", "Many", [Section("One", table)], {})
    page = chromium.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector('[data-chart="tradeoff"] .main-svg')
    count = "chart => chart.data.filter((trace) => trace.name?.startsWith('Number')).length"
    drawn = page.locator('[data-chart="tradeoff"]')
    assert drawn.evaluate(count) == 5
    page.locator('.chip[aria-pressed="false"]').first.click()
    assert drawn.evaluate(count) == 6
    assert page.locator(".verdict").first.inner_text().startswith("Early exits are ")
    about = page.locator(".prose:not(.verdict)").first.inner_text()
    assert "6 of 8 methods are drawn" in about
    page.get_by_role("button", name="Mix of two fixed exits").click()
    page.close()


@pytest.mark.parametrize("width", [768, 375])
def test_a_narrow_page_does_not_scroll_sideways_and_stays_readable(page, width):
    page.set_viewport_size({"width": width, "height": 800})
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
    wait_until(
        page, "document.querySelector('[data-chart=tradeoff]').layout.width < window.innerWidth"
    )
    assert page.evaluate("document.documentElement.scrollWidth") == width
    boxes = page.locator(".chart .main-svg").evaluate_all(
        "found => found.map(one => one.getBoundingClientRect().right)"
    )
    assert boxes and max(boxes) <= width
    smallest = page.evaluate(
        """Math.min(...[...document.querySelectorAll('main p, main td, main dd, main label')]
            .map(one => parseFloat(getComputedStyle(one).fontSize)))"""
    )
    assert smallest >= 12


def brightness(page, script):
    numbers = page.evaluate(f"{script}.match(/[\\d.]+/g).slice(0, 3).map(Number)")
    return sum(numbers) / 3


PAPER = "getComputedStyle(document.body).backgroundColor"
INK = "document.querySelector('[data-chart=tradeoff]').layout.font.color"


def test_the_page_follows_a_dark_system_and_the_toggle(page):
    light = page.evaluate(INK)
    page.emulate_media(color_scheme="dark")
    wait_until(page, f"{INK} !== {light!r}")
    assert brightness(page, PAPER) < 60 < 180 < brightness(page, INK)
    toggle = page.get_by_role("button", name="Theme")
    toggle.click()
    assert "light" in toggle.inner_text()
    assert brightness(page, INK) < 60 < 180 < brightness(page, PAPER)
    toggle.click()
    assert brightness(page, PAPER) < 60 < 180 < brightness(page, INK)


def test_printing_is_light_and_loses_no_figure(page):
    page.set_viewport_size({"width": 1200, "height": 900})
    page.emulate_media(media="print", color_scheme="dark")
    wait_until(page, "document.documentElement.hasAttribute('data-printing')")
    assert brightness(page, PAPER) > 180 > 60 > brightness(page, INK)
    sizes = page.locator("[data-chart]").evaluate_all(
        "found => found.map(one => one.querySelector('.main-svg')?.getBoundingClientRect().width)"
    )
    assert len(sizes) == 16  # of both sections, though the second was never scrolled to
    assert all(size and 100 < size <= 681 for size in sizes)
    assert len(page.pdf(format="A4")) > 50_000


def test_without_scripts_the_tables_are_there(visit):
    page = visit(java_script_enabled=False)
    body = page.locator("main").inner_text()
    assert "The charts need JavaScript" in body
    assert "Accuracy (%) at a mean cost" in body


@pytest.fixture(scope="module")
def answers(chromium, tmp_path_factory):
    """A page of answers without logits, of which one method leaves stages out."""
    rng = np.random.default_rng(0)
    found = rng.integers(0, 6, 607)[:, None] <= np.arange(4)  # some never are
    odds = np.where(found, 1.5, -1.5) + rng.normal(size=found.shape)
    ledger = Ledger.from_answers(
        confidence=1 / (1 + np.exp(-odds)), correct=found, costs=[1, 2, 3, 4], split="all"
    )

    class TwoStages(Method):
        """The first stage and the last, whatever lies between them."""

        def plans(self, held_out, val, budgets, seeds, fits=None):
            kept = (each.keep_exits([0, 3]) for each in (held_out, val))
            return [replace(p, exits=[0, 3]) for p in super().plans(*kept, budgets, seeds)]

    methods = ["eefp-logistic", TwoStages("two", "Two stages")]
    table = compare(*ledger.partition(), methods, [0.5], 1, resamples=5)
    folder = tmp_path_factory.mktemp("answers")
    path = write_page(folder / "report.html", "Answers", [Section("One", table)], {})
    page = chromium.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector('[data-chart="hopeless"] .main-svg')
    yield page, table
    page.close()


def test_of_answers_the_page_tells_who_was_sure_and_who_gave_up(answers):
    page, table = answers
    set_slider(page, 60)
    points = table["eefp-logistic"].diagnostics.points
    sure, gave_up = points.sure[59], points.gave_up[59]
    assert gave_up.sum() > 0.01
    assert text(page, '[data-side="left"] [data-value="ways"]') == (
        f"stopped early: {100 * sure.sum():.1f} % sure, {100 * gave_up.sum():.1f} % as hopeless"
    )
    assert plotted(page, "shares", 1) == pytest.approx(100 * gave_up)  # the hatched bars
    kept = points.shares[59] - gave_up
    assert plotted(page, "shares", 0) == pytest.approx(100 * kept)
    exit_index = int(gave_up.argmax())
    row = page.locator('[data-table="points"] tbody tr').nth(exit_index)
    shown = row.locator('[data-value="share"]').first.inner_text().replace("\u202f", " ")
    assert f"{100 * gave_up[exit_index]:.1f} % hopeless" in shown
    assert "classes" not in page.locator(".facts").first.inner_text()


def test_stages_that_a_method_leaves_out_are_shown_as_closed(answers):
    page, table = answers
    policy = table.plans["two"][0][0.5]
    rows = page.locator('[data-table="points"] tbody tr')
    assert rows.count() == 4
    for number in range(4):
        limit = rows.nth(number).locator('[data-value="threshold"]').nth(1).inner_text()
        share = rows.nth(number).locator('[data-value="share"]').nth(1).inner_text()
        if number not in policy.exits:
            assert share.startswith("0.0")
            assert limit == "closed" or number == 3
    assert "NaN" not in page.locator("main").inner_text()
    page.locator('[data-control="method"]').select_option("1")
    out = next(number for number in range(3) if number not in policy.exits)
    page.locator('[data-control="exit"] label').nth(out).click()
    assert "leaves the exit out" in page.locator('[data-chart="histogram"]').inner_text()
    assert text(page, '[data-value="exit-accuracy"]') == "–"
