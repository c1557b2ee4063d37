"""The page in a real browser without a network: it draws, reacts, and says nothing on the console.

Not run by default, as pip cannot install a browser: ``.ci/run browser``, or with Chromium installed
``pytest -m browser tests/report``.
"""

import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from headrace.config import ComponentConfig, LmDataConfig
from headrace.feed import RunLog
from headrace.report import page as live_module
from headrace.report.blocks import plain
from headrace.report.charts import axis, measured_chart
from headrace.report.facts import gather
from headrace.report.page import LiveReport, write_report
from headrace.run import open_run
from headrace.testing import tiny_cache

pytestmark = pytest.mark.browser

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
UNFOLD = "document.querySelectorAll('main details').forEach((one) => { one.open = true; })"
CHARTS = [
    "loss",
    "mixture",
    "epochs",
    "quality",
    "lengths",
    "fill",
    "fetches",
    "bytes",
    "waiting",
    "waits",
    "loader-time",
    "speed",
    "queue",
    "own-0",
]

WEB = "#chart-mixture .legend button >> nth=0"
WEB_HIDDEN = (
    "document.querySelector('#chart-mixture .legend button').getAttribute('aria-pressed') ==="
    " 'false'"
)
LINES = "#chart-mixture path.mark"
OUTSIDE = """() => [...document.querySelectorAll('.plot .body svg')].flatMap((svg) => {
    const frame = svg.getBoundingClientRect(), ticks = [...svg.querySelectorAll('.tick')];
    const boxes = ticks.map((tick) => tick.getBoundingClientRect());
    const out = boxes.filter((box) => box.left < frame.left - 1 || box.right > frame.right + 1);
    const overlap = boxes.filter((box, k) => boxes.slice(k + 1).some((other) =>
        box.left < other.right && other.left < box.right && box.top < other.bottom && other.top < box.bottom));
    return [...out, ...overlap].map(() => svg.closest('.plot').id);
})"""


@pytest.fixture(scope="module")
def chromium() -> Iterator:
    from playwright.sync_api import sync_playwright

    path = (
        os.environ.get("HEADRACE_CHROMIUM")
        or shutil.which("chromium")
        or shutil.which("chromium-browser")
    )
    if path is None:
        pytest.fail(
            "there is no Chromium: apt-get install chromium, or set HEADRACE_CHROMIUM to the path"
            " of one"
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


class Opened:
    """A page, with all that it said and asked for."""

    def __init__(self, browser, url, **context):
        self.context = browser.new_context(viewport={"width": 1200, "height": 900}, **context)
        self.page = self.context.new_page()
        self.said = []
        self.asked = []
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url)
        self.page.wait_for_selector("html[data-drawn]", timeout=0)
        self.page.evaluate(UNFOLD)

    def until(self, script, argument=None):
        """Waits until a function is true; playwright's own way needs eval, which the page's policy
        forbids.
        """
        while not self.page.evaluate(script, argument):
            self.page.wait_for_timeout(50)


@pytest.fixture(scope="module")
def report(run_folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(gather(str(run_folder)), str(path))
    return path


@pytest.fixture
def opened(chromium, report):
    found = Opened(chromium, report.as_uri(), offline=True)
    yield found
    found.page.wait_for_timeout(200)
    found.context.close()
    assert found.said == []
    assert [url for url in found.asked if not url.startswith(("file:", "data:", "blob:"))] == []


def test_every_chart_is_drawn_without_a_network(opened):
    for chart in CHARTS:
        box = opened.page.locator(f"#chart-{chart} .body svg").first.bounding_box()
        assert box is not None, chart
        assert box["width"] > 300, chart
        assert box["height"] > 200, chart
        assert opened.page.locator(f"#chart-{chart} .mark").count() > 0, chart
        assert "NaN" not in opened.page.locator(f"#chart-{chart} .body").first.inner_html(), chart


def test_marks_and_labels_stay_within_their_chart(opened):
    """No line above the plot, no label over the edge, no two labels of an axis over each other."""
    assert opened.page.evaluate(OUTSIDE) == []


def test_a_click_in_the_legend_hides_a_source_and_another_shows_it(opened):
    lines = opened.page.locator(LINES)
    every = lines.count()
    opened.page.click(WEB)
    opened.until(WEB_HIDDEN)
    assert lines.count() == every - 2  # the dots go with the line
    opened.page.wait_for_timeout(500)  # or it would be a double click
    opened.page.click(WEB)
    opened.until(f"!({WEB_HIDDEN})")
    assert lines.count() == every
    opened.page.wait_for_timeout(500)
    opened.page.dblclick(WEB)  # it alone
    opened.until(f"document.querySelectorAll('{LINES}').length === 2")
    assert not opened.page.evaluate(WEB_HIDDEN)
    opened.page.dblclick(WEB)
    opened.until(f"document.querySelectorAll('{LINES}').length === {every}")


def test_the_pointer_reads_the_lines_and_zooms(opened):
    body = opened.page.locator("#chart-mixture .body")
    body.scroll_into_view_if_needed()
    box = body.bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    opened.page.mouse.move(*middle)
    tip = opened.page.locator("#chart-mixture .tip")
    assert tip.is_visible()
    assert tip.locator("b").text_content().startswith("step ")
    assert "%" in tip.locator("em").first.text_content()
    ticks = opened.page.locator("#chart-mixture .tick").all_text_contents()
    opened.page.mouse.down()
    opened.page.mouse.move(middle[0] + 120, middle[1])
    opened.page.mouse.up()
    opened.page.click("#chart-mixture .reset")
    assert opened.page.locator("#chart-mixture .tick").all_text_contents() == ticks
    opened.page.mouse.move(0, 0)
    assert not tip.is_visible()
    body.focus()
    opened.page.keyboard.press("ArrowRight")
    first = tip.locator("b").text_content()
    opened.page.keyboard.press("ArrowRight")
    assert tip.locator("b").text_content() != first


def test_a_click_shows_rows_of_a_step_and_the_command_of_another(opened):
    folded = opened.page.locator("#rows details").first
    words = folded.locator("td.prose").first
    before = words.is_visible()
    folded.locator("summary").click()
    assert words.is_visible() != before
    commands = opened.page.locator("#rows .part:last-child tbody tr")
    before = commands.count()
    body = opened.page.locator("#chart-mixture .body")
    for place in (300, 400):  # the second click replaces the step of the first
        body.click(position={"x": place, "y": 100})
        assert commands.count() == before + 1
        shown = commands.last.locator("th").text_content()
        assert f"--step {shown}" in commands.last.locator("code").text_content()


def test_light_and_dark_by_preference_and_by_button(chromium, report):
    def paper(found):
        return found.page.evaluate("getComputedStyle(document.body).backgroundColor")

    def ink(found):
        return found.page.evaluate(f"getComputedStyle(document.querySelector('{LINES}')).stroke")

    seen = {}
    for scheme in ("light", "dark"):
        found = Opened(chromium, report.as_uri(), offline=True, color_scheme=scheme)
        seen[scheme] = paper(found), ink(found)
        found.page.click("#theme")
        toggled = paper(found), ink(found)
        found.page.reload()
        found.page.wait_for_selector("html[data-drawn]")
        assert (paper(found), ink(found)) == toggled  # it is remembered
        found.page.emulate_media(color_scheme="dark" if scheme == "light" else "light")
        found.page.wait_for_timeout(300)
        assert found.said == []
        found.context.close()
        seen[scheme] += toggled
    assert seen["light"][:2] == seen["dark"][2:]
    assert seen["dark"][:2] == seen["light"][2:]
    assert seen["light"][0] != seen["dark"][0]
    assert seen["light"][1] != seen["dark"][1]


@pytest.mark.parametrize("width", [320, 390, 768, 1600])
def test_nothing_sticks_out_on_any_screen(opened, width):
    opened.page.set_viewport_size({"width": width, "height": 800})
    opened.page.wait_for_timeout(500)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = opened.page.evaluate(
        "[...document.querySelectorAll('.plot .body svg')].map(e =>"
        " e.getBoundingClientRect().right)"
    )
    assert max(boxes) <= width


@pytest.fixture(scope="module", params=[1, 20, 200])
def of_many_sources(request, tmp_path_factory) -> Path:
    """The report of a run with so many sources, in one cache."""
    root = tmp_path_factory.mktemp(f"sources-{request.param}")
    cache = tiny_cache(root / "cache", documents=300, seed=1).path
    components = {
        f"source-{k:03}": ComponentConfig(cache, weight=1 + k % 7) for k in range(request.param)
    }
    config = LmDataConfig(components, seq_len=16, batch_size=16, num_steps=60)
    with config.loader() as loader, loader.iter_from_step(0) as batches:
        open_run(str(root / "run"), loader, 0)
        with RunLog(loader, root / "run", config=config, every=1) as log:
            for step, _ in zip(range(40), batches, strict=False):
                log(step)
    assert write_report(gather(str(root / "run")), str(root / "report.html")) < 1_000_000
    return root / "report.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_any_number_of_sources_fits_any_screen(chromium, of_many_sources, scheme):
    found = Opened(chromium, of_many_sources.as_uri(), offline=True, color_scheme=scheme)
    for width in (390, 820, 1600):
        found.page.set_viewport_size({"width": width, "height": 900})
        found.page.wait_for_timeout(300)
        assert found.page.evaluate("document.documentElement.scrollWidth") <= width
        assert found.page.evaluate(OUTSIDE) == []
        for chart in ("mixture", "epochs"):
            body, legend = (
                found.page.locator(f"#chart-{chart} .body"),
                found.page.locator(f"#chart-{chart} .legend"),
            )
            assert body.locator(".mark").count() > 0
            assert "NaN" not in body.inner_html()
            assert legend.bounding_box()["height"] < 400
    assert found.said == []
    found.context.close()


def test_no_line_crosses_the_value_of_a_peak(chromium, report, tmp_path):
    """The page with a chart of our own, of which three steps are far above the others."""
    steps = np.arange(60)
    values = np.where(np.isin(steps, [1, 20, 58]), 50.0, steps % 3)
    figure = measured_chart([SimpleNamespace(host=0, step=steps)], [values], axis("reads"))
    page = report.read_text()
    (embedded,) = re.findall(
        r'<script id="figures" type="application/json">(.*?)</script>', page, re.DOTALL
    )
    figures = json.loads(embedded) | {"chart-fetches": plain(figure)}
    path = tmp_path / "peaks.html"
    path.write_text(page.replace(embedded, json.dumps(figures).replace("<", "\\u003c")))
    found = Opened(chromium, path.as_uri(), offline=True)
    for width in (390, 1200):
        found.page.set_viewport_size({"width": width, "height": 900})
        found.page.locator("#chart-fetches").scroll_into_view_if_needed()
        found.page.wait_for_timeout(300)
        texts, boxes, top = found.page.evaluate("""() => {
            const svg = document.querySelector('#chart-fetches .body svg'), frame = svg.getBoundingClientRect();
            const values = [...svg.querySelectorAll('.value')], rect = svg.querySelector('clipPath rect');
            const boxes = values.map((value) => value.getBoundingClientRect());
            const sides = boxes.map((box) => [box.left - frame.left, frame.right - box.right, box.bottom]);
            return [values.map((value) => value.textContent), sides, frame.top + Number(rect.getAttribute('y'))];
        }""")
        assert texts == ["50", "50", "50"]
        for left, right, bottom in boxes:
            assert min(left, right) >= 0
            assert bottom <= top + 1  # lines are drawn below this
    assert found.said == []
    found.context.close()


def test_contents_lead_to_their_section(opened):
    opened.page.click("nav a[href='#provenance']")
    opened.until(
        "Math.abs(document.getElementById('provenance').getBoundingClientRect().top) < 300"
    )


def test_the_names_of_sources_do_nothing(opened):
    assert opened.page.locator("main img").count() == 0
    assert "onerror=alert(1)" in opened.page.locator("#chart-mixture .legend").text_content()


def test_a_live_page_draws_what_is_written_meanwhile(chromium, run_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(live_module, "_FRESH_S", 0.0)
    monkeypatch.setattr(live_module, "_REST", 0)
    folder = tmp_path / "run"
    (folder / "stats").mkdir(parents=True)
    whole = (run_folder / "stats" / "host-00000.jsonl").read_text().splitlines(keepends=True)
    log = folder / "stats" / "host-00000.jsonl"
    log.write_text(whole[0])
    report = LiveReport(gather(str(folder)), every_s=0.2)
    thread = threading.Thread(target=report.serve)
    thread.start()
    try:
        found = Opened(chromium, report.url)
        found.page.wait_for_selector("#live.well")
        assert found.page.locator("#chart-waits").count() == 0
        log.write_text("".join(whole[:4]))
        found.page.wait_for_selector("#chart-waits .mark", state="attached")
        found.page.click(WEB)
        found.until(WEB_HIDDEN)
        path = "document.querySelector('#chart-waits .mark').getAttribute('d').length"
        points = found.page.evaluate(path)
        log.write_text("".join(whole))
        found.until(f"n => {path} > n", points)
        assert found.page.evaluate(WEB_HIDDEN)  # it stays so while figures come
        assert found.said == []
        assert all(url.startswith((report.url, "data:", "blob:")) for url in found.asked)
    finally:
        report.close()
        thread.join()
    found.page.wait_for_selector("#live.lost")
    found.context.close()
