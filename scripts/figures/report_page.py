"""The top of a report in light and in dark, and a live page in the middle of a run, as pictures for
the docs.

python scripts/figures/report_page.py docs/images     needs Chromium: apt-get install chromium, or HEADRACE_CHROMIUM
"""

import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from headrace import (
    ComponentConfig,
    LmDataConfig,
    RunLog,
    SourceConfig,
    TokenizerConfig,
    build_cache,
    open_run,
)
from headrace.report import gather, write_report

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
WIDTH = 760


def make_config(folder: Path) -> LmDataConfig:
    """A short run of four sources."""
    rng = random.Random(0)
    components: dict[str, ComponentConfig] = {}
    for name, weight in WEIGHTS.items():
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


@contextmanager
def live_page(run: str) -> Iterator[str]:
    """The address of a run's live page."""
    command = [sys.executable, "-m", "headrace", "run", "report", run, "--live", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        yield served.stdout.readline().split()[0]
        served.terminate()


def picture(page: Page, address: str, scheme: str, section: str | None = None) -> Image.Image:
    """What a screen of the page shows; from a section on, if one is named."""
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.goto(address)
    page.wait_for_selector("html[data-drawn]")
    if section is not None:
        for _ in range(3):  # sections take their height when they come into sight
            page.get_by_role("heading", name=section, exact=True).evaluate(
                "heading => heading.scrollIntoView()"
            )
            page.wait_for_timeout(500)
    return Image.open(BytesIO(page.screenshot()))


def main(folder: str) -> None:
    """Draws the pictures."""
    path = (
        os.environ.get("HEADRACE_CHROMIUM")
        or shutil.which("chromium")
        or shutil.which("chromium-browser")
    )
    target = Path(folder).resolve()
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        os.chdir(place)  # so that the page shows paths as users see them
        config = make_config(Path())
        train(config, "runs/7b", STEPS)
        write_report(gather("runs/7b"), "report.html")
        train(config, "runs/8b", STEPS // 2)
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 1180})
        address = Path("report.html").resolve().as_uri()
        halves = [picture(page, address, scheme) for scheme in ("light", "dark")]
        both = Image.new("RGB", (2 * WIDTH, halves[0].height))
        for k, half in enumerate(halves):
            both.paste(half, (k * WIDTH, 0))
        both.save(target / "report.png", optimize=True)
        page.set_viewport_size({"width": WIDTH, "height": 900})
        with live_page("runs/8b") as address:
            picture(page, address, "light", "Logged: rollouts and losses").save(
                target / "live.png", optimize=True
            )
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
