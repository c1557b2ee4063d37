"""The top of a report in light and in dark, as a picture for the docs.

python scripts/figures/report_page.py docs/images     needs Chromium: apt-get install chromium, or HEADRACE_CHROMIUM
"""

import math
import os
import random
import shutil
import sys
import tempfile
import time
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from headrace import ComponentConfig, LmDataConfig, RunLog, SourceConfig, TokenizerConfig, build_cache, open_run
from headrace.report import gather, write_report

WEIGHTS = {"code": 3.0, "papers": 2.0, "web": {"linear": {0: 4.0, 240: 1.0}}, "chats": {"linear": {0: 0.1, 300: 2.0}}}
WORDS = ("the river", "ran by", "a mill", "whose wheel", "turned", "slow and even", "while sacks of corn", "went up")
STEPS, WIDTH = 300, 760


def make_report(folder: Path) -> Path:
    """A short run of four sources whose trainer is slow at times, and its report."""
    rng = random.Random(0)
    components: dict[str, ComponentConfig] = {}
    for name, weight in WEIGHTS.items():
        texts = folder / "texts" / name
        texts.mkdir(parents=True)
        for k in range(20):
            (texts / f"{k}.txt").write_text(" ".join(rng.choices(WORDS, k=rng.randint(300, 6000))))
        cache = str(folder / "caches" / name)
        build_cache(SourceConfig([str(texts)]), TokenizerConfig("bytes"), cache, progress=False, chunk_tokens=4096)
        components[name] = ComponentConfig(cache, weight=weight)
    config = LmDataConfig(components, seq_len=64, batch_size=32, num_steps=STEPS)
    run = folder / "runs" / "7b"
    with config.loader() as loader, RunLog(loader, run, config=config, every=2) as log:
        open_run(str(run), loader, step=0)
        for step, _ in enumerate(loader.iter_from_step(0)):
            time.sleep(0.01)
            log(step, train={"loss": 2 + 6 * math.exp(-step / 60) + rng.random() / 10})
    page = folder / "report.html"
    write_report(gather(str(run)), str(page))
    return page


def picture(page: Page, report: Path, scheme: str) -> Image.Image:
    """The first screen of the page."""
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.goto(report.resolve().as_uri())
    page.wait_for_selector("html[data-drawn]")
    return Image.open(BytesIO(page.screenshot()))


def main(folder: str) -> None:
    """Draws the picture."""
    path = os.environ.get("HEADRACE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    target = Path(folder, "report.png").resolve()
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        os.chdir(place)  # so that the page shows paths as users see them
        report = make_report(Path())
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 1180})
        halves = [picture(page, report, scheme) for scheme in ("light", "dark")]
        both = Image.new("RGB", (2 * WIDTH, halves[0].height))
        for k, half in enumerate(halves):
            both.paste(half, (k * WIDTH, 0))
        both.save(target, optimize=True)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
