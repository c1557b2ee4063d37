"""Pictures for the docs, each in light and in dark: the top of the reports of 1, 20 and 200 sources,
and the home page with the model of how headrace works.

    mkdocs build -d SITE && python scripts/figures/report_page.py SITE docs/images

Needs Chromium: apt-get install chromium, or HEADRACE_CHROMIUM.
"""

import math
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from headrace import (
    ComponentConfig,
    LmDataConfig,
    RunLog,
    SourceConfig,
    TokenizerConfig,
    build_cache,
    open_run,
)
from headrace.report.facts import gather
from headrace.report.page import write_report

WEIGHTS = {
    "code": 3.0,
    "papers": 2.0,
    "web": {"linear": {0: 4.0, 240: 1.0}},
    "chats": {"linear": {0: 0.1, 300: 2.0}},
}
WORDS = (
    "the river",
    "ran by",
    "a mill",
    "whose wheel",
    "turned",
    "slow and even",
    "while sacks of corn",
    "went up",
)
STEPS = 300
SOURCES = (1, 20, 200)
WIDTH = 760
HEIGHT = 1180


def many(sources: int) -> dict[str, object]:
    """Weights of so many sources, of which the first ones have the most."""
    names = list(WEIGHTS)
    return {f"{names[k % 4]}_{k:03}": 4 / (1 + k) for k in range(sources)}


def make_config(folder: Path, weights: Mapping[str, object] = WEIGHTS) -> LmDataConfig:
    """A short run of these sources."""
    rng = random.Random(0)
    components: dict[str, ComponentConfig] = {}
    for name, weight in weights.items():
        texts = folder / "texts" / name
        texts.mkdir(parents=True)
        for k in range(20):
            (texts / f"{k}.txt").write_text(" ".join(rng.choices(WORDS, k=rng.randint(300, 6000))))
        cache = str(folder / "caches" / name)
        build_cache(
            SourceConfig([str(texts)]),
            TokenizerConfig("bytes"),
            cache,
            progress=False,
            chunk_tokens=4096,
        )
        components[name] = ComponentConfig(cache, weight=weight)
    return LmDataConfig(components, seq_len=64, batch_size=32, num_steps=STEPS)


def train(config: LmDataConfig, run: str, steps: int) -> None:
    """The first steps of the run, by a trainer that takes its time."""
    rng = random.Random(1)
    with config.loader() as loader, RunLog(loader, run, config=config, every=2) as log:
        open_run(run, loader, step=0)
        for step, _ in zip(range(steps), loader.iter_from_step(0), strict=False):
            time.sleep(0.01)
            log(step, train={"loss": 2 + 6 * math.exp(-step / 60) + rng.random() / 10})


def chromium() -> str | None:
    """Where Chromium is, if it is not playwright's own."""
    return (
        os.environ.get("HEADRACE_CHROMIUM")
        or shutil.which("chromium")
        or shutil.which("chromium-browser")
    )


def picture(browser: Browser, address: str, scheme: str, part: str | None = None) -> Image.Image:
    """The first screen of a page, or one part of it in full."""
    page = browser.new_page(
        viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme, bypass_csp=True
    )
    page.goto(address)
    page.add_style_tag(content="header { position: static !important; }")
    page.wait_for_timeout(500)
    shot = page.screenshot() if part is None else page.locator(part).screenshot()
    page.close()
    return Image.open(BytesIO(shot)).convert("RGB")


def draw(browser: Browser, address: str, file: Path, part: str | None = None) -> None:
    """A page in light beside the same page in dark."""
    light = picture(browser, address, "light", part)
    dark = picture(browser, address, "dark", part)
    both = Image.new("RGB", (light.width + dark.width, light.height))
    both.paste(light, (0, 0))
    both.paste(dark, (light.width, 0))
    both.save(file, lossless=True, quality=100, method=6)


def main(site: Path, target: Path) -> None:
    """Draws the pictures."""
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        draw(browser, (site / "index.html").as_uri(), target / "home.webp", "main")
        os.chdir(place)  # so that the page shows paths as users see them
        for sources in SOURCES:
            run = f"runs/{sources}"
            train(make_config(Path(str(sources)), many(sources)), run, STEPS)
            write_report(gather(run), f"{sources}.html")
            draw(
                browser,
                Path(f"{sources}.html").resolve().as_uri(),
                target / f"report_{sources}.webp",
            )
        browser.close()


if __name__ == "__main__":
    main(*(Path(argument).resolve() for argument in sys.argv[1:]))
