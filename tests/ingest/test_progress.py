"""The bar: silent without a terminal, right where there is one."""

import io
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.ingest import SourceConfig, TokenizerConfig, build_cache, part_builder
from headrace.ingest.part_builder import show_progress
from headrace.ingest.progress import Progress


def build(folder: Path, *, progress: bool) -> None:
    if not (folder / "a.txt").exists():
        (folder / "a.txt").write_text("text")
    build_cache(
        SourceConfig([f"{folder}/a.txt"]),
        TokenizerConfig("bytes"),
        f"{folder}/cache",
        progress=progress,
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_silent_where_nobody_looks(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    build(tmp_path, progress=True)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("progress", [True, False])
def test_a_terminal_sees_a_bar_unless_it_is_not_wanted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, progress: bool
):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    build(tmp_path, progress=progress)
    assert ("building" in terminal.getvalue()) == progress
    before = terminal.getvalue()
    build(tmp_path, progress=True)  # finished: there is nothing to do, and so nothing to see
    assert terminal.getvalue() == before


def test_a_terminal_sees_share_and_rates(monkeypatch: pytest.MonkeyPatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    with show_progress(100, "building") as report:
        report(Progress(documents=1, tokens=10, text_bytes=30, stored_bytes=50))
    assert "50%" in terminal.getvalue()
    assert "tokens/s" in terminal.getvalue()


def test_rates_are_means_since_the_start(monkeypatch: pytest.MonkeyPatch):
    bar = SimpleNamespace(add_task=lambda *_, **__: 0, rates=[])
    bar.update = lambda task, advance, rate: bar.rates.append(rate)
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(part_builder.progress, "bar", lambda: nullcontext(bar))
    clock = iter([10.0, 11.0, 14.0])
    monkeypatch.setattr(part_builder, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with show_progress(100, "building") as report:
        report(Progress(5, 1_000_000, 2_000_000, 0))
        report(Progress(5, 1_000_000, 2_000_000, 0))
    assert bar.rates == ["1.00 M tokens/s  1.91 MiB/s", "500 k tokens/s  977 KiB/s"]
