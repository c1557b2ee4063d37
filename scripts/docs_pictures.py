"""Draw every page of the built docs and the report of a run in Chromium, wide and narrow, light and
dark, and check what is seen.

    mkdocs build -d SITE && python scripts/docs_pictures.py SITE [--all] [--pictures FOLDER]

Checks for Markdown left in the text, pages wider than the screen, text under 11 px, contrast under
4.5 (3 for large text) and broken images: ``docs_pictures.js``. Exit status 1 if there is one.
Without ``--all``, the home page, every third one of the pages that are written by hand, and the
report are drawn. With a folder named, a picture of each page in each form is left there.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from figures.report_page import STEPS, chromium, make_config, train
from playwright.sync_api import Browser, sync_playwright

from headrace.report.facts import gather
from headrace.report.page import write_report

WIDTHS = (1600, 400)
HEIGHT = 1000
SCHEMES = ("light", "dark")
REPORT = "report_of_a_run.html"
PROBLEMS = Path(__file__).with_suffix(".js").read_text()
STILL = "* { transition: none !important; animation: none !important; }"


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder without a line for each request."""

    def log_request(self, *_: object, **__: object) -> None:
        """Says nothing."""


def write_sample_report(target: Path) -> None:
    """The report of a short run of four sources."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        train(make_config(Path()), "run", STEPS)
        write_report(gather("run"), str(target))
        os.chdir(before)


def problems(
    browser: Browser, address: str, pages: list[str], pictures: Path | None
) -> Iterator[str]:
    """What is wrong with the pages: page, width, scheme, problem and element."""
    for scheme in SCHEMES:  # a page of the site remembers the scheme it began with
        context = browser.new_context(bypass_csp=True, color_scheme=scheme, reduced_motion="reduce")
        page = context.new_page()
        page.set_default_timeout(0)
        for name in pages:
            page.goto(address + name)
            page.add_style_tag(content=STILL)
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": HEIGHT})
                page.wait_for_timeout(50)
                form = f"{name} {width} {scheme}"
                yield from (f"{form}: {problem}" for problem in page.evaluate(PROBLEMS))
                if pictures is not None:
                    file = form.replace("/", "_").replace(" ", "_") + ".png"
                    page.screenshot(path=pictures / file)
        context.close()


def main() -> int:
    """Prints what is wrong; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=Path)
    parser.add_argument("--all", action="store_true", help="draw every page")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="leave pictures here")
    given = parser.parse_args()
    site = given.site.resolve()
    pages = sorted(str(page.relative_to(site)) for page in site.rglob("*.html"))
    if not given.all:
        pages = [page for page in pages if not page.startswith("api")][::3]
    write_sample_report(site / REPORT)
    pages = sorted({*pages, "index.html", REPORT})
    if given.pictures is not None:
        given.pictures.mkdir(parents=True, exist_ok=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        address = f"http://127.0.0.1:{server.server_port}/"
        count = 0
        for line in problems(browser, address, pages, given.pictures):
            print(line, flush=True)
            count += 1
        browser.close()
    print(f"{len(pages)} pages drawn, {count} problems")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
